//! Everything that can go wrong with a request: one enum. `http::failure` is the one place that renders it.

use crate::model::Build;
use std::borrow::Cow;
use std::time::Duration;

/// Why a request has no answer of its model.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Failure {
    /// The request does not say which host it is for, or says it twice.
    #[error("a request has to name one host: exactly one `Host`, or one `:authority`")]
    NoHost,
    /// The listener does not answer to this name.
    #[error(
        "this node does not answer to the name `{host}`: `[server] hosts` in its configuration lists the names it has"
    )]
    UnknownHost {
        /// As the request says it.
        host: String,
    },
    /// A page of another site asks.
    #[error("this node takes no requests from pages of other sites")]
    OtherSite,
    /// The head has too many headers, or the heads of a connection are too large together.
    #[error("the headers of the request, or of all requests of this connection together, are too large")]
    HeadTooLarge,
    /// No route of this listener.
    #[error("no such route")]
    NoSuchRoute,
    /// The route exists, with another method.
    #[error("this route takes {allowed}")]
    MethodNotAllowed {
        /// For the `allow` header.
        allowed: &'static str,
    },
    /// The listener wants a token, and this request shows none that is good.
    #[error("this node wants a token: `authorization: Bearer TOKEN`")]
    Unauthorized,
    /// The token is not good for this model, which may exist or not.
    #[error("this token is not good for this model")]
    ModelNotAllowed,
    /// The token's holder asks for too much.
    #[error("there are too many requests with this token")]
    TooManyRequests {
        /// When the next one is taken.
        retry_after: Duration,
    },
    /// The name is no model of this node.
    #[error("no such model")]
    NoSuchModel,
    /// The request's head or body cannot be read.
    #[error("{0}")]
    BadRequest(String),
    /// The body did not come in time.
    #[error("the request's body did not arrive in time")]
    BodyTimeout,
    /// The body is in an encoding that nothing here undoes.
    #[error("the request's body has `content-encoding: {encoding}`, which this node does not take: send it unencoded")]
    BodyEncoded {
        /// As the request says it.
        encoding: String,
    },
    /// The body is over the model's limit.
    #[error("the request's body is larger than this model's limit of {limit} bytes")]
    BodyTooLarge {
        /// `[limits] body` of the model.
        limit: u64,
    },
    /// As many requests wait as the model allows.
    #[error("the model's queue is full")]
    QueueFull {
        /// When a place may be free.
        retry_after: Duration,
    },
    /// The node holds as many request bodies as it may.
    #[error("the node's memory for bodies is used up")]
    NodeBusy,
    /// The model has answered, and the node has no room to keep that until the client has taken it.
    #[error("the node has no memory for the model's answer")]
    AnswerNotKept,
    /// The model cannot be started now.
    #[error("the model cannot start now")]
    CannotStart {
        /// When the next try is over.
        retry_after: Duration,
    },
    /// What the node's instances may use together leaves no room for the model now.
    #[error("there is no room for this model on this node now")]
    NoRoom {
        /// When the next try is over.
        retry_after: Duration,
    },
    /// The model may use more than all instances of this node together.
    #[error("this node is too small for this model")]
    NeverRoom,
    /// The GPUs have no room for the model now.
    #[error("there is no GPU memory for this model on this node now")]
    NoGpuMemory {
        /// When the next try is over.
        retry_after: Duration,
    },
    /// No GPU of this node will ever have room for the model.
    #[error("this node has no GPU that fits this model")]
    NoFittingGpu,
    /// The node is shutting down.
    #[error("the node is shutting down")]
    ShuttingDown,
    /// The instance ended under the request.
    #[error("the model's instance died while it worked on this request")]
    Died,
    /// The scheduler that took over ended; it was asked, and may have begun the request.
    #[error("the node's new scheduler died while it had this request")]
    SuccessorDied,
    /// The deadline passed.
    #[error("the request's deadline passed")]
    Deadline,
    /// The deadline passed before there was an environment to start the model in.
    #[error("the request's deadline passed while {}", match build {
        Build::Waits => "the model waited for a place to build its environment",
        Build::Runs => "the model's environment was being built",
    })]
    DeadlineBuilding {
        /// The stage of the build.
        build: Build,
    },
    /// The handler raised, or its result could not be sent. The log has the traceback.
    #[error("the model failed on this request")]
    Raised,
    /// The handler has answered with something that no answer can have.
    #[error("the model's answer cannot be sent: {0}")]
    AnswerNotSendable(String),
    /// The handler answered with an error of its own.
    #[error("{message}")]
    Handler {
        /// 400 to 599.
        status: u16,
        /// The handler's words.
        message: String,
    },
    /// The request was cancelled; nobody reads this.
    #[error("the request was cancelled")]
    Cancelled,
}

impl Failure {
    /// What a client is told in the middle of a stream; the author's own words where there are some.
    #[must_use]
    pub fn in_stream(&self) -> Cow<'static, str> {
        let told = match self {
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
            | Self::Unauthorized
            | Self::ModelNotAllowed
            | Self::TooManyRequests { .. }
            | Self::BadRequest(_)
            | Self::BodyTimeout
            | Self::BodyEncoded { .. }
            | Self::BodyTooLarge { .. }
            | Self::QueueFull { .. }
            | Self::NodeBusy
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
        told.into()
    }
}
