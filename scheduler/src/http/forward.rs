//! Requests that are asked again at the successor: those that came too late for this scheduler, and those that no
//! instance had when it handed over. The answer goes to the client as it comes.
//!
//! What always holds: a request is asked again at the listener that it came by, whose rules it kept to here and keeps to
//! there. The way is no word of the request's: only the control API says that something came by the control socket.

use super::answer::AnswerBody;
use super::head::{REQUEST_ID, TIMEOUT};
use super::run::refuse;
use crate::node::Node;
use crate::paths::CONTROL_SOCKET;
use hyper::body::{Body, Incoming};
use hyper::header::HeaderValue;
use hyper::http::request::Parts;
use hyper::{Request, Response};
use omni_body::RequestBody;
use omni_ingress::body::{RunningUpload, is_streamed};
use omni_ingress::forward::{ForwardedBody, forward, received_body, unread_body};
use omni_ingress::{AlreadyAdmitted, BodyUnread, ReadDeadline};
use omni_request_error::Failure;
use std::time::Instant;
use tokio::net::UnixStream;

/// The listener that a request came by.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum By {
    /// The data listener, which may want a token.
    Data,
    /// The control socket, which asks who is there.
    Control,
}

/// A request of which nothing was taken yet.
pub(super) async fn late(node: &Node, request: Request<Incoming>) -> Response<AnswerBody> {
    let (parts, body) = request.into_parts();
    let streamed = is_streamed(&parts.headers, body.size_hint().exact());
    let answer = match unread_body(&parts, body, &node.context.budget.share()) {
        Ok(body) => ask(node, By::Data, &parts, body, parts.extensions.get::<AlreadyAdmitted>().is_some()).await,
        Err(failure) => Err(failure),
    };
    let mut answer = answer.unwrap_or_else(|failure| refuse(&parts.headers, &failure).map(AnswerBody::full));
    // Nobody here knows how much of it the successor has read.
    if !answer.status().is_success() || streamed {
        answer.extensions_mut().insert(BodyUnread);
    }
    answer
}

/// A request to a model that was admitted, and whose body was taken. Its client waits until `deadline`, and `id` is its id
/// already.
///
/// # Errors
/// No answer came of it.
pub(super) async fn unsent(
    node: &Node,
    by: By,
    parts: &Parts,
    (body, upload): (RequestBody, Option<RunningUpload>),
    id: &[u8],
    deadline: Instant,
) -> Result<Response<AnswerBody>, Failure> {
    let body = received_body(body, upload)?;
    let mut parts = parts.clone();
    if let Ok(id) = HeaderValue::from_bytes(id) {
        parts.headers.insert(REQUEST_ID, id);
    }
    let left = deadline.saturating_duration_since(Instant::now()).as_millis().max(1);
    parts.headers.insert(TIMEOUT, HeaderValue::from(u64::try_from(left).unwrap_or(u64::MAX)));
    let mut answer = ask(node, by, &parts, body, true).await?;
    // The successor ends it in time; a client that does not take it is to keep no scheduler alive.
    answer.extensions_mut().insert(ReadDeadline { at: deadline, permit: None });
    Ok(answer)
}

async fn ask(
    node: &Node,
    by: By,
    parts: &Parts,
    body: ForwardedBody,
    admitted: bool,
) -> Result<Response<AnswerBody>, Failure> {
    let connect = async {
        let successor = node.successor().await?;
        match by {
            By::Data => successor.connect(admitted).await,
            By::Control => {
                let path = omni_dir::runtime::control(&node.context.runtime_dir).join(CONTROL_SOCKET);
                UnixStream::connect(path).await.ok()
            }
        }
    };
    forward(parts, body, connect).await
}
