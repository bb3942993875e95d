//! Role `zygote`: keeps one zygote, and gives its processes to the workers of instances. See
//! [`omni_node_protocol::zygote`].
//!
//! One poll over pid 1 of the sandbox and its reports, the zygote's socket and output, SIGTERM, the listening socket
//! and every caller. Serves the files of `/proc` that are ours for all processes of the sandbox, to each those of its
//! own control group. [`fork_queue`] decides, [`input`] reads the sandbox, [`claim`] checks processes.
//!
//! Invariants: the sandbox lives as long as this process, and with it every instance from it; only packets of bounded
//! size are parsed; pid 1 is in the worker's own group, so that the zygote's memory limit can never end anything but
//! the zygote.

mod claim;
mod fork_queue;
mod input;

use super::journal::{Journal, Moment};
use super::process_source::shown_by;
use super::setup::{Place, protect, release_standard_streams, timeout, unix_ms};
use super::sockets::Sockets;
use super::supervise::cause_of;
use super::{WorkerError, log_line};
use fork_queue::{Action, Caller, Event, ForkQueue};
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, poll};
use nix::sys::signal::Signal;
use nix::sys::signalfd::SignalFd;
use omni_cgroup::Group;
use omni_engine_protocol::packet::{recv_packet, send_packet};
use omni_log::chain;
use omni_meminfo_fs::{Groups, Server, Shown};
use omni_node_protocol::exit::ExitCause;
use omni_node_protocol::id::InstanceId;
use omni_node_protocol::zygote::{FromZygoteWorker, ToZygote, ToZygoteWorker};
use omni_process::pidfd;
use omni_sandbox::{ProcFiles, Sandbox, SandboxIo, cgroup_view};
use omni_worker_spec::Zygote as ZygoteSpec;
use std::collections::BTreeMap;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixListener;
use std::time::{Duration, Instant};

/// As many as a model may have instances.
const CALLERS: usize = 1024;
/// Lines of a zygote's output that are kept: imports say little.
const LINES_PER_SECOND: u32 = 1000;
/// How long a zygote that is at fault may take to end.
const LAST_WORD: Duration = Duration::from_secs(1);

/// Serves until the zygote is not needed any more.
pub(super) fn run(spec: &ZygoteSpec) -> Result<(), WorkerError> {
    let setup = |step| move |source: io::Error| WorkerError::Setup { step, source };
    let terminate = protect()?;
    let listener = io::stdout().as_fd().try_clone_to_owned().map_err(setup("take the listening socket"))?;
    let listener = UnixListener::from(listener);
    listener.set_nonblocking(true).map_err(setup("use the listening socket"))?;
    release_standard_streams().map_err(setup("let go of standard output"))?;
    let exit_file = Place::at(&spec.exit_file).map_err(WorkerError::ExitFile)?;
    let socket = Place::at(&spec.socket).map_err(WorkerError::ExitFile)?;
    let cause = match Keeper::start(spec, terminate, listener, &socket) {
        Ok(mut keeper) => keeper.serve()?,
        Err(error) => {
            log_line(&format!("a zygote could not be started: {}", chain(&error)));
            ExitCause::StartFailed { message: chain(&error) }
        }
    };
    socket.clear();
    exit_file.write(&cause)
}

struct Keeper<'a> {
    spec: &'a ZygoteSpec,
    socket: &'a Place,
    epoch: Instant,
    terminate: SignalFd,
    listener: Option<UnixListener>,
    own: Group,
    /// Dropped before the sandbox: a process that waits for an answer that was lost cannot be killed until its
    /// connection is aborted.
    _proc_files: Server,
    sandbox: Sandbox,
    reporting: bool,
    sockets: Sockets,
    groups: Groups,
    shown: Shown,
    journal: Journal,
    told: u64,
    fork_queue: ForkQueue,
    callers: BTreeMap<Caller, Connection>,
    accepted: Caller,
    zygote: Option<i32>,
    /// How the zygote itself ended.
    ended: Option<i32>,
    fault: bool,
    gone: bool,
}

/// A caller: the worker of an instance.
struct Connection {
    socket: OwnedFd,
    instance: Option<InstanceId>,
    /// Descriptors of a process to be made; empty once the zygote has them.
    ends: Vec<OwnedFd>,
    process: Option<OwnedFd>,
}

/// Event source that can be ready in one round.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Token {
    Terminate,
    Listener,
    Reports,
    Zygote,
    Output,
    Caller(Caller),
    End,
}

impl<'a> Keeper<'a> {
    fn start(
        spec: &'a ZygoteSpec,
        terminate: SignalFd,
        listener: UnixListener,
        socket: &'a Place,
    ) -> Result<Self, WorkerError> {
        let setup = |step| move |source: io::Error| WorkerError::Setup { step, source };
        let group = Group::open(&spec.cgroup)?;
        let own = Group::open(&spec.worker_cgroup)?;
        let shown = shown_by(spec.cpu_millis)?;
        let (mount, connection) = omni_meminfo_fs::prepare()?;
        let (sockets, ends) = Sockets::new().map_err(|errno| setup("make the zygote's sockets")(errno.into()))?;
        let preload = ToZygote::Preload { model_dir: spec.model_dir.clone(), modules: spec.preload.clone() };
        sockets.send(&preload, &[])?;
        let io = SandboxIo {
            stdout: ends.stdout.as_fd(),
            stderr: ends.stderr.as_fd(),
            engine: Some(ends.engine.as_fd()),
            proc_files: Some(ProcFiles { mount: mount.as_fd(), processors: shown.numbers() }),
            gpu: None,
            zygote: true,
            group: &group,
        };
        let mut sandbox = omni_sandbox::spawn(&spec.sandbox, &io)?;
        drop(mount); // or its server would not see the end of the sandbox
        let groups = Groups::new(cgroup_view(&spec.cgroup, spec.memory_bytes, shown.clone())?);
        let proc_files = connection.serve(groups.clone())?;
        let epoch = Instant::now();
        let mut journal = Journal::new(LINES_PER_SECOND);
        let now = Moment { monotonic: Duration::ZERO, unix_ms: unix_ms() };
        std::mem::take(&mut sandbox.notes).into_iter().for_each(|note| journal.note(note, now));
        Ok(Self {
            spec,
            socket,
            epoch,
            terminate,
            listener: Some(listener),
            own,
            _proc_files: proc_files,
            sandbox,
            reporting: true,
            sockets,
            groups,
            shown,
            journal,
            told: 0,
            fork_queue: ForkQueue::new(Duration::from_millis(spec.import_within_ms)),
            callers: BTreeMap::new(),
            accepted: 0,
            zygote: None,
            ended: None,
            fault: false,
            gone: false,
        })
    }

    /// The loop. How the zygote ended, which is with code 0 when it was not needed any more.
    fn serve(&mut self) -> Result<ExitCause, WorkerError> {
        loop {
            for token in self.wait()? {
                match token {
                    Token::Terminate => {
                        let _ = self.terminate.read_signal(); // level-triggered: one is enough to know
                        self.handle(Event::Spent("the zygote was told to end".into()));
                    }
                    Token::Listener => self.accept(),
                    Token::Reports => self.read_reports(),
                    Token::Zygote => self.hear_zygote(),
                    Token::Output => self.read_output(),
                    Token::Caller(caller) => self.receive(caller),
                    Token::End => {
                        self.read_reports();
                        self.spent("its sandbox has ended".into());
                        self.gone = true;
                    }
                }
            }
            self.end_if_hung();
            self.journal.tick(self.moment());
            if self.gone || self.fork_queue.is_over(self.epoch.elapsed()) {
                return Ok(self.cause());
            }
        }
    }

    /// A zygote that hangs would not end by the end of its socket. What came from it is in other groups, or not begun.
    fn end_if_hung(&mut self) {
        let Some(why) = self.fork_queue.hangs(self.epoch.elapsed()) else { return };
        // Sent first: a caller that waits for a process sees the end of its socket at the kill, and would have no
        // reason.
        self.spent(why.into());
        if let Err(error) = Group::open(&self.spec.cgroup).and_then(|group| group.kill()) {
            log_line(&format!("a zygote that hangs could not be killed: {}", chain(&error)));
        }
    }

    /// How it ended: at a fault of the zygote's, as that ended, which pid 1 is about to say.
    fn cause(&mut self) -> ExitCause {
        let until = Instant::now() + LAST_WORD;
        while self.fault && self.ended.is_none() && self.reporting {
            if !pidfd::readable_before(&self.sandbox.reports, until).unwrap_or(false) {
                break;
            }
            self.read_reports();
        }
        match self.ended {
            Some(0) if self.fault => ExitCause::StartFailed { message: "the zygote ended by itself".into() },
            Some(status) => cause_of(status),
            None if self.fault => ExitCause::WorkerLost,
            None => ExitCause::Exited { code: 0 },
        }
    }

    /// The zygote cannot be used any more, for this reason.
    fn spent(&mut self, why: String) {
        // Closed by ourselves it is expected to end.
        self.fault |= self.listener.is_some();
        self.handle(Event::Spent(why));
    }

    fn wait(&self) -> Result<Vec<Token>, WorkerError> {
        let mut fds = vec![(Token::Terminate, self.terminate.as_fd())];
        fds.extend(self.listener.as_ref().map(|listener| (Token::Listener, listener.as_fd())));
        fds.extend(self.reporting.then(|| (Token::Reports, self.sandbox.reports.as_fd())));
        let Sockets { engine, stdout, stderr } = &self.sockets;
        fds.extend(engine.as_ref().map(|fd| (Token::Zygote, fd.as_fd())));
        fds.extend([stdout, stderr].into_iter().flatten().map(|fd| (Token::Output, fd.as_fd())));
        fds.extend(self.callers.iter().map(|(caller, on)| (Token::Caller(*caller), on.socket.as_fd())));
        fds.push((Token::End, self.sandbox.pidfd.as_fd()));
        let mut polled: Vec<PollFd<'_>> = fds.iter().map(|(_, fd)| PollFd::new(*fd, PollFlags::POLLIN)).collect();
        let deadline = [self.fork_queue.deadline(), self.journal.deadline()].into_iter().flatten().min();
        match poll(&mut polled, timeout(deadline, self.epoch.elapsed())) {
            Ok(_) => {}
            Err(Errno::EINTR) => return Ok(vec![]),
            Err(errno) => return Err(WorkerError::Wait(errno)),
        }
        let ready = polled.iter().map(|fd| fd.any() == Some(true));
        Ok(fds.iter().zip(ready).filter(|(_, ready)| *ready).map(|((token, _), _)| *token).collect())
    }

    fn handle(&mut self, event: Event) {
        for action in self.fork_queue.on(event, self.epoch.elapsed()) {
            match action {
                Action::Fork(caller) => self.fork(caller),
                Action::Refuse(caller, message) => self.send(caller, &FromZygoteWorker::Refused { message }),
                Action::TellEnd(caller, status) => {
                    if let Some(on) = self.callers.get_mut(&caller) {
                        on.process = None;
                    }
                    self.send(caller, &FromZygoteWorker::Ended { status });
                }
                Action::Kill(caller) => {
                    let process = self.callers.get(&caller).and_then(|on| on.process.as_ref());
                    if let Some(pidfd) = process {
                        // Fails for a process that has ended just now.
                        let _ = pidfd::send_signal(pidfd, Signal::SIGKILL);
                    }
                }
                Action::Close => self.close(),
            }
        }
    }

    /// No more callers, and no more of the zygote.
    fn close(&mut self) {
        // Absence of the socket tells the launcher.
        self.socket.clear();
        self.listener = None;
        self.sockets.engine = None; // at which it ends
    }

    fn accept(&mut self) {
        let Some(Ok((stream, _))) = self.listener.as_ref().map(UnixListener::accept) else { return };
        // A caller beyond the bound, or with an unusable socket, sees the end of its connection.
        if self.callers.len() >= CALLERS || stream.set_nonblocking(true).is_err() {
            return;
        }
        self.accepted += 1;
        let on = Connection { socket: stream.into(), instance: None, ends: vec![], process: None };
        self.callers.insert(self.accepted, on);
        self.handle(Event::Came(self.accepted));
    }

    fn receive(&mut self, caller: Caller) {
        let Some(on) = self.callers.get_mut(&caller) else { return };
        match recv_packet::<ToZygoteWorker>(&on.socket) {
            Ok((ToZygoteWorker::Fork { instance }, fds)) if fds.len() == 3 => {
                on.instance = Some(instance.clone());
                on.ends = fds;
                self.handle(Event::Asked(caller, instance));
            }
            Ok((ToZygoteWorker::Claim { pid }, _)) => self.claim(caller, pid),
            Err(error) if error.would_block() => {}
            Ok((ToZygoteWorker::Fork { .. }, _)) | Err(_) => self.left(caller),
        }
    }

    fn left(&mut self, caller: Caller) {
        self.handle(Event::Left(caller));
        if let Some(instance) = self.callers.remove(&caller).and_then(|on| on.instance) {
            self.groups.remove(&self.spec.cgroup.of_instance(instance.as_str()).name());
        }
    }

    fn send(&mut self, caller: Caller, message: &FromZygoteWorker) {
        let told = self.callers.get(&caller).map(|on| send_packet(&on.socket, message, &[]));
        if let Some(Err(_)) = told {
            self.left(caller); // gone, or so far behind that it is no worker of ours
        }
    }

    fn fork(&mut self, caller: Caller) {
        let Some(on) = self.callers.get_mut(&caller) else { return };
        let (Some(instance), ends) = (on.instance.clone(), std::mem::take(&mut on.ends)) else { return };
        match self.sockets.send(&ToZygote::Fork { instance: instance.clone() }, &ends) {
            Ok(()) => self.send(caller, &FromZygoteWorker::Forking),
            Err(error) => self.handle(Event::ForkFailed(instance, format!("the zygote does not listen: {error}"))),
        }
    }

    fn claim(&mut self, caller: Caller, pid: i32) {
        match self.claimed(caller, pid) {
            Ok(()) => {
                let log = self.take_log();
                self.send(caller, &FromZygoteWorker::Claimed { log });
            }
            Err(message) => {
                self.send(caller, &FromZygoteWorker::Refused { message });
                self.left(caller);
            }
        }
    }

    fn claimed(&mut self, caller: Caller, pid: i32) -> Result<(), String> {
        let newborn = claim::check(pid, &self.spec.cgroup.name())?;
        let foreign = || format!("process {pid} is not this instance's");
        if Some(pid) == self.zygote || self.fork_queue.is_held(newborn.inner) || !self.fork_queue.may_claim(caller) {
            return Err(foreign());
        }
        let on = self.callers.get_mut(&caller).ok_or_else(foreign)?;
        let instance = on.instance.as_ref().ok_or_else(foreign)?;
        let group = self.spec.cgroup.of_instance(instance.as_str());
        let view = cgroup_view(&group, self.spec.memory_bytes, self.shown.clone()).map_err(|error| chain(&error))?;
        self.groups.add(group.name(), view);
        on.process = Some(newborn.pidfd);
        self.handle(Event::Claimed(caller, newborn.inner));
        Ok(())
    }

    fn moment(&self) -> Moment {
        Moment { monotonic: self.epoch.elapsed(), unix_ms: unix_ms() }
    }
}
