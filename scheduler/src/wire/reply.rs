//! What a model answers, on its way from the model's task to the HTTP handler that waits for it.

use super::stream::Reader;
use crate::model::content::Content;
use bytes::Bytes;
use omni_body::{BodyPermit, RequestBody};
use omni_engine_protocol::frame::AnswerHead;
use omni_request_error::Failure;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::sync::oneshot;

/// The whole answer, or its beginning.
#[derive(Debug)]
pub struct Answer {
    /// HTTP status that the handler chose.
    pub status: u16,
    /// Media type and headers beyond the usual.
    pub head: Option<AnswerHead>,
    /// The content.
    pub body: Body,
    /// Room that was lent for it when its beginning came.
    pub room: Option<BodyPermit>,
    /// When the request was handed to the instance.
    pub sent_at: Instant,
    /// The last wait for the instance's GPU memory before that, if there was one.
    pub swap: Option<Swap>,
    /// What the instance runs that answered.
    pub content: Arc<Content>,
}

/// A wait for GPU memory to be on the card.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Swap {
    /// Since when the model's requests waited.
    pub from: Instant,
    /// When it was there.
    pub until: Instant,
}

impl Swap {
    /// What of it a request met that came at `submitted`.
    #[must_use]
    pub fn met_by(&self, submitted: Instant) -> Duration {
        self.until.saturating_duration_since(self.from.max(submitted))
    }
}

/// Content of an [`Answer`].
#[derive(Debug)]
pub enum Body {
    /// One JSON value, checked.
    Json(Bytes),
    /// Bytes as they are.
    Bytes(Bytes),
    /// Chunks that follow.
    Stream(Reader),
}

/// Where a request's answer goes. Sending fails when nobody waits any more.
pub type ReplyTo = oneshot::Sender<Result<Answer, Unanswered>>;

/// Why there is no answer.
#[derive(Debug)]
pub enum Unanswered {
    /// It failed.
    Failed(Failure),
    /// No instance had it, and another scheduler has the model by now: the request goes back.
    Unsent(RequestBody),
}

impl From<Failure> for Unanswered {
    fn from(failure: Failure) -> Self {
        Self::Failed(failure)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_meets_the_part_of_a_wait_that_is_left_when_it_comes() {
        let from = Instant::now();
        let at = |seconds| from + Duration::from_secs(seconds);
        let swap = Swap { from, until: at(5) };
        for (submitted, met) in [(from, 5), (at(2), 3), (at(5), 0), (at(9), 0)] {
            assert_eq!(swap.met_by(submitted), Duration::from_secs(met));
        }
        assert_eq!(Swap { from: at(2), until: at(5) }.met_by(from), Duration::from_secs(3));
    }
}
