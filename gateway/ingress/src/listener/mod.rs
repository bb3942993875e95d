//! Listener: accepts connections, bounded in number, with TLS where there is a certificate. HTTP/1.1 and HTTP/2 share one socket and are
//! told apart by their first bytes.

mod address_limit;

use self::address_limit::{AddressLimit, AddressPermit};
use crate::connection::{ClientStream, ConnectionConfig, serve_connection};
use crate::limits::{ConnectionLimits, UNREAD_MS};
use crate::phase::ListenerPhase;
use crate::response::{ResponseBody, StreamCut};
use bytes::Bytes;
use hyper::body::{Body, Incoming as IncomingBody};
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

/// Bytes of a response that the kernel buffers beyond what is in flight. Without this limit it keeps megabytes for each slow client,
/// which are not counted anywhere.
const UNSENT: u32 = 256 * 1024;
/// Time for the TLS handshake, from the client's first byte to its last. It takes two round trips, and counts as a connection.
const HANDSHAKE: Duration = Duration::from_secs(5);
/// Pause after the kernel refused a connection for lack of descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

sockopt_impl!(
    /// `TCP_NOTSENT_LOWAT` of tcp(7).
    Unsent,
    Both,
    libc::IPPROTO_TCP,
    libc::TCP_NOTSENT_LOWAT,
    u32
);

/// A new connection.
enum Incoming {
    /// From a client, at this address.
    Accepted(TcpStream, IpAddr),
    /// From the predecessor.
    Inherited(ClientStream),
}

/// Connections from the predecessor, for as long as there is one.
#[derive(Debug)]
pub struct InheritedConnections {
    /// Connections of clients. They count as accepted ones.
    pub clients: mpsc::Receiver<ClientStream>,
    /// Forwarded requests, each over a connection of its own. Their clients wait at the predecessor, so they have a limit of their own,
    /// whatever arrives from clients here: as many as there may be connections.
    pub forwarded: mpsc::Receiver<ClientStream>,
}

/// Accepts and serves connections, over `tls` if there is one, until `phase` changes; then lets open requests finish.
pub async fn serve<H, F, S>(
    listener: TcpListener,
    tls: Option<TlsAcceptor>,
    config: ConnectionConfig,
    mut phase: watch::Receiver<ListenerPhase>,
    InheritedConnections { mut clients, mut forwarded }: InheritedConnections,
    handler: H,
) where
    H: Fn(Request<IncomingBody>) -> F + Clone + Send + Sync + 'static,
    F: Future<Output = Response<ResponseBody<S>>> + Send + 'static,
    S: Body<Data = Bytes> + Send + Unpin + 'static,
    S::Error: Into<StreamCut>,
{
    set_socket_options(&listener);
    let limits = config.limits;
    let permits = [(); 2].map(|()| Arc::new(Semaphore::new(limits.connections)));
    let [client_permits, forwarded_permits] = &permits;
    let addresses = AddressLimit::new(limits.connections_per_address);
    let metrics = config.check.metrics.clone();
    let config = Arc::new(config);
    loop {
        let accepted = tokio::select! {
            accepted = accept(&listener, &mut clients, client_permits) => accepted,
            Some(accepted) = accept_forwarded(&mut forwarded, forwarded_permits) => Some(accepted),
            _ = phase.wait_for(|phase| !matches!(phase, ListenerPhase::Accepting)) => break,
        };
        let Some((incoming, permit)) = accepted else { continue };
        let Some(address_permit) = address_permit(&addresses, &incoming) else {
            metrics.closed("address");
            continue;
        };
        let (tls, config, phase, handler) = (tls.clone(), Arc::clone(&config), phase.clone(), handler.clone());
        metrics.connections.inc();
        let open = metrics.connections.clone();
        tokio::spawn(async move {
            let stream = match (incoming, tls) {
                (Incoming::Inherited(stream), _) => Some(stream),
                (Incoming::Accepted(stream, _), None) => Some(ClientStream::Tcp(stream)),
                (Incoming::Accepted(stream, _), Some(tls)) => shake_hands(&tls, stream, limits).await,
            };
            if let Some(stream) = stream {
                serve_connection(stream, &config, phase, handler).await;
            }
            open.dec();
            drop((permit, address_permit));
        });
    }
    drop(listener);
    let all = u32::try_from(limits.connections).unwrap_or(u32::MAX);
    for permits in permits {
        let _ = permits.acquire_many(all).await; // the last connection returns the last one
    }
}

/// Permit among the connections of its address; `None` for one too many. Inherited connections are not counted again.
fn address_permit(addresses: &Arc<AddressLimit>, incoming: &Incoming) -> Option<AddressPermit> {
    match incoming {
        Incoming::Accepted(_, address) => addresses.acquire(*address),
        Incoming::Inherited(_) => Some(AddressPermit::default()),
    }
}

/// TLS handshake with a client; `None` when it fails or takes too long.
async fn shake_hands(tls: &TlsAcceptor, stream: TcpStream, limits: ConnectionLimits) -> Option<ClientStream> {
    // In a box: connections of plain HTTP need no room for it.
    let shaken = Box::pin(tokio::time::timeout(HANDSHAKE.min(limits.header_timeout), tls.accept(stream))).await;
    match shaken {
        Ok(Ok(stream)) => Some(ClientStream::Tls(Box::new(stream))),
        // A debug message, since any client can cause any number of them.
        Ok(Err(error)) => {
            tracing::debug!(%error, "TLS handshake failed");
            None
        }
        Err(_) => {
            tracing::debug!("TLS handshake timed out");
            None
        }
    }
}

/// Sets the options of all connections on the listener: Linux copies them, which saves three calls for each connection.
fn set_socket_options(listener: &TcpListener) {
    let set = [
        setsockopt(listener, TcpNoDelay, &true),
        setsockopt(listener, TcpUserTimeout, &UNREAD_MS),
        setsockopt(listener, Unsent, &UNSENT),
    ];
    for error in set.into_iter().filter_map(Result::err) {
        tracing::warn!(%error, "a socket option of the listener cannot be set: clients that read nothing are kept for longer");
    }
}

/// The next request that the predecessor forwards; `None` when none comes any more.
async fn accept_forwarded(
    forwarded: &mut mpsc::Receiver<ClientStream>,
    permits: &Arc<Semaphore>,
) -> Option<(Incoming, OwnedSemaphorePermit)> {
    let permit = Arc::clone(permits).acquire_owned().await.ok()?;
    forwarded.recv().await.map(|stream| (Incoming::Inherited(stream), permit))
}

async fn accept(
    listener: &TcpListener,
    inherited: &mut mpsc::Receiver<ClientStream>,
    permits: &Arc<Semaphore>,
) -> Option<(Incoming, OwnedSemaphorePermit)> {
    let permit = Arc::clone(permits).acquire_owned().await.ok()?;
    let accepted = tokio::select! {
        accepted = listener.accept() => accepted,
        Some(stream) = inherited.recv() => return Some((Incoming::Inherited(stream), permit)),
    };
    match accepted {
        Ok((stream, from)) => Some((Incoming::Accepted(stream, from.ip()), permit)),
        Err(error) => {
            tracing::warn!(%error, "cannot accept a connection");
            tokio::time::sleep(ACCEPT_PAUSE).await;
            None
        }
    }
}

#[cfg(test)]
mod tests;
