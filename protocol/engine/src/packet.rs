//! Packets with a single JSON message each (`SOCK_SEQPACKET`), and with descriptors beside it.
//!
//! Used directly by launcher and worker (blocking or not, as the descriptor is set) and by the scheduler inside an
//! `AsyncFd`. A packet is complete or absent: there is no half message, and descriptors always belong to their own
//! message.

use nix::cmsg_space;
use nix::errno::Errno;
use nix::sys::socket::{
    ControlMessage, ControlMessageOwned, MsgFlags, SockaddrStorage, UnixCredentials, recv, recvmsg, send, sendmsg,
};
use serde::{Serialize, de::DeserializeOwned};
use std::io::{IoSlice, IoSliceMut};
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd, RawFd};

/// The largest message, in bytes. Below the kernel's default send buffer of a Unix socket (212,992 bytes).
pub const MAX_PACKET: usize = 128 * 1024;
/// The most descriptors one message may bring.
pub const MAX_FDS: usize = 4;

/// A packet could not be sent or received.
#[derive(Debug, thiserror::Error)]
pub enum PacketError {
    /// The kernel refused; `EAGAIN` on a non-blocking socket means "later".
    #[error("socket")]
    Socket(#[from] Errno),
    /// The other side has closed.
    #[error("the other side closed the connection")]
    Closed,
    /// The message does not fit into one packet.
    #[error("message of {0} bytes is larger than a packet of {MAX_PACKET} bytes")]
    TooLarge(usize),
    /// The packet was cut, or brought more descriptors than allowed.
    #[error("packet was cut by the kernel: too long, or with too many descriptors")]
    Truncated,
    /// The packet is not a message of this wire.
    #[error("not a message of this wire")]
    Malformed(#[from] serde_json::Error),
}

impl PacketError {
    /// Returns true if a non-blocking call would have to wait.
    #[must_use]
    pub fn would_block(&self) -> bool {
        matches!(self, Self::Socket(Errno::EAGAIN))
    }
}

/// Sends one message, with the given descriptors; the caller keeps his copies.
///
/// # Errors
/// See [`PacketError`]. Nothing was sent when an error comes back.
pub fn send_packet<M: Serialize>(socket: impl AsFd, message: &M, fds: &[RawFd]) -> Result<(), PacketError> {
    let bytes = serde_json::to_vec(message)?;
    if bytes.len() > MAX_PACKET {
        return Err(PacketError::TooLarge(bytes.len()));
    }
    let raw = socket.as_fd().as_raw_fd();
    loop {
        let sent = if fds.is_empty() {
            send(raw, &bytes, MsgFlags::MSG_NOSIGNAL).map(|_| ())
        } else {
            let control = [ControlMessage::ScmRights(fds)];
            let iov = [IoSlice::new(&bytes)];
            sendmsg::<SockaddrStorage>(raw, &iov, &control, MsgFlags::MSG_NOSIGNAL, None).map(|_| ())
        };
        match sent {
            Ok(()) => return Ok(()),
            Err(Errno::EINTR) => {}
            Err(Errno::EPIPE | Errno::ECONNRESET) => return Err(PacketError::Closed),
            Err(errno) => return Err(errno.into()),
        }
    }
}

/// Receives one message from a peer that may send descriptors. They come close-on-exec and owned.
///
/// # Errors
/// See [`PacketError`]; descriptors of a packet that is refused are closed.
pub fn recv_packet<M: DeserializeOwned>(socket: impl AsFd) -> Result<(M, Vec<OwnedFd>), PacketError> {
    let mut bytes = vec![0_u8; MAX_PACKET];
    let (len, truncated, fds) = {
        let mut iov = [IoSliceMut::new(&mut bytes)];
        let mut control = cmsg_space!([RawFd; MAX_FDS]);
        let raw = socket.as_fd().as_raw_fd();
        let received = retry(|| {
            recvmsg::<SockaddrStorage>(raw, &mut iov, Some(&mut control), MsgFlags::MSG_CMSG_CLOEXEC)
                .map(|r| (r.bytes, r.flags, owned(&r)))
        })?;
        (received.0, received.1.intersects(MsgFlags::MSG_TRUNC | MsgFlags::MSG_CTRUNC), received.2)
    };
    let message = decode(bytes.get(..len).unwrap_or_default(), truncated)?;
    Ok((message, fds))
}

/// Receives one message from a peer whose descriptors are refused: the kernel drops any that come.
///
/// # Errors
/// See [`PacketError`].
pub fn recv_packet_no_fds<M: DeserializeOwned>(socket: impl AsFd) -> Result<M, PacketError> {
    let mut bytes = vec![0_u8; MAX_PACKET];
    let raw = socket.as_fd().as_raw_fd();
    let len = retry(|| recv(raw, &mut bytes, MsgFlags::MSG_TRUNC))?;
    decode(bytes.get(..len).unwrap_or_default(), len > MAX_PACKET)
}

/// Receives one message and the process that sent it, which the kernel says, numbered for the receiver. The socket must
/// have `SO_PASSCRED`. A message that brings descriptors is refused, and the kernel drops them.
///
/// # Errors
/// See [`PacketError`]. [`PacketError::Truncated`] also when there were descriptors.
pub fn recv_packet_from<M: DeserializeOwned>(socket: impl AsFd) -> Result<(M, i32), PacketError> {
    let mut bytes = vec![0_u8; MAX_PACKET];
    let raw = socket.as_fd().as_raw_fd();
    let (len, cut, sender) = retry(|| {
        let mut iov = [IoSliceMut::new(&mut bytes)];
        // Room for the sender's credentials, which come first; none for descriptors.
        let mut control = cmsg_space!(UnixCredentials);
        let received = recvmsg::<SockaddrStorage>(raw, &mut iov, Some(&mut control), MsgFlags::MSG_CMSG_CLOEXEC)?;
        let sender = received.cmsgs().ok().and_then(|mut messages| {
            messages.find_map(|message| match message {
                ControlMessageOwned::ScmCredentials(credentials) => Some(credentials.pid()),
                _ => None,
            })
        });
        Ok((received.bytes, received.flags.contains(MsgFlags::MSG_TRUNC), sender))
    })?;
    let message = decode(bytes.get(..len).unwrap_or_default(), cut)?;
    Ok((message, sender.ok_or(PacketError::Truncated)?))
}

fn retry<T>(mut call: impl FnMut() -> Result<T, Errno>) -> Result<T, PacketError> {
    loop {
        match call() {
            Ok(value) => return Ok(value),
            // A peer that closed without reading everything we sent: the kernel reports it once and first, and keeps
            // the packets that the peer had sent for the calls that follow.
            Err(Errno::EINTR | Errno::ECONNRESET) => {}
            Err(errno) => return Err(errno.into()),
        }
    }
}

fn decode<M: DeserializeOwned>(bytes: &[u8], truncated: bool) -> Result<M, PacketError> {
    if truncated {
        return Err(PacketError::Truncated);
    }
    if bytes.is_empty() {
        return Err(PacketError::Closed); // no message of ours is empty: this is the end of the connection
    }
    Ok(serde_json::from_slice(bytes)?)
}

#[allow(unsafe_code, reason = "descriptors of a received control message have no owner yet")]
pub(crate) fn owned(received: &nix::sys::socket::RecvMsg<'_, '_, SockaddrStorage>) -> Vec<OwnedFd> {
    let Ok(messages) = received.cmsgs() else { return Vec::new() };
    let mut fds = Vec::new();
    for message in messages {
        if let ControlMessageOwned::ScmRights(raw) = message {
            for fd in raw {
                // SAFETY: the kernel has just installed `fd` in this process for this message; nothing else knows it.
                fds.push(unsafe { OwnedFd::from_raw_fd(fd) });
            }
        }
    }
    fds
}

#[cfg(test)]
mod tests {
    use super::*;
    use nix::sys::socket::{AddressFamily, SockFlag, SockType, setsockopt, socketpair, sockopt};
    use std::io::{Read, Write};

    fn pair() -> (OwnedFd, OwnedFd) {
        socketpair(AddressFamily::Unix, SockType::SeqPacket, None, SockFlag::SOCK_CLOEXEC).unwrap()
    }

    #[test]
    fn a_message_brings_its_sender_and_no_descriptors() {
        let (a, b) = pair();
        setsockopt(&b, sockopt::PassCred, &true).unwrap();
        let (mut read_end, write_end) = std::io::pipe().unwrap();
        send_packet(&a, &"first", &[]).unwrap();
        send_packet(&a, &"second", &[write_end.as_raw_fd()]).unwrap();
        drop(write_end);
        let (text, sender) = recv_packet_from::<String>(&b).unwrap();
        assert_eq!((text.as_str(), sender), ("first", std::process::id().cast_signed()));
        assert!(matches!(recv_packet_from::<String>(&b), Err(PacketError::Truncated)));
        assert_eq!(read_end.read(&mut [0; 1]).unwrap(), 0, "no copy of the descriptor is kept");
        drop(a);
        assert!(matches!(recv_packet_from::<String>(&b), Err(PacketError::Closed)));
    }

    #[test]
    fn a_message_brings_its_descriptors() {
        let (a, b) = pair();
        let (mut read_end, write_end) = std::io::pipe().unwrap();
        send_packet(&a, &"first", &[]).unwrap();
        send_packet(&a, &"second", &[write_end.as_raw_fd()]).unwrap();
        drop(write_end);
        let (text, fds) = recv_packet::<String>(&b).unwrap();
        assert_eq!((text.as_str(), fds.len()), ("first", 0));
        let (text, mut fds) = recv_packet::<String>(&b).unwrap();
        assert_eq!((text.as_str(), fds.len()), ("second", 1));
        std::fs::File::from(fds.remove(0)).write_all(b"through").unwrap();
        let mut got = String::new();
        read_end.read_to_string(&mut got).unwrap();
        assert_eq!(got, "through");
    }

    #[test]
    fn the_end_of_the_connection_is_closed_not_an_empty_message() {
        let (a, b) = pair();
        drop(a);
        assert!(matches!(recv_packet::<String>(&b), Err(PacketError::Closed)));
        assert!(matches!(send_packet(&b, &"x", &[]), Err(PacketError::Closed)));
    }

    #[test]
    fn refused_descriptors_are_dropped_by_the_kernel() {
        let (a, b) = pair();
        let (mut read_end, write_end) = std::io::pipe().unwrap();
        send_packet(&a, &"x", &[write_end.as_raw_fd()]).unwrap();
        drop(write_end);
        assert_eq!(recv_packet_no_fds::<String>(&b).unwrap(), "x");
        let mut got = Vec::new();
        read_end.read_to_end(&mut got).unwrap(); // ends only because no copy of the write end is left
        assert!(got.is_empty());
    }

    #[test]
    fn last_messages_are_received_though_ours_were_not() {
        let (a, b) = pair();
        send_packet(&a, &"last words", &[]).unwrap();
        send_packet(&b, &"not read", &[]).unwrap();
        drop(a);
        assert_eq!(recv_packet_no_fds::<String>(&b).unwrap(), "last words");
        assert!(matches!(recv_packet_no_fds::<String>(&b), Err(PacketError::Closed)));
    }

    #[test]
    fn too_large_and_malformed_are_distinguished() {
        let (a, b) = pair();
        let long = "x".repeat(MAX_PACKET);
        assert!(matches!(send_packet(&a, &long, &[]), Err(PacketError::TooLarge(_))));
        send(a.as_raw_fd(), b"{nonsense", MsgFlags::empty()).unwrap();
        assert!(matches!(recv_packet::<String>(&b), Err(PacketError::Malformed(_))));
        send(a.as_raw_fd(), &vec![b'1'; MAX_PACKET + 1], MsgFlags::empty()).unwrap();
        assert!(matches!(recv_packet::<u8>(&b), Err(PacketError::Truncated)));
        send(a.as_raw_fd(), &vec![b'1'; MAX_PACKET + 1], MsgFlags::empty()).unwrap();
        assert!(matches!(recv_packet_no_fds::<u8>(&b), Err(PacketError::Truncated)));
    }
}
