//! Descriptors of a running instance, and one bounded read for each of them.
//!
//! Called by the loop in [`super::instance`]. The process is one in a sandbox of its own, or one that a zygote has
//! forked ([`super::forked`]); the difference between them is in here and nowhere else. The engine's side of everything
//! is untrusted: its packets are bounded and parsed strictly, descriptors from it are refused, and nothing waits for
//! it.

use super::forked::Received;
use super::gpu::Memory;
use super::journal::{Journal, Moment};
use super::process_source::{ProcessSource, alone, ask};
use super::sockets::{Sockets, read_log};
use super::supervise::Event;
use super::{WorkerError, pss, shown};
use nix::errno::Errno;
use nix::sys::signal::Signal;
use omni_cgroup::{Group, OomWatch};
use omni_engine_protocol::control::{FromEngine, ToEngine};
use omni_engine_protocol::packet::{PacketError, recv_packet_from, recv_packet_no_fds};
use omni_log::chain;
use omni_node_protocol::instance::{LogLine, LogStream, Stats};
use omni_process::pidfd;
use omni_sandbox::Report;
use omni_worker_spec::InstanceSpec;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

/// How long one look at the end of a forked process may wait for the rest of its group, and how many looks there are
/// for its status. The first is enough but on a machine in trouble.
const LOOK: Duration = Duration::from_millis(20);
const LOOKS: u32 = 50;

/// A descriptor of the instance.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Source {
    Stdout,
    Stderr,
    Reports,
    Zygote,
    Engine,
    OutOfMemory,
    /// Last in every round: what the instance said before its end comes first.
    End,
}

/// A running instance.
pub(super) struct Running<'a> {
    spec: &'a InstanceSpec,
    source: ProcessSource,
    sockets: Sockets,
    group: Group,
    oom: OomWatch,
    oom_before: u64,
    stats: omni_cgroup::Stats,
    notes: Vec<String>,
    /// A data connection that came before there was a process to have it.
    connection: Option<Vec<OwnedFd>>,
    /// Raw exit status of a process that was stopped before it was there, as if it had been.
    abandoned: Option<i32>,
    looks: u32,
    /// For a model with a GPU.
    pub(super) gpu: Option<Memory>,
}

impl<'a> Running<'a> {
    /// Asks for the process, or starts its sandbox and gives it its first message.
    pub(super) fn start(spec: &'a InstanceSpec) -> Result<Self, WorkerError> {
        let group = Group::open(&spec.cgroup)?;
        let oom = OomWatch::new(&spec.cgroup)?;
        let oom_before = oom.count()?;
        let stats = omni_cgroup::Stats::open(&spec.cgroup)?;
        let mut notes = Vec::new();
        let asked = spec.zygote.as_ref().and_then(|zygote| match ask(spec, zygote) {
            Ok(asked) => Some(asked),
            Err(error) => {
                notes.push(without(&chain(&error)));
                None
            }
        });
        let (process_source, sockets, gpu) = match asked {
            Some((forked, sockets)) => (ProcessSource::Zygote(forked), sockets, None),
            None => alone(spec, &group, &mut notes)?,
        };
        Ok(Self {
            spec,
            source: process_source,
            sockets,
            group,
            oom,
            oom_before,
            stats,
            notes,
            connection: None,
            abandoned: None,
            looks: 0,
            gpu,
        })
    }

    /// Notes of the start for the operator.
    pub(super) fn take_notes(&mut self) -> Vec<String> {
        std::mem::take(&mut self.notes)
    }

    /// Every descriptor to wait for.
    pub(super) fn sources(&self) -> impl Iterator<Item = (Source, BorrowedFd<'_>)> {
        let Sockets { engine, stdout, stderr } = &self.sockets;
        let sockets = [(Source::Stdout, stdout), (Source::Stderr, stderr), (Source::Engine, engine)];
        let sockets = sockets.into_iter().filter_map(|(source, fd)| Some((source, fd.as_ref()?.as_fd())));
        let (zygote, reports, end) = match &self.source {
            ProcessSource::Sandbox { sandbox, reporting, .. } => {
                let reports = reporting.then(|| (Source::Reports, sandbox.reports.as_fd()));
                (None, reports, Some(sandbox.pidfd.as_fd()))
            }
            ProcessSource::Zygote(forked) => {
                (forked.connection().map(|fd| (Source::Zygote, fd)), None, forked.process())
            }
        };
        let last = [reports, Some((Source::OutOfMemory, self.oom.as_fd())), end.map(|fd| (Source::End, fd))];
        // The reason for a missing process is known before the end of its socket, and read before it.
        zygote.into_iter().chain(sockets).chain(last.into_iter().flatten())
    }

    /// When [`Running::tick`] has something to do.
    pub(super) fn deadline(&self) -> Option<Duration> {
        match &self.source {
            ProcessSource::Zygote(forked) => forked.deadline(),
            ProcessSource::Sandbox { .. } => None,
        }
    }

    /// Events without a descriptor: a zygote that takes too long, and the end of an instance that never began.
    pub(super) fn tick(&mut self, now: Duration) -> Vec<Event> {
        if let Some(status) = self.abandoned.take() {
            return vec![Event::Ended(status), Event::Gone(status)];
        }
        if self.deadline().is_some_and(|deadline| deadline <= now) {
            return self.start_alone("it did not fork in time");
        }
        vec![]
    }

    /// Reads a bounded amount from a descriptor that is ready.
    pub(super) fn read(&mut self, source: Source, journal: &mut Journal, now: Moment) -> Vec<Event> {
        match source {
            Source::Stdout => read_log(&mut self.sockets.stdout, LogStream::Stdout, journal, now),
            Source::Stderr => read_log(&mut self.sockets.stderr, LogStream::Stderr, journal, now),
            Source::Reports => return self.read_reports(journal, now),
            Source::Zygote => return self.hear_zygote(journal, now),
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
        self.sockets.read_logs(journal, now);
    }

    /// Tells the engine to end. Without waiting; an engine whose socket is full is not reading it.
    pub(super) fn stop(&mut self) -> Result<(), PacketError> {
        if self.awaits_process() {
            self.abandon(0);
            return Ok(());
        }
        self.sockets.send(&ToEngine::Stop, &[])
    }

    /// Passes a data connection on, now or when there is a process to receive it.
    pub(super) fn attach(&mut self, fds: Vec<OwnedFd>) -> Result<(), PacketError> {
        if self.awaits_process() {
            self.connection = Some(fds);
            return Ok(());
        }
        self.sockets.send(&ToEngine::Attach, &fds)
    }

    /// SIGKILL to all of the group, and to what ends its processes with it: pid 1 of its own sandbox, or the process that
    /// a zygote made and that may not have been moved yet.
    pub(super) fn kill(&mut self) -> Result<(), WorkerError> {
        let killed = match &self.source {
            ProcessSource::Sandbox { sandbox, .. } => pidfd::send_signal(&sandbox.pidfd, Signal::SIGKILL),
            ProcessSource::Zygote(forked) => forked.kill(),
        };
        match killed {
            Ok(()) | Err(Errno::ESRCH) => {}
            Err(errno) => return Err(WorkerError::Setup { step: "kill the engine", source: errno.into() }),
        }
        if self.awaits_process() {
            self.abandon(Signal::SIGKILL as i32);
        }
        Ok(self.group.kill()?)
    }

    /// Only the file of a sandbox of its own is the instance's to end.
    pub(super) fn abort_meminfo(&self) {
        if let ProcessSource::Sandbox { meminfo, .. } = &self.source {
            // Done by root on a file that is open already: the one thing that could fail is that it has ended, which is
            // right.
            let _ = meminfo.abort();
        }
    }

    pub(super) fn stats(&self) -> Result<Stats, WorkerError> {
        let usage = self.stats.read()?;
        let shares = match &self.source {
            ProcessSource::Sandbox { .. } => None,
            ProcessSource::Zygote(forked) => forked.pid(),
        };
        Ok(Stats {
            memory_bytes: usage.memory_bytes,
            memory_limit_bytes: usage.memory_limit_bytes.unwrap_or(self.spec.memory_bytes),
            cpu_usec: usage.cpu_usec,
            pids: usage.pids,
            pss_bytes: shares.and_then(pss::pss_bytes),
            gpu: self.gpu.as_ref().map(Memory::usage),
        })
    }

    /// Reads whether the kernel has killed a process of the group for want of memory. A group that is being removed,
    /// which happens only after this worker's end, would have no counter.
    pub(super) fn was_out_of_memory(&self) -> bool {
        self.oom.count().is_ok_and(|count| count > self.oom_before)
    }

    fn awaits_process(&self) -> bool {
        matches!(&self.source, ProcessSource::Zygote(forked) if forked.pid().is_none())
    }

    /// The connection to the zygote's worker closes with what is dropped here, and a process that is made all the same
    /// finds its socket closed.
    fn abandon(&mut self, status: i32) {
        self.abandoned.get_or_insert(status);
        self.sockets.engine = None;
    }

    fn hear_zygote(&mut self, journal: &mut Journal, now: Moment) -> Vec<Event> {
        let ProcessSource::Zygote(forked) = &mut self.source else { return vec![] };
        match forked.receive(now.monotonic) {
            Received::Nothing => vec![],
            Received::Refused(_) if self.abandoned.is_some() => vec![],
            Received::Refused(why) => self.start_alone(&why),
            Received::Claimed { pid, log } => {
                for LogLine { stream, text, .. } in log {
                    journal.write(stream, format!("{text}\n").as_bytes(), now);
                }
                self.begin(pid)
            }
        }
    }

    /// The process is there and waits: into its group, and then it may begin.
    fn begin(&mut self, pid: i32) -> Vec<Event> {
        if let Err(error) = self.boot(pid) {
            return self.start_alone(&chain(&error));
        }
        let attached = self.connection.take().map(|fds| self.sockets.send(&ToEngine::Attach, &fds));
        let broken = attached.and_then(Result::err).map(|error| Event::EngineBroken(chain(&error)));
        [Event::Executing { pid }].into_iter().chain(broken).collect()
    }

    fn boot(&self, pid: i32) -> Result<(), WorkerError> {
        let ProcessSource::Zygote(forked) = &self.source else { return Ok(()) };
        let moved = |source| WorkerError::Setup { step: "move the process into its control group", source };
        self.group.take_unless(pid, || forked.has_ended()).map_err(moved)?;
        Ok(self.sockets.send(&ToEngine::Boot(self.spec.boot.clone()), &[])?)
    }

    /// The zygote cannot help: a sandbox of its own. This process still has one thread, which making one takes.
    fn start_alone(&mut self, why: &str) -> Vec<Event> {
        self.notes.push(without(why));
        // Output of the zygote, which may have been moved here: no line of the model has run in it.
        if let ProcessSource::Zygote(forked) = &self.source
            && forked.pid().is_some()
            && let Err(errno) = forked.kill()
        {
            self.notes.push(format!("the process from the zygote could not be killed: {errno}"));
        }
        match alone(self.spec, &self.group, &mut self.notes) {
            Ok((process_source, sockets, gpu)) => {
                (self.source, self.sockets, self.gpu) = (process_source, sockets, gpu);
                let attached = self.connection.take().map(|fds| self.attach(fds));
                attached.and_then(Result::err).map(|_| Event::EngineClosed).into_iter().collect()
            }
            Err(error) => vec![Event::Failed(chain(&error)), Event::Gone(0)],
        }
    }

    fn read_engine(&mut self) -> Vec<Event> {
        let Some(engine) = &self.sockets.engine else { return vec![] };
        if let ProcessSource::Zygote(forked) = &mut self.source
            && forked.pid().is_none()
        {
            let claimed = match recv_packet_from::<FromEngine>(engine) {
                Ok((FromEngine::Forked, pid)) => forked.claim(pid),
                Ok((FromEngine::Ready { .. } | FromEngine::Failed { .. }, _)) => Err("it spoke out of turn".into()),
                Err(error) if error.would_block() => Ok(()),
                Err(error) => Err(chain(&error)),
            };
            return claimed.err().map(|why| self.start_alone(&why)).unwrap_or_default();
        }
        match recv_packet_no_fds::<FromEngine>(engine) {
            Ok(message) => vec![Event::Engine(message)],
            Err(error) if error.would_block() => vec![],
            Err(PacketError::Closed) => {
                self.sockets.engine = None;
                vec![Event::EngineClosed]
            }
            Err(error) => {
                self.sockets.engine = None;
                vec![Event::EngineBroken(chain(&error))]
            }
        }
    }

    fn read_reports(&mut self, journal: &mut Journal, now: Moment) -> Vec<Event> {
        let ProcessSource::Sandbox { sandbox, reporting, .. } = &mut self.source else { return vec![] };
        let mut events = Vec::new();
        loop {
            match sandbox.reports.receive() {
                Ok(Some((_, Report::Note(text)))) => journal.note(text, now),
                Ok(Some((pid, Report::Executing))) => events.push(Event::Executing { pid }),
                Ok(Some((_, Report::Failed(message)))) => events.push(Event::Failed(message)),
                Ok(Some((_, Report::Ended(status)))) => events.push(Event::Ended(status)),
                Ok(Some((_, Report::Orphan { .. }))) => {}
                Ok(None) => return events,
                Err(_) => {
                    // All writers are gone: the end follows.
                    *reporting = false;
                    return events;
                }
            }
        }
    }

    /// Everything is gone: what it said and what the kernel counted, then its end.
    fn end(&mut self, journal: &mut Journal, now: Moment) -> Vec<Event> {
        let end = match &mut self.source {
            ProcessSource::Sandbox { sandbox, .. } => match omni_sandbox::wait(sandbox.pid.as_raw()) {
                Ok((_, status)) => vec![Event::Gone(status)],
                Err(Errno::EINTR) => return vec![],
                Err(errno) => {
                    journal.note(format!("cannot read how the sandbox ended: {errno}"), now);
                    vec![Event::Gone(Signal::SIGKILL as i32)]
                }
            },
            ProcessSource::Zygote(forked) => {
                // No pid 1 of its own takes the rest with it. What is not done in time is looked at again: the descriptor
                // stays readable.
                if self.group.kill().is_err() || self.group.wait_empty(LOOK).is_err() {
                    return vec![];
                }
                self.looks += 1;
                match forked.status(LOOK) {
                    Ok(Some(status)) => vec![Event::Ended(status), Event::Gone(status)],
                    Ok(None) if self.looks < LOOKS => return vec![],
                    Ok(None) | Err(()) => vec![Event::Unseen],
                }
            }
        };
        let mut events = self.read_engine();
        events.extend(self.read_reports(journal, now));
        events.extend(self.was_out_of_memory().then_some(Event::OutOfMemory));
        events.extend(end);
        events
    }
}

/// Note for an instance's log when its zygote could not be used; the reason is foreign text.
fn without(why: &str) -> String {
    format!("started without the zygote: {}", shown(why))
}
