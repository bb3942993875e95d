//! The connection to the scheduler: one at a time, a newer one replaces the older, and none can make the worker wait.
//!
//! Called by the event loop. Lines of the log are not queued: a connection remembers which it has sent and takes the
//! next from the journal when the socket has room. All other messages wait in a short queue; a scheduler that does not
//! read until it is full is disconnected, and finds everything again when it connects anew.

use super::journal::Journal;
use super::setup::Place;
use nix::sys::socket::{getsockopt, sockopt};
use omni_engine_protocol::packet::{PacketError, recv_packet, send_packet};
use omni_node_protocol::instance::{FromWorker, ToWorker};
use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};

/// Messages that wait for a scheduler to read. One that asks for more without reading gets disconnected.
const QUEUE: usize = 16;
/// Schedulers that wait to be accepted.
const BACKLOG: i32 = 4;

/// The listening socket and the scheduler that is connected, if any.
#[derive(Debug)]
pub(super) struct Link {
    listener: UnixListener,
    place: Place,
    peer_uid: u32,
    connection: Option<Connection>,
}

#[derive(Debug)]
struct Connection {
    socket: OwnedFd,
    queue: VecDeque<FromWorker>,
    /// Number of the last line it has; `None` until it has said hello.
    log_seen: Option<u64>,
    /// The socket has no room now.
    full: bool,
    /// The other side takes no more; what it said before may still be read.
    deaf: bool,
}

/// The socket could not be made.
#[derive(Debug, thiserror::Error)]
#[error("cannot listen at {}", path.display())]
pub struct ListenError {
    path: PathBuf,
    #[source]
    source: io::Error,
}

impl ListenError {
    pub(super) fn at(path: &Path) -> impl FnOnce(io::Error) -> Self {
        move |source| Self { path: path.to_owned(), source }
    }
}

impl Link {
    /// Listens at `path`, where only root and `peer_uid` may connect. A socket that is left over there is replaced: the
    /// launcher never gives one instance id to two workers.
    pub(super) fn bind(path: &Path, peer_uid: u32) -> Result<Self, ListenError> {
        let place = Place::at(path).map_err(ListenError::at(path))?;
        let listener = place.listen(peer_uid, BACKLOG).map_err(ListenError::at(path))?;
        Ok(Self { listener, place, peer_uid, connection: None })
    }

    pub(super) fn listener(&self) -> BorrowedFd<'_> {
        self.listener.as_fd()
    }

    /// The connection's socket, and whether it waits for room to write.
    pub(super) fn connection(&self) -> Option<(BorrowedFd<'_>, bool)> {
        self.connection.as_ref().map(|connection| (connection.socket.as_fd(), connection.full))
    }

    /// Takes a new connection in place of the one that was. A stranger is turned away.
    pub(super) fn accept(&mut self) {
        // The standard library's listener takes connections of any Unix socket, also of this type.
        let Ok((stream, _)) = self.listener.accept() else { return };
        if stream.set_nonblocking(true).is_err() {
            return;
        }
        let socket = OwnedFd::from(stream);
        let allowed =
            getsockopt(&socket, sockopt::PeerCredentials).is_ok_and(|peer| [0, self.peer_uid].contains(&peer.uid()));
        if allowed {
            self.connection =
                Some(Connection { socket, queue: VecDeque::new(), log_seen: None, full: false, deaf: false });
        }
    }

    /// The next message and its descriptors; `None` when there is none, or the connection has ended.
    pub(super) fn receive(&mut self) -> Option<(ToWorker, Vec<OwnedFd>)> {
        match recv_packet(&self.connection.as_ref()?.socket) {
            Ok(message) => Some(message),
            Err(error) if error.would_block() => None,
            Err(_) => {
                self.disconnect();
                None
            }
        }
    }

    /// Answers hello: from now on the scheduler is sent messages.
    pub(super) fn greet(&mut self, welcome: FromWorker, log_seen: u64) {
        if let Some(connection) = &mut self.connection {
            connection.log_seen = Some(log_seen);
        }
        self.send(welcome);
    }

    /// Queues a message for a scheduler that has said hello.
    pub(super) fn send(&mut self, message: FromWorker) {
        let Some(connection) = &mut self.connection else { return };
        if connection.log_seen.is_none() {
            return; // `Welcome` will say it
        }
        if connection.queue.len() == QUEUE {
            return self.disconnect();
        }
        connection.queue.push_back(message);
    }

    /// Sends what the socket has room for.
    pub(super) fn flush(&mut self, journal: &Journal) {
        if let Some(connection) = &mut self.connection
            && !connection.deaf
            && connection.flush(journal).is_err()
        {
            connection.deaf = true;
        }
    }

    /// Tests that a scheduler is connected and has been sent everything.
    pub(super) fn is_delivered(&self, journal: &Journal) -> bool {
        self.connection.as_ref().is_some_and(|connection| {
            !connection.deaf
                && connection.queue.is_empty()
                && connection.log_seen.is_some_and(|seen| journal.after(seen).is_none())
        })
    }

    pub(super) fn disconnect(&mut self) {
        self.connection = None;
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        // Left behind it would only make the next scheduler's scan try a dead socket.
        self.place.clear();
    }
}

impl Connection {
    fn flush(&mut self, journal: &Journal) -> Result<(), PacketError> {
        self.full = false;
        while let Some(message) = self.queue.pop_front() {
            if !self.try_send(&message)? {
                self.queue.push_front(message);
                return Ok(());
            }
        }
        let Some(mut seen) = self.log_seen else { return Ok(()) };
        while let Some(line) = journal.after(seen) {
            if !self.try_send(&FromWorker::Log(line.clone()))? {
                break;
            }
            seen = line.seq;
        }
        self.log_seen = Some(seen);
        Ok(())
    }

    /// Sends a message; `false` when the socket had no room. A message larger than a packet is dropped, and the next
    /// ones are sent.
    fn try_send(&mut self, message: &FromWorker) -> Result<bool, PacketError> {
        match send_packet(&self.socket, message, &[]) {
            Ok(()) | Err(PacketError::TooLarge(_)) => Ok(true),
            Err(error) if error.would_block() => {
                self.full = true;
                Ok(false)
            }
            Err(error) => Err(error),
        }
    }
}
