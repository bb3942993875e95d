//! What the worker holds of a running instance: descriptors, and one bounded read for each of them.
//!
//! Called by the loop in [`super::instance`]. The engine's side of everything here is untrusted: its packets are bounded
//! and parsed strictly, descriptors from it are refused, and nothing waits for it.

use super::gpu::Memory;
use super::journal::{Journal, Moment};
use super::supervise::Event;
use super::{WorkerError, chain};
use crate::sandbox::{self, Given, GpuDir, Report, Sandbox};
use crate::spec::InstanceSpec;
use nix::errno::Errno;
use nix::fcntl::{FcntlArg, OFlag, fcntl};
use nix::sys::signal::Signal;
use nix::sys::socket::{AddressFamily, SockFlag, SockType, socketpair};
use nix::unistd::{pipe2, read};
use omni_cgroup::{CgroupPaths, Group, OomWatch};
use omni_ipc::engine::{FromEngine, ToEngine};
use omni_ipc::instance::{LogStream, Stats};
use omni_ipc::packet::{PacketError, recv_packet_no_fds, send_packet};
use omni_meminfo_fs::{CgroupV1, CgroupV2, Server};
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};

/// Bytes taken from a log pipe per round: what a pipe holds.
const LOG_ROUND: usize = 64 * 1024;
const LOG_BUFFER: usize = 8 * 1024;

/// A descriptor of the instance.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Source {
    Stdout,
    Stderr,
    Reports,
    Engine,
    OutOfMemory,
    /// Last in every round: what the instance said before its end comes first.
    End,
}

/// A running instance.
pub(super) struct Running {
    sandbox: Sandbox,
    engine: Option<OwnedFd>,
    stdout: Option<OwnedFd>,
    stderr: Option<OwnedFd>,
    reporting: bool,
    group: Group,
    oom: OomWatch,
    oom_before: u64,
    stats: omni_cgroup::Stats,
    meminfo: Server,
    memory_bytes: u64,
    /// For a model with a GPU.
    pub(super) gpu: Option<Memory>,
}

impl Running {
    /// Starts the sandbox and gives the engine its first message.
    pub(super) fn start(spec: &InstanceSpec) -> Result<Self, WorkerError> {
        let setup = |step| move |source: io::Error| WorkerError::Setup { step, source };
        let group = Group::open(&spec.cgroup)?;
        let oom = OomWatch::new(&spec.cgroup)?;
        let oom_before = oom.count()?;
        let stats = omni_cgroup::Stats::open(&spec.cgroup)?;
        let (mount, connection) = omni_meminfo_fs::prepare()?;
        let (engine, theirs) = engine_pair().map_err(|errno| setup("make the engine's socket")(errno.into()))?;
        send_packet(&engine, &ToEngine::Boot(spec.boot.clone()), &[])?;
        let (stdout, to_stdout) = log_pipe().map_err(|errno| setup("make a log pipe")(errno.into()))?;
        let (stderr, to_stderr) = log_pipe().map_err(|errno| setup("make a log pipe")(errno.into()))?;
        let gpu_dir = spec.gpu.as_ref().map(|_| GpuDir::new(spec.sandbox.gid)).transpose()?;
        let memory = |(gpu, dir)| Memory::prepare(gpu, dir, spec.sandbox.uid, &spec.cgroup);
        let gpu = spec.gpu.as_ref().zip(gpu_dir.as_ref()).map(memory).transpose()?;
        let given = Given {
            stdout: to_stdout.as_fd(),
            stderr: to_stderr.as_fd(),
            engine: Some(theirs.as_fd()),
            meminfo: Some(mount.as_fd()),
            gpu: gpu_dir.as_ref(),
            group: &group,
        };
        let sandbox = sandbox::spawn(&spec.sandbox, &given)?;
        // Held here, the mount would keep its server from seeing the end of the sandbox.
        drop(mount);
        let shown = Some(spec.memory_bytes);
        let meminfo = match &spec.cgroup {
            CgroupPaths::V1 { memory, .. } => connection.serve(CgroupV1::open(memory, shown)?),
            CgroupPaths::V2 { dir } => connection.serve(CgroupV2::open(dir, shown)?),
        }?;
        Ok(Self {
            sandbox,
            engine: Some(engine),
            stdout: Some(stdout),
            stderr: Some(stderr),
            reporting: true,
            group,
            oom,
            oom_before,
            stats,
            meminfo,
            memory_bytes: spec.memory_bytes,
            gpu,
        })
    }

    /// What the start had to say to the operator.
    pub(super) fn take_notes(&mut self) -> Vec<String> {
        std::mem::take(&mut self.sandbox.notes)
    }

    /// Every descriptor to wait for.
    pub(super) fn sources(&self) -> impl Iterator<Item = (Source, BorrowedFd<'_>)> {
        let optional = [(Source::Stdout, &self.stdout), (Source::Stderr, &self.stderr), (Source::Engine, &self.engine)];
        let optional = optional.into_iter().filter_map(|(source, fd)| Some((source, fd.as_ref()?.as_fd())));
        let reports = self.reporting.then(|| (Source::Reports, self.sandbox.reports.as_fd()));
        let last = [(Source::OutOfMemory, self.oom.as_fd()), (Source::End, self.sandbox.pidfd.as_fd())];
        optional.chain(reports).chain(last)
    }

    /// Reads a bounded amount from a descriptor that is ready.
    pub(super) fn read(&mut self, source: Source, journal: &mut Journal, now: Moment) -> Vec<Event> {
        match source {
            Source::Stdout => read_log(&mut self.stdout, LogStream::Stdout, journal, now),
            Source::Stderr => read_log(&mut self.stderr, LogStream::Stderr, journal, now),
            Source::Reports => return self.read_reports(journal, now),
            Source::Engine => return self.read_engine(),
            Source::OutOfMemory => {
                self.oom.clear();
                return vec![Event::MemoryShort];
            }
            Source::End => return self.end(journal, now),
        }
        vec![]
    }

    /// Reads what the ended instance has left in its pipes.
    pub(super) fn drain_logs(&mut self, journal: &mut Journal, now: Moment) {
        read_log(&mut self.stdout, LogStream::Stdout, journal, now);
        read_log(&mut self.stderr, LogStream::Stderr, journal, now);
    }

    /// Sends without waiting; an engine whose socket is full is not reading it.
    pub(super) fn tell_engine(&self, message: &ToEngine, fds: &[OwnedFd]) -> Result<(), PacketError> {
        let raw: Vec<RawFd> = fds.iter().map(AsRawFd::as_raw_fd).collect();
        send_packet(self.engine.as_ref().ok_or(PacketError::Closed)?, message, &raw)
    }

    /// SIGKILL to pid 1, with which the kernel ends its whole namespace, and to all of the group.
    pub(super) fn kill(&self) -> Result<(), WorkerError> {
        match sandbox::pidfd_send_signal(&self.sandbox.pidfd, Signal::SIGKILL) {
            Ok(()) | Err(Errno::ESRCH) => {}
            Err(errno) => return Err(WorkerError::Setup { step: "kill pid 1", source: errno.into() }),
        }
        Ok(self.group.kill()?)
    }

    pub(super) fn abort_meminfo(&self) {
        // Done by root on a file that is open already: the one thing that could fail is that it has ended, which is right.
        let _ = self.meminfo.abort();
    }

    pub(super) fn stats(&self) -> Result<Stats, WorkerError> {
        let usage = self.stats.read()?;
        Ok(Stats {
            memory_bytes: usage.memory_bytes,
            memory_limit_bytes: usage.memory_limit_bytes.unwrap_or(self.memory_bytes),
            cpu_usec: usage.cpu_usec,
            pids: usage.pids,
            pss_bytes: None,
            gpu: self.gpu.as_ref().map(Memory::usage),
        })
    }

    /// Whether the kernel has killed something of the group for want of memory. A group that is being removed, which
    /// nobody does before this worker's end, would have no counter.
    pub(super) fn was_out_of_memory(&self) -> bool {
        self.oom.count().is_ok_and(|count| count > self.oom_before)
    }

    fn read_engine(&mut self) -> Vec<Event> {
        let Some(engine) = &self.engine else { return vec![] };
        match recv_packet_no_fds::<FromEngine>(engine) {
            Ok(message) => vec![Event::Engine(message)],
            Err(error) if error.would_block() => vec![],
            Err(PacketError::Closed) => {
                self.engine = None;
                vec![Event::EngineClosed]
            }
            Err(error) => {
                self.engine = None;
                vec![Event::EngineBroken(chain(&error))]
            }
        }
    }

    fn read_reports(&mut self, journal: &mut Journal, now: Moment) -> Vec<Event> {
        let mut events = Vec::new();
        loop {
            match self.sandbox.reports.receive() {
                Ok(Some((_, Report::Note(text)))) => journal.note(text, now),
                Ok(Some((pid, Report::Executing))) => events.push(Event::Executing { pid }),
                Ok(Some((_, Report::Failed(message)))) => events.push(Event::Failed(message)),
                Ok(Some((_, Report::Ended(status)))) => events.push(Event::Ended(status)),
                Ok(None) => return events,
                Err(_) => {
                    // All writers are gone: the end follows.
                    self.reporting = false;
                    return events;
                }
            }
        }
    }

    /// Everything is gone: what it said and what the kernel counted, then its end.
    fn end(&mut self, journal: &mut Journal, now: Moment) -> Vec<Event> {
        let mut events = self.read_engine();
        events.extend(self.read_reports(journal, now));
        events.extend(self.was_out_of_memory().then_some(Event::OutOfMemory));
        match sandbox::wait(self.sandbox.pid.as_raw()) {
            Ok((_, status)) => events.push(Event::Gone(status)),
            Err(Errno::EINTR) => {}
            Err(errno) => {
                journal.note(format!("cannot read how the sandbox ended: {errno}"), now);
                events.push(Event::Gone(Signal::SIGKILL as i32));
            }
        }
        events
    }
}

/// Our end does not wait; the engine's does, as its program expects.
fn engine_pair() -> Result<(OwnedFd, OwnedFd), Errno> {
    let (ours, theirs) = socketpair(AddressFamily::Unix, SockType::SeqPacket, None, SockFlag::SOCK_CLOEXEC)?;
    fcntl(&ours, FcntlArg::F_SETFL(OFlag::O_NONBLOCK))?;
    Ok((ours, theirs))
}

/// As for the engine's socket: a program whose output is non-blocking would see errors it does not expect.
fn log_pipe() -> Result<(OwnedFd, OwnedFd), Errno> {
    let (ours, theirs) = pipe2(OFlag::O_CLOEXEC)?;
    fcntl(&ours, FcntlArg::F_SETFL(OFlag::O_NONBLOCK))?;
    Ok((ours, theirs))
}

fn read_log(pipe: &mut Option<OwnedFd>, stream: LogStream, journal: &mut Journal, now: Moment) {
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
