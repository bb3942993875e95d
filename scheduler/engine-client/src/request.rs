//! Requests before they are sent to an engine.

use crate::answer::ReplySender;
use crate::execution::Execution;
use omni_body::RequestBody;
use omni_engine_protocol::frame::RequestHead;
use std::time::Instant;

/// A request of a client.
#[derive(Debug)]
pub struct Request {
    /// Head for the handler; its `timeout_ms` is set when the request is sent.
    pub head: RequestHead,
    /// Body.
    pub body: RequestBody,
    /// The body is made when an instance has a place for the request, by what is known then: its turn is returned to the
    /// submitter, and the request is submitted again with its body.
    pub awaits_turn: bool,
    /// Moment at which the client stops waiting.
    pub deadline: Instant,
    /// Receives the answer.
    pub reply: ReplySender,
    /// For the record of its usage.
    pub execution: Execution,
}
