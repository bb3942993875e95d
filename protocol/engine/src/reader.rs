//! The engine's end of a data connection: frames out of a byte stream, with the descriptors that come beside them.

use crate::frame::{FrameError, HEADER, Header, Kind, flags};
use crate::packet::owned;
use nix::cmsg_space;
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::socket::{MsgFlags, SockaddrStorage, recvmsg};
use std::collections::VecDeque;
use std::io::IoSliceMut;
use std::os::fd::{AsFd, AsRawFd, OwnedFd, RawFd};

/// Bytes of a read.
const READ: usize = 64 * 1024;
/// Most descriptors of a read; the scheduler sends one with each frame that has one.
const MAX_FDS: usize = 4;

/// Frame with what came with it.
#[derive(Debug)]
pub struct Frame {
    /// Header.
    pub header: Header,
    /// Payload.
    pub payload: Vec<u8>,
    /// Socket of a streamed body: there with [`flags::BODY_STREAM`], unless this process had no room for it.
    pub body: Option<OwnedFd>,
}

/// A connection that cannot be read further.
#[derive(Debug, thiserror::Error)]
pub enum ReadError {
    /// The kernel refused.
    #[error("reading from the data connection")]
    Socket(#[from] Errno),
    /// Bytes that are no frame.
    #[error(transparent)]
    Frame(#[from] FrameError),
}

/// Reader of a data connection, whose thread waits for each frame. A time limit of the socket has no effect.
#[derive(Debug)]
pub struct FrameReader<S> {
    socket: S,
    /// Bytes that were read from `start` to `end`, and room for more.
    bytes: Vec<u8>,
    start: usize,
    end: usize,
    /// `None` is one that the kernel had to drop.
    descriptors: VecDeque<Option<OwnedFd>>,
}

impl<S: AsFd> FrameReader<S> {
    /// Reader from the next frame on.
    pub fn new(socket: S) -> Self {
        Self { socket, bytes: Vec::new(), start: 0, end: 0, descriptors: VecDeque::new() }
    }

    /// Waits for the next frame. `None`: the other side has closed; a frame that had begun is lost with it.
    ///
    /// # Errors
    /// [`ReadError`].
    pub fn read(&mut self) -> Result<Option<Frame>, ReadError> {
        loop {
            if let Some(frame) = self.take()? {
                return Ok(Some(frame));
            }
            if !self.fill()? {
                return Ok(None);
            }
        }
    }

    fn take(&mut self) -> Result<Option<Frame>, ReadError> {
        let rest = self.bytes.get(self.start..self.end).unwrap_or_default();
        let Some((header, rest)) = rest.split_first_chunk::<HEADER>() else { return Ok(None) };
        let header = Header::decode(header)?;
        let Some(payload) = rest.get(..header.length as usize) else { return Ok(None) };
        let payload = payload.to_vec();
        self.start += HEADER + payload.len();
        let has_body = header.kind == Kind::Request && header.flags & flags::BODY_STREAM != 0;
        let body = if has_body { self.descriptors.pop_front().flatten() } else { None };
        Ok(Some(Frame { header, payload, body }))
    }

    fn fill(&mut self) -> Result<bool, ReadError> {
        self.bytes.copy_within(self.start..self.end, 0);
        (self.start, self.end) = (0, self.end - self.start);
        if self.bytes.len() < self.end + READ {
            self.bytes.resize(self.end + READ, 0);
        }
        let socket = self.socket.as_fd();
        let received = loop {
            // A thread that waits in a read is woken whenever the other side has read something. This one is not.
            match poll(&mut [PollFd::new(socket, PollFlags::POLLIN)], PollTimeout::NONE) {
                Err(Errno::EINTR) => continue,
                Err(errno) => break Err(errno),
                Ok(_) => {}
            }
            let mut iov = [IoSliceMut::new(self.bytes.get_mut(self.end..).unwrap_or_default())];
            let mut control = cmsg_space!([RawFd; MAX_FDS]);
            let raw = socket.as_raw_fd();
            match recvmsg::<SockaddrStorage>(raw, &mut iov, Some(&mut control), MsgFlags::MSG_CMSG_CLOEXEC) {
                Ok(received) => break Ok((received.bytes, received.flags, owned(&received))),
                Err(Errno::EINTR) => {}
                Err(Errno::ECONNRESET) => break Ok((0, MsgFlags::empty(), Vec::new())),
                Err(errno) => break Err(errno),
            }
        };
        let (count, came, descriptors) = received?;
        self.end += count;
        self.descriptors.extend(descriptors.into_iter().map(Some));
        if came.contains(MsgFlags::MSG_CTRUNC) {
            self.descriptors.push_back(None);
        }
        Ok(count > 0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use nix::sys::socket::{ControlMessage, sendmsg};
    use std::io::{IoSlice, Read, Write};
    use std::os::unix::net::UnixStream;

    fn frame(kind: Kind, flags: u8, id: u64, payload: &[u8]) -> Vec<u8> {
        let length = u32::try_from(payload.len()).unwrap();
        let mut bytes = Header { length, kind, flags, code: 0, id }.encode().to_vec();
        bytes.extend_from_slice(payload);
        bytes
    }

    #[test]
    fn frames_come_out_whole_however_they_are_cut() {
        let large: Vec<u8> = (0..3 * READ).map(|at| (at % 251) as u8).collect();
        let frames = [
            frame(Kind::Request, 0, 1, b"one"),
            frame(Kind::Credit, 0, 2, &[1, 0, 0, 0]),
            frame(Kind::Request, 0, 3, &large),
            frame(Kind::Check, 1, 4, b""),
            frame(Kind::Request, 0, 5, &large[1..2 * READ]),
            frame(Kind::Request, 0, 6, b"six"),
        ];
        let payloads: [&[u8]; 6] = [b"one", &[1, 0, 0, 0], &large, b"", &large[1..2 * READ], b"six"];
        for cut in [1, 15, 16, 17, 1000, 1 << 20] {
            let (mut ours, theirs) = UnixStream::pair().unwrap();
            let bytes = frames.concat();
            let writer = std::thread::spawn(move || bytes.chunks(cut).for_each(|piece| ours.write_all(piece).unwrap()));
            let mut reader = FrameReader::new(theirs);
            for (id, payload) in (1..).zip(payloads) {
                let frame = reader.read().unwrap().unwrap();
                assert_eq!((frame.header.id, frame.header.length as usize), (id, payload.len()));
                assert!(frame.payload == payload, "frame {id} in pieces of {cut}");
            }
            assert!(reader.read().unwrap().is_none());
            writer.join().unwrap();
        }
    }

    #[test]
    fn a_descriptor_belongs_to_the_frame_it_came_with() {
        let (ours, theirs) = UnixStream::pair().unwrap();
        let (mut body, other) = UnixStream::pair().unwrap();
        body.write_all(b"the body").unwrap();
        drop(body);
        let bytes = [frame(Kind::Request, 0, 1, b"a"), frame(Kind::Request, flags::BODY_STREAM, 2, b"b")].concat();
        let descriptors = [other.as_raw_fd()];
        let control = [ControlMessage::ScmRights(&descriptors)];
        sendmsg::<SockaddrStorage>(ours.as_raw_fd(), &[IoSlice::new(&bytes)], &control, MsgFlags::empty(), None)
            .unwrap();
        let mut reader = FrameReader::new(theirs);
        assert!(reader.read().unwrap().unwrap().body.is_none());
        let mut text = String::new();
        UnixStream::from(reader.read().unwrap().unwrap().body.unwrap()).read_to_string(&mut text).unwrap();
        assert_eq!(text, "the body");
    }

    #[test]
    fn what_is_no_frame_is_an_error() {
        let (mut ours, theirs) = UnixStream::pair().unwrap();
        ours.write_all(&[0xff; 16]).unwrap();
        assert!(matches!(FrameReader::new(theirs).read(), Err(ReadError::Frame(FrameError::UnknownKind(0xff)))));
    }
}
