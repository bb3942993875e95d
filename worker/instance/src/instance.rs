//! Role `instance`: the loop over everything that can happen to one instance.
//!
//! One poll over pid 1, its reports, the engine's socket, the log pipes, out-of-memory events, the shims of GPU memory,
//! SIGTERM, the listening socket and the scheduler. Every descriptor is read a bounded amount per round, so a model that floods one of them
//! does not keep the others waiting. The loop turns what it reads into events for [`super::supervise`] and carries out
//! the actions; the end is: cause into the exit file, then to the scheduler, then the socket is gone.

use super::WorkerError;
use super::connection::Link;
use super::gpu::{self, Memory, Output};
use super::journal::{Journal, Moment};
use super::running::{Running, Source};
use super::setup::{Place, protect, release_standard_streams, timeout, unix_ms};
use super::stacks;
use super::supervise::{Action, Event, Instance};
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, poll};
use nix::sys::signalfd::SignalFd;
use omni_engine_protocol::packet::PacketError;
use omni_log::chain;
use omni_node_protocol::exit::ExitCause;
use omni_node_protocol::instance::{FromWorker, ResidencyCommand, ResidencyReport, ToWorker, VERSIONS, Welcome};
use omni_node_protocol::version::Versions;
use omni_worker_spec::InstanceSpec;
use std::io::{self, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::time::{Duration, Instant};

/// Longest time that a worker whose instance has ended waits for a scheduler to receive the exit cause.
const LINGER: Duration = Duration::from_secs(2);

/// Serves the instance until it has ended.
pub(super) fn run(spec: &InstanceSpec) -> Result<(), WorkerError> {
    let terminate = protect()?;
    let link = Link::bind(&spec.socket, spec.peer_uid)?;
    let exit_file = Place::at(&spec.exit_file).map_err(WorkerError::ExitFile)?;
    say_listening().map_err(|source| WorkerError::Setup { step: "say that it listens", source })?;
    let mut worker = Worker {
        spec,
        link,
        terminate,
        journal: Journal::new(spec.log_lines_per_second),
        instance: Instance::new(),
        epoch: Instant::now(),
        started_unix_ms: unix_ms(),
        exited: None,
        ending: false,
        spoken: VERSIONS.newest,
    };
    let cause = match Running::start(spec) {
        Ok(running) => worker.serve(running)?,
        Err(error) => ExitCause::StartFailed { message: chain(&error) },
    };
    // The scheduler receives it even where there is no room for the file.
    let written = exit_file.write(&cause);
    worker.deliver(&cause)?;
    written
}

struct Worker<'a> {
    spec: &'a InstanceSpec,
    link: Link,
    terminate: SignalFd,
    journal: Journal,
    instance: Instance,
    epoch: Instant,
    started_unix_ms: u64,
    exited: Option<ExitCause>,
    /// Stop or kill commanded by a scheduler.
    ending: bool,
    /// Protocol version agreed with the connected scheduler.
    spoken: u32,
}

/// Event source that can be ready in one round.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Token {
    Terminate,
    Listener,
    Scheduler,
    Gpu(gpu::Source),
    Instance(Source),
}

impl Worker<'_> {
    /// The loop, from the start of the sandbox to the end of its last process.
    fn serve(&mut self, mut running: Running<'_>) -> Result<ExitCause, WorkerError> {
        loop {
            let gpu = running.gpu.as_ref().and_then(Memory::deadline);
            let deadlines = [self.instance.deadline(), self.journal.deadline(), gpu, running.deadline()];
            let deadline = deadlines.into_iter().flatten().min();
            running.take_notes().into_iter().for_each(|note| self.note(note));
            for token in self.wait(Some(&running), deadline)? {
                match token {
                    Token::Terminate => {
                        let _ = self.terminate.read_signal(); // level-triggered: one is enough to know
                        self.handle(Event::Terminate, &mut running);
                    }
                    Token::Listener => self.link.accept(),
                    Token::Scheduler => self.receive(&mut running),
                    Token::Gpu(source) => self.about_gpu(&mut running, |gpu, now| gpu.read(source, now)),
                    Token::Instance(source) => {
                        let now = self.moment();
                        for event in running.read(source, &mut self.journal, now) {
                            self.handle(event, &mut running);
                        }
                    }
                }
            }
            self.handle(Event::Tick, &mut running);
            for event in running.tick(self.epoch.elapsed()) {
                self.handle(event, &mut running);
            }
            self.about_gpu(&mut running, Memory::tick);
            self.journal.tick(self.moment());
            if let Some(cause) = self.instance.cause() {
                let now = self.moment();
                running.drain_logs(&mut self.journal, now);
                self.journal.finish(now);
                return Ok(cause);
            }
            self.link.flush(&self.journal);
        }
    }

    /// Tells the end to the scheduler that is there, or to one that comes within [`LINGER`].
    fn deliver(&mut self, cause: &ExitCause) -> Result<(), WorkerError> {
        let deadline = self.epoch.elapsed() + LINGER;
        self.exited = Some(cause.clone());
        let mut told = false;
        while self.epoch.elapsed() < deadline {
            self.link.flush(&self.journal);
            if self.link.is_delivered(&self.journal) {
                if told {
                    break;
                }
                // The last message of a connection, after the last line of the log.
                self.link.send(FromWorker::Exited(cause.clone()));
                told = true;
                continue;
            }
            for token in self.wait(None, Some(deadline))? {
                match token {
                    Token::Terminate => return Ok(()),
                    Token::Listener => {
                        self.link.accept();
                        told = false;
                    }
                    Token::Scheduler => self.hear_after_the_end(),
                    Token::Gpu(_) | Token::Instance(_) => {}
                }
            }
        }
        Ok(())
    }

    fn wait(&self, running: Option<&Running<'_>>, deadline: Option<Duration>) -> Result<Vec<Token>, WorkerError> {
        let mut tokens = vec![Token::Terminate, Token::Listener];
        let mut fds = vec![
            PollFd::new(self.terminate.as_fd(), PollFlags::POLLIN),
            PollFd::new(self.link.listener(), PollFlags::POLLIN),
        ];
        if let Some((socket, full)) = self.link.connection() {
            let write = if full { PollFlags::POLLOUT } else { PollFlags::empty() };
            tokens.push(Token::Scheduler);
            fds.push(PollFd::new(socket, PollFlags::POLLIN | write));
        }
        for (source, fd) in running.and_then(|running| running.gpu.as_ref()).into_iter().flat_map(Memory::sources) {
            tokens.push(Token::Gpu(source));
            fds.push(PollFd::new(fd, PollFlags::POLLIN));
        }
        for (source, fd) in running.into_iter().flat_map(Running::sources) {
            tokens.push(Token::Instance(source));
            fds.push(PollFd::new(fd, PollFlags::POLLIN));
        }
        match poll(&mut fds, timeout(deadline, self.epoch.elapsed())) {
            Ok(_) => {}
            Err(Errno::EINTR) => return Ok(vec![]),
            Err(errno) => return Err(WorkerError::Wait(errno)),
        }
        Ok(tokens.into_iter().zip(&fds).filter(|(_, fd)| fd.any() == Some(true)).map(|(token, _)| token).collect())
    }

    fn handle(&mut self, event: Event, running: &mut Running<'_>) {
        let now = self.epoch.elapsed();
        for action in self.instance.on(event, now) {
            match action {
                Action::StopEngine => {
                    if running.stop().is_err() {
                        self.handle(Event::EngineClosed, running);
                    }
                }
                Action::LookForOom => {
                    if running.was_out_of_memory() {
                        self.handle(Event::OutOfMemory, running);
                    }
                }
                Action::AskForStacks { pid } => {
                    if !stacks::ask(pid) {
                        self.handle(Event::NoStacks, running);
                    }
                }
                Action::InsistOnStacks { pid } => stacks::insist(pid),
                Action::Kill => {
                    if let Err(error) = running.kill() {
                        self.note(format!("cannot kill the instance: {}", chain(&error)));
                    }
                }
                Action::AbortMeminfo => running.abort_meminfo(),
                Action::Tell(message) => self.link.send(message),
                Action::Introduce => self.link.send(self.welcome()),
                Action::Note(text) => self.note(text),
            }
        }
    }

    /// Handles one message of the scheduler.
    fn receive(&mut self, running: &mut Running<'_>) {
        let Some((message, fds)) = self.link.receive() else { return };
        match message {
            ToWorker::Hello { protocol, oldest, log_seen } => {
                self.greet(Versions::greeted(protocol, oldest), log_seen);
                self.about_gpu(running, Memory::greet);
            }
            ToWorker::Attach => self.attach(fds, running),
            ToWorker::Stop { grace_ms } => {
                self.ending = true;
                self.handle(Event::Stop { grace: Duration::from_millis(grace_ms) }, running);
            }
            ToWorker::Kill => {
                self.ending = true;
                self.handle(Event::Kill, running);
            }
            ToWorker::Ping => self.link.send(FromWorker::Pong),
            ToWorker::Stats => match running.stats() {
                Ok(stats) => self.link.send(FromWorker::Stats(stats)),
                Err(error) => self.note(format!("cannot read what the instance uses: {}", chain(&error))),
            },
            ToWorker::Stacks => self.handle(Event::Stacks, running),
            ToWorker::Gpu { number, command } => self.command(number, command, running),
        }
    }

    /// An instance without a GPU has nothing to move, and says so.
    fn command(&mut self, number: u64, command: ResidencyCommand, running: &mut Running<'_>) {
        if running.gpu.is_none() {
            return self.link.send(FromWorker::Gpu(ResidencyReport { number, ..ResidencyReport::default() }));
        }
        self.about_gpu(running, |gpu, now| gpu.command(number, command, now));
    }

    /// Does something with the instance's GPU memory, if it has a GPU, and passes on what comes of it.
    fn about_gpu(&mut self, running: &mut Running<'_>, what: impl FnOnce(&mut Memory, Duration) -> Vec<Output>) {
        let now = self.epoch.elapsed();
        for word in running.gpu.as_mut().map(|gpu| what(gpu, now)).unwrap_or_default() {
            match word {
                Output::Send(message) => self.link.send(message),
                Output::Note(text) => self.note(text),
            }
        }
    }

    fn hear_after_the_end(&mut self) {
        match self.link.receive() {
            Some((ToWorker::Hello { protocol, oldest, log_seen }, _)) => {
                self.greet(Versions::greeted(protocol, oldest), log_seen);
            }
            Some((
                ToWorker::Attach
                | ToWorker::Stop { .. }
                | ToWorker::Kill
                | ToWorker::Ping
                | ToWorker::Stats
                | ToWorker::Stacks
                | ToWorker::Gpu { .. },
                _,
            ))
            | None => {}
        }
    }

    fn greet(&mut self, theirs: Versions, log_seen: u64) {
        let Some(spoken) = VERSIONS.common(theirs) else {
            let (newest, ours) = (theirs.newest, VERSIONS.newest);
            self.note(format!("refused a scheduler with protocol version {newest}: this worker has {ours}"));
            return self.link.disconnect();
        };
        self.spoken = spoken;
        let welcome = self.welcome();
        self.link.greet(welcome, log_seen);
    }

    fn welcome(&self) -> FromWorker {
        FromWorker::Welcome(Welcome {
            protocol: self.spoken,
            instance: self.spec.instance.clone(),
            model: self.spec.model.clone(),
            snapshot: self.spec.snapshot.clone(),
            note: self.spec.note.clone(),
            engine_pid: self.instance.engine_pid(),
            started_unix_ms: self.started_unix_ms,
            ready: self.instance.ready(),
            exited: self.exited.clone(),
            ending: self.ending,
            gpu: self.spec.gpu.as_ref().map(|gpu| gpu.spec.clone()),
        })
    }

    /// Passes a data connection on. For an engine that has just ended it closes with the descriptors dropped here, and
    /// the exit cause is still to be sent over this one. The scheduler treats any other failure as the end of both.
    fn attach(&mut self, fds: Vec<OwnedFd>, running: &mut Running<'_>) {
        if fds.len() != 2 {
            return self.link.disconnect();
        }
        match running.attach(fds) {
            Ok(()) | Err(PacketError::Closed) => {}
            Err(_) => self.link.disconnect(),
        }
    }

    fn note(&mut self, text: String) {
        self.journal.note(text, self.moment());
    }

    fn moment(&self) -> Moment {
        Moment { monotonic: self.epoch.elapsed(), unix_ms: unix_ms() }
    }
}

/// Tells the launcher, by one line on standard output, and lets go of both pipes to it.
fn say_listening() -> io::Result<()> {
    // A launcher that is gone meanwhile finds this worker by its socket.
    let _ = writeln!(io::stdout(), "listening");
    release_standard_streams()
}
