//! The sockets between a worker and its program: the control socket and the pipes of its output. The program's side is
//! untrusted: every read is bounded, and nothing waits for it.

use super::journal::{Journal, Moment};
use nix::errno::Errno;
use nix::fcntl::{FcntlArg, OFlag, fcntl};
use nix::sys::socket::{AddressFamily, SockFlag, SockType, setsockopt, socketpair, sockopt};
use nix::sys::stat::{Mode, fchmod};
use nix::unistd::{pipe2, read};
use omni_engine_protocol::packet::{PacketError, send_packet};
use omni_node_protocol::instance::LogStream;
use serde::Serialize;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};

/// Bytes taken from a log pipe per round: what a pipe holds.
const LOG_ROUND: usize = 64 * 1024;
const LOG_BUFFER: usize = 8 * 1024;

/// The worker's ends; `None` once the other side has closed.
#[derive(Debug)]
pub(super) struct Sockets {
    pub(super) engine: Option<OwnedFd>,
    pub(super) stdout: Option<OwnedFd>,
    pub(super) stderr: Option<OwnedFd>,
}

/// The program's ends.
#[derive(Debug)]
pub(super) struct ProgramSockets {
    pub(super) engine: OwnedFd,
    pub(super) stdout: OwnedFd,
    pub(super) stderr: OwnedFd,
}

impl Sockets {
    /// New ones. Our ends do not wait; the program's do, as it expects: one whose output is non-blocking would see errors
    /// that it does not know. The kernel names the sender of what comes over the control socket.
    pub(super) fn new() -> Result<(Self, ProgramSockets), Errno> {
        let (engine, theirs) = socketpair(AddressFamily::Unix, SockType::SeqPacket, None, SockFlag::SOCK_CLOEXEC)?;
        setsockopt(&engine, sockopt::PassCred, &true)?;
        let (stdout, to_stdout) = pipe2(OFlag::O_CLOEXEC)?;
        let (stderr, to_stderr) = pipe2(OFlag::O_CLOEXEC)?;
        for theirs in [&to_stdout, &to_stderr] {
            // `/dev/stdout` is opened anew through `/proc/self/fd`, by the model's user: to write, and no more.
            fchmod(theirs, Mode::from_bits_truncate(0o622))?;
        }
        for ours in [&engine, &stdout, &stderr] {
            fcntl(ours, FcntlArg::F_SETFL(OFlag::O_NONBLOCK))?;
        }
        let sockets = Self { engine: Some(engine), stdout: Some(stdout), stderr: Some(stderr) };
        Ok((sockets, ProgramSockets { engine: theirs, stdout: to_stdout, stderr: to_stderr }))
    }

    /// Sends over the control socket, without waiting.
    pub(super) fn send(&self, message: &impl Serialize, fds: &[OwnedFd]) -> Result<(), PacketError> {
        let raw: Vec<RawFd> = fds.iter().map(AsRawFd::as_raw_fd).collect();
        send_packet(self.engine.as_ref().ok_or(PacketError::Closed)?, message, &raw)
    }

    /// Reads what the pipes hold now, up to a bound each.
    pub(super) fn read_logs(&mut self, journal: &mut Journal, now: Moment) {
        read_log(&mut self.stdout, LogStream::Stdout, journal, now);
        read_log(&mut self.stderr, LogStream::Stderr, journal, now);
    }
}

/// Reads what a pipe holds now, up to a bound.
pub(super) fn read_log(pipe: &mut Option<OwnedFd>, stream: LogStream, journal: &mut Journal, now: Moment) {
    let mut buffer = [0; LOG_BUFFER];
    for _ in 0..LOG_ROUND / LOG_BUFFER {
        let Some(fd) = pipe else { return };
        match read(fd, &mut buffer) {
            Ok(0) => *pipe = None,
            Ok(length) => journal.write(stream, buffer.get(..length).unwrap_or_default(), now),
            Err(Errno::EAGAIN) => return,
            Err(Errno::EINTR) => {}
            Err(_) => *pipe = None,
        }
    }
}
