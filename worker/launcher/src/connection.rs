//! The scheduler's connection: `<runtime-dir>/launcher.sock`, one scheduler at a time, peer checked.
//!
//! Nothing here waits for a scheduler: messages queue up to a bound, and one that does not read is disconnected.

use nix::sys::socket::sockopt::PeerCredentials;
use nix::sys::socket::{Backlog, getsockopt};
use omni_dir::Dir;
use omni_engine_protocol::packet::{PacketError, recv_packet_no_fds, send_packet};
use omni_node_protocol::launcher::{FromLauncher, ToLauncher};
use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixListener;

/// Messages that wait for the scheduler: more than all models of a node, and a build's output.
const WAITING: usize = 16_384;
/// Messages taken in one round, so that a scheduler that floods does not keep everything else waiting.
const ROUND: usize = 64;

/// The socket's name in the runtime directory.
pub(super) const NAME: &str = "launcher.sock";

/// Listening socket for schedulers, and the connection of the one that is there.
pub(super) struct Connection {
    /// The standard library's accepts any kind of Unix socket.
    listener: UnixListener,
    scheduler_uid: u32,
    peer: Option<Peer>,
}

struct Peer {
    socket: OwnedFd,
    waiting: VecDeque<Waiting>,
}

/// Message that waits for the scheduler, with its descriptors.
struct Waiting {
    message: FromLauncher,
    descriptors: Vec<OwnedFd>,
}

impl Connection {
    /// Listens; the launcher's lock guarantees that no other process does. The socket is the scheduler's, mode 0600.
    pub(super) fn listen(runtime_dir: &Dir, scheduler_uid: u32) -> io::Result<Self> {
        let listener = runtime_dir.listen(NAME, scheduler_uid, Some(scheduler_uid), Backlog::new(4)?)?;
        let listener = UnixListener::from(listener);
        listener.set_nonblocking(true)?;
        Ok(Self { listener, scheduler_uid, peer: None })
    }

    /// For poll: new connections.
    pub(super) fn listener(&self) -> BorrowedFd<'_> {
        self.listener.as_fd()
    }

    /// For poll: the scheduler, and whether messages wait for it.
    pub(super) fn peer(&self) -> Option<(BorrowedFd<'_>, bool)> {
        self.peer.as_ref().map(|peer| (peer.socket.as_fd(), !peer.waiting.is_empty()))
    }

    /// Takes a new connection, in the place of the old one, when its user may.
    pub(super) fn accept(&mut self) {
        let Ok((socket, _)) = self.listener.accept() else { return }; // gone again, or out of descriptors for now
        if let Err(error) = socket.set_nonblocking(true) {
            return tracing::warn!(%error, "refused a connection");
        }
        let socket = OwnedFd::from(socket);
        match getsockopt(&socket, PeerCredentials) {
            Ok(peer) if peer.uid() == self.scheduler_uid || peer.uid() == 0 => {
                self.peer = Some(Peer { socket, waiting: VecDeque::new() });
            }
            Ok(peer) => tracing::warn!(uid = peer.uid(), pid = peer.pid(), "refused a connection of another user"),
            Err(errno) => tracing::warn!(%errno, "refused a connection whose user is not known"),
        }
    }

    /// Receives messages of the scheduler. A connection that ends, or that violates the protocol, is dropped.
    pub(super) fn receive(&mut self) -> Vec<ToLauncher> {
        let mut messages = Vec::new();
        while messages.len() < ROUND {
            let Some(peer) = &self.peer else { break };
            match recv_packet_no_fds(&peer.socket) {
                Ok(message) => messages.push(message),
                Err(error) if error.would_block() => break,
                Err(error) => {
                    self.disconnect(&error);
                    break;
                }
            }
        }
        messages
    }

    /// Queues a message for the scheduler, when there is one.
    pub(super) fn send(&mut self, message: FromLauncher) {
        self.send_with(message, Vec::new());
    }

    /// Queues a message with descriptors for the scheduler, when there is one.
    pub(super) fn send_with(&mut self, message: FromLauncher, descriptors: Vec<OwnedFd>) {
        let Some(peer) = &mut self.peer else { return };
        if peer.waiting.len() >= WAITING {
            tracing::warn!("the scheduler does not read: disconnected");
            self.peer = None;
        } else {
            peer.waiting.push_back(Waiting { message, descriptors });
        }
    }

    /// Sends what waits, as far as the scheduler takes it.
    pub(super) fn flush(&mut self) {
        while let Some(peer) = &mut self.peer {
            let Some(Waiting { message, descriptors }) = peer.waiting.front() else { return };
            let descriptors: Vec<_> = descriptors.iter().map(AsRawFd::as_raw_fd).collect();
            match send_packet(&peer.socket, message, &descriptors) {
                Ok(()) => drop(peer.waiting.pop_front()),
                Err(error) if error.would_block() => return,
                // Failure of this message alone: the connection is that of all models.
                Err(error @ PacketError::TooLarge(_)) => {
                    tracing::error!(error = omni_log::chain(&error), "a message to the scheduler is dropped");
                    peer.waiting.pop_front();
                }
                Err(error) => self.disconnect(&error),
            }
        }
    }

    /// Ends the connection to a scheduler that is not understood, or that ends itself.
    pub(super) fn close(&mut self) {
        self.peer = None;
    }

    /// Ends the connection for a reason that lies with the scheduler.
    pub(super) fn disconnect(&mut self, error: &PacketError) {
        self.peer = None;
        match error {
            PacketError::Closed => tracing::info!("the scheduler has gone"),
            PacketError::Socket(_) | PacketError::TooLarge(_) | PacketError::Truncated | PacketError::Malformed(_) => {
                tracing::warn!(error = omni_log::chain(error), "disconnected the scheduler");
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use nix::sys::socket::{AddressFamily, SockFlag, SockType, UnixAddr, connect, socket};
    use nix::unistd::Uid;
    use omni_engine_protocol::packet::MAX_PACKET;

    #[test]
    fn a_message_too_large_for_a_packet_is_dropped_alone() {
        let folder = tempfile::tempdir().unwrap();
        let dir = Dir::open(&std::fs::canonicalize(folder.path()).unwrap()).unwrap();
        let path = dir.path().join(NAME);
        let mut link = Connection::listen(&dir, Uid::current().as_raw()).unwrap();
        let scheduler = socket(AddressFamily::Unix, SockType::SeqPacket, SockFlag::SOCK_CLOEXEC, None).unwrap();
        connect(scheduler.as_raw_fd(), &UnixAddr::new(&path).unwrap()).unwrap();
        link.accept();
        link.send(FromLauncher::ModelRefused { name: "a".into(), message: "x".repeat(MAX_PACKET), no_model: false });
        link.send(FromLauncher::Scanned);
        link.flush();
        assert_eq!(recv_packet_no_fds::<FromLauncher>(&scheduler).unwrap(), FromLauncher::Scanned);
        assert!(link.peer().is_some());
    }
}
