//! Drafts of one answer: copied from its own text, or of the draft model once that follows it.

use super::submission::Token;
use omni_sampler::Sampler;
use omni_speculation::{DraftPolicy, PromptLookup};

/// Most tokens of a draft.
pub(super) const LONGEST_DRAFT: usize = 8;
/// Longest answer that memory is taken for at once.
const ANSWER: usize = 4096;
/// Time of a step of the draft model before one was measured, as a share of a step of the model.
const UNKNOWN_ROUND: f64 = 0.1;

/// Cost of a token of the draft model that pays for no text: more than that share of tokens would have to be accepted.
const TOO_MUCH: f64 = 0.8;

/// Costs of a drafted token of a sequence, as shares of the time that a plain step takes for this sequence.
#[derive(Debug, Clone, Copy)]
pub(super) struct DraftCosts {
    /// Row of logits that verifies it.
    pub(super) row: f64,
    /// Step of the draft model.
    pub(super) round: Option<f64>,
}

/// Drafts of an answer.
pub(super) struct Drafts {
    /// Prompt and answer.
    sequence: Vec<u32>,
    lookup: PromptLookup,
    policy: DraftPolicy,
    /// The draft model follows the sequence.
    by_model: bool,
    /// Draft that the batcher was given.
    draft: Vec<u32>,
}

impl Drafts {
    /// Drafts after a prompt.
    pub(super) fn new(prompt: &[u32], max_tokens: usize) -> Self {
        let mut sequence = Vec::with_capacity(prompt.len() + max_tokens.min(ANSWER));
        sequence.extend_from_slice(prompt);
        let (lookup, policy) = (PromptLookup::default(), DraftPolicy::new(LONGEST_DRAFT));
        Self { sequence, lookup, policy, by_model: false, draft: Vec::new() }
    }

    /// Prompt and answer.
    pub(super) fn sequence(&self) -> &[u32] {
        &self.sequence
    }

    /// Beginning of the draft that was computed.
    pub(super) fn verified(&self, tokens: usize) -> &[u32] {
        self.draft.get(..tokens).unwrap_or_default()
    }

    /// Appends tokens of the answer. The draft is over.
    pub(super) fn accept(&mut self, tokens: &[Token]) {
        self.sequence.extend(tokens.iter().map(|token| token.id));
        self.draft.clear();
    }

    /// Returns true if the draft model follows the sequence.
    pub(super) fn is_by_model(&self) -> bool {
        self.by_model
    }

    /// Notes whether the draft model follows the sequence from now on. What was learned of the other source is forgotten.
    pub(super) fn follow(&mut self, by_model: bool) {
        if self.by_model != by_model {
            self.by_model = by_model;
            self.policy = DraftPolicy::new(LONGEST_DRAFT);
        }
    }

    /// Notes what the last draft has brought.
    pub(super) fn note(&mut self, drafted: usize, accepted: usize, costs: DraftCosts) {
        if drafted > 0 {
            self.policy.drafted(drafted, accepted, self.cost(costs));
        } else {
            self.policy.plain();
        }
    }

    /// Length of the next draft.
    pub(super) fn length(&self, costs: DraftCosts) -> usize {
        self.policy.length(self.cost(costs))
    }

    /// Draft that was found.
    pub(super) fn draft(&self) -> &[u32] {
        &self.draft
    }

    /// Copies a draft of at most `longest` tokens from the sequence.
    pub(super) fn look_up(&mut self, longest: usize, sampler: &mut Sampler) {
        self.lookup.update(&self.sequence);
        self.lookup.draft(&self.sequence, longest, &mut self.draft);
        self.draft.truncate(sampler.plausible(&self.draft));
    }

    /// Takes a draft of the draft model.
    pub(super) fn take(&mut self, draft: &[u32]) {
        self.draft.clear();
        self.draft.extend_from_slice(draft);
    }

    fn cost(&self, costs: DraftCosts) -> f64 {
        if self.by_model { costs.by_model() } else { costs.row.min(1.0) }
    }
}

impl DraftCosts {
    /// Returns true if drafts of the draft model can pay.
    pub(super) fn may_pay(self) -> bool {
        self.by_model() < TOO_MUCH
    }

    fn by_model(self) -> f64 {
        (self.row + self.round.unwrap_or(UNKNOWN_ROUND)).min(1.0)
    }
}
