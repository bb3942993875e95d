//! Request bodies on their way from the HTTP front to a model.

use bytes::Bytes;
use std::os::fd::OwnedFd;
use tokio::sync::oneshot;

/// A request's body.
#[derive(Debug)]
pub enum RequestBody {
    /// A body in memory.
    Collected(BodyKind, Bytes),
    /// A body that the model reads from a socket; `None` once the socket was sent.
    Streamed(Option<BodySocket>),
}

/// Content of a collected body.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BodyKind {
    /// JSON by its media type; not checked.
    Json,
    /// Any other bytes.
    Bytes,
}

/// The reader's end of a body that is being uploaded.
#[derive(Debug)]
pub struct BodySocket {
    /// Ends with the body.
    pub socket: OwnedFd,
    /// Notified once the request has been sent: the upload begins only then.
    pub sent: oneshot::Sender<BodyReader>,
}

/// The reader of a body that is being uploaded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BodyReader {
    /// A model instance.
    Model,
    /// Scheduler that forwards the request to its successor: this process.
    Successor,
}
