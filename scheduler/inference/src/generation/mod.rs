//! An answer of generated text in progress: all choices, as one sequence of events.
//!
//! | module | contents |
//! | --- | --- |
//! | [`choice`] | one choice, from the chunks of the engine to the parts for the client |
//! | [`format`](mod@format) | validation of answers that must be JSON |
//! | [`stream`] | the answer as server-sent events |
//! | [`whole`] | the answer as one document |

pub(crate) mod choice;
pub(crate) mod format;
pub(crate) mod stream;
pub(crate) mod whole;

use crate::outcome::PendingOutcome;
use choice::{Begun, Choice, Parts, Progress};
use format::{FormatCheck, Validation};
use omni_generation::{Delta, Usage};
use omni_request_error::Failure;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Instant;
use tokio::time::Sleep;

/// Bytes of text that count as one token where the engine does not count.
const BYTES_PER_TOKEN: u64 = 4;

/// Estimate of a text's tokens.
pub(crate) fn tokens_of(text: &str) -> u64 {
    (text.len() as u64).div_ceil(BYTES_PER_TOKEN)
}

/// Event of an answer.
#[derive(Debug)]
pub(super) enum Event {
    /// A choice has begun.
    Begun(Begun),
    /// Parts of the choice with this number.
    Parts(usize, Parts),
    /// All choices have ended; their usage.
    End(Usage),
    /// The answer has failed.
    Failed(Failure),
    /// No instance got the request before the model was handed over.
    NotSent,
}

/// An answer in progress. Dropped before its end, it cancels what runs.
#[derive(Debug)]
pub(crate) struct Generation {
    choices: Vec<Choice>,
    /// Choices for each prompt.
    per_prompt: usize,
    format: FormatCheck,
    /// Validation that is under way.
    validation: Option<Validation>,
    deadline: Pin<Box<Sleep>>,
    /// Choice that is polled first: the one after the last that had something.
    first: usize,
    usage: Usage,
    outcome: PendingOutcome,
}

impl Generation {
    /// The answer whose choices were submitted. `per_prompt`: choices for each prompt.
    pub(crate) fn new(
        choices: Vec<Choice>,
        per_prompt: usize,
        format: FormatCheck,
        (deadline, outcome): (Instant, PendingOutcome),
    ) -> Self {
        let deadline = Box::pin(tokio::time::sleep_until(deadline.into()));
        Self { choices, per_prompt, format, validation: None, deadline, first: 0, usage: Usage::default(), outcome }
    }

    /// Counts the answer as complete.
    pub(crate) fn on_complete(&mut self) {
        self.outcome.on_end(true, Instant::now());
    }

    /// Cancels what runs at the deadline, whether the answer is polled or not.
    pub(crate) fn cancel_at_deadline(&mut self) {
        self.choices.iter_mut().for_each(Choice::cancel_at_deadline);
    }

    /// Cancels what runs; the outcome is the caller's to count.
    pub(crate) fn cancel(&mut self) {
        self.outcome.leave();
        self.choices.iter_mut().for_each(Choice::cancel);
    }

    /// Returns true if a part is held for the validation at the end.
    pub(crate) fn holds(&self, delta: &Delta) -> bool {
        self.format.holds(delta)
    }

    /// Next event. Nothing follows an end or a failure, whose outcome is the caller's to count.
    pub(crate) async fn next(&mut self) -> Event {
        std::future::poll_fn(|context| self.poll(context)).await
    }

    fn poll(&mut self, context: &mut Context<'_>) -> Poll<Event> {
        let event = std::task::ready!(self.poll_event(context));
        match event {
            Event::Failed(_) | Event::NotSent => self.outcome.leave(),
            Event::Begun(_) | Event::Parts(..) | Event::End(_) => {}
        }
        Poll::Ready(event)
    }

    fn poll_event(&mut self, context: &mut Context<'_>) -> Poll<Event> {
        if let Poll::Ready(event) = self.poll_validation(context) {
            return Poll::Ready(event);
        }
        let (count, first) = (self.choices.len(), self.first);
        for number in (0..count).map(|turn| (first + turn) % count.max(1)) {
            if self.validation.is_some() {
                break; // one at a time
            }
            let Some(choice) = self.choices.get_mut(number).filter(|choice| !choice.is_over()) else { continue };
            if let Poll::Ready(progress) = choice.poll(context) {
                self.first = number + 1;
                if let Some(event) = self.on_progress(number, progress) {
                    return Poll::Ready(event);
                }
                if let Poll::Ready(event) = self.poll_validation(context) {
                    return Poll::Ready(event);
                }
            }
        }
        if self.validation.is_none() && self.choices.iter().all(Choice::is_over) {
            return Poll::Ready(Event::End(self.usage));
        }
        std::task::ready!(self.deadline.as_mut().poll(context));
        self.choices.iter_mut().for_each(Choice::on_deadline);
        Poll::Ready(Event::Failed(Failure::Deadline))
    }

    /// Polls the validation that is under way; pending where there is none.
    fn poll_validation(&mut self, context: &mut Context<'_>) -> Poll<Event> {
        let Some(validation) = &mut self.validation else { return Poll::Pending };
        let verdict = std::task::ready!(validation.poll(context));
        let parts = self.validation.take().map(Validation::into_parts);
        Poll::Ready(match (verdict, parts) {
            (Ok(()), Some((number, parts))) => self.on_parts(number, parts),
            (Ok(()), None) => Event::Failed(Failure::Died), // it was there
            (Err(failure), _) => Event::Failed(failure),
        })
    }

    /// The event of a choice's progress; `None` while its end is validated.
    fn on_progress(&mut self, number: usize, progress: Progress) -> Option<Event> {
        Some(match progress {
            Progress::Begun(begun) => Event::Begun(begun),
            Progress::Failed(failure) => Event::Failed(failure),
            Progress::NotSent => Event::NotSent,
            Progress::Parts(parts) => match self.format.check(number, parts) {
                Err(parts) => self.on_parts(number, parts),
                Ok(validation) => {
                    self.validation = Some(validation);
                    return None;
                }
            },
        })
    }

    fn on_parts(&mut self, number: usize, parts: Parts) -> Event {
        if let Some(finish) = &parts.finish {
            self.usage.add(finish.usage, !number.is_multiple_of(self.per_prompt));
        }
        Event::Parts(number, parts)
    }
}
