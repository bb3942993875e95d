//! Answers of an engine, on their way to the client that waits.

use super::execution::InstanceName;
use super::stream::StreamReader;
use super::waits::Swap;
use bytes::Bytes;
use omni_body::{BodyPermit, RequestBody};
use omni_engine_protocol::frame::AnswerHead;
use omni_request_error::Failure;
use std::sync::Arc;
use std::time::Instant;
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

/// Sender of a request's answer. Sending fails when the client is gone.
pub type ReplySender = oneshot::Sender<Result<Answer, Unanswered>>;

/// End of a request without an answer.
#[derive(Debug)]
pub enum Unanswered {
    /// The request failed.
    Failed(Failure),
    /// No instance got it before this scheduler handed the model over: it has to be sent to the successor.
    NotSent(RequestBody),
    /// An instance has a place for the request, which waited for that alone.
    Turn,
}

impl From<Failure> for Unanswered {
    fn from(failure: Failure) -> Self {
        Self::Failed(failure)
    }
}
