//! One client's connection from its first byte to its last: requests in, answers out, as [`super::listener`] bounds them and for
//! as long as the scheduler has it.

mod handoff;
mod head_timer;
mod http2_frames;
mod socket;
mod state;
mod stream;

pub use self::handoff::Hold;
pub use self::stream::Stream;

use self::handoff::drain;
use self::head_timer::HeadTimer;
use self::socket::Socket;
use self::state::{Answering, Known};
use crate::body::{may_be_left, passes_hyper};
use crate::check::{Door, HEADERS};
use crate::listener::{Bounds, Phase, UNREAD};
use crate::response::{Left, ResponseBody, ResponseGuard, Slow, StreamCut};
use bytes::Bytes;
use hyper::body::{Body, Incoming};
use hyper::header::{CONNECTION, HeaderMap, HeaderValue};
use hyper::service::service_fn;
use hyper::{Request, Response, Version};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto;
use std::convert::Infallible;
use std::future::{Future, poll_fn};
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::sync::watch;
use tokio::time::{Instant, Sleep};

/// Longest head of a request over HTTP/1.1, in bytes.
const HEAD: usize = 64 * 1024;
/// The same over HTTP/2, where each header counts 32 bytes more: what a stream can have decoded before it is looked at.
const HEAD_HTTP2: u32 = 16 * 1024;
/// Streams of one HTTP/2 connection.
const STREAMS: u32 = 256;
/// What a client may send of one body over HTTP/2 before somebody reads it, and of all bodies of a connection.
pub(crate) const STREAM_WINDOW: u32 = 256 * 1024;
const CONNECTION_WINDOW: u32 = 1024 * 1024;
/// For the first request of a connection to come when all are closed: it may be on its way already, and would be reset.
const FIRST_REQUEST: Duration = Duration::from_secs(1);
/// For a client to close an HTTP/2 connection that it was told to let go of.
const LET_GO: Duration = Duration::from_secs(5);

/// Extension of a request that the predecessor has admitted. Only a connection from the predecessor sets it.
#[derive(Debug, Clone, Copy)]
pub struct AlreadyAdmitted;

/// How the connections of a listener are served.
#[derive(Debug)]
pub struct Rules {
    /// Bounds of each.
    pub bounds: Bounds,
    /// What is asked of each request.
    pub door: Door,
    builder: auto::Builder<TokioExecutor>,
}

impl Rules {
    /// Of a listener.
    #[must_use]
    pub fn new(bounds: Bounds, door: Door) -> Self {
        Self { bounds, door, builder: builder(bounds) }
    }
}

/// Both versions of HTTP, with heads and streams bounded.
#[must_use]
pub fn builder(bounds: Bounds) -> auto::Builder<TokioExecutor> {
    let mut builder = auto::Builder::new(TokioExecutor::new());
    builder
        .http1()
        .timer(TokioTimer::new())
        .header_read_timeout(bounds.header_timeout)
        .max_buf_size(HEAD)
        .max_headers(HEADERS);
    builder
        .http2()
        .timer(TokioTimer::new())
        .max_concurrent_streams(STREAMS)
        .max_header_list_size(HEAD_HTTP2)
        .initial_stream_window_size(STREAM_WINDOW)
        .initial_connection_window_size(CONNECTION_WINDOW)
        .keep_alive_interval(Some(bounds.header_timeout));
    builder
}

/// Serves a connection to its end: by one hyper after the other, where each begins behind a body that passed the one before.
pub(crate) async fn converse<H, F, S>(stream: Stream, rules: &Arc<Rules>, phase: watch::Receiver<Phase>, handler: H)
where
    H: Fn(Request<Incoming>) -> F + Clone + Send + Sync + 'static,
    F: Future<Output = Response<ResponseBody<S>>> + Send + 'static,
    S: Body<Data = Bytes> + Send + Unpin + 'static,
    S::Error: Into<StreamCut>,
{
    let mut builder = rules.builder.clone();
    let mut next = serve(stream, &builder, rules, phase.clone(), handler.clone()).await;
    if next.is_some() {
        builder = builder.http1_only(); // what follows is no beginning of a connection
    }
    while let Some(stream) = next {
        next = serve(stream, &builder, rules, phase.clone(), handler.clone()).await;
    }
}

/// Serves a connection until hyper lets go of it. Returns it where it goes on.
async fn serve<H, F, S>(
    stream: Stream,
    builder: &auto::Builder<TokioExecutor>,
    rules: &Arc<Rules>,
    phase: watch::Receiver<Phase>,
    handler: H,
) -> Option<Stream>
where
    H: Fn(Request<Incoming>) -> F + Clone + Send + Sync + 'static,
    F: Future<Output = Response<ResponseBody<S>>> + Send + 'static,
    S: Body<Data = Bytes> + Send + Unpin + 'static,
    S::Error: Into<StreamCut>,
{
    let is_tcp = matches!(stream, Stream::Tcp(_));
    let asked = match stream {
        Stream::Asked { admitted, .. } => Some(admitted),
        Stream::Tcp(_) | Stream::Tls(_) => None,
    };
    let known = Arc::new(Known::default());
    let (noted, door) = (Arc::clone(&known), Arc::clone(rules));
    let service = service_fn(move |mut request: Request<Incoming>| {
        let open = noted.begin();
        // What is asked again came in where it was asked first.
        let entered = if asked.is_some() { Ok(()) } else { door.door.enter(&mut request, &noted.heads) };
        // What is in the socket is the body only where nothing is spoken over it.
        let length = if is_tcp && entered.is_ok() { passes_hyper(&request) } else { None };
        // What is held has an end of its own.
        let may_be_left = length.is_none() && may_be_left(&request);
        if asked == Some(true) {
            request.extensions_mut().insert(AlreadyAdmitted);
        }
        if let Some(length) = length {
            noted.hold.hold(length);
            request.extensions_mut().insert(Arc::clone(&noted.hold));
        }
        let closes = length.is_some() && says_close(request.headers());
        let version = request.version();
        let (answer, noted) = (entered.map(|()| handler(request)), Arc::clone(&noted));
        async move {
            let mut answer = match answer {
                Ok(answer) => answer.await,
                Err(refusal) => refusal.map(ResponseBody::full),
            };
            // What was collected has been read; a refusal comes before the body is, or while it is.
            let is_left = may_be_left && answer.extensions_mut().remove::<Left>().is_some();
            noted.linger(is_left);
            let ends = length.is_some() && (closes || !noted.may_go_on());
            if is_left || ends || noted.runs_out() {
                answer.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
            }
            let slow = slow(&mut answer, version);
            let guard = answer.extensions_mut().remove::<ResponseGuard>();
            Ok::<_, Infallible>(answer.map(|body| Answering::new(body, open, slow, version == Version::HTTP_10, guard)))
        }
    });
    let socket = TokioIo::new(Socket::new(stream, Arc::clone(&known)));
    let mut builder = builder.clone();
    builder.http1().timer(HeadTimer::default());
    let connection = Box::pin(builder.serve_connection(socket, service));
    let is_whole = drive(connection, &known, rules, phase, is_tcp).await;
    if known.has_overdone() {
        rules.door.metrics.closed("trailers");
    }
    known.hold.close().await;
    let left = known.left()?;
    if known.goes_on() {
        return is_whole.then_some(left); // else half an answer is all that it had
    }
    drain(left.beneath(), u64::MAX).await;
    None
}

/// Polls hyper, and the times that it has no idea of. Returns whether hyper was done with the connection.
async fn drive<C: Conversation>(
    mut connection: Pin<Box<C>>,
    known: &Arc<Known>,
    rules: &Rules,
    mut phase: watch::Receiver<Phase>,
    is_tcp: bool,
) -> bool {
    let bounds = rules.bounds;
    let mut phases = phase.clone();
    phases.mark_changed(); // the first turn asks as well
    let mut change = pin!(async move { phase.wait_for(is_end).await.ok().map(|end| end.clone()) });
    let mut late = pin!(tokio::time::sleep(bounds.header_timeout));
    let mut unused = Unused::default();
    let (mut end, mut told, mut waits, mut until) = (None, false, true, None);
    poll_fn(|context| {
        known.turn();
        known.awaits_end(context);
        // It has this task's waker: to ask it costs more than to see that there is no reason to.
        let asks = end.is_none() && phases.has_changed().unwrap_or(true);
        if asks {
            phases.mark_unchanged();
        }
        if asks && let Poll::Ready(change) = change.as_mut().poll(context) {
            let change = change.unwrap_or(Phase::Close); // nobody there to say how: it is over
            let begins = matches!(change, Phase::Close) && !known.has_begun();
            if begins {
                let first = late.deadline().min(Instant::now() + FIRST_REQUEST);
                late.as_mut().reset(first);
            }
            let end = end.insert(if matches!(change, Phase::HandOver(_)) && !is_tcp { Phase::RunOut } else { change });
            if matches!(end, Phase::RunOut) {
                known.run_out();
            }
        }
        // Until hyper has told the two versions apart, which can be never, it has no time limit of its own.
        waits &= !known.has_begun();
        if waits && until.is_none() && late.as_mut().poll(context).is_ready() {
            return Poll::Ready(false);
        }
        loop {
            // A client that breaks the protocol or the connection is answered by hyper, as far as possible.
            if let Poll::Ready(is_whole) = connection.as_mut().poll(context) {
                return Poll::Ready(is_whole);
            }
            known.settle();
            known.awaits_end(context);
            // While the client takes nothing, hyper asks for nothing more, not even whether time is up.
            if let Some(given) = known.until() {
                if until.replace(given) != Some(given) {
                    late.as_mut().reset(given.into());
                }
                if late.as_mut().poll(context).is_ready() || known.is_given_up(context) {
                    known.cut();
                    return Poll::Ready(false);
                }
            }
            let is_unused = unused.poll(known, bounds.header_timeout, context);
            if is_unused == Some(Use::Kept) {
                return Poll::Ready(false);
            }
            if told || !(is_unused.is_some() || end.as_ref().is_some_and(|end| may_end(end, known))) {
                return Poll::Pending;
            }
            if is_unused.is_some() {
                rules.door.metrics.closed("idle");
            }
            told = true;
            known.tell();
            connection.as_mut().let_go();
        }
    })
    .await
}

/// Hyper's part of a connection.
trait Conversation {
    /// Whether all of it went well, once it is over.
    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<bool>;

    /// No further request is taken.
    fn let_go(self: Pin<&mut Self>);
}

impl<S, B> Conversation for auto::Connection<'_, TokioIo<Socket>, S, TokioExecutor>
where
    S: hyper::service::Service<Request<Incoming>, Response = Response<B>>,
    S::Future: 'static,
    S::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
    B: Body + 'static,
    B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
    TokioExecutor: auto::HttpServerConnExec<S::Future, B>,
{
    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<bool> {
        Future::poll(self, context).map(|ended| ended.is_ok())
    }

    fn let_go(self: Pin<&mut Self>) {
        self.graceful_shutdown();
    }
}

/// An HTTP/2 connection over which nothing is asked: pings alone do not keep it.
#[derive(Default)]
struct Unused {
    /// Looks at it; made at the first answer's end.
    timer: Option<Pin<Box<Sleep>>>,
    /// It was told to go.
    told: bool,
}

/// An unused connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Use {
    /// Its time is over.
    Over,
    /// So is the time for its client to let go of it.
    Kept,
}

impl Unused {
    fn poll(&mut self, known: &Known, within: Duration, context: &mut Context<'_>) -> Option<Use> {
        if !known.is_http2() || !known.has_begun() {
            return None; // hyper's own limit, or that of the first request
        }
        let timer = self.timer.get_or_insert_with(|| Box::pin(tokio::time::sleep(within)));
        while timer.as_mut().poll(context).is_ready() {
            let now = Instant::now();
            // One that is used is looked at again: its time begins at its last answer's end, and is not over before.
            let over = known.unused_since().unwrap_or(now) + within;
            if known.unused_since().is_some() && over <= now {
                timer.as_mut().reset(now + LET_GO);
                return Some(if std::mem::replace(&mut self.told, true) { Use::Kept } else { Use::Over });
            }
            timer.as_mut().reset(over);
        }
        None
    }
}

/// Whether a client said that its request is the last one.
fn says_close(headers: &HeaderMap) -> bool {
    let words = headers.get_all(CONNECTION).iter().flat_map(|value| value.as_bytes().split(|byte| *byte == b','));
    words.into_iter().any(|word| word.trim_ascii().eq_ignore_ascii_case(b"close"))
}

/// When an answer must have been taken. Over HTTP/2 a small one can be left untaken, too: a window is closed though the
/// connection flows.
fn slow<S>(answer: &mut Response<ResponseBody<S>>, version: Version) -> Option<Slow> {
    let is_left = version == Version::HTTP_2 && matches!(answer.body(), ResponseBody::Pieces(_));
    let left = || is_left.then(|| Slow { until: (Instant::now() + UNREAD).into_std(), untaken: None });
    answer.extensions_mut().remove::<Slow>().or_else(left)
}

fn is_end(phase: &Phase) -> bool {
    matches!(phase, Phase::Close | Phase::HandOver(_) | Phase::RunOut)
}

/// Whether hyper may be told to let go of a connection; one of HTTP/1.1 goes to its heir then.
fn may_end(end: &Phase, known: &Known) -> bool {
    match end {
        Phase::Open | Phase::Shut => false,
        Phase::Close => known.has_begun() || known.is_http2(),
        Phase::RunOut => known.is_http2(), // who speaks HTTP/1.1 is told by an answer
        Phase::HandOver(_) if known.is_http2() => true,
        Phase::HandOver(heir) if known.is_idle() => {
            known.bequeath(heir.clone());
            true
        }
        Phase::HandOver(_) => false,
    }
}

#[cfg(test)]
mod tests;
