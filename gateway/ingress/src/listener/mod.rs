//! Accepting connections: HTTP/1.1 and HTTP/2 on one socket, told apart by their first bytes, bounded in number; with TLS
//! under both where the node has a certificate.

mod address_limit;

use self::address_limit::{Addresses, Counted};
use crate::connection::{Rules, Stream, converse};
use crate::response::{ResponseBody, StreamCut};
use bytes::Bytes;
use hyper::body::{Body, Incoming};
use hyper::{Request, Response};
use nix::sys::socket::setsockopt;
use nix::sys::socket::sockopt::{TcpNoDelay, TcpUserTimeout};
use nix::{getsockopt_impl, libc, setsockopt_impl, sockopt_impl};
use std::future::Future;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc, watch};
use tokio_rustls::TlsAcceptor;

/// Bounds of a listener.
#[derive(Debug, Clone, Copy)]
pub struct Bounds {
    /// Connections at a time; further ones wait in the kernel's queue.
    pub connections: usize,
    /// The same from one address.
    pub connections_per_address: Option<u32>,
    /// For a request's head, and for the first one of a connection to come at all.
    pub header_timeout: Duration,
}

/// A client that takes nothing of its answer for this long is gone: as far as the kernel is concerned, in milliseconds, and
/// of a small one over HTTP/2.
const UNREAD_MS: u32 = 120_000;
pub(crate) const UNREAD: Duration = Duration::from_millis(UNREAD_MS as u64);
/// What the kernel takes of an answer beyond what is on its way; in bytes. Without it, it keeps megabytes for each client
/// that is slow to take its answer, which nobody counts.
const UNSENT: u32 = 256 * 1024;
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
    /// From a client, at this address.
    Accepted(TcpStream, IpAddr),
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
pub async fn serve<H, F, S>(
    listener: TcpListener,
    tls: Option<TlsAcceptor>,
    rules: Rules,
    mut phase: watch::Receiver<Phase>,
    Inherited { mut connections, mut asked }: Inherited,
    handler: H,
) where
    H: Fn(Request<Incoming>) -> F + Clone + Send + Sync + 'static,
    F: Future<Output = Response<ResponseBody<S>>> + Send + 'static,
    S: Body<Data = Bytes> + Send + Unpin + 'static,
    S::Error: Into<StreamCut>,
{
    bequeath_options(&listener);
    let bounds = rules.bounds;
    let rooms = [(); 2].map(|()| Arc::new(Semaphore::new(bounds.connections)));
    let [room, room_to_ask] = &rooms;
    let addresses = Addresses::new(bounds.connections_per_address);
    let metrics = rules.door.metrics.clone();
    let rules = Arc::new(rules);
    loop {
        let accepted = tokio::select! {
            accepted = accept(&listener, &mut connections, room) => accepted,
            Some(again) = ask(&mut asked, room_to_ask) => Some(again),
            _ = phase.wait_for(|phase| !matches!(phase, Phase::Open)) => break,
        };
        let Some((arrived, permit)) = accepted else { continue };
        let Some(counted) = counted(&addresses, &arrived) else {
            metrics.closed("address");
            continue;
        };
        let (tls, rules, phase, handler) = (tls.clone(), Arc::clone(&rules), phase.clone(), handler.clone());
        metrics.connections.inc();
        let left = metrics.connections.clone();
        tokio::spawn(async move {
            let stream = match (arrived, tls) {
                (Arrived::Handed(stream), _) => Some(stream),
                (Arrived::Accepted(stream, _), None) => Some(Stream::Tcp(stream)),
                (Arrived::Accepted(stream, _), Some(tls)) => shake_hands(&tls, stream, bounds).await,
            };
            if let Some(stream) = stream {
                converse(stream, &rules, phase, handler).await;
            }
            left.dec();
            drop((permit, counted));
        });
    }
    drop(listener);
    let all = u32::try_from(bounds.connections).unwrap_or(u32::MAX);
    for room in rooms {
        let _ = room.acquire_many(all).await; // they are given back with the last connection
    }
}

/// A connection among those of its address; `None` for one too many. One that is handed over was let in already.
fn counted(addresses: &Arc<Addresses>, arrived: &Arrived) -> Option<Counted> {
    match arrived {
        Arrived::Accepted(_, address) => addresses.enter(*address),
        Arrived::Handed(_) => Some(Counted::default()),
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
        Ok((stream, from)) => Some((Arrived::Accepted(stream, from.ip()), permit)),
        Err(error) => {
            tracing::warn!(%error, "connection not accepted");
            tokio::time::sleep(ACCEPT_PAUSE).await;
            None
        }
    }
}

#[cfg(test)]
mod tests;
