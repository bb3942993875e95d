//! Requests that are asked again at the successor: those that came too late for this scheduler, and those that no
//! instance had when it handed over. The answer goes to the client as it comes.

use super::answer::AnswerBody;
use super::failure::workers_ai;
use super::head::{REQUEST_ID, TIMEOUT};
use super::socket::Hold;
use super::upload::{Upload, Uploading, Way};
use crate::failure::Failure;
use crate::model::Model;
use crate::model::requests::{BodySocket, Reader, RequestBody};
use crate::node::Node;
use bytes::Bytes;
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
use std::error::Error;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Instant;
use tokio::io::{AsyncRead, ReadBuf};
use tokio::net::{TcpStream, UnixStream};

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

type Sent = UnsyncBoxBody<Bytes, Box<dyn Error + Send + Sync>>;

/// A request of which nothing was taken yet.
pub(super) async fn late(node: &Node, request: Request<Incoming>) -> Response<AnswerBody> {
    let (parts, body) = request.into_parts();
    let held = parts.extensions.get::<Arc<Hold>>().map(Arc::clone);
    let body = match held.zip(body.size_hint().exact()) {
        Some((hold, length)) => {
            let taken = Upload::new(body, Way::Spliced(hold, length)).ok();
            match taken.and_then(|(upload, socket)| from_socket(socket, Some(upload.begin())).ok()) {
                Some(body) => body,
                None => return workers_ai(&Failure::NodeBusy), // a want of descriptors
            }
        }
        None => body.map_err(Into::into).boxed_unsync(),
    };
    ask(node, &parts, body).await
}

/// A request to `model` whose body was taken. Its client waits until `deadline`, and `id` is its id already.
pub(super) async fn unsent(
    node: &Node,
    model: &Model,
    parts: &Parts,
    (body, upload): (RequestBody, Option<Uploading>),
    id: &[u8],
    deadline: Instant,
) -> Response<AnswerBody> {
    let body = match body {
        RequestBody::Whole(_, bytes) => Full::new(bytes).map_err(Into::into).boxed_unsync(),
        RequestBody::Streamed(Some(socket)) => match from_socket(socket, upload) {
            Ok(body) => body,
            Err(_) => return workers_ai(&Failure::NodeBusy), // a want of descriptors
        },
        RequestBody::Streamed(None) => return workers_ai(&Failure::Died), // an instance had it
    };
    let mut parts = parts.clone();
    // It may have come by another listener, whose route is another.
    let query = parts.uri.query().map(|query| format!("?{query}")).unwrap_or_default();
    match format!("/ai/run/{}{query}", model.name).parse() {
        Ok(uri) => parts.uri = uri,
        Err(_) => return workers_ai(&Failure::ShuttingDown),
    }
    if let Ok(id) = HeaderValue::from_bytes(id) {
        parts.headers.insert(REQUEST_ID, id);
    }
    let left = deadline.saturating_duration_since(Instant::now()).as_millis().max(1);
    parts.headers.insert(TIMEOUT, HeaderValue::from(u64::try_from(left).unwrap_or(u64::MAX)));
    ask(node, &parts, body).await
}

async fn ask(node: &Node, parts: &Parts, body: Sent) -> Response<AnswerBody> {
    let asked = async {
        let successor = node.successor().await?;
        let stream = TcpStream::connect(successor).await.ok()?;
        let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream)).await.ok()?;
        tokio::spawn(connection);
        sender.send_request(request(parts, body)?).await.ok()
    };
    match asked.await {
        Some(answer) => {
            let (mut head, body) = answer.into_parts();
            head.version = Version::default();
            head.headers = of_request(&head.headers);
            Response::from_parts(head, AnswerBody::Forwarded(body))
        }
        None => workers_ai(&Failure::ShuttingDown),
    }
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

fn from_socket(body: BodySocket, upload: Option<Uploading>) -> std::io::Result<Sent> {
    let BodySocket { socket, sent } = body;
    let socket = std::os::unix::net::UnixStream::from(socket);
    socket.set_nonblocking(true)?;
    let socket = UnixStream::from_std(socket)?;
    let _ = sent.send(Reader::Successor); // now it is wanted
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
        let mut bytes = vec![0; READ];
        let mut buffer = ReadBuf::new(&mut bytes);
        ready!(Pin::new(&mut self.socket).poll_read(context, &mut buffer))?;
        let read = buffer.filled().len();
        bytes.truncate(read);
        Poll::Ready((read > 0).then(|| Ok(Frame::data(Bytes::from(bytes)))))
    }
}
