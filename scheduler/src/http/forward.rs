//! Requests that are asked again at the successor: those that came too late for this scheduler, and those that no
//! instance had when it handed over. The answer goes to the client as it comes.
//!
//! What always holds: a request is asked again at the listener that it came by, whose rules it kept to here and keeps to
//! there. The way is no word of the request's: only the control API says that something came by the control socket.

use super::answer::{AnswerBody, Left, Slow};
use super::body::is_streamed;
use super::head::{REQUEST_ID, TIMEOUT};
use super::hold::Hold;
use super::run::refuse;
use super::upload::{Upload, Uploading, Way};
use crate::control_socket;
use crate::node::Node;
use bytes::{Bytes, BytesMut};
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, Full};
use hyper::body::{Body, Frame, Incoming};
use hyper::header::{
    CONNECTION, CONTENT_LENGTH, EXPECT, HOST, HeaderMap, HeaderName, HeaderValue, TE, TRAILER, TRANSFER_ENCODING,
    UPGRADE,
};
use hyper::http::request::Parts;
use hyper::{Request, Response, Uri, Version};
use hyper_util::rt::TokioIo;
use omni_body::{BodyReader, BodySocket, RequestBody};
use omni_request_error::Failure;
use std::error::Error;
use std::io::ErrorKind;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Instant;
use tokio::net::UnixStream;

/// Headers that are of a connection and not of a request; the length is told anew.
const OF_CONNECTION: [HeaderName; 9] = [
    CONNECTION,
    CONTENT_LENGTH,
    EXPECT,
    TE,
    TRAILER,
    TRANSFER_ENCODING,
    UPGRADE,
    HeaderName::from_static("keep-alive"),
    HeaderName::from_static("http2-settings"),
];
/// Read at once of a body that is forwarded from a socket.
const READ: usize = 64 * 1024;

/// The listener that a request came by.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum By {
    /// The data listener, which may want a token.
    Data,
    /// The control socket, which asks who is there.
    Control,
}

/// Marks a request that the previous scheduler has admitted. Only a connection from that scheduler sets it.
#[derive(Debug, Clone, Copy)]
pub(super) struct AlreadyAdmitted;

type Sent = UnsyncBoxBody<Bytes, Box<dyn Error + Send + Sync>>;

/// A request of which nothing was taken yet.
pub(super) async fn late(node: &Node, request: Request<Incoming>) -> Response<AnswerBody> {
    let (parts, body) = request.into_parts();
    let held = parts.extensions.get::<Arc<Hold>>().cloned();
    let streamed = is_streamed(&parts.headers, body.size_hint().exact());
    let body = match held.zip(body.size_hint().exact()) {
        Some((hold, length)) => {
            let taken = Upload::new(body, Way::Spliced(hold, length), &node.context.budget.share());
            taken.and_then(|(upload, socket)| from_socket(socket, Some(upload.begin())))
        }
        None => Ok(body.map_err(Into::into).boxed_unsync()),
    };
    let answer = match body {
        Ok(body) => ask(node, By::Data, &parts, body).await,
        Err(failure) => Err(failure),
    };
    let mut answer = answer.unwrap_or_else(|failure| refuse(&parts.headers, &failure));
    // Nobody here knows how much of it the successor has read.
    if !answer.status().is_success() || streamed {
        answer.extensions_mut().insert(Left);
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
    (body, upload): (RequestBody, Option<Uploading>),
    id: &[u8],
    deadline: Instant,
) -> Result<Response<AnswerBody>, Failure> {
    let body = match body {
        RequestBody::Collected(_, bytes) => Full::new(bytes).map_err(Into::into).boxed_unsync(),
        RequestBody::Streamed(Some(socket)) => from_socket(socket, upload)?,
        RequestBody::Streamed(None) => return Err(Failure::Died), // an instance had it
    };
    let mut parts = parts.clone();
    parts.extensions.insert(AlreadyAdmitted);
    if let Ok(id) = HeaderValue::from_bytes(id) {
        parts.headers.insert(REQUEST_ID, id);
    }
    let left = deadline.saturating_duration_since(Instant::now()).as_millis().max(1);
    parts.headers.insert(TIMEOUT, HeaderValue::from(u64::try_from(left).unwrap_or(u64::MAX)));
    let mut answer = ask(node, by, &parts, body).await?;
    // The successor ends it in time; a client that does not take it is to keep no scheduler alive.
    answer.extensions_mut().insert(Slow { until: deadline, untaken: None });
    Ok(answer)
}

async fn ask(node: &Node, by: By, parts: &Parts, body: Sent) -> Result<Response<AnswerBody>, Failure> {
    let begun = async {
        let heir = node.successor().await?;
        let request = request(parts, body)?;
        let stream = match by {
            By::Data => heir.ask(parts.extensions.get::<AlreadyAdmitted>().is_some()).await?,
            By::Control => {
                UnixStream::connect(omni_dir::runtime::control(&node.context.runtime_dir).join(control_socket::NAME))
                    .await
                    .ok()?
            }
        };
        let (sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream)).await.ok()?;
        tokio::spawn(connection);
        Some((sender, request))
    };
    let (mut sender, request) = begun.await.ok_or(Failure::ShuttingDown)?;
    // From here on the successor may have begun it: only one that was not sent at all is asked again.
    let answer = sender.send_request(request).await;
    let why = |error: hyper::Error| match error.is_canceled() {
        true => Failure::ShuttingDown,
        false => Failure::SuccessorDied,
    };
    let answer = answer.map_err(why)?;
    let (mut head, body) = answer.into_parts();
    head.version = Version::default();
    head.headers = of_request(&head.headers);
    Ok(Response::from_parts(head, AnswerBody::Forwarded(body)))
}

fn request(parts: &Parts, body: Sent) -> Option<Request<Sent>> {
    let path = parts.uri.path_and_query()?.as_str();
    let mut request = Request::builder().method(parts.method.clone()).uri(path.parse::<Uri>().ok()?).body(body).ok()?;
    *request.headers_mut() = of_request(&parts.headers);
    if let (None, Some(authority)) = (parts.headers.get(HOST), parts.uri.authority()) {
        request.headers_mut().insert(HOST, HeaderValue::from_str(authority.as_str()).ok()?);
    }
    Some(request)
}

fn of_request(headers: &HeaderMap) -> HeaderMap {
    let mut headers = headers.clone();
    for name in &OF_CONNECTION {
        headers.remove(name);
    }
    headers
}

/// A body that is still being uploaded into a socket pair, read from the other end.
struct FromSocket {
    socket: UnixStream,
    upload: Option<Uploading>,
}

/// # Errors
/// The node has no descriptors left.
fn from_socket(body: BodySocket, upload: Option<Uploading>) -> Result<Sent, Failure> {
    let BodySocket { socket, sent } = body;
    let socket = std::os::unix::net::UnixStream::from(socket);
    let socket = socket.set_nonblocking(true).and_then(|()| UnixStream::from_std(socket));
    let socket = socket.map_err(|_| Failure::NodeBusy)?;
    let _ = sent.send(BodyReader::Successor); // now it is wanted
    Ok(FromSocket { socket, upload }.boxed_unsync())
}

impl Body for FromSocket {
    type Data = Bytes;
    type Error = Box<dyn Error + Send + Sync>;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
        if let Some(upload) = &mut self.upload
            && let Poll::Ready(uploaded) = Pin::new(upload).poll(context)
        {
            self.upload = None;
            if uploaded.is_err() {
                return Poll::Ready(Some(Err("the request's body broke off".into())));
            }
        }
        loop {
            ready!(self.socket.poll_read_ready(context))?;
            let mut bytes = BytesMut::with_capacity(READ);
            match self.socket.try_read_buf(&mut bytes) {
                Ok(0) => return Poll::Ready(None),
                Ok(_) => return Poll::Ready(Some(Ok(Frame::data(bytes.freeze())))),
                Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                Err(error) => return Poll::Ready(Some(Err(error.into()))),
            }
        }
    }
}
