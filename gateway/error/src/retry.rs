//! Retry advice: what a client should do after a failure, beyond what the status says.
//!
//! The official clients of the OpenAI and Workers AI APIs repeat 408, 409, 429 and every 5xx twice by themselves. So a failure whose
//! request has run tells them not to, and a `retry-after` is never above a minute: above it they ignore the value and retry soon.

use crate::Failure;
use std::time::Duration;

/// The longest `retry-after`, in seconds.
const LONGEST_RETRY: u64 = 60;

/// Advice to a client after a failure.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RetryAdvice {
    /// Nothing beyond what the status says.
    None,
    /// No automatic retry: the request has run, or the client was too slow.
    Never,
    /// A retry on this node after this time.
    After(Duration),
    /// A retry on another node at once, or on this node after this time.
    OtherNode(Duration),
}

impl Failure {
    /// Action that the client should take.
    #[must_use]
    pub fn retry_advice(&self) -> RetryAdvice {
        match self {
            Self::NoHost
            | Self::UnknownHost { .. }
            | Self::OtherSite
            | Self::HeadTooLarge
            | Self::BodyEncoded { .. }
            | Self::NoSuchRoute
            | Self::MethodNotAllowed { .. }
            | Self::Unauthorized
            | Self::ModelNotAllowed
            | Self::NoSuchModel
            | Self::NoSuchJob(_)
            | Self::BadRequest(_)
            | Self::InvalidRequest(_)
            | Self::BodyTooLarge { .. } => RetryAdvice::None,
            Self::BodyTimeout
            | Self::JobsFull(_)
            | Self::AnswerNotKept
            | Self::Died
            | Self::SuccessorDied
            | Self::Cancelled
            | Self::Deadline
            | Self::DeadlineBuilding { .. }
            | Self::Raised
            | Self::AnswerNotSendable(_) => RetryAdvice::Never,
            Self::TooManyRequests { retry_after } | Self::QueueFull { retry_after } => RetryAdvice::After(*retry_after),
            Self::JobsUnavailable => RetryAdvice::After(Duration::from_secs(1)),
            Self::NodeBusy | Self::UploadsFull | Self::UsageNotKept => RetryAdvice::OtherNode(Duration::from_secs(1)),
            Self::CannotStart { retry_after } | Self::NoRoom { retry_after } | Self::NoGpuMemory { retry_after } => {
                RetryAdvice::OtherNode(*retry_after)
            }
            Self::ShuttingDown | Self::NeverRoom | Self::NoFittingGpu => {
                RetryAdvice::OtherNode(Duration::from_secs(LONGEST_RETRY))
            }
            // The handler's own status stands; the request has run.
            Self::Handler { status, .. } if *status >= 500 => RetryAdvice::Never,
            Self::Handler { .. } => RetryAdvice::None,
        }
    }
}

/// The value of a `retry-after` header: whole seconds, from one to a minute.
#[must_use]
pub fn retry_after_seconds(time: Duration) -> u64 {
    time.as_millis().div_ceil(1000).clamp(1, u128::from(LONGEST_RETRY)) as u64
}
