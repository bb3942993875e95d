//! Frames that an engine may not send. The connection is not used further: its state is unknown.

use omni_engine_protocol::frame::FrameError;

/// Violation of the data protocol by an engine.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum ProtocolViolation {
    /// Bytes that are no frame.
    #[error(transparent)]
    Frame(#[from] FrameError),
    /// Chunks beyond the stream's credit.
    #[error("the model sent more of a stream than its credit")]
    OverCredit,
    /// A chunk that does not fit its stream, or is not what its flags say.
    #[error("the model sent a chunk that is not what its flags say")]
    Chunk,
    /// An answer to a request that the instance does not have.
    #[error("the model answered a request that it does not have")]
    UnknownRequest,
    /// A second usage report for one request: each costs the scheduler more than the model.
    #[error("the model reported the usage of a request twice")]
    SecondUsage,
    /// A head, status or error that is malformed, or a frame out of order.
    #[error("the model sent a frame whose content is not as agreed")]
    Content,
}
