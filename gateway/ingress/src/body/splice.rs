//! Splice of bytes from the client's connection to the model's socket inside the kernel, through a pipe.
//!
//! Not one byte crosses this process's memory: pages go from the receive queue of the one socket to that of the other. Invariants: exactly
//! as many bytes are read from the connection as were asked for; no more than pipe and socket hold are in between; the wait for a model
//! that does not read ends when the client is gone.

use crate::body_handoff::RawBodyHandoff;
use nix::fcntl::{FcntlArg, OFlag, SpliceFFlags, fcntl, splice as splice_once};
use nix::sys::socket::{setsockopt, sockopt::SndBuf};
use nix::unistd::pipe2;
use std::io::{self, ErrorKind};
use std::os::fd::AsFd;
use tokio::io::Interest;
use tokio::net::{TcpStream, UnixStream};

/// Size of the pipe and of the model's socket: each piece costs a turn of the client, of this process and of the model. The kernel may give
/// less, to a user with many pipes for example; then it takes more steps.
const BUFFER: usize = 1024 * 1024;

/// End of a splice.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Spliced {
    /// All bytes are in the model's socket.
    Complete,
    /// The model has closed its socket.
    ReaderClosed,
}

/// Moves exactly `length` bytes.
///
/// # Errors
/// The client closed the connection before, or it broke; or there are no descriptors left.
pub(super) async fn splice(
    from: &TcpStream,
    to: &UnixStream,
    length: u64,
    handoff: &RawBodyHandoff,
) -> io::Result<Spliced> {
    let (reader, writer) = pipe2(OFlag::O_CLOEXEC | OFlag::O_NONBLOCK)?;
    let _ = fcntl(&writer, FcntlArg::F_SETPIPE_SZ(BUFFER as i32));
    let _ = setsockopt(to, SndBuf, &BUFFER);
    let mut rest = length;
    while rest > 0 {
        let most = usize::try_from(rest).unwrap_or(BUFFER).min(BUFFER);
        let mut in_pipe = from.async_io(Interest::READABLE, || step(from, &writer, most)).await?;
        if in_pipe == 0 {
            return Err(ErrorKind::UnexpectedEof.into());
        }
        rest = rest.saturating_sub(in_pipe as u64);
        handoff.on_read(in_pipe as u64);
        while in_pipe > 0 {
            let sent = tokio::select! {
                biased;
                sent = to.async_io(Interest::WRITABLE, || step(&reader, to, in_pipe)) => sent,
                lost = from.ready(Interest::ERROR) => return Err(lost.err().unwrap_or(ErrorKind::ConnectionReset.into())),
            };
            match sent {
                Ok(sent) if sent > 0 => in_pipe = in_pipe.saturating_sub(sent),
                Ok(_) => return Err(ErrorKind::WriteZero.into()),
                Err(_) => return Ok(Spliced::ReaderClosed),
            }
        }
    }
    Ok(Spliced::Complete)
}

fn step(from: impl AsFd, to: impl AsFd, most: usize) -> io::Result<usize> {
    Ok(splice_once(from, None, to, None, most, SpliceFFlags::SPLICE_F_NONBLOCK)?)
}
