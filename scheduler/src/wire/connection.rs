//! One data connection: a stream socket to the model process, and the cancel socket beside it.
//!
//! Owned by the model's task for one instance and one scheduler life. Reading and writing never block; the task asks
//! [`DataConnection::poll_ready`] when to try. What comes from the model is bounded here and checked by the caller.
//! Descriptors that a model sends are dropped by the kernel, since plain reads have no room for them.

use bytes::{Buf, Bytes, BytesMut};
use nix::errno::Errno;
use nix::sys::socket::{
    AddressFamily, ControlMessage, MsgFlags, SockFlag, SockType, SockaddrStorage, send, sendmsg, socketpair,
};
use omni_engine_protocol::frame::{CancelReason, FrameError, HEADER, Header, Kind, flags};
use std::collections::{BTreeMap, VecDeque};
use std::io::{self, ErrorKind, IoSlice};
use std::os::fd::{AsRawFd, OwnedFd};
use std::task::{Context, Poll};
use tokio::io::Interest;
use tokio::net::UnixStream;

/// Small frames are joined up to this size before they are written.
const JOIN: usize = 64 * 1024;
/// Most pieces of one vectored write.
const PIECES: usize = 16;
/// From this length on a frame is told of when its header comes: who reads it has to have room for it.
const LARGE: usize = 64 * 1024;
/// Room for what is read, made anew when less than [`ROOM`] of it is left: answers that are still needed keep it.
const READ: usize = 64 * 1024;
/// Least room for a read.
const ROOM: usize = 16 * 1024;

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
    /// Requests of which no byte was written yet, each with what was queued before it; of all that was ever queued.
    unsent: VecDeque<(u64, u64)>,
    queued: u64,
    written: u64,
    /// Credit that is to be written once all output is: one sum for each stream, however slowly the model reads.
    credits: BTreeMap<u64, u32>,
    input: BytesMut,
    /// The frame at the beginning of `input` is large, and was told of.
    told: bool,
    /// What is to be dropped of what comes next.
    skipped: usize,
    /// Whose frame that is, until all of it was.
    skips: Option<u64>,
}

/// The model's ends, to be sent on and closed.
#[derive(Debug)]
pub struct ModelEnds {
    /// The data socket.
    pub data: OwnedFd,
    /// The cancel socket.
    pub cancel: OwnedFd,
}

/// The connection cannot be used further.
#[derive(Debug, thiserror::Error)]
pub enum Broken {
    /// The model's end is closed.
    #[error("the model closed its data connection")]
    Closed,
    /// The kernel says.
    #[error("data connection")]
    Io(#[from] io::Error),
    /// The model sent what is no frame.
    #[error("the model broke the data wire")]
    Frame(#[from] FrameError),
    /// It sent a frame that does not fit what it has.
    #[error("the model broke the data wire")]
    Wire(#[from] crate::model::requests::BrokenWire),
}

impl DataConnection {
    /// A fresh pair of sockets.
    ///
    /// # Errors
    /// The kernel has no descriptors left.
    pub fn pair() -> io::Result<(Self, ModelEnds)> {
        let pair = |kind, flags| socketpair(AddressFamily::Unix, kind, None, SockFlag::SOCK_CLOEXEC | flags);
        let (ours, data) = pair(SockType::Stream, SockFlag::empty())?;
        let (cancel, model_cancel) = pair(SockType::SeqPacket, SockFlag::empty())?;
        let ours = std::os::unix::net::UnixStream::from(ours);
        ours.set_nonblocking(true)?; // only our end: the model's is a blocking socket
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
            told: false,
            skipped: 0,
            skips: None,
        };
        Ok((connection, ModelEnds { data, cancel: model_cancel }))
    }

    /// Queues a request. With a descriptor the body must be empty: it comes through the descriptor.
    pub fn request(&mut self, id: u64, flags: u8, head: &[u8], body: Bytes, descriptor: Option<OwnedFd>) {
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

    /// Queues credit for a stream.
    pub fn credit(&mut self, id: u64, bytes: u32) {
        let sum = self.credits.entry(id).or_default();
        *sum = sum.saturating_add(bytes);
    }

    fn write_credits(&mut self) {
        for (id, bytes) in std::mem::take(&mut self.credits) {
            self.small(Header { length: 4, kind: Kind::Credit, flags: 0, code: 0, id }, &bytes.to_le_bytes());
        }
    }

    /// Queues the question how the model is: by its `own` check, or only whether the engine answers.
    pub fn check(&mut self, id: u64, own: bool) {
        let flags = if own { flags::OWN_CHECK } else { 0 };
        self.small(Header { length: 0, kind: Kind::Check, flags, code: 0, id }, &[]);
    }

    fn small(&mut self, header: Header, payload: &[u8]) {
        let mut frame = BytesMut::from(&header.encode()[..]);
        frame.extend_from_slice(payload);
        self.queued += frame.len() as u64;
        match self.out.back_mut() {
            Some(Piece::Joined(last)) => last.unsplit(frame),
            Some(Piece::Body(_) | Piece::WithFd(..)) | None => self.out.push_back(Piece::Joined(frame)),
        }
    }

    /// Tells the model to give up a request. Returns `false` when the model does not take cancellations.
    #[must_use]
    pub fn cancel(&self, id: u64, reason: CancelReason) -> bool {
        let header = Header { length: 0, kind: Kind::Cancel, flags: 0, code: reason as u16, id };
        let flags = MsgFlags::MSG_NOSIGNAL | MsgFlags::MSG_DONTWAIT;
        send(self.cancel.as_raw_fd(), &header.encode(), flags).is_ok()
    }

    /// Requests that were queued and of which the model has not one byte.
    pub fn unsent(&self) -> impl Iterator<Item = u64> {
        self.unsent.iter().map(|(id, _)| *id)
    }

    /// Whether output waits for the model to read.
    #[must_use]
    pub fn wants_write(&self) -> bool {
        !self.out.is_empty() || !self.credits.is_empty()
    }

    /// Whether there is something to do: input, if it is to be read (`reads`), or room for output that waits. The task that
    /// asked last is woken.
    pub fn poll_ready(&self, context: &mut Context<'_>, reads: bool) -> Poll<()> {
        let readable = reads && self.stream.poll_read_ready(context).is_ready();
        let writable = self.wants_write() && self.stream.poll_write_ready(context).is_ready();
        if readable || writable { Poll::Ready(()) } else { Poll::Pending }
    }

    /// Writes as much as the model's socket takes.
    ///
    /// # Errors
    /// [`Broken`] when the model is gone.
    pub fn flush(&mut self) -> Result<(), Broken> {
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
        let plain = self.out.iter().take_while(|piece| !matches!(piece, Piece::WithFd(..))).take(PIECES);
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
                // The descriptor went with the first byte; what is left is plain bytes.
                piece = match piece {
                    Piece::WithFd(bytes, _) => Piece::Joined(bytes),
                    Piece::Joined(_) | Piece::Body(_) => piece,
                };
            }
            self.out.push_front(piece);
            return;
        }
    }

    /// Reads what is there, once. Returns whether there may be more.
    ///
    /// # Errors
    /// [`Broken::Closed`] at the end of the connection.
    pub fn fill(&mut self) -> Result<bool, Broken> {
        if self.input.capacity() - self.input.len() < ROOM {
            self.input.reserve(READ);
        }
        let room = self.input.capacity() - self.input.len();
        // Until there is nothing: a read ends before a message with descriptors, though more lies behind it.
        match self.stream.try_read_buf(&mut self.input) {
            Ok(0) => Err(Broken::Closed),
            Ok(read) => Ok(read >= room),
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => Ok(false),
            Err(error) => Err(error.into()),
        }
    }

    /// The header of a frame that is large and comes next: before the rest of it is here, and once.
    ///
    /// # Errors
    /// [`Broken::Frame`]: the model may not send this.
    pub fn large(&mut self) -> Result<Option<Header>, Broken> {
        self.drop_skipped();
        let Some(bytes) = self.input.first_chunk::<HEADER>().filter(|_| !self.told) else { return Ok(None) };
        let header = Header::decode(bytes)?;
        header.check_answer()?;
        self.told = header.kind == Kind::Response && header.length as usize > LARGE;
        Ok(self.told.then_some(header))
    }

    /// The frame that comes next is dropped as it comes; [`DataConnection::skipped`] says when all of it was.
    pub fn skip(&mut self) {
        let header = self.input.first_chunk::<HEADER>().and_then(|bytes| Header::decode(bytes).ok());
        self.skipped = header.map_or(0, |header| HEADER + header.length as usize);
        self.skips = header.map(|header| header.id);
        self.told = false;
        self.drop_skipped();
    }

    /// The request whose frame was dropped to its last byte, once.
    pub fn skipped(&mut self) -> Option<u64> {
        self.drop_skipped();
        self.skips.take_if(|_| self.skipped == 0)
    }

    fn drop_skipped(&mut self) {
        let here = self.skipped.min(self.input.len());
        self.input.advance(here);
        self.skipped -= here;
    }

    /// The next whole frame of what was read.
    ///
    /// # Errors
    /// [`Broken::Frame`]: the model may not send this.
    pub fn frame(&mut self) -> Result<Option<(Header, Bytes)>, Broken> {
        let frame = next_frame(&mut self.input)?;
        self.told &= frame.is_none();
        Ok(frame)
    }
}

/// Takes the first frame from what a model has sent; `None`, with room for the rest of it, as long as it is not whole.
///
/// # Errors
/// The model may not send this.
pub fn next_frame(input: &mut BytesMut) -> Result<Option<(Header, Bytes)>, FrameError> {
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
#[path = "connection_tests.rs"]
mod tests;
