//! Perplexity of a model over a text: the exponential of the mean negative log probability of its tokens.

use omni_kernels::{BLOCK, Backend, BackendError, BlockId, Capacity, Segment, StepPlan};
use omni_sampler::{SampleError, Sampler, Vocabulary, Workspace};
use serde::Serialize;

/// Tokens of a step.
const CHUNK: usize = 128;

/// Result.
#[derive(Debug, Serialize)]
pub struct Perplexity {
    /// Perplexity of all windows.
    pub perplexity: f64,
    /// Perplexity of each window.
    pub windows: Vec<f64>,
    /// Tokens whose probability counts: all of a window but its first.
    pub tokens: usize,
}

/// Reason why a perplexity cannot be computed.
#[derive(Debug, thiserror::Error)]
pub enum PerplexityError {
    /// The text is too short.
    #[error("the text has {tokens} tokens, fewer than a window of {window}")]
    Short {
        /// Tokens of the text.
        tokens: usize,
        /// Tokens of a window.
        window: usize,
    },
    /// A window has no token that another one comes before.
    #[error("a window needs at least 2 tokens")]
    Window,
    /// The backend has failed.
    #[error(transparent)]
    Backend(#[from] BackendError),
    /// A token is outside of the vocabulary.
    #[error(transparent)]
    Sample(#[from] SampleError),
}

/// Computes the perplexity over windows of a text, at most `most` of them, each without what comes before it.
///
/// # Errors
/// The text is shorter than a window, or the backend fails.
pub fn run<B: Backend>(
    backend: &mut B,
    vocabulary: &Vocabulary,
    tokens: &[u32],
    (window, most): (usize, usize),
) -> Result<Perplexity, PerplexityError> {
    if window < 2 {
        return Err(PerplexityError::Window);
    }
    if tokens.len() < window {
        return Err(PerplexityError::Short { tokens: tokens.len(), window });
    }
    let blocks = u32::try_from(window.div_ceil(BLOCK)).unwrap_or(u32::MAX);
    backend.reserve(Capacity { blocks, tokens: CHUNK, segments: 1, logits: CHUNK })?;
    let mut workspace = Workspace::new(vocabulary);
    let (mut windows, mut sum) = (Vec::new(), 0.0);
    for tokens in tokens.chunks_exact(window).take(most) {
        let loss = loss(backend, vocabulary, tokens, &mut workspace)?;
        windows.push((loss / (window - 1) as f64).exp());
        sum += loss;
    }
    let counted = windows.len() * (window - 1);
    Ok(Perplexity { perplexity: (sum / counted as f64).exp(), windows, tokens: counted })
}

/// Sum of the negative log probabilities of a window.
fn loss<B: Backend>(
    backend: &mut B,
    vocabulary: &Vocabulary,
    tokens: &[u32],
    workspace: &mut Workspace,
) -> Result<f64, PerplexityError> {
    let (mut plan, mut sum) = (StepPlan::default(), 0.0);
    for start in (0..tokens.len() - 1).step_by(CHUNK) {
        let end = (start + CHUNK).min(tokens.len() - 1);
        plan.clear();
        plan.tokens.extend_from_slice(&tokens[start..end]);
        plan.blocks.extend((0..end.div_ceil(BLOCK)).filter_map(|block| u32::try_from(block).ok()).map(BlockId));
        let logits = end - start;
        plan.segments.push(Segment { tokens: 0..logits, start, blocks: 0..plan.blocks.len(), logits });
        backend.step(&plan)?;
        for row in 0..logits {
            let logprob = Sampler::score(vocabulary, backend.row(row), tokens[start + row + 1], 0, workspace)?;
            sum -= f64::from(logprob);
        }
    }
    Ok(sum)
}

#[cfg(test)]
mod tests {
    use super::*;
    use omni_kernels_fake::{Cost, SimulatedBackend};

    const VOCABULARY: usize = 50;

    fn backend() -> (SimulatedBackend, Vocabulary) {
        (SimulatedBackend::new(VOCABULARY, Cost::default()), Vocabulary::new(VOCABULARY, &[]).unwrap())
    }

    fn text(length: usize) -> Vec<u32> {
        (0..length).map(|at| (at * 7 % VOCABULARY) as u32).collect()
    }

    /// Perplexity of a window by the formula, token by token.
    fn by_hand(window: &[u32]) -> f64 {
        let (mut backend, _) = backend();
        let blocks = window.len().div_ceil(BLOCK) as u32;
        backend.reserve(Capacity { blocks, tokens: 1, segments: 1, logits: 1 }).unwrap();
        let mut sum = 0.0;
        for (at, pair) in window.windows(2).enumerate() {
            let plan = StepPlan {
                tokens: vec![pair[0]],
                blocks: (0..=at as u32 / BLOCK as u32).map(BlockId).collect(),
                segments: vec![Segment { tokens: 0..1, start: at, blocks: 0..at / BLOCK + 1, logits: 1 }],
                ..StepPlan::default()
            };
            backend.step(&plan).unwrap();
            let row: Vec<f64> = backend.row(0).iter().copied().map(f64::from).collect();
            sum += row.iter().map(|logit| logit.exp()).sum::<f64>().ln() - row[pair[1] as usize];
        }
        (sum / (window.len() - 1) as f64).exp()
    }

    #[test]
    fn windows_are_computed_apart_and_counted_alike() {
        let (mut backend, vocabulary) = backend();
        // More than a step, and a rest that is no window.
        let (window, text) = (CHUNK + 40, text(3 * CHUNK + 140));
        let found = run(&mut backend, &vocabulary, &text, (window, 10)).unwrap();
        assert_eq!((found.windows.len(), found.tokens), (3, 3 * (window - 1)));
        for (number, perplexity) in found.windows.iter().enumerate() {
            let expected = by_hand(&text[number * window..][..window]);
            assert!((perplexity / expected - 1.0).abs() < 1e-4, "window {number}: {perplexity}, {expected}");
        }
        let mean = found.windows.iter().map(|perplexity| perplexity.ln()).sum::<f64>() / 3.0;
        assert!((found.perplexity / mean.exp() - 1.0).abs() < 1e-9);
        assert_eq!(run(&mut backend, &vocabulary, &text, (window, 2)).unwrap().windows, found.windows[..2]);
    }

    #[test]
    fn what_has_no_perplexity_is_refused() {
        let (mut backend, vocabulary) = backend();
        let mut refusal = |text: &[u32], window| {
            run(&mut backend, &vocabulary, text, (window, 10)).expect_err("a refusal").to_string()
        };
        assert_eq!(refusal(&text(9), 10), "the text has 9 tokens, fewer than a window of 10");
        assert_eq!(refusal(&text(9), 1), "a window needs at least 2 tokens");
        assert!(refusal(&[1, VOCABULARY as u32 + 3, 2], 3).contains("53"));
    }
}
