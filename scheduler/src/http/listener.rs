//! Accepting connections: HTTP/1.1 and HTTP/2 with prior knowledge on one socket, bounded in number.

use super::answer::{AnswerBody, Slow};
use super::body::passes_hyper;
use super::connection::{Answering, Known, Socket};
use crate::tokens::Admitted;
use hyper::body::Incoming;
use hyper::header::{CONNECTION, HeaderValue};
use hyper::service::service_fn;
use hyper::{Request, Response};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto;
use nix::sys::socket::setsockopt;
use nix::sys::socket::sockopt::TcpUserTimeout;
use std::convert::Infallible;
use std::future::{Future, poll_fn};
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Semaphore, mpsc, watch};
use tokio::time::Instant;

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
/// A client that takes nothing of its answer for this long is gone, as far as the kernel is concerned; in milliseconds.
const UNREAD_MS: u32 = 120_000;
/// For the first request of a connection to come when all are closed: it may be on its way already, and would be reset.
const FIRST_REQUEST: Duration = Duration::from_secs(1);
/// Pause after the kernel refused a connection for want of descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

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
}

/// Serves until `phase` says otherwise, then lets requests under way finish. `handed`: connections of an earlier scheduler.
pub async fn serve<H, F>(
    listener: TcpListener,
    bounds: Bounds,
    mut phase: watch::Receiver<Phase>,
    mut handed: mpsc::Receiver<TcpStream>,
    handler: H,
) where
    H: Fn(Request<Incoming>) -> F + Clone + Send + Sync + 'static,
    F: Future<Output = Response<AnswerBody>> + Send + 'static,
{
    let room = Arc::new(Semaphore::new(bounds.connections));
    let builder = builder(bounds);
    loop {
        let accepted = tokio::select! {
            accepted = accept(&listener, &mut handed, &room) => accepted,
            _ = phase.wait_for(|phase| !matches!(phase, Phase::Open)) => break,
        };
        let Some((stream, permit)) = accepted else { continue };
        let handler = handler.clone();
        let known = Arc::new(Known::default());
        let asked = Arc::clone(&known);
        let service = service_fn(move |mut request: Request<Incoming>| {
            let open = asked.begin();
            let length = passes_hyper(&request);
            if let Some(length) = length {
                asked.hold.hold(length);
                request.extensions_mut().insert(Arc::clone(&asked.hold));
            }
            let answer = handler(request);
            async move {
                let mut answer = answer.await;
                if length.is_some() {
                    answer.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
                }
                let slow = answer.extensions_mut().remove::<Slow>();
                let admitted = answer.extensions_mut().remove::<Arc<Admitted>>();
                Ok::<_, Infallible>(answer.map(|body| Answering::new(body, open, slow, admitted)))
            }
        });
        let connection =
            builder.serve_connection(TokioIo::new(Socket::new(stream, Arc::clone(&known))), service).into_owned();
        let mut phase = phase.clone();
        tokio::spawn(async move {
            let mut connection = pin!(connection);
            let mut change = pin!(async move { phase.wait_for(is_end).await.ok().map(|end| end.clone()) });
            let mut late = pin!(tokio::time::sleep(bounds.header_timeout));
            let (mut end, mut told, mut waits, mut until) = (None, false, true, None);
            poll_fn(|context| {
                if end.is_none()
                    && let Poll::Ready(change) = change.as_mut().poll(context)
                {
                    end = Some(change.unwrap_or(Phase::Close)); // nobody there to say how: it is over
                    if matches!(end, Some(Phase::Close)) && !known.has_begun() {
                        let first = late.deadline().min(Instant::now() + FIRST_REQUEST);
                        late.as_mut().reset(first);
                    }
                }
                // Until hyper has told the two versions apart, which can be never, it has no time limit of its own.
                if waits && until.is_none() && late.as_mut().poll(context).is_ready() {
                    waits = false;
                    if !known.has_begun() {
                        return Poll::Ready(());
                    }
                }
                loop {
                    // A client that breaks the protocol or the connection is answered by hyper, as far as possible.
                    if connection.as_mut().poll(context).is_ready() {
                        return Poll::Ready(());
                    }
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
            known.hold.close().await;
            drop(permit);
        });
    }
    drop(listener);
    let all = u32::try_from(bounds.connections).unwrap_or(u32::MAX);
    let _ = room.acquire_many(all).await; // they are given back with the last connection
}

fn is_end(phase: &Phase) -> bool {
    matches!(phase, Phase::Close | Phase::HandOver(_))
}

/// Whether hyper may be told to let go of a connection; one of HTTP/1.1 goes to its heir then.
fn may_end(end: &Phase, known: &Known) -> bool {
    match end {
        Phase::Open | Phase::Shut => false,
        Phase::Close => known.has_begun() || known.is_http2(),
        Phase::HandOver(_) if known.is_http2() => true,
        Phase::HandOver(heir) if known.is_idle() => {
            known.bequeath(heir.clone());
            true
        }
        Phase::HandOver(_) => false,
    }
}

async fn accept(
    listener: &TcpListener,
    handed: &mut mpsc::Receiver<TcpStream>,
    room: &Arc<Semaphore>,
) -> Option<(TcpStream, tokio::sync::OwnedSemaphorePermit)> {
    let permit = Arc::clone(room).acquire_owned().await.ok()?;
    let accepted = tokio::select! {
        accepted = listener.accept() => accepted,
        Some(stream) = handed.recv() => return Some((stream, permit)),
    };
    match accepted {
        Ok((stream, _)) => {
            let _ = stream.set_nodelay(true); // refused only by sockets that are closed already
            let _ = setsockopt(&stream, TcpUserTimeout, &UNREAD_MS);
            Some((stream, permit))
        }
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
