//! A connected `SOCK_SEQPACKET` socket inside the runtime: the wires to launcher and workers, and to a successor.
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

/// A connection of whole messages.
#[derive(Debug)]
pub struct PacketSocket {
    socket: AsyncFd<OwnedFd>,
}

impl PacketSocket {
    /// Connects; a Unix socket answers at once or not at all.
    ///
    /// # Errors
    /// Nobody listens there.
    pub fn connect(path: &Path) -> io::Result<Self> {
        let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
        let fd = socket(AddressFamily::Unix, SockType::SeqPacket, flags, None)?;
        connect(fd.as_raw_fd(), &UnixAddr::new(path)?)?;
        Self::of(fd)
    }

    /// A socket that is connected already.
    ///
    /// # Errors
    /// It cannot be registered with the runtime.
    pub fn connected(fd: OwnedFd) -> io::Result<Self> {
        fcntl(&fd, FcntlArg::F_SETFL(OFlag::O_NONBLOCK))?;
        Self::of(fd)
    }

    fn of(fd: OwnedFd) -> io::Result<Self> {
        // SAFETY: the descriptor is owned by the `AsyncFd` from here on and closed only with it; nothing hands out
        // the `OwnedFd` or replaces it.
        let socket = unsafe { AsyncFd::register(fd) }?;
        Ok(Self { socket })
    }

    /// Sends without waiting; descriptors ride along.
    ///
    /// # Errors
    /// [`PacketError`]; `would_block` when the other side does not read.
    pub fn try_send(&self, message: &impl Serialize, fds: &[RawFd]) -> Result<(), PacketError> {
        send_packet(self.socket.get_ref(), message, fds)
    }

    /// Sends, waiting for room.
    ///
    /// # Errors
    /// [`PacketError`].
    pub async fn send(&self, message: &impl Serialize) -> Result<(), PacketError> {
        self.send_with(message, &[]).await
    }

    /// The same; descriptors ride along.
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

    /// The next message; may be dropped while it waits without losing one.
    ///
    /// # Errors
    /// [`PacketError`].
    pub async fn receive<M: DeserializeOwned>(&self) -> Result<M, PacketError> {
        self.receive_by(|socket| recv_packet_no_fds(socket)).await
    }

    /// The same, from a peer that may send descriptors.
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
