//! GPU memory of an instance: its accounting file, the socket of its shims, and the commands that go through it.
//!
//! Called by the loop in [`super::instance`]. Decisions are made in [`commands`]; here are the descriptors. Everything on
//! the model's side is untrusted: the user of each connection is checked, packets are of fixed size, each connection is
//! read once per round and once per command, and nothing waits for it.

mod account;
mod commands;

use super::WorkerError;
use super::connection::ListenError;
use super::setup::Place;
use account::Account;
use commands::{Action, Answer, CommandQueue, Event, Shim};
use nix::errno::Errno;
use nix::sys::socket::{MsgFlags, getsockopt, recv, send, sockopt};
use omni_cgroup::{CgroupPaths, Group};
use omni_gpu_protocol::account::{Mode, Settings};
use omni_gpu_protocol::control::{REPORT_BYTES, Report};
use omni_node_protocol::instance::{FromWorker, GpuUsage, ResidencyCommand, ResidencyReport};
use omni_node_protocol::launcher::GpuMode;
use omni_sandbox::GpuDir;
use omni_worker_spec::Gpu;
use std::collections::BTreeMap;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixListener;
use std::time::Duration;

/// Header of the accounting file: the shims read their settings there.
pub(super) fn settings(gpu: &Gpu) -> Settings {
    let mode = match gpu.spec.mode {
        GpuMode::Unified => Mode::Unified,
        GpuMode::Device | GpuMode::Sleep => Mode::Device,
    };
    Settings { limit: Some(gpu.spec.limit_bytes), mode }
}

/// Processes of one instance that may be connected at a time, and that may wait to be.
const CONNECTIONS: u8 = 64;
/// Lines that the log gets about shims which misbehave; a model could write no end of them.
const NOTES: u32 = 16;

/// A descriptor of the shims.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Source {
    Listener,
    Shim(Shim),
}

/// Something for the loop to pass on.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Output {
    /// To the scheduler, if one is there.
    Send(FromWorker),
    /// A line of the worker in the instance's log.
    Note(String),
}

/// The GPU memory of a running instance.
pub(super) struct Memory {
    account: Account,
    control: UnixListener,
    place: Place,
    owner: u32,
    group: Group,
    connections: BTreeMap<Shim, Connection>,
    /// Number of the next connection.
    next: Shim,
    commands: CommandQueue,
    notes_left: u32,
}

struct Connection {
    socket: OwnedFd,
    /// The process that made it.
    pid: i32,
}

impl Memory {
    /// Listens for the shims of the sandbox whose user this is, before it is made: it binds the socket.
    pub(super) fn prepare(gpu: &Gpu, dir: &GpuDir, owner: u32, cgroup: &CgroupPaths) -> Result<Self, WorkerError> {
        let account = dir
            .account()
            .map_err(|source| WorkerError::Setup { step: "open the accounting file of GPU memory", source })?;
        let place = Place::at(&gpu.control).map_err(ListenError::at(&gpu.control))?;
        let control = place.listen(owner, CONNECTIONS.into()).map_err(ListenError::at(&gpu.control))?;
        Ok(Self {
            account: Account::new(account),
            control,
            place,
            owner,
            group: Group::open(cgroup)?,
            connections: BTreeMap::new(),
            next: 0,
            commands: CommandQueue::default(),
            notes_left: NOTES,
        })
    }

    /// Every descriptor to wait for.
    pub(super) fn sources(&self) -> impl Iterator<Item = (Source, BorrowedFd<'_>)> {
        let shims = self.connections.iter().map(|(shim, connection)| (Source::Shim(*shim), connection.socket.as_fd()));
        std::iter::once((Source::Listener, self.control.as_fd())).chain(shims)
    }

    /// When to come back with [`Memory::tick`].
    pub(super) fn deadline(&self) -> Option<Duration> {
        self.commands.deadline()
    }

    /// A deadline may have passed.
    pub(super) fn tick(&mut self, now: Duration) -> Vec<Output> {
        self.handle(Event::Tick, now)
    }

    /// A scheduler has said hello.
    pub(super) fn greet(&mut self, now: Duration) -> Vec<Output> {
        self.handle(Event::NewScheduler, now)
    }

    /// A command of the scheduler. Connections whose process is gone are not asked: a copy of such a socket may live on
    /// in a child.
    pub(super) fn command(&mut self, number: u64, command: ResidencyCommand, now: Duration) -> Vec<Output> {
        let mut outputs = self.catch_up(now);
        let processes = self.processes();
        let gone = self.connections.iter().filter(|(_, connection)| !processes.contains(&connection.pid));
        let gone: Vec<Shim> = gone.map(|(shim, _)| *shim).collect();
        outputs.extend(gone.into_iter().flat_map(|shim| self.left(shim, now)));
        outputs.extend(self.handle(Event::Commanded { number, command }, now));
        outputs
    }

    /// Takes one connection, or one packet.
    pub(super) fn read(&mut self, source: Source, now: Duration) -> Vec<Output> {
        match source {
            Source::Listener => self.accept(now).unwrap_or_default(),
            Source::Shim(shim) => self.receive(shim, now),
        }
    }

    /// GPU memory that the instance's processes have recorded.
    pub(super) fn usage(&self) -> GpuUsage {
        self.account.usage(&self.processes())
    }

    /// Reads events that were there before a command: waiting connections, and a packet of each. A shim that has said
    /// hello receives every command that was given after it.
    fn catch_up(&mut self, now: Duration) -> Vec<Output> {
        let mut outputs: Vec<Output> = (0..CONNECTIONS).map_while(|_| self.accept(now)).flatten().collect();
        let shims: Vec<Shim> = self.connections.keys().copied().collect();
        outputs.extend(shims.into_iter().flat_map(|shim| self.receive(shim, now)));
        outputs
    }

    /// Accepts a connection of the instance's user; one too many is closed, and its shim tries again later. `None` when
    /// no connection waits.
    fn accept(&mut self, now: Duration) -> Option<Vec<Output>> {
        let (stream, _) = self.control.accept().ok()?;
        let socket = OwnedFd::from(stream);
        let peer = getsockopt(&socket, sockopt::PeerCredentials).ok()?;
        if peer.uid() != self.owner || self.connections.len() >= CONNECTIONS.into() {
            return Some(vec![]);
        }
        let shim = self.next;
        self.next += 1;
        self.connections.insert(shim, Connection { socket, pid: peer.pid() });
        Some(self.handle(Event::Connected { shim }, now))
    }

    fn receive(&mut self, shim: Shim, now: Duration) -> Vec<Output> {
        let Some(connection) = self.connections.get(&shim) else { return vec![] };
        // Larger than a report by one byte: a longer packet is invalid. Descriptors that come with it are dropped by
        // the kernel, because the read has no room for them.
        let mut packet = [0; REPORT_BYTES + 1];
        match recv(connection.socket.as_raw_fd(), &mut packet, MsgFlags::MSG_DONTWAIT) {
            Err(Errno::EAGAIN | Errno::EINTR) => vec![],
            Ok(0) | Err(_) => self.left(shim, now),
            Ok(length) => {
                let report = packet.get(..length).and_then(Report::from_bytes);
                self.handle(Event::Reported { shim, report }, now)
            }
        }
    }

    fn left(&mut self, shim: Shim, now: Duration) -> Vec<Output> {
        self.connections.remove(&shim);
        self.handle(Event::Left { shim }, now)
    }

    fn handle(&mut self, event: Event, now: Duration) -> Vec<Output> {
        let mut outputs = Vec::new();
        for action in self.commands.on(event, now) {
            match action {
                Action::Send { shim, packet } => {
                    let Some(connection) = self.connections.get(&shim) else { continue };
                    let flags = MsgFlags::MSG_DONTWAIT | MsgFlags::MSG_NOSIGNAL;
                    match send(connection.socket.as_raw_fd(), &packet.to_bytes(), flags) {
                        Ok(_) => {}
                        Err(Errno::EAGAIN) => outputs.extend(self.handle(Event::NotReading { shim }, now)),
                        Err(_) => outputs.extend(self.left(shim, now)),
                    }
                }
                Action::Answer(answer) => outputs.push(Output::Send(FromWorker::Gpu(self.report(answer)))),
                Action::Close { shim, why } => outputs.extend(self.close(shim, why)),
            }
        }
        outputs
    }

    fn close(&mut self, shim: Shim, why: &str) -> Option<Output> {
        let connection = self.connections.remove(&shim)?;
        self.notes_left = self.notes_left.checked_sub(1)?;
        let end = if self.notes_left == 0 { "; no more such lines follow" } else { "" };
        Some(Output::Note(format!("GPU memory: process {} is disconnected: {why}{end}", connection.pid)))
    }

    fn report(&self, answer: Answer) -> ResidencyReport {
        ResidencyReport {
            number: answer.number,
            moved_bytes: answer.moved_bytes,
            micros: answer.micros,
            usage: self.usage(),
            error: answer.error,
            unanswered: answer.unanswered,
        }
    }

    /// Processes of the control group; none when it cannot be read, which happens only while it is being removed.
    fn processes(&self) -> Vec<i32> {
        self.group.processes().unwrap_or_default()
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        self.place.clear();
    }
}
