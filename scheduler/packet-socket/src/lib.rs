//! Connected `SOCK_SEQPACKET` socket in the runtime, for the connections to launcher, workers and successor.
#![allow(unsafe_code, reason = "registering a descriptor with the runtime is an unsafe promise")]

use nix::errno::Errno;
use nix::fcntl::{FcntlArg, OFlag, fcntl};
use nix::sys::socket::{AddressFamily, SockFlag, SockType, UnixAddr, connect, socket};
use omni_engine_protocol::packet::{PacketError, recv_packet, recv_packet_no_fds, send_packet};
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::path::Path;
use tokio::io::unix::AsyncFd;

/// Connection of whole messages.
#[derive(Debug)]
pub struct PacketSocket {
    socket: AsyncFd<OwnedFd>,
}

impl PacketSocket {
    /// Connects to a path, without waiting: a Unix socket accepts at once or not at all.
    ///
    /// # Errors
    /// No process listens there.
    pub fn connect(path: &Path) -> io::Result<Self> {
        let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
        let fd = socket(AddressFamily::Unix, SockType::SeqPacket, flags, None)?;
        connect(fd.as_raw_fd(), &UnixAddr::new(path)?)?;
        Self::register(fd)
    }

    /// Wraps a connected socket.
    ///
    /// # Errors
    /// The socket cannot be registered with the runtime.
    pub fn connected(fd: OwnedFd) -> io::Result<Self> {
        fcntl(&fd, FcntlArg::F_SETFL(OFlag::O_NONBLOCK))?;
        Self::register(fd)
    }

    fn register(fd: OwnedFd) -> io::Result<Self> {
        // SAFETY: the descriptor is owned by the `AsyncFd` from here on and closed only with it; nothing hands out
        // the `OwnedFd` or replaces it.
        let socket = unsafe { AsyncFd::register(fd) }?;
        Ok(Self { socket })
    }

    /// Sends a message with descriptors, without waiting.
    ///
    /// # Errors
    /// [`PacketError`]; [`PacketError::would_block`] while the peer does not read.
    pub fn try_send(&self, message: &impl Serialize, fds: &[RawFd]) -> Result<(), PacketError> {
        send_packet(self.socket.get_ref(), message, fds)
    }

    /// Sends a message, and waits for room in the socket.
    ///
    /// # Errors
    /// [`PacketError`].
    pub async fn send(&self, message: &impl Serialize) -> Result<(), PacketError> {
        self.send_with(message, &[]).await
    }

    /// Sends a message with descriptors, and waits for room in the socket.
    ///
    /// # Errors
    /// [`PacketError`].
    pub async fn send_with(&self, message: &impl Serialize, fds: &[RawFd]) -> Result<(), PacketError> {
        loop {
            match self.try_send(message, fds) {
                Err(error) if error.would_block() => {
                    self.socket.writable().await.map_err(|_| Errno::EBADF)?.clear_ready();
                }
                result => return result,
            }
        }
    }

    /// Receives the next message. Cancel safe: no message is lost.
    ///
    /// # Errors
    /// [`PacketError`].
    pub async fn receive<M: DeserializeOwned>(&self) -> Result<M, PacketError> {
        self.receive_by(|socket| recv_packet_no_fds(socket)).await
    }

    /// Receives the next message and its descriptors. Cancel safe.
    ///
    /// # Errors
    /// [`PacketError`].
    pub async fn receive_with<M: DeserializeOwned>(&self) -> Result<(M, Vec<OwnedFd>), PacketError> {
        self.receive_by(|socket| recv_packet(socket)).await
    }

    async fn receive_by<T>(&self, receive: impl Fn(&OwnedFd) -> Result<T, PacketError>) -> Result<T, PacketError> {
        loop {
            let mut ready = self.socket.readable().await.map_err(|_| Errno::EBADF)?;
            match receive(self.socket.get_ref()) {
                Err(error) if error.would_block() => ready.clear_ready(),
                result => return result,
            }
        }
    }
}
