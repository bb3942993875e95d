//! A data connection: a stream socket to the engine, and a second socket for cancellations.
//!
//! Owned by the model's actor, for one instance and one scheduler life. Reads and writes never block; the actor awaits
//! [`DataConnection::poll_ready`]. Input is bounded here and checked by the caller. Descriptors that an engine sends are
//! dropped by the kernel, since plain reads have no room for them.

use super::violation::ProtocolViolation;
use bytes::{Buf, Bytes, BytesMut};
use nix::errno::Errno;
use nix::sys::socket::{
    AddressFamily, ControlMessage, MsgFlags, SockFlag, SockType, SockaddrStorage, send, sendmsg, socketpair,
};
use omni_engine_protocol::frame::{CancelReason, FrameError, HEADER, Header, Kind, batch_payload, flags};
use std::collections::{BTreeMap, VecDeque};
use std::io::{self, ErrorKind, IoSlice};
use std::os::fd::{AsRawFd, OwnedFd};
use std::task::{Context, Poll};
use tokio::io::Interest;
use tokio::net::UnixStream;

/// Size up to which small frames are joined before they are written.
const JOIN: usize = 64 * 1024;
/// Most pieces of one vectored write.
const MAX_PIECES: usize = 16;
/// Length above which an answer is announced as soon as its header arrives, so that its memory can be reserved.
const LARGE: usize = 64 * 1024;
/// Size of a read buffer. A new one is made when less than [`MIN_SPACE`] of it is left: answers in use keep the old one.
const READ_BUFFER: usize = 64 * 1024;
/// Least free space for a read.
const MIN_SPACE: usize = 16 * 1024;

/// A piece of output.
#[derive(Debug)]
enum Piece {
    Joined(BytesMut),
    Body(Bytes),
    /// A whole frame; the descriptor travels with its first byte.
    WithFd(BytesMut, OwnedFd),
}

impl Piece {
    fn bytes(&self) -> &[u8] {
        match self {
            Self::Joined(bytes) | Self::WithFd(bytes, _) => bytes,
            Self::Body(bytes) => bytes,
        }
    }

    fn advance(&mut self, count: usize) {
        match self {
            Self::Joined(bytes) | Self::WithFd(bytes, _) => bytes.advance(count),
            Self::Body(bytes) => bytes.advance(count),
        }
    }
}

/// The scheduler's end of a connection.
#[derive(Debug)]
pub struct DataConnection {
    stream: UnixStream,
    cancel: OwnedFd,
    out: VecDeque<Piece>,
    /// Requests of which no byte was written yet, each with its position in the output of this connection.
    unsent: VecDeque<(u64, u64)>,
    /// Bytes that were ever queued, and of them written.
    queued: u64,
    written: u64,
    /// Credit to write after all other output: one sum for each stream, however slowly the engine reads.
    credits: BTreeMap<u64, u32>,
    input: BytesMut,
    /// The frame at the beginning of `input` is large and was announced.
    announced: bool,
    /// Input bytes that are still to be dropped.
    to_drop: usize,
    /// Request whose frame is being dropped.
    dropping: Option<u64>,
}

/// The engine's ends, to be sent to its worker and closed.
#[derive(Debug)]
pub struct EngineEnds {
    /// Data socket.
    pub data: OwnedFd,
    /// Socket for cancellations.
    pub cancel: OwnedFd,
}

/// The connection cannot be used further.
#[derive(Debug, thiserror::Error)]
pub enum ConnectionError {
    /// The engine's end is closed.
    #[error("the model closed its data connection")]
    Closed,
    /// Reading or writing failed.
    #[error("data connection")]
    Io(#[from] io::Error),
    /// The engine sent a frame that it may not send.
    #[error("the model violated the data protocol")]
    Violation(#[from] ProtocolViolation),
}

impl From<FrameError> for ConnectionError {
    fn from(error: FrameError) -> Self {
        Self::Violation(error.into())
    }
}

impl DataConnection {
    /// A fresh pair of sockets.
    ///
    /// # Errors
    /// No descriptor is left.
    pub fn pair() -> io::Result<(Self, EngineEnds)> {
        let pair = |kind, flags| socketpair(AddressFamily::Unix, kind, None, SockFlag::SOCK_CLOEXEC | flags);
        let (ours, data) = pair(SockType::Stream, SockFlag::empty())?;
        let (cancel, engine_cancel) = pair(SockType::SeqPacket, SockFlag::empty())?;
        let ours = std::os::unix::net::UnixStream::from(ours);
        ours.set_nonblocking(true)?; // this end only: the engine's is a blocking socket
        let stream = UnixStream::from_std(ours)?;
        let connection = Self {
            stream,
            cancel,
            out: VecDeque::new(),
            unsent: VecDeque::new(),
            queued: 0,
            written: 0,
            credits: BTreeMap::new(),
            input: BytesMut::new(),
            announced: false,
            to_drop: 0,
            dropping: None,
        };
        Ok((connection, EngineEnds { data, cancel: engine_cancel }))
    }

    /// Queues a request. With a descriptor, through which the engine reads the body, `body` must be empty.
    pub fn send_request(&mut self, id: u64, flags: u8, head: &[u8], body: Bytes, descriptor: Option<OwnedFd>) {
        let length = (4 + head.len() + body.len()) as u32;
        let header = Header { length, kind: Kind::Request, flags, code: 0, id };
        self.unsent.push_back((id, self.queued));
        self.queued += (HEADER + length as usize) as u64;
        let mut joined = match self.out.pop_back() {
            Some(Piece::Joined(last)) if descriptor.is_none() && last.len() < JOIN => last,
            Some(other) => {
                self.out.push_back(other);
                BytesMut::new()
            }
            None => BytesMut::new(),
        };
        joined.extend_from_slice(&header.encode());
        joined.extend_from_slice(&(head.len() as u32).to_le_bytes());
        joined.extend_from_slice(head);
        if let Some(descriptor) = descriptor {
            self.out.push_back(Piece::WithFd(joined, descriptor));
        } else if body.len() <= JOIN {
            joined.extend_from_slice(&body);
            self.out.push_back(Piece::Joined(joined));
        } else {
            self.out.push_back(Piece::Joined(joined));
            self.out.push_back(Piece::Body(body));
        }
    }

    /// Announces that the next requests, these, are a batch. `isolate`: it is divided and handled again if it fails as a whole.
    ///
    /// # Errors
    /// A batch that has no members, or too many.
    pub fn send_batch(&mut self, id: u64, members: &[u64], isolate: bool) -> Result<(), FrameError> {
        let payload = batch_payload(members)?;
        let flags = if isolate { flags::ISOLATE } else { 0 };
        self.send_small(Header { length: payload.len() as u32, kind: Kind::Batch, flags, code: 0, id }, &payload);
        Ok(())
    }

    /// Queues credit for a stream.
    pub fn send_credit(&mut self, id: u64, bytes: u32) {
        let sum = self.credits.entry(id).or_default();
        *sum = sum.saturating_add(bytes);
    }

    fn write_credits(&mut self) {
        for (id, bytes) in std::mem::take(&mut self.credits) {
            self.send_small(Header { length: 4, kind: Kind::Credit, flags: 0, code: 0, id }, &bytes.to_le_bytes());
        }
    }

    /// Queues a health check: the model's `own` one, or only whether the engine answers.
    pub fn send_check(&mut self, id: u64, own: bool) {
        let flags = if own { flags::OWN_CHECK } else { 0 };
        self.send_small(Header { length: 0, kind: Kind::Check, flags, code: 0, id }, &[]);
    }

    fn send_small(&mut self, header: Header, payload: &[u8]) {
        let mut frame = BytesMut::from(&header.encode()[..]);
        frame.extend_from_slice(payload);
        self.queued += frame.len() as u64;
        match self.out.back_mut() {
            Some(Piece::Joined(last)) => last.unsplit(frame),
            Some(Piece::Body(_) | Piece::WithFd(..)) | None => self.out.push_back(Piece::Joined(frame)),
        }
    }

    /// Sends a cancellation. Returns `false` when the engine does not read its cancellations.
    #[must_use]
    pub fn send_cancel(&self, id: u64, reason: CancelReason) -> bool {
        let header = Header { length: 0, kind: Kind::Cancel, flags: 0, code: reason as u16, id };
        let flags = MsgFlags::MSG_NOSIGNAL | MsgFlags::MSG_DONTWAIT;
        send(self.cancel.as_raw_fd(), &header.encode(), flags).is_ok()
    }

    /// Queued requests of which not one byte was written.
    pub fn unsent(&self) -> impl Iterator<Item = u64> {
        self.unsent.iter().map(|(id, _)| *id)
    }

    /// Returns true if output is pending.
    #[must_use]
    pub fn wants_write(&self) -> bool {
        !self.out.is_empty() || !self.credits.is_empty()
    }

    /// Polls for input (only if `reads`) and, while output is pending, for space to write it. The task that polled last is
    /// woken.
    pub fn poll_ready(&self, context: &mut Context<'_>, reads: bool) -> Poll<()> {
        let readable = reads && self.stream.poll_read_ready(context).is_ready();
        let writable = self.wants_write() && self.stream.poll_write_ready(context).is_ready();
        if readable || writable { Poll::Ready(()) } else { Poll::Pending }
    }

    /// Writes pending output until the socket is full.
    ///
    /// # Errors
    /// [`ConnectionError`] when the engine is gone.
    pub fn flush(&mut self) -> Result<(), ConnectionError> {
        while self.wants_write() {
            if self.out.is_empty() {
                self.write_credits();
            }
            match self.write_some() {
                Ok(written) => {
                    self.written += written as u64;
                    while self.unsent.front().is_some_and(|(_, from)| *from < self.written) {
                        self.unsent.pop_front();
                    }
                    self.consume(written);
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(()),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }

    fn write_some(&self) -> io::Result<usize> {
        if let Some(Piece::WithFd(bytes, descriptor)) = self.out.front() {
            let (raw, fd) = (self.stream.as_raw_fd(), descriptor.as_raw_fd());
            return self.stream.try_io(Interest::WRITABLE, || {
                let rights = [ControlMessage::ScmRights(std::slice::from_ref(&fd))];
                let iov = [IoSlice::new(bytes)];
                sendmsg::<SockaddrStorage>(raw, &iov, &rights, MsgFlags::MSG_NOSIGNAL, None).map_err(Errno::into)
            });
        }
        let plain = self.out.iter().take_while(|piece| !matches!(piece, Piece::WithFd(..))).take(MAX_PIECES);
        let slices: Vec<IoSlice<'_>> = plain.map(|piece| IoSlice::new(piece.bytes())).collect();
        self.stream.try_write_vectored(&slices)
    }

    fn consume(&mut self, mut written: usize) {
        while let Some(mut piece) = self.out.pop_front() {
            let length = piece.bytes().len();
            if written >= length {
                written -= length;
                if written == 0 {
                    return;
                }
                continue;
            }
            if written > 0 {
                piece.advance(written);
                // The descriptor went with the first byte; the rest is plain bytes.
                piece = match piece {
                    Piece::WithFd(bytes, _) => Piece::Joined(bytes),
                    Piece::Joined(_) | Piece::Body(_) => piece,
                };
            }
            self.out.push_front(piece);
            return;
        }
    }

    /// Reads once. Returns whether there may be more.
    ///
    /// # Errors
    /// [`ConnectionError::Closed`] at the end of the connection.
    pub fn fill(&mut self) -> Result<bool, ConnectionError> {
        if self.input.capacity() - self.input.len() < MIN_SPACE {
            self.input.reserve(READ_BUFFER);
        }
        let room = self.input.capacity() - self.input.len();
        // Until there is nothing: a read ends before a message with descriptors, though more lies behind it.
        match self.stream.try_read_buf(&mut self.input) {
            Ok(0) => Err(ConnectionError::Closed),
            Ok(read) => Ok(read >= room),
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => Ok(false),
            Err(error) => Err(error.into()),
        }
    }

    /// Header of the next frame if that is a large answer: once, before the rest of it is here.
    ///
    /// # Errors
    /// A frame that the engine may not send.
    pub fn large_answer(&mut self) -> Result<Option<Header>, ConnectionError> {
        self.drop_input();
        let Some(bytes) = self.input.first_chunk::<HEADER>().filter(|_| !self.announced) else { return Ok(None) };
        let header = Header::decode(bytes)?;
        header.check_answer()?;
        self.announced = header.kind == Kind::Response && header.length as usize > LARGE;
        Ok(self.announced.then_some(header))
    }

    /// Drops the next frame as it arrives; [`DataConnection::dropped`] reports its end.
    pub fn drop_frame(&mut self) {
        let header = self.input.first_chunk::<HEADER>().and_then(|bytes| Header::decode(bytes).ok());
        self.to_drop = header.map_or(0, |header| HEADER + header.length as usize);
        self.dropping = header.map(|header| header.id);
        self.announced = false;
        self.drop_input();
    }

    /// The request whose frame was dropped to its last byte, once.
    pub fn dropped(&mut self) -> Option<u64> {
        self.drop_input();
        self.dropping.take_if(|_| self.to_drop == 0)
    }

    fn drop_input(&mut self) {
        let here = self.to_drop.min(self.input.len());
        self.input.advance(here);
        self.to_drop -= here;
    }

    /// The next whole frame of the input.
    ///
    /// # Errors
    /// A frame that the engine may not send.
    pub fn next_frame(&mut self) -> Result<Option<(Header, Bytes)>, ConnectionError> {
        let frame = split_frame(&mut self.input)?;
        self.announced &= frame.is_none();
        Ok(frame)
    }
}

/// Takes the first frame from an engine's output; `None`, with space for the rest reserved, as long as it is not whole.
///
/// # Errors
/// A frame that the engine may not send.
pub fn split_frame(input: &mut BytesMut) -> Result<Option<(Header, Bytes)>, FrameError> {
    let Some(bytes) = input.first_chunk::<HEADER>() else { return Ok(None) };
    let header = Header::decode(bytes)?;
    header.check_answer()?;
    let whole = HEADER + header.length as usize;
    if input.len() < whole {
        input.reserve(whole - input.len());
        return Ok(None);
    }
    let mut frame = input.split_to(whole);
    frame.advance(HEADER);
    Ok(Some((header, frame.freeze())))
}

#[cfg(test)]
mod tests;
