//! Drafts copied from the sequence itself: what followed the last tokens where they last were before.
//!
//! Index: the latest position after each pair and each triple of tokens. A token is entered once, in constant time; a
//! draft takes time in its own length.

use std::collections::HashMap;

/// Most tokens of a sequence that are indexed, some 40 bytes each. Later ones find drafts in the earlier.
const MOST_INDEXED: usize = 1 << 18;

/// Index of one sequence.
#[derive(Debug, Clone, Default)]
pub struct PromptLookup {
    triples: HashMap<[u32; 3], u32>,
    pairs: HashMap<[u32; 2], u32>,
    /// Number of tokens whose place after the ones before them is in the index.
    indexed: usize,
}

impl PromptLookup {
    /// Index without contents, with room for a sequence of that many tokens.
    #[must_use]
    pub fn with_capacity(tokens: usize) -> Self {
        let room = tokens.min(MOST_INDEXED);
        Self { triples: HashMap::with_capacity(room), pairs: HashMap::with_capacity(room), indexed: 0 }
    }

    /// Enters the tokens that were added to the sequence since the last call: prompt and accepted tokens, no drafts.
    pub fn update(&mut self, sequence: &[u32]) {
        let end = sequence.len().min(MOST_INDEXED);
        for position in self.indexed..end {
            let before = &sequence[..position];
            if let Some(&pair) = before.last_chunk() {
                self.pairs.insert(pair, position as u32);
            }
            if let Some(&triple) = before.last_chunk() {
                self.triples.insert(triple, position as u32);
            }
        }
        self.indexed = self.indexed.max(end);
    }

    /// Writes a draft of at most `longest` tokens after the sequence, whose tokens are in the index. No draft where its
    /// last two tokens were never together before.
    pub fn draft(&self, sequence: &[u32], longest: usize, draft: &mut Vec<u32>) {
        draft.clear();
        let triple = sequence.last_chunk().and_then(|triple| self.triples.get(triple));
        let found = triple.or_else(|| sequence.last_chunk().and_then(|pair| self.pairs.get(pair)));
        let Some(&source) = found else { return };
        for position in (source as usize..).take(longest) {
            // A repetition that reaches the sequence's end goes on with itself.
            let token = sequence.get(position).copied().or_else(|| draft.get(position - sequence.len()).copied());
            match token {
                Some(token) => draft.push(token),
                None => break,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::time::Instant;

    fn draft_of(sequence: &[u32], longest: usize) -> Vec<u32> {
        let mut lookup = PromptLookup::default();
        lookup.update(sequence);
        let mut draft = vec![99];
        lookup.draft(sequence, longest, &mut draft);
        draft
    }

    #[test]
    fn drafts_follow_the_latest_triple_then_the_latest_pair() {
        for (sequence, expected) in [
            (vec![1, 2, 3, 4, 5, 6, 1, 2, 3], vec![4, 5, 6, 1]),
            // The triple is further back than the pair, and goes first.
            (vec![1, 2, 3, 4, 9, 2, 3, 5, 1, 2, 3], vec![4, 9, 2, 3]),
            (vec![7, 2, 3, 4, 9, 2, 3, 5, 1, 2, 3], vec![5, 1, 2, 3]),
            (vec![1, 2, 3, 8, 1, 2, 3, 9, 1, 2, 3], vec![9, 1, 2, 3]),
            // A repetition goes on.
            (vec![5, 1, 2, 1, 2, 1, 2], vec![1, 2, 1, 2]),
            (vec![4, 4, 4], vec![4, 4, 4, 4]),
            (vec![1, 2, 3, 4], vec![]),
            (vec![1], vec![]),
            (vec![], vec![]),
        ] {
            assert_eq!(draft_of(&sequence, 4), expected, "{sequence:?}");
        }
        assert_eq!(draft_of(&[1, 2, 3, 4, 1, 2], 0), Vec::<u32>::new());
    }

    proptest! {
        #[test]
        fn an_index_of_any_increments_is_that_of_the_whole(
            tokens in prop::collection::vec(0u32..6, 0..80), cut in 0usize..80,
        ) {
            let mut lookup = PromptLookup::default();
            lookup.update(&tokens[..cut.min(tokens.len())]);
            lookup.update(&tokens);
            let mut draft = Vec::new();
            lookup.draft(&tokens, 8, &mut draft);
            prop_assert_eq!(&draft, &draft_of(&tokens, 8));
            // By a search of the whole sequence.
            let latest = |length: usize| {
                let end = tokens.len().checked_sub(length)?;
                (length..tokens.len()).rev().find(|&at| tokens[at - length..at] == tokens[end..])
            };
            let source = latest(3).or_else(|| latest(2));
            prop_assert_eq!(draft.first().copied(), source.map(|source| tokens[source]));
        }
    }

    #[test]
    fn work_is_linear_and_memory_bounded() {
        let mut random = fastrand::Rng::with_seed(4);
        let sequence: Vec<u32> = (0..MOST_INDEXED + 1000).map(|_| random.u32(..50_000)).collect();
        let (mut lookup, mut draft) = (PromptLookup::default(), Vec::new());
        let start = Instant::now();
        for end in 1..=sequence.len() {
            lookup.update(&sequence[..end]);
            lookup.draft(&sequence[..end], 8, &mut draft);
        }
        // Quadratic work would be 3e10 comparisons.
        assert!(start.elapsed().as_secs() < 20, "{:?}", start.elapsed());
        assert!(lookup.pairs.len() <= MOST_INDEXED && lookup.triples.len() <= MOST_INDEXED);
    }
}
