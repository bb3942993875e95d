//! State of a draft model beside a sequence: positions that are computed, and the draft. Has no backend.
//!
//! ```text
//!  next ──▶ tokens to compute ──▶ (backend) ──▶ logits of the last ──▶ (sampler) ──▶ add ──▶ next …
//!                                 after the target's verification: verified
//! ```
//!
//! The tokens of a draft are sampled by a clone of the target's sampler, made at its beginning: it has the same
//! parameters, grammar and random number of each position. Where both distributions are alike, the same number chooses
//! the same token.
//!
//! Keys and values of tokens that were rejected stay in the draft model's cache until later tokens of the same
//! positions overwrite them: a step always begins at the first position that is not known to be right.

/// Tokens that a draft model computes next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DraftStep<'a> {
    /// Position of the first token.
    pub start: usize,
    /// Tokens of the sequence from there; the logits of the last token, drafted or not, are needed.
    pub accepted: &'a [u32],
    /// Drafted tokens that follow.
    pub drafted: &'a [u32],
}

/// State of a draft model for one sequence.
#[derive(Debug, Clone, Default)]
pub struct DraftModel {
    /// Positions whose keys and values in the draft model's cache are of the sequence and its draft.
    computed: usize,
    drafted: Vec<u32>,
}

impl DraftModel {
    /// State without anything computed, with room for drafts of that length.
    #[must_use]
    pub fn with_capacity(longest: usize) -> Self {
        Self { computed: 0, drafted: Vec::with_capacity(longest) }
    }

    /// Next step towards a draft of `longest` tokens after the sequence, with at most `most` tokens; `None` once the
    /// draft is there. Call [`DraftModel::computed`] after it.
    #[must_use]
    pub fn next<'a>(&'a self, sequence: &'a [u32], longest: usize, most: usize) -> Option<DraftStep<'a>> {
        if self.drafted.len() >= longest || most == 0 {
            return None;
        }
        let start = self.computed;
        let accepted = sequence.get(start..).unwrap_or_default();
        let drafted = &self.drafted[start.saturating_sub(sequence.len()).min(self.drafted.len())..];
        let accepted = &accepted[..accepted.len().min(most)];
        let drafted = &drafted[..drafted.len().min(most - accepted.len())];
        (accepted.len() + drafted.len() > 0).then_some(DraftStep { start, accepted, drafted })
    }

    /// Notes that the first `tokens` tokens of the step were computed. Returns true if the next token of the draft is
    /// to be sampled from the last one's logits, and given to [`DraftModel::add`].
    pub fn computed(&mut self, sequence: &[u32], tokens: usize) -> bool {
        let end = sequence.len() + self.drafted.len();
        self.computed = (self.computed + tokens).min(end);
        self.computed == end
    }

    /// Adds a token to the draft.
    pub fn add(&mut self, token: u32) {
        self.drafted.push(token);
    }

    /// The draft.
    #[must_use]
    pub fn draft(&self) -> &[u32] {
        &self.drafted
    }

    /// Forgets the draft after its verification. `length` is that of the sequence before, and `accepted` the tokens
    /// that were added to it: those of the draft that are among them need not be computed again.
    pub fn verified(&mut self, length: usize, accepted: &[u32]) {
        let right = self.drafted.iter().zip(accepted).take_while(|(drafted, accepted)| drafted == accepted).count();
        // The last token is computed in any case: its logits are needed.
        self.computed = self.computed.min(length + right.min(accepted.len().saturating_sub(1)));
        self.drafted.clear();
    }

    /// Forgets what was computed: the draft model's cache was given up.
    pub fn reset(&mut self) {
        self.computed = 0;
        self.drafted.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Cache of a draft model: the token of each position.
    fn compute(cache: &mut Vec<u32>, step: DraftStep<'_>) -> usize {
        assert!(step.start <= cache.len(), "positions are computed in order");
        cache.truncate(step.start);
        cache.extend(step.accepted.iter().chain(step.drafted));
        step.accepted.len() + step.drafted.len()
    }

    proptest! {
        #[test]
        fn every_drafted_token_is_sampled_after_exactly_the_tokens_before_it(
            prompt in prop::collection::vec(0u32..5, 1..20),
            rounds in prop::collection::vec((prop::collection::vec(0u32..3, 1..6), 0usize..5, 1usize..6), 1..10),
        ) {
            let (mut sequence, mut model, mut cache) = (prompt, DraftModel::with_capacity(4), Vec::new());
            for (accepted, longest, most) in rounds {
                let mut work = 0;
                while let Some(step) = model.next(&sequence, longest, most) {
                    let tokens = compute(&mut cache, step);
                    work += tokens;
                    prop_assert!(tokens <= most);
                    if model.computed(&sequence, tokens) {
                        let expected: Vec<u32> = sequence.iter().chain(model.draft()).copied().collect();
                        prop_assert_eq!(&cache, &expected);
                        model.add((cache.len() % 3) as u32);
                    }
                }
                prop_assert_eq!(model.draft().len(), longest);
                prop_assert!(work <= sequence.len() + longest);
                model.verified(sequence.len(), &accepted);
                sequence.extend(accepted);
            }
        }
    }

    #[test]
    fn accepted_tokens_of_a_draft_are_not_computed_again() {
        let (mut model, mut cache, sequence) = (DraftModel::with_capacity(3), Vec::new(), [1, 2, 3]);
        for token in [7, 8, 9] {
            let step = model.next(&sequence, 3, 100).unwrap();
            let tokens = compute(&mut cache, step);
            assert!(model.computed(&sequence, tokens));
            model.add(token);
        }
        assert_eq!(model.next(&sequence, 3, 100), None);
        model.verified(3, &[7, 8, 4]);
        let step = model.next(&[1, 2, 3, 7, 8, 4], 3, 100).unwrap();
        assert_eq!((step.start, step.accepted, step.drafted), (5, &[4][..], &[][..]));
    }
}
