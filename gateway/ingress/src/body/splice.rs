//! Moves bytes from the client's connection to the model's socket inside the kernel, through a pipe.
//!
//! Called by [`super::upload`]. Not one byte crosses this process's memory: pages go from the receive queue of the one
//! socket to that of the other. What always holds: exactly as many bytes are taken from the connection as were asked for, at
//! most what pipe and socket hold is under way, and waiting for a model that does not read ends when the client is gone.

use crate::connection::Hold;
use nix::fcntl::{FcntlArg, OFlag, SpliceFFlags, fcntl, splice as splice_once};
use nix::sys::socket::{setsockopt, sockopt::SndBuf};
use nix::unistd::pipe2;
use std::io::{self, ErrorKind};
use std::os::fd::AsFd;
use tokio::io::Interest;
use tokio::net::{TcpStream, UnixStream};

/// Asked for as the size of the pipe and of the model's socket: each piece costs a turn of the client, of this process and of
/// the model. The kernel may give less, to a user with many pipes for example: then more steps are needed, no more.
const ROOM: usize = 1024 * 1024;

/// How it ended.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Spliced {
    /// All bytes are in the model's socket.
    Whole,
    /// The model has closed its socket.
    NotWanted,
}

/// Moves exactly `length` bytes.
///
/// # Errors
/// The client closed the connection before, or it broke; or there are no descriptors left.
pub(crate) async fn splice(from: &TcpStream, to: &UnixStream, length: u64, hold: &Hold) -> io::Result<Spliced> {
    let (reader, writer) = pipe2(OFlag::O_CLOEXEC | OFlag::O_NONBLOCK)?;
    let _ = fcntl(&writer, FcntlArg::F_SETPIPE_SZ(ROOM as i32));
    let _ = setsockopt(to, SndBuf, &ROOM);
    let mut rest = length;
    while rest > 0 {
        let room = usize::try_from(rest).unwrap_or(ROOM).min(ROOM);
        let mut held = from.async_io(Interest::READABLE, || step(from, &writer, room)).await?;
        if held == 0 {
            return Err(ErrorKind::UnexpectedEof.into());
        }
        rest = rest.saturating_sub(held as u64);
        hold.took(held as u64);
        while held > 0 {
            let sent = tokio::select! {
                biased;
                sent = to.async_io(Interest::WRITABLE, || step(&reader, to, held)) => sent,
                lost = from.ready(Interest::ERROR) => return Err(lost.err().unwrap_or(ErrorKind::ConnectionReset.into())),
            };
            match sent {
                Ok(sent) if sent > 0 => held = held.saturating_sub(sent),
                Ok(_) => return Err(ErrorKind::WriteZero.into()),
                Err(_) => return Ok(Spliced::NotWanted),
            }
        }
    }
    Ok(Spliced::Whole)
}

fn step(from: impl AsFd, to: impl AsFd, most: usize) -> io::Result<usize> {
    Ok(splice_once(from, None, to, None, most, SpliceFFlags::SPLICE_F_NONBLOCK)?)
}
