//! Requests before they are sent to an engine.

use crate::answer::ReplySender;
use crate::execution::Execution;
use omni_body::RequestBody;
use omni_engine_protocol::frame::RequestHead;
use omni_request_error::InvalidRequest;
use std::time::Instant;

/// Parameter of a client that only instances from some version of their protocol on can honour.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NewerParameter {
    /// Name of the parameter.
    pub name: &'static str,
    /// The first version that knows it.
    pub since: u32,
}

impl NewerParameter {
    /// Refusal of a request whose instance is of an earlier version.
    #[must_use]
    pub fn refusal(self) -> InvalidRequest {
        let Self { name, since: _ } = self;
        let message = format!(
            "the instance that serves this model was started by an earlier release of the node, which does not know \
             `{name}` in this form: leave it out, or have the model restarted (`omnictl restart`)"
        );
        InvalidRequest::unsupported(name, message)
    }
}

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
    /// Part of the body that instances of an earlier release do not know, and would leave out.
    pub newer: Option<NewerParameter>,
    /// Moment at which the client stops waiting.
    pub deadline: Instant,
    /// Receives the answer.
    pub reply: ReplySender,
    /// For the record of its usage.
    pub execution: Execution,
}
