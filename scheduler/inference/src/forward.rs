//! Requests that are forwarded to the successor: those that arrive after the hand-over, and those that were not sent to an instance by
//! then.
//!
//! Invariant: a request is forwarded to the listener that it came by, whose checks it has passed here and passes there. Nothing in the
//! request chooses the listener: only the control API knows that a request came by the control socket.

use crate::admission::BatchItem;
use crate::answer::AnswerBody;
use crate::head::{REQUEST_ID, TIMEOUT};
use crate::refusal::refuse;
use hyper::body::{Body, Incoming};
use hyper::header::HeaderValue;
use hyper::http::request::Parts;
use hyper::{Request, Response};
use omni_body::{BodyBudget, RequestBody};
use omni_ingress::body::{RunningUpload, is_streamed};
use omni_ingress::forward::{ForwardedBody, forward, received_body, unread_body};
use omni_ingress::{AlreadyAdmitted, BodyUnread, ReadDeadline};
use omni_request_error::Failure;
use omni_supervisor::node::Node;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Instant;
use tokio::net::UnixStream;

/// Listener that a request arrived at.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Listener {
    /// Data listener, which may require a token.
    Data,
    /// Control socket, which checks the caller.
    Control,
}

/// Sends requests to the successor.
#[derive(Debug)]
pub struct Forwarder {
    node: Arc<Node>,
    /// Memory for bodies that were not received yet.
    budget: Arc<BodyBudget>,
    control_socket: PathBuf,
}

impl Forwarder {
    /// Forwarder to the successor of a node with this control socket.
    #[must_use]
    pub fn new(node: Arc<Node>, budget: Arc<BodyBudget>, control_socket: PathBuf) -> Self {
        Self { node, budget, control_socket }
    }

    /// Forwards a request of which nothing was read yet.
    pub(crate) async fn unread(&self, request: Request<Incoming>) -> Response<AnswerBody> {
        let (parts, body) = request.into_parts();
        let streamed = is_streamed(&parts.headers, body.size_hint().exact());
        let admitted = parts.extensions.get::<AlreadyAdmitted>().is_some();
        let response = match unread_body(&parts, body, &self.budget.share()) {
            Ok(body) => self.send(Listener::Data, &parts, body, admitted).await,
            Err(failure) => Err(failure),
        };
        let mut response =
            response.unwrap_or_else(|failure| refuse(&parts.uri, &parts.headers, &failure).map(AnswerBody::full));
        // The successor may have left part of the body unread.
        if !response.status().is_success() || streamed {
            response.extensions_mut().insert(BodyUnread);
        }
        response
    }

    /// Forwards an admitted request whose body was received. Its client waits until `deadline`; `id` is its request id.
    ///
    /// # Errors
    /// The successor did not respond.
    pub(crate) async fn received(
        &self,
        listener: Listener,
        parts: &Parts,
        (body, upload): (RequestBody, Option<RunningUpload>),
        id: &[u8],
        deadline: Instant,
    ) -> Result<Response<AnswerBody>, Failure> {
        if parts.extensions.get::<BatchItem>().is_some() {
            return Err(Failure::ShuttingDown); // it has no token to show; the successor's store has it
        }
        let body = received_body(body, upload)?;
        let mut parts = parts.clone();
        if let Ok(id) = HeaderValue::from_bytes(id) {
            parts.headers.insert(REQUEST_ID, id);
        }
        let remaining = deadline.saturating_duration_since(Instant::now()).as_millis().max(1);
        parts.headers.insert(TIMEOUT, HeaderValue::from(u64::try_from(remaining).unwrap_or(u64::MAX)));
        let mut response = self.send(listener, &parts, body, true).await?;
        // The successor ends the response in time; a client that does not read it must not keep this scheduler alive.
        response.extensions_mut().insert(ReadDeadline { at: deadline, after_end: None, permit: None });
        Ok(response)
    }

    async fn send(
        &self,
        listener: Listener,
        parts: &Parts,
        body: ForwardedBody,
        admitted: bool,
    ) -> Result<Response<AnswerBody>, Failure> {
        let connect = async {
            let successor = self.node.successor().await?;
            match listener {
                Listener::Data => successor.connect(admitted).await,
                Listener::Control => UnixStream::connect(&self.control_socket).await.ok(),
            }
        };
        forward(parts, body, connect).await
    }
}
