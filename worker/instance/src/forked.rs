//! Process of an instance that comes from a zygote: requested, claimed, and its end. The instance's side of
//! [`omni_node_protocol::zygote`].
//!
//! Called by [`super::running`].
//!
//! Invariants: the process is identified by the kernel, as the sender of its first message, and the zygote's worker has
//! checked that it belongs to no other instance; the connection to that worker is kept as long as the process is
//! wanted, because its end ends the process.

use super::sockets::ProgramSockets;
use nix::errno::Errno;
use nix::sys::signal::Signal;
use nix::sys::socket::{AddressFamily, SockFlag, SockType, UnixAddr, connect, socket};
use nix::unistd::Pid;
use omni_engine_protocol::packet::{PacketError, recv_packet_no_fds, send_packet};
use omni_log::chain;
use omni_node_protocol::id::InstanceId;
use omni_node_protocol::instance::LogLine;
use omni_node_protocol::zygote::{FromZygoteWorker, ToZygoteWorker};
use omni_process::pidfd;
use omni_worker_spec::ZygoteSocket;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::time::Duration;

/// How long a zygote that has imported everything may take to fork.
const FORK_WITHIN: Duration = Duration::from_secs(3);

/// Result of reading the connection.
#[derive(Debug)]
pub(super) enum Received {
    /// Nothing to act on.
    Nothing,
    /// The process is the instance's: it waits to be moved, and then for its first message.
    Claimed { pid: i32, log: Vec<LogLine> },
    /// There will be no process.
    Refused(String),
}

/// A process from a zygote.
#[derive(Debug)]
pub(super) struct Forked {
    /// To the zygote's worker; `None` when that is gone, and with it, by the kernel, everything that came from its zygote.
    connection: Option<OwnedFd>,
    process: Option<(i32, OwnedFd)>,
    claimed: bool,
    fork_until: Duration,
    status: Option<i32>,
}

impl Forked {
    /// Asks the zygote for a process that has these ends.
    pub(super) fn ask(
        zygote: &ZygoteSocket,
        instance: &InstanceId,
        ends: &ProgramSockets,
    ) -> Result<Self, PacketError> {
        let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
        let connection = socket(AddressFamily::Unix, SockType::SeqPacket, flags, None)?;
        // Does not wait: the socket is bound before its path is given to any caller, and its backlog holds as many
        // callers as there may be.
        connect(connection.as_raw_fd(), &UnixAddr::new(&zygote.path)?)?;
        let fork = ToZygoteWorker::Fork { instance: instance.clone() };
        let fds = [&ends.engine, &ends.stdout, &ends.stderr].map(AsRawFd::as_raw_fd);
        send_packet(&connection, &fork, &fds)?;
        Ok(Self {
            connection: Some(connection),
            process: None,
            claimed: false,
            // From the start of this worker, which asks first.
            fork_until: Duration::from_millis(zygote.patience_ms),
            status: None,
        })
    }

    /// For poll.
    pub(super) fn connection(&self) -> Option<BorrowedFd<'_>> {
        self.connection.as_ref().map(AsFd::as_fd)
    }

    /// For poll: readable when the process has ended.
    pub(super) fn process(&self) -> Option<BorrowedFd<'_>> {
        self.process.as_ref().filter(|_| self.claimed).map(|(_, pidfd)| pidfd.as_fd())
    }

    /// The process, once it is the instance's.
    pub(super) fn pid(&self) -> Option<i32> {
        self.process.as_ref().filter(|_| self.claimed).map(|(pid, _)| *pid)
    }

    /// When the zygote has taken too long.
    pub(super) fn deadline(&self) -> Option<Duration> {
        (!self.claimed).then_some(self.fork_until)
    }

    /// Claims the process that has sent `forked`.
    pub(super) fn claim(&mut self, pid: i32) -> Result<(), String> {
        if self.process.is_some() {
            return Err("two processes answered for one instance".into());
        }
        // From here on the number is its own; whether it is the right process is for the zygote's worker to find out.
        let pidfd = pidfd::open(Pid::from_raw(pid)).map_err(|errno| format!("the new process is gone: {errno}"))?;
        let connection = self.connection.as_ref().ok_or("the zygote's worker is gone")?;
        send_packet(connection, &ToZygoteWorker::Claim { pid }, &[]).map_err(|error| chain(&error))?;
        self.process = Some((pid, pidfd));
        Ok(())
    }

    /// Reads one message of the zygote's worker.
    pub(super) fn receive(&mut self, now: Duration) -> Received {
        let Some(connection) = &self.connection else { return Received::Nothing };
        match recv_packet_no_fds::<FromZygoteWorker>(connection) {
            Err(error) if error.would_block() => Received::Nothing,
            Ok(FromZygoteWorker::Forking) => {
                self.fork_until = now + FORK_WITHIN;
                Received::Nothing
            }
            Ok(FromZygoteWorker::Claimed { log }) => match self.process {
                Some((pid, _)) => {
                    self.claimed = true;
                    Received::Claimed { pid, log }
                }
                None => self.refused("it gave what nobody had asked for".into()),
            },
            Ok(FromZygoteWorker::Refused { message }) => self.refused(message),
            Ok(FromZygoteWorker::Ended { status }) => {
                self.status = Some(status);
                Received::Nothing
            }
            Err(error) => self.refused(chain(&error)),
        }
    }

    fn refused(&mut self, why: String) -> Received {
        self.connection = None;
        if self.claimed { Received::Nothing } else { Received::Refused(why) }
    }

    /// Tests that there is no process any more, or none yet.
    pub(super) fn has_ended(&self) -> bool {
        self.process.as_ref().is_none_or(|(_, pidfd)| pidfd::has_ended(pidfd))
    }

    /// SIGKILL to the process, if there is one.
    pub(super) fn kill(&self) -> Result<(), Errno> {
        match &self.process {
            Some((_, pidfd)) => match pidfd::send_signal(pidfd, Signal::SIGKILL) {
                Err(Errno::ESRCH) => Ok(()),
                other => other,
            },
            None => Ok(()),
        }
    }

    /// Exit status of the ended process, as soon as it is known; `Err` when it cannot become known any more.
    pub(super) fn status(&mut self, patience: Duration) -> Result<Option<i32>, ()> {
        let deadline = std::time::Instant::now() + patience;
        while self.status.is_none() {
            let Some(connection) = &self.connection else { return Err(()) };
            if !pidfd::readable_before(connection, deadline).unwrap_or(false) {
                return Ok(None);
            }
            self.receive(Duration::ZERO);
        }
        Ok(self.status)
    }
}
