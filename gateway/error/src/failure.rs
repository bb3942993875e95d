//! Causes of a request that fails, with the message that its client gets.

use crate::InvalidRequest;
use std::borrow::Cow;
use std::time::Duration;

/// Cause of a request without a response of its model.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Failure {
    /// No `Host`, or several.
    #[error("a request has to name one host: exactly one `Host`, or one `:authority`")]
    NoHost,
    /// A `Host` that this listener does not serve.
    #[error(
        "this server does not answer to the name `{host}`: the names of a node are those of `[server] hosts` in its \
         configuration"
    )]
    UnknownHost {
        /// As in the request.
        host: String,
    },
    /// Cross-site request of a browser.
    #[error("this node takes no requests from pages of other sites")]
    OtherSite,
    /// Too many headers in one request, or too many bytes of headers in the requests of one connection.
    #[error("the headers of the request, or of all requests of this connection together, are too large")]
    HeadTooLarge,
    /// Unknown route.
    #[error("no such route")]
    NoSuchRoute,
    /// Known route, other method.
    #[error("this route takes {allowed}")]
    MethodNotAllowed {
        /// Value of the `allow` header.
        allowed: &'static str,
    },
    /// Missing or unknown token.
    #[error("this node wants a token: `authorization: Bearer TOKEN`")]
    Unauthorized,
    /// Token without permission for this model, whether or not the model exists.
    #[error("this token is not good for this model")]
    ModelNotAllowed,
    /// Quota of the token used up.
    #[error("there are too many requests with this token")]
    TooManyRequests {
        /// Time until the next request is admitted.
        retry_after: Duration,
    },
    /// Unknown model.
    #[error("no such model")]
    NoSuchModel,
    /// Unknown file or batch, or another holder's.
    #[error("no such {0}")]
    NoSuchJob(&'static str),
    /// No space left for files and results of batch jobs, of the node or of the client, in words for the client.
    #[error("{0}")]
    JobsFull(&'static str),
    /// Batch jobs cannot be stored or read now.
    #[error("the node's batch jobs are not available now")]
    JobsUnavailable,
    /// Head or body that cannot be read.
    #[error("{0}")]
    BadRequest(String),
    /// Parameter that cannot be honoured.
    #[error("{0}")]
    InvalidRequest(InvalidRequest),
    /// Body not received in time.
    #[error("the request's body did not arrive in time")]
    BodyTimeout,
    /// Body with a `content-encoding`, none of which is decoded here.
    #[error("the request's body has `content-encoding: {encoding}`, which this node does not take: send it unencoded")]
    BodyEncoded {
        /// As in the request.
        encoding: String,
    },
    /// Body larger than the model's limit.
    #[error("the request's body is larger than this model's limit of {limit} bytes")]
    BodyTooLarge {
        /// `[limits] body` of the manifest.
        limit: u64,
    },
    /// Queue of the model full.
    #[error("the model's queue is full")]
    QueueFull {
        /// Time until a place may be free.
        retry_after: Duration,
    },
    /// No memory for the request's body.
    #[error("the node's memory for bodies is used up")]
    NodeBusy,
    /// No place, or no descriptors, for a large body beside the others that are under way.
    #[error("the node receives as many large bodies at a time as it can")]
    UploadsFull,
    /// No usage record can be kept, and the node answers none without.
    #[error("the node can keep no record of usage now, and answers no request without")]
    UsageNotKept,
    /// No memory to keep the response until its client has read it. The request has run.
    #[error("the node has no memory for the model's answer")]
    AnswerNotKept,
    /// Model that cannot be started now.
    #[error("the model cannot start now")]
    CannotStart {
        /// Time until the next attempt is over.
        retry_after: Duration,
    },
    /// No capacity left on the node for another instance.
    #[error("there is no room for this model on this node now")]
    NoRoom {
        /// Time until the next attempt is over.
        retry_after: Duration,
    },
    /// Model whose limits exceed the node's whole capacity.
    #[error("this node is too small for this model")]
    NeverRoom,
    /// No GPU memory left for the model.
    #[error("there is no GPU memory for this model on this node now")]
    NoGpuMemory {
        /// Time until the next attempt is over.
        retry_after: Duration,
    },
    /// Model that fits on no GPU of this node.
    #[error("this node has no GPU that fits this model")]
    NoFittingGpu,
    /// Node shutting down.
    #[error("the node is shutting down")]
    ShuttingDown,
    /// End of the instance while it worked on the request.
    #[error("the model's instance died while it worked on this request")]
    Died,
    /// End of the successor after the request was forwarded to it; it may have begun the request.
    #[error("the node's new scheduler died while it had this request")]
    SuccessorDied,
    /// Deadline passed.
    #[error("the request's deadline passed")]
    Deadline,
    /// Deadline passed before the environment of the model was built, or its weights were fetched.
    #[error("the request's deadline passed while {}", match build {
        BuildProgress::Queued => "the model waited for a place to build its environment",
        BuildProgress::Running => "the model's environment was being built",
        BuildProgress::Fetching => "the model's weights were being fetched",
    })]
    DeadlineBuilding {
        /// How far the build was.
        build: BuildProgress,
    },
    /// Exception of the handler, or a result that could not be serialised. The log has the traceback.
    #[error("the model failed on this request")]
    Raised,
    /// Response of the handler with a part that no response may have.
    #[error("the model's answer cannot be sent: {0}")]
    AnswerNotSendable(String),
    /// Error response of the handler.
    #[error("{message}")]
    Handler {
        /// 400 to 599.
        status: u16,
        /// The handler's own message.
        message: String,
    },
    /// Request cancelled: no client reads this.
    #[error("the request was cancelled")]
    Cancelled,
}

/// How far the build of an environment and the download of weights are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BuildProgress {
    /// Waiting for one of the places for builds.
    Queued,
    /// Running.
    Running,
    /// Done, or nothing to do; the weights are being fetched.
    Fetching,
}

impl From<InvalidRequest> for Failure {
    fn from(invalid: InvalidRequest) -> Self {
        Self::InvalidRequest(invalid)
    }
}

impl Failure {
    /// Message for a client that has received a part of a stream already: the handler's own message where there is one.
    #[must_use]
    pub fn stream_message(&self) -> Cow<'static, str> {
        let message = match self {
            Self::Handler { message, .. } => return message.clone().into(),
            Self::Deadline | Self::DeadlineBuilding { .. } => "the request's deadline passed",
            Self::Died => "the model's instance died",
            Self::ShuttingDown => "the node is shutting down",
            Self::NoHost
            | Self::UnknownHost { .. }
            | Self::OtherSite
            | Self::HeadTooLarge
            | Self::NoSuchRoute
            | Self::MethodNotAllowed { .. }
            | Self::NoSuchModel
            | Self::NoSuchJob(_)
            | Self::JobsFull(_)
            | Self::JobsUnavailable
            | Self::Unauthorized
            | Self::ModelNotAllowed
            | Self::TooManyRequests { .. }
            | Self::BadRequest(_)
            | Self::InvalidRequest(_)
            | Self::BodyTimeout
            | Self::BodyEncoded { .. }
            | Self::BodyTooLarge { .. }
            | Self::QueueFull { .. }
            | Self::NodeBusy
            | Self::UploadsFull
            | Self::UsageNotKept
            | Self::AnswerNotKept
            | Self::CannotStart { .. }
            | Self::NoRoom { .. }
            | Self::NeverRoom
            | Self::NoGpuMemory { .. }
            | Self::NoFittingGpu
            | Self::SuccessorDied
            | Self::Raised
            | Self::AnswerNotSendable(_)
            | Self::Cancelled => "the model failed on this request",
        };
        message.into()
    }
}
