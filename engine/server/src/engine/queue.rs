//! Memory of requests that wait: counted from their submission until the first of their tokens is computed. Log
//! probabilities of a prompt are there whether somebody reads them or not, and are counted until their recipient is gone.
//!
//! | counted | bytes |
//! | --- | --- |
//! | prompt | 4 for each token, and 2 for the names of its blocks |
//! | biases, allowed and banned ids | 8 for each |
//! | grammar | 64 KiB, with the state of its parser |
//! | log probabilities of a prompt | an event for each token, and 8 for each alternative |
//! | all else of a request, with its channel | 2 KiB, and 64 for each choice |
//!
//! What a request holds beside that (positions of its prompt for drafts, counts of tokens) is made when it begins, and so
//! bounded by the sequences that are computed at a time.

use super::submission::{Event, Submission, Work};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Bytes of a token of a prompt.
const TOKEN: usize = 6;
/// Bytes of an id with what is said of it.
const ID: usize = 8;
/// Bytes of a grammar.
const GRAMMAR: usize = 64 << 10;
/// Bytes of a request without any of these.
const REQUEST: usize = 2 << 10;
/// Bytes of a choice.
const CHOICE: usize = 64;

/// Memory that requests which wait may take together.
#[derive(Debug, Clone)]
pub(super) struct QueueBudget {
    held: Arc<AtomicUsize>,
    most: usize,
}

/// Part of the budget, given back when it is dropped.
#[derive(Debug)]
pub(super) struct QueuePermit {
    held: Arc<AtomicUsize>,
    bytes: usize,
}

impl QueueBudget {
    pub(super) fn new(most: usize) -> Self {
        Self { held: Arc::default(), most }
    }

    /// Takes the memory of a request, and that of its prompt's log probabilities; `None`: others have too much. A request
    /// alone is always taken.
    pub(super) fn take(&self, submission: &Submission) -> Option<(QueuePermit, QueuePermit)> {
        let (own, scores) = (bytes_of(submission), bytes_of_scores(submission));
        let bytes = own.saturating_add(scores);
        let fits = |held: usize| {
            let sum = held.saturating_add(bytes);
            (held == 0 || sum <= self.most).then_some(sum)
        };
        self.held.fetch_update(Ordering::Relaxed, Ordering::Relaxed, fits).ok()?;
        Some((self.permit(own), self.permit(scores)))
    }

    fn permit(&self, bytes: usize) -> QueuePermit {
        QueuePermit { held: Arc::clone(&self.held), bytes }
    }

    /// Bytes that are taken.
    pub(super) fn held(&self) -> usize {
        self.held.load(Ordering::Relaxed)
    }
}

impl Drop for QueuePermit {
    fn drop(&mut self) {
        self.held.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

/// Bytes that a request takes while it waits.
fn bytes_of(submission: &Submission) -> usize {
    let prompt = submission.prompt.len().saturating_mul(TOKEN).saturating_add(REQUEST);
    let Work::Generate(generation) = &submission.work else { return prompt };
    let parameters = &generation.parameters;
    let ids = parameters.logit_bias.len() + parameters.banned.len() + parameters.allowed.as_ref().map_or(0, Vec::len);
    let grammar = if generation.grammar.is_some() { GRAMMAR } else { 0 };
    let choices = (generation.choices as usize).saturating_mul(CHOICE);
    prompt.saturating_add(ids.saturating_mul(ID)).saturating_add(grammar).saturating_add(choices)
}

/// Bytes of the log probabilities of a request's prompt.
fn bytes_of_scores(submission: &Submission) -> usize {
    match &submission.work {
        Work::Generate(generation) if generation.prompt_logprobs => {
            let alternatives = usize::from(generation.parameters.logprobs.unwrap_or(0));
            submission.prompt.len().saturating_mul(size_of::<Event>() + alternatives * ID)
        }
        Work::Generate(_) | Work::Embed => 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::Generation;
    use omni_kv_cache::Root;
    use omni_sampler::Parameters;

    fn submission(tokens: usize, work: Work) -> Submission {
        let root = Root::default().digest();
        Submission { prompt: vec![1; tokens].into(), work, priority: 0, deadline: None, root }
    }

    #[test]
    fn all_that_a_client_chooses_is_counted() {
        let plain = bytes_of(&submission(1000, Work::Embed));
        assert_eq!(plain, 1000 * TOKEN + REQUEST);
        let parameters = Parameters {
            logit_bias: vec![(1, 1.0); 10],
            banned: vec![1; 20],
            allowed: Some(vec![1; 30]),
            ..Parameters::default()
        };
        let generation = Generation { parameters, max_tokens: 9, choices: 3, grammar: None, prompt_logprobs: false };
        let all = bytes_of(&submission(1000, Work::Generate(Box::new(generation))));
        assert_eq!(all, plain + 60 * ID + 3 * CHOICE);
    }

    #[test]
    fn log_probabilities_of_a_prompt_are_counted_apart() {
        let parameters = Parameters { logprobs: Some(5), ..Parameters::default() };
        let generation = Generation { parameters, max_tokens: 1, choices: 1, grammar: None, prompt_logprobs: true };
        let budget = QueueBudget::new(200_000);
        let (own, scores) = budget.take(&submission(1000, Work::Generate(Box::new(generation.clone())))).unwrap();
        drop(own);
        assert_eq!(budget.held(), 1000 * (size_of::<Event>() + 5 * ID));
        let other = submission(2000, Work::Generate(Box::new(generation)));
        assert!(budget.take(&other).is_none(), "nobody has read the first ones");
        drop(scores);
        assert!(budget.take(&other).is_some());
    }

    #[test]
    fn requests_take_memory_until_they_begin_and_one_alone_is_always_taken() {
        let budget = QueueBudget::new(10_000);
        let large = submission(100_000, Work::Embed);
        let alone = budget.take(&large).unwrap();
        assert!(budget.held() > 600_000 && budget.take(&submission(1, Work::Embed)).is_none());
        drop(alone);
        let small: Vec<_> = std::iter::from_fn(|| budget.take(&submission(1, Work::Embed))).collect();
        assert_eq!((small.len(), budget.held()), (4, 4 * (REQUEST + TOKEN)));
        assert!(budget.take(&large).is_none());
        drop(small);
        assert_eq!(budget.held(), 0);
    }
}
