//! Answers of an engine, on their way to the client that waits.

use super::execution::InstanceName;
use super::stream::StreamReader;
use bytes::Bytes;
use omni_body::{BodyPermit, RequestBody};
use omni_engine_protocol::frame::AnswerHead;
use omni_request_error::Failure;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::sync::oneshot;

/// A whole answer, or the beginning of a streamed one.
#[derive(Debug)]
pub struct Answer {
    /// HTTP status that the handler chose.
    pub status: u16,
    /// Media type and further headers; `None` for plain JSON.
    pub head: Option<AnswerHead>,
    /// Content.
    pub content: AnswerContent,
    /// Permit for the memory of a large answer, taken when its beginning arrived.
    pub permit: Option<BodyPermit>,
    /// When the request was sent to the instance.
    pub sent_at: Instant,
    /// The instance's last wait for GPU memory before that, if there was one.
    pub swap: Option<Swap>,
    /// Instance that answered.
    pub instance: Arc<InstanceName>,
}

/// Content of an [`Answer`].
#[derive(Debug)]
pub enum AnswerContent {
    /// JSON value, checked.
    Json(Bytes),
    /// Bytes as they are.
    Bytes(Bytes),
    /// Chunks that follow.
    Stream(StreamReader),
}

/// An instance's wait for its GPU memory to be on the card.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Swap {
    /// First request that waited.
    pub from: Instant,
    /// The grant.
    pub until: Instant,
}

impl Swap {
    /// Part of the wait that a request submitted at `submitted` spent waiting.
    #[must_use]
    pub fn overlap_since(&self, submitted: Instant) -> Duration {
        self.until.saturating_duration_since(self.from.max(submitted))
    }
}

/// Sender of a request's answer. Sending fails when the client is gone.
pub type ReplySender = oneshot::Sender<Result<Answer, Unanswered>>;

/// End of a request without an answer.
#[derive(Debug)]
pub enum Unanswered {
    /// The request failed.
    Failed(Failure),
    /// No instance got it before this scheduler handed the model over: it has to be sent to the successor.
    NotSent(RequestBody),
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
    fn a_request_waits_for_the_rest_of_a_swap_that_is_under_way() {
        let from = Instant::now();
        let at = |seconds| from + Duration::from_secs(seconds);
        let swap = Swap { from, until: at(5) };
        for (submitted, waited) in [(from, 5), (at(2), 3), (at(5), 0), (at(9), 0)] {
            assert_eq!(swap.overlap_since(submitted), Duration::from_secs(waited));
        }
        assert_eq!(Swap { from: at(2), until: at(5) }.overlap_since(from), Duration::from_secs(3));
    }
}
