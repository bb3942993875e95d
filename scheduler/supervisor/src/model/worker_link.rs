//! Connection to a worker: `<runtime-dir>/instances/<id>.sock`.
//!
//! The model's actor sends commands without waiting: a worker that does not take them is stuck. Messages of the worker are
//! read by a task of their own and put into the model's inbox, in order.

use super::Message;
use omni_engine_protocol::packet::PacketError;
use omni_node_protocol::id::InstanceId;
use omni_node_protocol::instance::{FromWorker, ToWorker, VERSIONS, Welcome};
use omni_packet_socket::PacketSocket;
use std::io;
use std::os::fd::RawFd;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::mpsc;

/// Time limit for a worker that is alive, which answers in well under this.
pub const ALIVE: Duration = Duration::from_secs(2);
/// Time limit for a worker that has just begun to listen: it makes its sandbox first, beside others, on a machine that
/// may be busy.
pub const NEW: Duration = Duration::from_secs(10);

/// A worker could not be reached.
#[derive(Debug, thiserror::Error)]
pub enum LinkError {
    /// The socket does not take connections.
    #[error("worker does not listen")]
    Connect(#[source] io::Error),
    /// The answer is not a message of the protocol, or the connection broke.
    #[error("worker does not answer as it should")]
    Packet(#[from] PacketError),
    /// The first message was another one.
    #[error("worker did not welcome the scheduler")]
    NoWelcome,
    /// The worker has another version of the protocol.
    #[error("worker speaks version {0} of the protocol, this scheduler {newest}", newest = VERSIONS.newest)]
    Version(u32),
    /// No answer came.
    #[error("worker did not answer within {0:?}")]
    Silent(Duration),
}

/// The sending half; clones share the socket.
#[derive(Debug, Clone)]
pub struct WorkerLink {
    socket: Arc<PacketSocket>,
}

impl WorkerLink {
    /// Connects, introduces this scheduler and waits for the worker's state: [`ALIVE`] or [`NEW`].
    ///
    /// # Errors
    /// See [`LinkError`].
    pub async fn connect(path: &Path, log_seen: u64, within: Duration) -> Result<(Self, Welcome), LinkError> {
        let socket = PacketSocket::connect(path).map_err(LinkError::Connect)?;
        let link = Self { socket: Arc::new(socket) };
        let hello = ToWorker::Hello { protocol: VERSIONS.newest, oldest: Some(VERSIONS.oldest), log_seen };
        link.send(&hello, &[])?;
        let first = tokio::time::timeout(within, link.socket.receive()).await;
        let first = first.map_err(|_| LinkError::Silent(within))??;
        match first {
            FromWorker::Welcome(welcome) if VERSIONS.supports(welcome.protocol) => Ok((link, welcome)),
            FromWorker::Welcome(welcome) => Err(LinkError::Version(welcome.protocol)),
            FromWorker::Ready { .. }
            | FromWorker::EngineFailed { .. }
            | FromWorker::Log(_)
            | FromWorker::Pong
            | FromWorker::Stats(_)
            | FromWorker::Gpu(_)
            | FromWorker::Exited(_) => Err(LinkError::NoWelcome),
        }
    }

    /// Sends a command, with descriptors.
    ///
    /// # Errors
    /// [`PacketError`]; a full socket counts: the worker does not read.
    pub fn send(&self, message: &ToWorker, fds: &[RawFd]) -> Result<(), PacketError> {
        self.socket.try_send(message, fds)
    }

    /// Hears the worker out, until it closes.
    pub async fn outlast(self) {
        while self.socket.receive::<FromWorker>().await.is_ok() {}
    }

    /// Puts every message of the worker into the inbox, until the connection closes.
    pub async fn forward(self, instance: InstanceId, inbox: mpsc::Sender<Message>) {
        while let Ok(message) = self.socket.receive().await {
            if inbox.send(Message::WorkerMessage(instance.clone(), message)).await.is_err() {
                return;
            }
        }
        let _ = inbox.send(Message::WorkerDisconnected(instance)).await;
    }
}
