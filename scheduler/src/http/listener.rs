//! Accepting connections: HTTP/1.1 and HTTP/2 with prior knowledge on one socket, bounded in number.

use super::answer::AnswerBody;
use super::body::passes_hyper;
use super::socket::ClientSocket;
use hyper::body::Incoming;
use hyper::header::{CONNECTION, HeaderValue};
use hyper::service::service_fn;
use hyper::{Request, Response};
use hyper_util::rt::{TokioExecutor, TokioTimer};
use hyper_util::server::conn::auto;
use hyper_util::server::graceful::GracefulShutdown;
use nix::sys::socket::setsockopt;
use nix::sys::socket::sockopt::TcpUserTimeout;
use std::convert::Infallible;
use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use tokio::net::TcpListener;
use tokio::sync::{Semaphore, watch};

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
/// Pause after the kernel refused a connection for want of descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// Serves until `stop` turns true, then lets requests under way finish.
pub async fn serve<H, F>(listener: TcpListener, bounds: Bounds, mut stop: watch::Receiver<bool>, handler: H)
where
    H: Fn(Request<Incoming>) -> F + Clone + Send + Sync + 'static,
    F: Future<Output = Response<AnswerBody>> + Send + 'static,
{
    let room = Arc::new(Semaphore::new(bounds.connections));
    let builder = builder(bounds);
    let graceful = GracefulShutdown::new();
    loop {
        let accepted = tokio::select! {
            accepted = accept(&listener, &room) => accepted,
            _ = stop.wait_for(|stop| *stop) => break,
        };
        let Some((stream, permit)) = accepted else { continue };
        let handler = handler.clone();
        let begun = Arc::new(AtomicBool::new(false));
        let begins = Arc::clone(&begun);
        let (socket, hold) = ClientSocket::new(stream);
        let held = Arc::clone(&hold);
        let service = service_fn(move |mut request: Request<Incoming>| {
            begins.store(true, Ordering::Relaxed);
            let length = passes_hyper(&request);
            if let Some(length) = length {
                held.hold(length);
                request.extensions_mut().insert(Arc::clone(&held));
            }
            let answer = handler(request);
            async move {
                let mut answer = answer.await;
                if length.is_some() {
                    answer.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
                }
                Ok::<_, Infallible>(answer)
            }
        });
        let connection = graceful.watch(builder.serve_connection(socket, service).into_owned());
        tokio::spawn(async move {
            let mut connection = pin!(connection);
            // A client that breaks the protocol or the connection is answered by hyper, as far as possible. Until it has
            // told the two versions apart, which can be never, hyper has no time limit of its own.
            let first = tokio::time::timeout(bounds.header_timeout, connection.as_mut()).await;
            if first.is_err() && begun.load(Ordering::Relaxed) {
                let _ = connection.await;
            }
            hold.close().await;
            drop(permit);
        });
    }
    drop(listener);
    graceful.shutdown().await;
}

async fn accept(
    listener: &TcpListener,
    room: &Arc<Semaphore>,
) -> Option<(tokio::net::TcpStream, tokio::sync::OwnedSemaphorePermit)> {
    let permit = Arc::clone(room).acquire_owned().await.ok()?;
    match listener.accept().await {
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

fn builder(bounds: Bounds) -> auto::Builder<TokioExecutor> {
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
