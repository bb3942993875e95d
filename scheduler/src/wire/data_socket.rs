//! The socket of a data connection, for which the runtime is asked no more than is waited for.
//!
//! Used by [`super::connection`]. A Unix socket wakes whoever waits for room at each read of the other side, though
//! there was room all the time: it is registered for reading alone, and for writing as long as output waits. A read that
//! was not full has emptied it, and saves the next one; what a model does to make that untrue (messages with descriptors
//! or out of band) delays its own answers until it writes again.
#![allow(
    unsafe_code,
    reason = "the runtime does not own the descriptor, and bytes are read into memory that is not set"
)]

use bytes::{BufMut, BytesMut};
use nix::errno::Errno;
use nix::libc;
use nix::sys::socket::{AddressFamily, ControlMessage, MsgFlags, SockFlag, SockType, sendmsg, socketpair};
use std::io::{self, ErrorKind, IoSlice};
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::task::{Context, Poll};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

/// The scheduler's end.
#[derive(Debug)]
pub(super) struct DataSocket {
    /// In front of the descriptor, and so dropped before it. `None`: the runtime could not take it again.
    events: Option<AsyncFd<RawFd>>,
    socket: OwnedFd,
    /// Whether it is registered for writing, too.
    waits_for_room: bool,
}

impl DataSocket {
    /// A fresh pair: ours and the model's, which is a blocking one.
    pub(super) fn pair() -> io::Result<(Self, OwnedFd)> {
        let (ours, model) = socketpair(AddressFamily::Unix, SockType::Stream, None, SockFlag::SOCK_CLOEXEC)?;
        let mut socket = Self { events: None, socket: ours, waits_for_room: false };
        socket.register(false)?;
        Ok((socket, model))
    }

    fn register(&mut self, waits_for_room: bool) -> io::Result<()> {
        let interest = if waits_for_room { Interest::READABLE | Interest::WRITABLE } else { Interest::READABLE };
        self.events = None; // a descriptor is registered once
        // SAFETY: the descriptor is `self.socket`, which nothing replaces and which is dropped after `self.events`.
        self.events = Some(unsafe { AsyncFd::register_with_interest(self.socket.as_raw_fd(), interest) }?);
        self.waits_for_room = waits_for_room;
        Ok(())
    }

    fn events(&self) -> io::Result<&AsyncFd<RawFd>> {
        self.events.as_ref().ok_or_else(|| ErrorKind::NotConnected.into())
    }

    /// Whether to try reading, or writing what waits. The task that asked last is woken.
    pub(super) fn poll_ready(&self, context: &mut Context<'_>) -> Poll<()> {
        let Some(events) = &self.events else { return Poll::Ready(()) };
        let readable = events.poll_read_ready(context).is_ready();
        let writable = self.waits_for_room && events.poll_write_ready(context).is_ready();
        if readable || writable { Poll::Ready(()) } else { Poll::Pending }
    }

    /// Whether the last write found no room.
    pub(super) fn waits_for_room(&self) -> bool {
        self.waits_for_room
    }

    /// Reads once into what room there is, if there is something to read as far as the runtime knows; 0 at the end.
    pub(super) fn read(&self, into: &mut BytesMut) -> io::Result<usize> {
        let mut read = None;
        let tried = self.events()?.try_io(Interest::READABLE, |_| {
            let (count, is_emptied) = receive(&self.socket, into)?;
            read = Some(count);
            // With this error the runtime is told that nothing is left.
            if is_emptied { Err(ErrorKind::WouldBlock.into()) } else { Ok(count) }
        });
        tried.or_else(|error| read.ok_or(error))
    }

    /// The same, whatever the runtime knows.
    pub(super) fn read_regardless(&self, into: &mut BytesMut) -> io::Result<usize> {
        receive(&self.socket, into).map(|(count, _)| count)
    }

    /// Writes as much as there is room for; the descriptor goes with the first byte. Once there was none,
    /// [`Self::poll_ready`] waits for room, until [`Self::is_written_out`] ends that.
    pub(super) fn write(&mut self, bytes: &[IoSlice<'_>], descriptor: Option<BorrowedFd<'_>>) -> io::Result<usize> {
        let descriptor = descriptor.map(|descriptor| descriptor.as_raw_fd());
        let rights = [ControlMessage::ScmRights(descriptor.as_slice())];
        let rights = if descriptor.is_some() { &rights[..] } else { &[] };
        let flags = MsgFlags::MSG_NOSIGNAL | MsgFlags::MSG_DONTWAIT;
        let send = || sendmsg::<()>(self.socket.as_raw_fd(), bytes, rights, flags, None).map_err(Errno::into);
        if self.waits_for_room {
            return self.events()?.try_io(Interest::WRITABLE, |_| send());
        }
        let sent = send();
        if sent.as_ref().is_err_and(|error: &io::Error| error.kind() == ErrorKind::WouldBlock) {
            self.register(true)?;
        }
        sent
    }

    /// Nothing waits for room any more.
    pub(super) fn is_written_out(&mut self) -> io::Result<()> {
        if self.waits_for_room { self.register(false) } else { Ok(()) }
    }
}

/// Receives into the spare room of a buffer; drops descriptors. Returns the count, and whether the socket is empty now.
fn receive(socket: &OwnedFd, into: &mut BytesMut) -> io::Result<(usize, bool)> {
    let room = into.spare_capacity_mut();
    let (size, mut iov) = (room.len(), libc::iovec { iov_base: room.as_mut_ptr().cast(), iov_len: room.len() });
    // SAFETY: a `msghdr` of zeros is one without name, buffers and control data.
    let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
    message.msg_iov = &raw mut iov;
    message.msg_iovlen = 1;
    // SAFETY: `message` and what it points to live through the call, and the kernel writes at most `iov_len` bytes to
    // `iov_base`, which is that much spare room of a buffer that nobody else has.
    let count = Errno::result(unsafe { libc::recvmsg(socket.as_raw_fd(), &raw mut message, libc::MSG_DONTWAIT) })?;
    let count = count.unsigned_abs();
    // SAFETY: the kernel has set so many bytes of the spare room, no more than there are.
    unsafe { into.advance_mut(count) };
    // A read ends behind a message with descriptors (they are cut off), though more may lie there.
    let is_cut = message.msg_flags & libc::MSG_CTRUNC != 0;
    Ok((count, count > 0 && count < size && !is_cut))
}

#[cfg(test)]
#[path = "data_socket_tests.rs"]
mod tests;
