//! Memory of an answer: what is held until its end, and what waits for its client. It counts against the model's share.

use omni_body::{BodyPermit, BudgetShare};
use omni_generation::{Delta, TokenInfo};
use omni_request_error::Failure;
use std::sync::Arc;
use std::time::Instant;

/// Longest whole answer, in bytes: that of any other answer.
pub(crate) const LONGEST_WHOLE: u64 = 64 * 1024 * 1024;
/// Most bytes that are held for the end of a stream, which repeats them up to four times.
pub(crate) const LONGEST_HELD: u64 = 16 * 1024 * 1024;
/// Bytes that are reserved at once. As many wait for the client of a stream without being counted.
const STEP: u64 = 64 * 1024;
/// Bytes of a call, a token or an alternative beside its texts.
const EACH: u64 = 64;

/// Memory of one answer.
#[derive(Debug)]
pub(crate) struct AnswerMemory {
    permit: BodyPermit,
    held: u64,
    longest: u64,
}

impl AnswerMemory {
    /// The memory of an answer of which at most so many bytes are held.
    pub(crate) fn new(share: &Arc<BudgetShare>, longest: u64) -> Self {
        Self { permit: share.body(), held: 0, longest }
    }

    /// Counts bytes that are held until the end.
    ///
    /// # Errors
    /// The answer is too long, or there is no memory for it.
    pub(crate) fn hold(&mut self, bytes: u64) -> Result<(), Failure> {
        let held = self.held + bytes;
        if held > self.longest {
            return Err(too_long(self.longest));
        }
        self.grow_to(held)?;
        self.held = held;
        Ok(())
    }

    /// Reserves memory for what is held, and for so many bytes that wait for the client.
    ///
    /// # Errors
    /// There is none.
    pub(crate) fn reserve(&mut self, waiting: u64) -> Result<(), Failure> {
        self.grow_to(self.held + waiting.saturating_sub(STEP))
    }

    fn grow_to(&mut self, needed: u64) -> Result<(), Failure> {
        let missing = needed.saturating_sub(self.permit.bytes());
        if missing > 0 && !self.permit.grow(missing.next_multiple_of(STEP), Instant::now()) {
            return Err(Failure::AnswerNotKept);
        }
        Ok(())
    }

    /// Permit of the memory.
    pub(crate) fn into_permit(self) -> BodyPermit {
        self.permit
    }
}

/// Failure of an answer beyond so many bytes.
pub(crate) fn too_long(longest: u64) -> Failure {
    Failure::AnswerNotSendable(format!("it is longer than {longest} bytes"))
}

/// Bytes that a part takes where it is held.
pub(crate) fn size(delta: &Delta) -> u64 {
    let length = |text: &String| text.len() as u64;
    match delta {
        Delta::Content(text) | Delta::Reasoning(text) | Delta::CallArguments { text, .. } => length(text),
        Delta::CallStart { id, name, .. } => 2 * EACH + length(id) + length(name),
    }
}

/// Bytes that tokens with their log probabilities take.
pub(crate) fn size_of_tokens(tokens: &[TokenInfo]) -> u64 {
    let top = |token: &TokenInfo| token.top.iter().map(|other| EACH + other.text.len() as u64).sum::<u64>();
    tokens.iter().map(|token| 2 * EACH + token.text.len() as u64 + top(token)).sum()
}

#[cfg(test)]
mod tests {
    use super::*;
    use omni_body::{BodyBudget, BodyMetrics};
    use omni_generation::Alternative;

    #[test]
    fn what_is_held_and_what_waits_is_counted() {
        let budget = BodyBudget::new(64 * STEP, 1, BodyMetrics::default());
        let mut memory = AnswerMemory::new(&budget.share(), 8 * STEP);
        memory.reserve(STEP).unwrap();
        assert_eq!(budget.reserved(), 0, "a little is free");
        memory.reserve(3 * STEP).unwrap();
        assert_eq!(budget.reserved(), 2 * STEP);
        memory.hold(1).unwrap();
        assert_eq!(budget.reserved(), 2 * STEP, "that was reserved");
        memory.hold(4 * STEP).unwrap();
        assert_eq!(budget.reserved(), 5 * STEP);
        assert!(matches!(memory.hold(4 * STEP), Err(Failure::AnswerNotSendable(_))));
        assert_eq!(memory.reserve(1000 * STEP), Err(Failure::AnswerNotKept));
        drop(memory.into_permit());
        assert_eq!(budget.reserved(), 0);
    }

    #[test]
    fn calls_and_tokens_take_more_than_their_texts() {
        assert_eq!(size(&Delta::Content("abc".to_owned())), 3);
        assert!(size(&Delta::CallStart { call: 0, id: String::new(), name: String::new() }) >= 100);
        let other = Alternative { text: "yy".to_owned(), bytes: None, logprob: -1.0 };
        let token = TokenInfo { text: "x".to_owned(), bytes: None, id: None, logprob: None, top: vec![other; 20] };
        assert!(size_of_tokens(&[token.clone(), token]) > 2 * 20 * 60);
    }
}
