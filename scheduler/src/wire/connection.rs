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
use omni_ipc::frame::{CancelReason, FrameError, HEADER, Header, Kind};
use std::collections::VecDeque;
use std::io::{self, ErrorKind, IoSlice};
use std::os::fd::{AsRawFd, OwnedFd};
use std::task::{Context, Poll};
use tokio::io::Interest;
use tokio::net::UnixStream;

/// Small frames are joined up to this size before they are written.
const JOIN: usize = 64 * 1024;
/// Most pieces of one vectored write.
const PIECES: usize = 16;
/// Room asked for before a read.
const READ: usize = 64 * 1024;

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
    input: BytesMut,
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
            input: BytesMut::new(),
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
        let header = Header { length: 4, kind: Kind::Credit, flags: 0, code: 0, id };
        let mut frame = BytesMut::from(&header.encode()[..]);
        frame.extend_from_slice(&bytes.to_le_bytes());
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
        !self.out.is_empty()
    }

    /// Whether there is something to do: input, or room for output that waits. The task that asked last is woken.
    pub fn poll_ready(&self, context: &mut Context<'_>) -> Poll<()> {
        let readable = self.stream.poll_read_ready(context).is_ready();
        let writable = self.wants_write() && self.stream.poll_write_ready(context).is_ready();
        if readable || writable { Poll::Ready(()) } else { Poll::Pending }
    }

    /// Writes as much as the model's socket takes.
    ///
    /// # Errors
    /// [`Broken`] when the model is gone.
    pub fn flush(&mut self) -> Result<(), Broken> {
        while !self.out.is_empty() {
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
        self.input.reserve(READ);
        match self.stream.try_read_buf(&mut self.input) {
            Ok(0) => Err(Broken::Closed),
            Ok(read) => Ok(read >= READ),
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => Ok(false),
            Err(error) => Err(error.into()),
        }
    }

    /// The next whole frame of what was read.
    ///
    /// # Errors
    /// [`Broken::Frame`]: the model may not send this.
    pub fn frame(&mut self) -> Result<Option<(Header, Bytes)>, Broken> {
        let Some(bytes) = self.input.first_chunk::<HEADER>() else { return Ok(None) };
        let header = Header::decode(bytes)?;
        header.check_answer()?;
        let whole = HEADER + header.length as usize;
        if self.input.len() < whole {
            self.input.reserve(whole - self.input.len());
            return Ok(None);
        }
        let mut frame = self.input.split_to(whole);
        frame.advance(HEADER);
        Ok(Some((header, frame.freeze())))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use omni_ipc::frame::flags;
    use omni_ipc::packet::MAX_FDS;
    use std::io::{Read, Write};
    use std::os::unix::net::UnixStream as StdStream;

    async fn ready(connection: &DataConnection) {
        std::future::poll_fn(|context| connection.poll_ready(context)).await;
    }

    fn request_of(bytes: &[u8]) -> (Header, Vec<u8>) {
        let header = Header::decode(bytes.first_chunk().unwrap()).unwrap();
        (header, bytes[HEADER..HEADER + header.length as usize].to_vec())
    }

    #[tokio::test]
    async fn requests_small_and_large_arrive_whole_and_in_order() {
        let (mut connection, ends) = DataConnection::pair().unwrap();
        let large = Bytes::from(vec![7_u8; 3 * 1024 * 1024]);
        connection.request(1, flags::JSON, b"{}", Bytes::from_static(b"small"), None);
        connection.request(2, flags::BYTES, b"{\"a\":1}", large.clone(), None);
        connection.credit(2, 99);
        let model = std::thread::spawn(move || {
            let mut model = StdStream::from(ends.data);
            let mut got = vec![0; HEADER * 3 + 4 + 2 + 5 + 4 + 7 + 3 * 1024 * 1024 + 4];
            model.read_exact(&mut got).unwrap();
            got
        });
        while connection.wants_write() {
            ready(&connection).await;
            connection.flush().unwrap();
        }
        let got = model.join().unwrap();
        let (first, payload) = request_of(&got);
        assert_eq!((first.id, payload.as_slice()), (1, &b"\x02\0\0\0{}small"[..]));
        let (second, payload) = request_of(&got[HEADER + first.length as usize..]);
        assert_eq!((second.id, second.flags, payload.len()), (2, flags::BYTES, 4 + 7 + large.len()));
        assert_eq!(&got[got.len() - 4..], 99_u32.to_le_bytes());
    }

    #[tokio::test]
    async fn what_was_not_begun_to_be_written_is_known() {
        let (mut connection, ends) = DataConnection::pair().unwrap();
        let large = Bytes::from(vec![7_u8; 3 * 1024 * 1024]);
        connection.request(1, flags::BYTES, b"{}", Bytes::new(), None);
        connection.credit(1, 5);
        connection.request(2, flags::BYTES, b"{}", large.clone(), None);
        connection.request(3, flags::BYTES, b"{}", large, None);
        connection.request(4, flags::BYTES, b"{}", Bytes::new(), None);
        assert_eq!(connection.unsent().collect::<Vec<_>>(), [1, 2, 3, 4]);
        ready(&connection).await;
        connection.flush().unwrap(); // the socket is full in the middle of the second
        assert_eq!(connection.unsent().collect::<Vec<_>>(), [3, 4]);
        let model = std::thread::spawn(move || io::copy(&mut StdStream::from(ends.data), &mut io::sink()));
        while connection.wants_write() {
            ready(&connection).await;
            connection.flush().unwrap();
        }
        assert_eq!(connection.unsent().count(), 0);
        drop(connection);
        model.join().unwrap().unwrap();
    }

    #[tokio::test]
    async fn a_descriptor_comes_with_its_own_frame() {
        let (mut connection, ends) = DataConnection::pair().unwrap();
        let (ours, theirs) = StdStream::pair().unwrap();
        connection.request(1, 0, b"{}", Bytes::new(), None);
        connection.request(2, flags::BODY_STREAM, b"{}", Bytes::new(), Some(theirs.into()));
        connection.request(3, 0, b"{}", Bytes::new(), None);
        while connection.wants_write() {
            ready(&connection).await;
            connection.flush().unwrap();
        }
        let mut buffer = vec![0; 4096];
        let mut fds = Vec::new();
        let mut got = 0;
        while got < 3 * (HEADER + 6) {
            let mut iov = [io::IoSliceMut::new(&mut buffer[got..])];
            let mut space = nix::cmsg_space!([std::os::fd::RawFd; MAX_FDS]);
            let message = nix::sys::socket::recvmsg::<SockaddrStorage>(
                ends.data.as_raw_fd(),
                &mut iov,
                Some(&mut space),
                MsgFlags::MSG_CMSG_CLOEXEC,
            )
            .unwrap();
            for control in message.cmsgs().unwrap() {
                if let nix::sys::socket::ControlMessageOwned::ScmRights(raw) = control {
                    fds.extend(raw);
                }
            }
            got += message.bytes;
        }
        assert_eq!(fds.len(), 1);
        nix::unistd::close(fds[0]).unwrap();
        drop(ours);
    }

    #[tokio::test]
    async fn answers_are_cut_into_frames_and_garbage_is_refused() {
        let (mut connection, ends) = DataConnection::pair().unwrap();
        let mut model = StdStream::from(ends.data);
        let header = Header { length: 3, kind: Kind::Response, flags: 0, code: 200, id: 9 };
        model.write_all(&header.encode()).unwrap();
        model.write_all(b"42").unwrap();
        ready(&connection).await;
        connection.fill().unwrap();
        assert!(connection.frame().unwrap().is_none());
        model.write_all(b"1").unwrap();
        ready(&connection).await;
        connection.fill().unwrap();
        assert_eq!(connection.frame().unwrap().unwrap(), (header, Bytes::from_static(b"421")));
        let huge = Header { length: u32::MAX, kind: Kind::Response, flags: 0, code: 200, id: 9 };
        model.write_all(&huge.encode()).unwrap();
        ready(&connection).await;
        connection.fill().unwrap();
        assert!(matches!(connection.frame(), Err(Broken::Frame(FrameError::TooLong { .. }))));
        drop(model);
        loop {
            ready(&connection).await;
            match connection.fill() {
                Ok(_) => {}
                Err(Broken::Closed) => break,
                Err(other) => panic!("{other}"),
            }
        }
    }
}
