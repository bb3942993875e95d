//! Accepting connections: HTTP/1.1 and HTTP/2 on one socket, told apart by their first bytes, bounded in number; with TLS
//! under both where the node has a certificate.

use super::answer::{AnswerBody, Slow};
use super::body::{is_streamed, may_be_left, passes_hyper};
use super::connection::{Answering, Known, Socket};
use super::head_timer::HeadTimer;
use super::hold::drain;
use super::stream::Stream;
use crate::tokens::{Admitted, AdmittedBefore};
use hyper::body::{Body, Incoming};
use hyper::header::{CONNECTION, HeaderValue};
use hyper::service::service_fn;
use hyper::{Request, Response, Version};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto;
use nix::sys::socket::setsockopt;
use nix::sys::socket::sockopt::{TcpNoDelay, TcpUserTimeout};
use nix::{getsockopt_impl, libc, setsockopt_impl, sockopt_impl};
use std::convert::Infallible;
use std::future::{Future, poll_fn};
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc, watch};
use tokio::time::Instant;
use tokio_rustls::TlsAcceptor;

/// Bounds of a listener.
#[derive(Debug, Clone, Copy)]
pub struct Bounds {
    /// Connections at a time; further ones wait in the kernel's queue.
    pub connections: usize,
    /// For a request's head, and for the first one of a connection to come at all.
    pub header_timeout: Duration,
}

/// Longest head of a request, in bytes.
const HEAD: usize = 64 * 1024;
/// Most headers of a request.
const HEADERS: usize = 100;
/// Streams of one HTTP/2 connection.
const STREAMS: u32 = 256;
/// A client that takes nothing of its answer for this long is gone: as far as the kernel is concerned, in milliseconds, and
/// of a small one over HTTP/2.
const UNREAD_MS: u32 = 120_000;
const UNREAD: Duration = Duration::from_millis(UNREAD_MS as u64);
/// What the kernel takes of an answer beyond what is on its way; in bytes. Without it, it keeps megabytes for each client
/// that is slow to take its answer, which nobody counts.
const UNSENT: u32 = 256 * 1024;
/// For the first request of a connection to come when all are closed: it may be on its way already, and would be reset.
const FIRST_REQUEST: Duration = Duration::from_secs(1);
/// For TLS to be begun, from the client's first byte to its last one. It takes two turns, and counts as a connection.
const HANDSHAKE: Duration = Duration::from_secs(5);
/// Pause after the kernel refused a connection for want of descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

sockopt_impl!(
    /// `TCP_NOTSENT_LOWAT` of tcp(7).
    Unsent,
    Both,
    libc::IPPROTO_TCP,
    libc::TCP_NOTSENT_LOWAT,
    u32
);

/// What a listener does with its connections.
#[derive(Debug, Clone)]
pub enum Phase {
    /// Accepts and serves them.
    Open,
    /// Accepts none; those that are there go on.
    Shut,
    /// Ends them as soon as what they have asked is answered.
    Close,
    /// Leaves them to a successor, which has the socket that listens.
    HandOver(mpsc::Sender<TcpStream>),
    /// The same to a successor that would not take them as they are: each goes on until its next answer.
    RunOut,
}

/// A connection that has come.
enum Arrived {
    /// From a client.
    Accepted(TcpStream),
    /// From an earlier scheduler, as it is served.
    Handed(Stream),
}

/// What comes of an earlier scheduler, for as long as there is one.
#[derive(Debug)]
pub struct Inherited {
    /// Connections of clients. They count as those that are accepted.
    pub connections: mpsc::Receiver<Stream>,
    /// Requests that it asks again, each over a connection of its own. Clients wait for them there, so they have room
    /// whatever comes from clients here: as many as there may be connections.
    pub asked: mpsc::Receiver<Stream>,
}

/// Serves until `phase` says otherwise, then lets requests under way finish. `tls`: what clients have to speak, if so.
pub async fn serve<H, F>(
    listener: TcpListener,
    tls: Option<TlsAcceptor>,
    bounds: Bounds,
    mut phase: watch::Receiver<Phase>,
    Inherited { mut connections, mut asked }: Inherited,
    handler: H,
) where
    H: Fn(Request<Incoming>) -> F + Clone + Send + Sync + 'static,
    F: Future<Output = Response<AnswerBody>> + Send + 'static,
{
    bequeath_options(&listener);
    let rooms = [(); 2].map(|()| Arc::new(Semaphore::new(bounds.connections)));
    let [room, room_to_ask] = &rooms;
    let builder = Arc::new(builder(bounds));
    loop {
        let accepted = tokio::select! {
            accepted = accept(&listener, &mut connections, room) => accepted,
            Some(again) = ask(&mut asked, room_to_ask) => Some(again),
            _ = phase.wait_for(|phase| !matches!(phase, Phase::Open)) => break,
        };
        let Some((arrived, permit)) = accepted else { continue };
        let (tls, builder, phase, handler) = (tls.clone(), Arc::clone(&builder), phase.clone(), handler.clone());
        tokio::spawn(async move {
            let stream = match (arrived, tls) {
                (Arrived::Handed(stream), _) => Some(stream),
                (Arrived::Accepted(stream), None) => Some(Stream::Tcp(stream)),
                (Arrived::Accepted(stream), Some(tls)) => shake_hands(&tls, stream, bounds).await,
            };
            if let Some(stream) = stream {
                converse(stream, &builder, bounds, phase, handler).await;
            }
            drop(permit);
        });
    }
    drop(listener);
    let all = u32::try_from(bounds.connections).unwrap_or(u32::MAX);
    for room in rooms {
        let _ = room.acquire_many(all).await; // they are given back with the last connection
    }
}

/// TLS on a client's connection; `None` for one that does not speak it, or not in time.
async fn shake_hands(tls: &TlsAcceptor, stream: TcpStream, bounds: Bounds) -> Option<Stream> {
    // In a box: who speaks plain HTTP needs no room for it.
    let shaken = Box::pin(tokio::time::timeout(HANDSHAKE.min(bounds.header_timeout), tls.accept(stream))).await;
    match shaken {
        Ok(Ok(stream)) => Some(Stream::Tls(Box::new(stream))),
        // Anybody can cause any number of them.
        Ok(Err(error)) => {
            tracing::debug!(%error, "a client that does not speak TLS as it should");
            None
        }
        Err(_) => {
            tracing::debug!("a client that began TLS and went no further");
            None
        }
    }
}

/// Serves one connection to its end.
async fn converse<H, F>(
    stream: Stream,
    builder: &auto::Builder<TokioExecutor>,
    bounds: Bounds,
    mut phase: watch::Receiver<Phase>,
    handler: H,
) where
    H: Fn(Request<Incoming>) -> F + Clone + Send + Sync + 'static,
    F: Future<Output = Response<AnswerBody>> + Send + 'static,
{
    let is_tcp = matches!(stream, Stream::Tcp(_));
    let admitted = matches!(stream, Stream::Asked { admitted: true, .. });
    let known = Arc::new(Known::default());
    let asked = Arc::clone(&known);
    let service = service_fn(move |mut request: Request<Incoming>| {
        let open = asked.begin();
        // What is in the socket is the body only where nothing is spoken over it.
        let length = if is_tcp { passes_hyper(&request) } else { None };
        // What is held has an end of its own.
        let may_be_left = length.is_none() && may_be_left(&request);
        let is_streamed = may_be_left && is_streamed(request.headers(), request.body().size_hint().exact());
        if admitted {
            request.extensions_mut().insert(AdmittedBefore);
        }
        if let Some(length) = length {
            asked.hold.hold(length);
            request.extensions_mut().insert(Arc::clone(&asked.hold));
        }
        let version = request.version();
        let (answer, asked) = (handler(request), Arc::clone(&asked));
        async move {
            let mut answer = answer.await;
            // A refusal comes before the body is read, or while it is; what was collected has been.
            asked.linger(may_be_left && (is_streamed || !answer.status().is_success()));
            if length.is_some() || asked.runs_out() {
                answer.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
            }
            let slow = answer.extensions_mut().remove::<Slow>();
            // Over HTTP/2 a small one can be left untaken, too: a window is closed though the connection flows.
            let is_left = version == Version::HTTP_2 && matches!(answer.body(), AnswerBody::Pieces(_));
            let left = || is_left.then(|| Slow { until: (Instant::now() + UNREAD).into_std(), untaken: None });
            let slow = slow.or_else(left);
            let admitted = answer.extensions_mut().remove::<Arc<Admitted>>();
            Ok::<_, Infallible>(
                answer.map(|body| Answering::new(body, open, slow, version == Version::HTTP_10, admitted)),
            )
        }
    });
    let socket = TokioIo::new(Socket::new(stream, Arc::clone(&known)));
    let mut builder = builder.clone();
    builder.http1().timer(HeadTimer::default());
    let mut connection = Box::pin(builder.serve_connection(socket, service));
    let mut phases = phase.clone();
    phases.mark_changed(); // the first turn asks as well
    let mut change = pin!(async move { phase.wait_for(is_end).await.ok().map(|end| end.clone()) });
    let mut late = pin!(tokio::time::sleep(bounds.header_timeout));
    let (mut end, mut told, mut waits, mut until) = (None, false, true, None);
    poll_fn(|context| {
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
            return Poll::Ready(());
        }
        loop {
            // A client that breaks the protocol or the connection is answered by hyper, as far as possible.
            if connection.as_mut().poll(context).is_ready() {
                return Poll::Ready(());
            }
            known.settle();
            // While the client takes nothing, hyper asks for nothing more, not even whether time is up.
            if let Some(given) = known.until() {
                if until.replace(given) != Some(given) {
                    late.as_mut().reset(given.into());
                }
                if late.as_mut().poll(context).is_ready() || known.is_given_up(context) {
                    known.cut();
                    return Poll::Ready(());
                }
            }
            if told || !end.as_ref().is_some_and(|end| may_end(end, &known)) {
                return Poll::Pending;
            }
            told = true;
            connection.as_mut().graceful_shutdown();
        }
    })
    .await;
    drop(connection);
    known.hold.close().await;
    if let Some(left) = known.left() {
        drain(left.beneath(), u64::MAX).await;
    }
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

/// What each connection has of its listener: Linux copies these, and three calls for each connection are saved.
fn bequeath_options(listener: &TcpListener) {
    let set = [
        setsockopt(listener, TcpNoDelay, &true),
        setsockopt(listener, TcpUserTimeout, &UNREAD_MS),
        setsockopt(listener, Unsent, &UNSENT),
    ];
    for error in set.into_iter().filter_map(Result::err) {
        tracing::warn!(%error, "an option of the listener is not set: clients that take nothing are kept for longer");
    }
}

/// The next request that an earlier scheduler asks again; `None` when none comes any more.
async fn ask(asked: &mut mpsc::Receiver<Stream>, room: &Arc<Semaphore>) -> Option<(Arrived, OwnedSemaphorePermit)> {
    let permit = Arc::clone(room).acquire_owned().await.ok()?;
    asked.recv().await.map(|stream| (Arrived::Handed(stream), permit))
}

async fn accept(
    listener: &TcpListener,
    handed: &mut mpsc::Receiver<Stream>,
    room: &Arc<Semaphore>,
) -> Option<(Arrived, OwnedSemaphorePermit)> {
    let permit = Arc::clone(room).acquire_owned().await.ok()?;
    let accepted = tokio::select! {
        accepted = listener.accept() => accepted,
        Some(stream) = handed.recv() => return Some((Arrived::Handed(stream), permit)),
    };
    match accepted {
        Ok((stream, _)) => Some((Arrived::Accepted(stream), permit)),
        Err(error) => {
            tracing::warn!(%error, "connection not accepted");
            tokio::time::sleep(ACCEPT_PAUSE).await;
            None
        }
    }
}

/// How connections are served: both versions of HTTP, with heads and streams bounded.
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
        .max_header_list_size(HEAD as u32)
        .keep_alive_interval(Some(bounds.header_timeout));
    builder
}

#[cfg(test)]
#[path = "listener_tests.rs"]
mod tests;
