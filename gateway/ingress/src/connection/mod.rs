//! Connection of one client, from its first byte to its last.
//!
//! ```text
//!            ┌───────────── next request ◀────────────┐
//!  accepted ─▶ open ─ request ─▶ serving ─ response ──┤
//!             │  │                  │                 ├─ body left unread ──▶ lingering: read and drop, then close
//!             │  │                  │                 ├─ last response ─────▶ closed
//!             │  │                  │                 └─ body went past hyper, and was read: a new hyper continues ─▶ open
//!             │  │                  └─ response not read in time, or memory needed ─▶ cut
//!             │  └─ idle, and the listener hands over ─▶ handed off: the successor has the socket
//!             └─ no request in time, or idle over HTTP/2 ─▶ closed
//! ```
//!
//! - [`driver`] polls hyper, with the timeouts that hyper does not have.
//! - [`socket`] is what hyper reads and writes: it notes what happens and withholds what is not for hyper.
//! - [`state`] is shared by both and by the service that calls the handler.
//! - [`body_handoff`](crate::body_handoff) moves a large body past hyper.
//!
//! An HTTP/1.1 connection on which nothing is in the air goes to a successor as it is; the client notices nothing. It may go when every
//! response has been written and not one byte has been read since: what the client sends from then on stays in the socket, which this
//! process does not read any more. HTTP/2 has GOAWAY for the same end. A connection with TLS cannot go; it stays for one more request,
//! whose response says that the connection ends: so none is closed while a request may be on its way.

mod deadlines;
mod driver;
mod head_timer;
mod http2_frames;
mod open_response;
mod socket;
mod state;
mod stream;

pub use self::stream::ClientStream;

use self::head_timer::HeadTimer;
use self::open_response::OpenResponse;
use self::socket::Socket;
use self::state::ConnectionState;
use crate::body::{bypass_length, closes_when_unread};
use crate::body_handoff::drain;
use crate::check::{HEADERS, RequestCheck};
use crate::limits::{CONNECTION_WINDOW, ConnectionLimits, STREAM_WINDOW, UNREAD};
use crate::phase::ListenerPhase;
use crate::response::{BodyUnread, ReadDeadline, ResponseBody, ResponseGuard, StreamCut};
use bytes::Bytes;
use hyper::body::{Body, Incoming};
use hyper::header::{CONNECTION, HeaderMap, HeaderValue};
use hyper::service::service_fn;
use hyper::{Request, Response, Version};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto;
use std::convert::Infallible;
use std::future::Future;
use std::sync::Arc;
use tokio::sync::watch;
use tokio::time::Instant;

/// Longest head of a request over HTTP/1.1, in bytes.
const HEAD: usize = 64 * 1024;
/// Longest head of a request over HTTP/2, in bytes, where each header counts 32 bytes more: the most that a stream can
/// have decoded before its head is checked.
const HEAD_HTTP2: u32 = 16 * 1024;
/// Streams of one HTTP/2 connection.
const STREAMS: u32 = 256;

/// Extension of a request that the predecessor has admitted. Only a connection from the predecessor sets it.
#[derive(Debug, Clone, Copy)]
pub struct AlreadyAdmitted;

/// Configuration of the connections of a listener.
#[derive(Debug)]
pub struct ConnectionConfig {
    pub(crate) limits: ConnectionLimits,
    pub(crate) check: RequestCheck,
    builder: auto::Builder<TokioExecutor>,
}

impl ConnectionConfig {
    /// Limits of connections, and the check of each request's head.
    #[must_use]
    pub fn new(limits: ConnectionLimits, check: RequestCheck) -> Self {
        Self { limits, check, builder: http_builder(limits) }
    }
}

/// Hyper for both versions of HTTP, with heads and streams bounded.
#[must_use]
pub fn http_builder(limits: ConnectionLimits) -> auto::Builder<TokioExecutor> {
    let mut builder = auto::Builder::new(TokioExecutor::new());
    builder
        .http1()
        .timer(TokioTimer::new())
        .header_read_timeout(limits.header_timeout)
        .max_buf_size(HEAD)
        .max_headers(HEADERS);
    builder
        .http2()
        .timer(TokioTimer::new())
        .max_concurrent_streams(STREAMS)
        .max_header_list_size(HEAD_HTTP2)
        .initial_stream_window_size(STREAM_WINDOW)
        .initial_connection_window_size(CONNECTION_WINDOW)
        .keep_alive_interval(Some(limits.header_timeout));
    builder
}

/// Serves a connection to its end: by one hyper after the other, each of which begins behind a body that went past the one before.
pub(crate) async fn serve_connection<H, F, S>(
    stream: ClientStream,
    config: &Arc<ConnectionConfig>,
    phase: watch::Receiver<ListenerPhase>,
    handler: H,
) where
    H: Fn(Request<Incoming>) -> F + Clone + Send + Sync + 'static,
    F: Future<Output = Response<ResponseBody<S>>> + Send + 'static,
    S: Body<Data = Bytes> + Send + Unpin + 'static,
    S::Error: Into<StreamCut>,
{
    let mut builder = config.builder.clone();
    let mut next = serve_with_hyper(stream, &builder, config, phase.clone(), handler.clone()).await;
    if next.is_some() {
        builder = builder.http1_only(); // what follows is not the beginning of a connection
    }
    while let Some(stream) = next {
        next = serve_with_hyper(stream, &builder, config, phase.clone(), handler.clone()).await;
    }
}

/// Serves a connection until hyper drops it. Returns it when it continues.
async fn serve_with_hyper<H, F, S>(
    stream: ClientStream,
    builder: &auto::Builder<TokioExecutor>,
    config: &Arc<ConnectionConfig>,
    phase: watch::Receiver<ListenerPhase>,
    handler: H,
) -> Option<ClientStream>
where
    H: Fn(Request<Incoming>) -> F + Clone + Send + Sync + 'static,
    F: Future<Output = Response<ResponseBody<S>>> + Send + 'static,
    S: Body<Data = Bytes> + Send + Unpin + 'static,
    S::Error: Into<StreamCut>,
{
    let is_tcp = matches!(stream, ClientStream::Tcp(_));
    let forwarded = match stream {
        ClientStream::Forwarded { admitted, .. } => Some(admitted),
        ClientStream::Tcp(_) | ClientStream::Tls(_) => None,
    };
    let state = Arc::new(ConnectionState::default());
    let (of_service, config_of_service) = (Arc::clone(&state), Arc::clone(config));
    let service = service_fn(move |mut request: Request<Incoming>| {
        let state = Arc::clone(&of_service);
        let open = state.begin_request();
        // A forwarded request was checked where it came in first.
        let checked =
            if forwarded.is_some() { Ok(()) } else { config_of_service.check.check(&mut request, &state.heads) };
        // The body itself is in the socket only where there is no TLS.
        let bypass = if is_tcp && checked.is_ok() { bypass_length(&request) } else { None };
        // The end of a body that goes past hyper is handled by the handoff.
        let closes_when_unread = bypass.is_none() && closes_when_unread(&request);
        if forwarded == Some(true) {
            request.extensions_mut().insert(AlreadyAdmitted);
        }
        if let Some(length) = bypass {
            state.handoff.begin(length);
            request.extensions_mut().insert(Arc::clone(&state.handoff));
        }
        let client_closes = bypass.is_some() && says_close(request.headers());
        let version = request.version();
        let response = checked.map(|()| handler(request));
        async move {
            let mut response = match response {
                Ok(response) => response.await,
                Err(refusal) => refusal.map(ResponseBody::full),
            };
            // A collected body has been read; a refusal comes before the body is, or while it is being read.
            let lingers = closes_when_unread && response.extensions_mut().remove::<BodyUnread>().is_some();
            state.end.set_lingers(lingers);
            let ends = bypass.is_some() && (client_closes || !state.decide_continuation());
            if lingers || ends || state.is_last_response() {
                response.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
            }
            let deadline = read_deadline(&mut response, version);
            let guard = response.extensions_mut().remove::<ResponseGuard>();
            let ends_with_connection = version == Version::HTTP_10;
            Ok::<_, Infallible>(
                response.map(|body| OpenResponse::new(body, open, deadline, ends_with_connection, guard)),
            )
        }
    });
    let socket = TokioIo::new(Socket::new(stream, Arc::clone(&state)));
    let mut builder = builder.clone();
    builder.http1().timer(HeadTimer::default());
    let connection = Box::pin(builder.serve_connection(socket, service));
    let went_well = driver::drive(connection, &state, config, phase, is_tcp).await;
    if state.end.has_large_trailers() {
        config.check.metrics.closed("trailers");
    }
    state.handoff.finish().await;
    let leftover = state.end.take_leftover()?;
    if state.end.continues() {
        return went_well.then_some(leftover); // otherwise the response is incomplete
    }
    drain(leftover.without_tls(), u64::MAX).await;
    None
}

/// Returns true if the client announced its last request.
fn says_close(headers: &HeaderMap) -> bool {
    let words = headers.get_all(CONNECTION).iter().flat_map(|value| value.as_bytes().split(|byte| *byte == b','));
    words.into_iter().any(|word| word.trim_ascii().eq_ignore_ascii_case(b"close"))
}

/// Deadline for a response to be read. Over HTTP/2 even a small response can stay unread: its window is closed though the connection
/// flows.
fn read_deadline<S>(response: &mut Response<ResponseBody<S>>, version: Version) -> Option<ReadDeadline> {
    let can_stay = version == Version::HTTP_2 && matches!(response.body(), ResponseBody::Pieces(_));
    let default =
        || can_stay.then(|| ReadDeadline { at: (Instant::now() + UNREAD).into_std(), after_end: None, permit: None });
    response.extensions_mut().remove::<ReadDeadline>().or_else(default)
}

#[cfg(test)]
mod tests;
