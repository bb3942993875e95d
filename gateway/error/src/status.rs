//! HTTP status of each failure: the one place that decides it.

use crate::Failure;

impl Failure {
    /// The status of the response.
    #[must_use]
    pub fn status(&self) -> u16 {
        match self {
            Self::NoHost | Self::BadRequest(_) | Self::InvalidRequest(_) => 400,
            Self::Unauthorized => 401,
            Self::OtherSite | Self::ModelNotAllowed => 403,
            Self::NoSuchRoute | Self::NoSuchModel | Self::NoSuchJob(_) => 404,
            Self::MethodNotAllowed { .. } => 405,
            Self::BodyTimeout => 408,
            Self::BodyTooLarge { .. } => 413,
            Self::BodyEncoded { .. } => 415,
            Self::UnknownHost { .. } => 421,
            Self::TooManyRequests { .. } | Self::QueueFull { .. } => 429,
            Self::HeadTooLarge => 431,
            Self::Raised | Self::AnswerNotSendable(_) => 500,
            Self::Died | Self::SuccessorDied | Self::Cancelled => 502,
            Self::NodeBusy
            | Self::UploadsFull
            | Self::JobsUnavailable
            | Self::UsageNotKept
            | Self::AnswerNotKept
            | Self::CannotStart { .. }
            | Self::NoRoom { .. }
            | Self::NoGpuMemory { .. }
            | Self::ShuttingDown
            | Self::NeverRoom
            | Self::NoFittingGpu => 503,
            Self::Deadline | Self::DeadlineBuilding { .. } => 504,
            Self::JobsFull(_) => 507,
            Self::Handler { status, .. } => *status,
        }
    }
}
