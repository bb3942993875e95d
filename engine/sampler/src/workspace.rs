//! Memory that sampling reuses from row to row.

use crate::parameters::{MOST_ALTERNATIVES, Vocabulary};
use crate::row::BLOCK;

/// Number of buckets: eight to a power of two, for weights of at most 1.
pub(crate) const BUCKETS: usize = (0x3F80_0000 >> BUCKET_SHIFT) + 1;
/// Bits of a weight that its bucket does not see.
pub(crate) const BUCKET_SHIFT: u32 = 20;

/// Token with its log probability.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Alternative {
    /// Token id.
    pub token: u32,
    /// Natural logarithm of its probability.
    pub logprob: f32,
}

/// Memory of one thread's sampling: some 20 bytes for each token of the vocabulary, all taken at once.
#[derive(Debug)]
pub struct Workspace {
    /// Largest logit of each block of the row.
    pub(crate) maxima: Vec<f32>,
    /// The same to be put into another order.
    pub(crate) order: Vec<f32>,
    /// Weight of each token of the row.
    pub(crate) weights: Vec<f32>,
    /// Sum of the weights of each block.
    pub(crate) sums: Vec<f32>,
    /// Tokens as keys, see `selection`.
    pub(crate) keys: Vec<u64>,
    /// Sum of the weights in each bucket.
    pub(crate) histogram: Vec<f64>,
    /// Logits before they were adjusted.
    pub(crate) originals: Vec<(u32, f32)>,
    /// Alternatives of the last row.
    pub(crate) alternatives: Vec<Alternative>,
}

impl Workspace {
    /// Memory for rows of a vocabulary.
    #[must_use]
    pub fn new(vocabulary: &Vocabulary) -> Self {
        let (tokens, blocks) = (vocabulary.size(), vocabulary.size().div_ceil(BLOCK));
        Self {
            maxima: Vec::with_capacity(blocks),
            order: Vec::with_capacity(blocks),
            weights: Vec::with_capacity(tokens),
            sums: Vec::with_capacity(blocks),
            keys: Vec::with_capacity(tokens),
            histogram: Vec::with_capacity(BUCKETS),
            originals: Vec::with_capacity(tokens),
            alternatives: Vec::with_capacity(MOST_ALTERNATIVES),
        }
    }

    /// Alternatives of the last row, most probable first; empty if none were asked for.
    #[must_use]
    pub fn alternatives(&self) -> &[Alternative] {
        &self.alternatives
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Choice, Parameters, Sampler};

    fn capacities(workspace: &Workspace) -> [usize; 8] {
        let Workspace { maxima, order, weights, sums, keys, histogram, originals, alternatives } = workspace;
        let [first, second, third, fourth] = [maxima, order, weights, sums].map(Vec::capacity);
        let (keys, histogram) = (keys.capacity(), histogram.capacity());
        [first, second, third, fourth, keys, histogram, originals.capacity(), alternatives.capacity()]
    }

    #[test]
    fn no_row_needs_more_memory_than_was_taken() {
        let vocabulary = Vocabulary::new(5000, &[]).unwrap();
        let mut workspace = Workspace::new(&vocabulary);
        let taken = capacities(&workspace);
        let mut random = fastrand::Rng::with_seed(3);
        for round in 0..60 {
            let parameters = Parameters {
                temperature: [0.0, 0.1, 1.0, 100.0][round % 4],
                top_k: [None, Some(50), Some(4999)][round % 3],
                top_p: [1.0, 0.99][round % 2],
                min_p: [0.0, 1e-6, 0.1][round / 3 % 3],
                presence_penalty: 1.0,
                logit_bias: (0..100).map(|id| (id, 1.0)).collect(),
                logprobs: Some(20),
                ..Parameters::default()
            };
            let mut sampler = Sampler::new(&parameters, &vocabulary, Choice::default()).unwrap();
            for _ in 0..5 {
                let mut row: Vec<f32> = (0..5000).map(|_| random.f32() * (round % 5) as f32).collect();
                let sampled = sampler.sample(&mut row, &mut workspace).unwrap();
                sampler.accept(sampled.token).unwrap();
            }
        }
        assert_eq!(capacities(&workspace), taken);
    }
}
