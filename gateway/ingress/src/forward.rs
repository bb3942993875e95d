//! Requests that are forwarded to another process, over a socket of their own. The response goes to the client as it arrives.

use crate::body::{RunningUpload, Transfer, Upload};
use crate::body_handoff::RawBodyHandoff;
use crate::response::ResponseBody;
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
use omni_body::{BodyReader, BodySocket, BudgetShare, RequestBody};
use omni_request_error::Failure;
use std::error::Error;
use std::io::ErrorKind;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use tokio::net::UnixStream;

/// Headers of a connection, not of a request; the length is set anew.
const CONNECTION_HEADERS: [HeaderName; 9] = [
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
/// Bytes that are read at once of a body that is forwarded from a socket.
const READ: usize = 64 * 1024;

/// Body of a request that is forwarded.
pub type ForwardedBody = UnsyncBoxBody<Bytes, Box<dyn Error + Send + Sync>>;

/// The body of a request of which nothing was read yet.
///
/// # Errors
/// The node has no descriptors left.
pub fn unread_body(parts: &Parts, body: Incoming, share: &Arc<BudgetShare>) -> Result<ForwardedBody, Failure> {
    match parts.extensions.get::<Arc<RawBodyHandoff>>().cloned().zip(body.size_hint().exact()) {
        Some((handoff, length)) => {
            let (upload, socket) = Upload::new(body, Transfer::Splice(handoff, length), share)?;
            from_socket(socket, Some(upload.begin()))
        }
        None => Ok(body.map_err(Into::into).boxed_unsync()),
    }
}

/// A body that was received, with its upload if it is one.
///
/// # Errors
/// The node has no descriptors left, or an instance has got the body.
pub fn received_body(body: RequestBody, upload: Option<RunningUpload>) -> Result<ForwardedBody, Failure> {
    match body {
        RequestBody::Collected(_, bytes) => Ok(Full::new(bytes).map_err(Into::into).boxed_unsync()),
        RequestBody::Streamed(Some(socket)) => from_socket(socket, upload),
        RequestBody::Streamed(None) => Err(Failure::Died),
    }
}

/// Sends a request over the socket that `connect` returns, and returns the response. `None` of `connect`: there is no process to
/// forward to.
///
/// # Errors
/// [`Failure::ShuttingDown`]: the request was not sent. [`Failure::SuccessorDied`]: the other process may have begun it.
pub async fn forward<S>(
    parts: &Parts,
    body: ForwardedBody,
    connect: impl Future<Output = Option<UnixStream>>,
) -> Result<Response<ResponseBody<S>>, Failure> {
    let begun = async {
        let request = request(parts, body)?;
        let stream = connect.await?;
        let (sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream)).await.ok()?;
        tokio::spawn(connection);
        Some((sender, request))
    };
    let (mut sender, request) = begun.await.ok_or(Failure::ShuttingDown)?;
    // From here on the other process may have begun it: only a request that was not sent at all may be repeated.
    let response = sender.send_request(request).await.map_err(|error| match error.is_canceled() {
        true => Failure::ShuttingDown,
        false => Failure::SuccessorDied,
    })?;
    let (mut head, body) = response.into_parts();
    head.version = Version::default();
    head.headers = without_connection_headers(&head.headers);
    Ok(Response::from_parts(head, ResponseBody::Forwarded(body)))
}

fn request(parts: &Parts, body: ForwardedBody) -> Option<Request<ForwardedBody>> {
    let path = parts.uri.path_and_query()?.as_str();
    let mut request = Request::builder().method(parts.method.clone()).uri(path.parse::<Uri>().ok()?).body(body).ok()?;
    *request.headers_mut() = without_connection_headers(&parts.headers);
    if let (None, Some(authority)) = (parts.headers.get(HOST), parts.uri.authority()) {
        request.headers_mut().insert(HOST, HeaderValue::from_str(authority.as_str()).ok()?);
    }
    Some(request)
}

fn without_connection_headers(headers: &HeaderMap) -> HeaderMap {
    let mut headers = headers.clone();
    for name in &CONNECTION_HEADERS {
        headers.remove(name);
    }
    headers
}

/// Body that is being uploaded into a socket pair, read from the other end.
struct FromSocket {
    socket: UnixStream,
    upload: Option<RunningUpload>,
}

fn from_socket(body: BodySocket, upload: Option<RunningUpload>) -> Result<ForwardedBody, Failure> {
    let BodySocket { socket, sent } = body;
    let socket = std::os::unix::net::UnixStream::from(socket);
    let socket = socket.set_nonblocking(true).and_then(|()| UnixStream::from_std(socket));
    let socket = socket.map_err(|_| Failure::UploadsFull)?;
    let _ = sent.send(BodyReader::Successor); // the upload begins
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
                return Poll::Ready(Some(Err("its end did not arrive".into())));
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
