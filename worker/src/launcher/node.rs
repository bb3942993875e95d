//! The main loop: what the scheduler asks, what the threads tell, whose worker ended. It owns all state; everything that
//! takes time happens in threads, which answer with events.

use super::Settings;
use super::catalog::Catalog;
use super::environment::{BuildPlan, Environments, Failure, Package, Plan, PlanJob};
use super::event::{Event, Events, Inbox, ModelState};
use super::instances::{Instances, Phase, Traces};
use super::link::Link;
use super::program::Program;
use super::reap::reap;
use super::start::{self, Running, Start};
use crate::process::chain;
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::signal::Signal;
use nix::sys::signalfd::SignalFd;
use omni_cgroup::Driver;
use omni_ipc::exit::ExitCause;
use omni_ipc::id::{EnvironmentKey, InstanceId, SnapshotDigest};
use omni_ipc::launcher::{FromLauncher, PROTOCOL, StartSpec, ToLauncher};
use omni_ipc::packet::MAX_PACKET;
use omni_snapshot::Store;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::mpsc::SyncSender;
use std::thread;

/// Starts at the same time.
const STARTS: usize = 64;
/// Lines of a build that are kept for those who ask for the same environment later.
const LINES: usize = 50;
/// Ends that no scheduler has heard of yet.
const UNHEARD: usize = 4096;

/// What the launcher has when its loop begins.
pub(super) struct Node {
    pub(super) settings: Arc<Settings>,
    pub(super) link: Link,
    pub(super) inbox: Inbox,
    pub(super) events: Events,
    pub(super) signals: SignalFd,
    pub(super) store: Arc<Store>,
    pub(super) driver: Arc<dyn Driver>,
    pub(super) worker: Arc<Program>,
    pub(super) traces: Traces,
    pub(super) package: Arc<Package>,
    pub(super) environments: Environments,
    pub(super) instances: Instances,
    pub(super) plans: SyncSender<PlanJob>,
    pub(super) builds: SyncSender<Box<BuildPlan>>,
    pub(super) state: State,
}

/// What the loop learns.
#[derive(Default)]
pub(super) struct State {
    pub(super) catalog: Catalog,
    /// Environments being made, with who waits for them.
    waiting: BTreeMap<EnvironmentKey, Waiting>,
    /// Snapshots whose environment is being looked for.
    planning: BTreeSet<SnapshotDigest>,
    pub(super) unheard: VecDeque<FromLauncher>,
    heard: bool,
    quitting: bool,
}

#[derive(Default)]
struct Waiting {
    snapshots: BTreeSet<SnapshotDigest>,
    lines: VecDeque<String>,
}

enum Token {
    Signal,
    Inbox,
    Listener,
    Scheduler,
    Worker(InstanceId),
}

impl Node {
    /// Runs until SIGTERM, SIGINT, or `Quit` and the end of the last worker. Workers are left as they are.
    pub(super) fn run(mut self) -> Result<(), Errno> {
        loop {
            for token in self.wait()? {
                match token {
                    Token::Signal => {
                        if let Some(info) = self.signals.read_signal()? {
                            let signal =
                                Signal::try_from(info.ssi_signo.cast_signed()).map_or("a signal", Signal::as_str);
                            tracing::info!(signal, "the launcher ends; instances go on");
                            self.end_builds();
                            return Ok(());
                        }
                    }
                    Token::Inbox => self.inbox.take().into_iter().for_each(|event| self.on_event(event)),
                    Token::Listener => {
                        self.link.accept();
                        self.state.heard = false;
                    }
                    Token::Scheduler => self.link.receive().into_iter().for_each(|message| self.on_message(message)),
                    Token::Worker(id) => self.on_worker_end(&id),
                }
            }
            self.link.flush();
            if self.state.quitting && self.instances.is_empty() {
                tracing::info!("the launcher ends with its scheduler");
                self.end_builds();
                if let Err(error) = self.driver.remove_parent() {
                    tracing::warn!(error = chain(&error), "the parent control group is left");
                }
                return Ok(());
            }
        }
    }

    fn wait(&self) -> Result<Vec<Token>, Errno> {
        let mut fds = vec![
            (self.signals.as_fd(), PollFlags::POLLIN, Token::Signal),
            (self.inbox.as_fd(), PollFlags::POLLIN, Token::Inbox),
            (self.link.listener(), PollFlags::POLLIN, Token::Listener),
        ];
        if let Some((fd, more)) = self.link.peer() {
            let write = if more { PollFlags::POLLOUT } else { PollFlags::empty() };
            fds.push((fd, PollFlags::POLLIN | write, Token::Scheduler));
        }
        fds.extend(self.instances.running().map(|(id, fd)| (fd, PollFlags::POLLIN, Token::Worker(id.clone()))));
        let mut polled: Vec<PollFd<'_>> = fds.iter().map(|(fd, flags, _)| PollFd::new(*fd, *flags)).collect();
        match poll(&mut polled, PollTimeout::NONE) {
            Err(Errno::EINTR) => return Ok(Vec::new()),
            other => other?,
        };
        let ready: Vec<bool> = polled.iter().map(|fd| fd.any().unwrap_or(true)).collect();
        Ok(fds.into_iter().zip(ready).filter_map(|((_, _, token), ready)| ready.then_some(token)).collect())
    }

    fn on_message(&mut self, message: ToLauncher) {
        match message {
            ToLauncher::Hello { protocol } => self.hello(protocol),
            _ if !self.state.heard => tracing::warn!("a message before hello is ignored"),
            ToLauncher::Prepare { model, snapshot, python, interpreter } => {
                self.prepare(model, snapshot, python, interpreter);
            }
            ToLauncher::Start(spec) => self.start(*spec),
            ToLauncher::Kill { instance } => self.kill(instance),
            ToLauncher::Quit if self.settings.kept => self.state.quitting = true,
            ToLauncher::Quit => {}
        }
    }

    fn hello(&mut self, protocol: u32) {
        if protocol != PROTOCOL {
            // It goes on, and will find most messages unreadable; the log says why.
            tracing::error!(
                theirs = protocol,
                ours = PROTOCOL,
                "the scheduler is of another version: restart the launcher"
            );
        }
        self.state.heard = true;
        let all: Vec<_> = self.state.catalog.all().chain(self.state.unheard.drain(..)).collect();
        all.into_iter().for_each(|message| self.link.tell(message));
    }

    fn prepare(&mut self, model: String, snapshot: SnapshotDigest, python: String, interpreter: Option<String>) {
        let Some(dir) = self.store.find(&snapshot) else {
            let message = "the content has changed meanwhile: this snapshot is gone".to_owned();
            return self.link.tell(FromLauncher::PrepareFailed { snapshot, message, permanent: false });
        };
        let job = PlanJob { model, snapshot: snapshot.clone(), dir, python, interpreter };
        if self.plans.try_send(job).is_err() {
            let message = "too many environments are being asked for: try again".to_owned();
            return self.link.tell(FromLauncher::PrepareFailed { snapshot, message, permanent: false });
        }
        self.state.planning.insert(snapshot);
    }

    fn on_event(&mut self, event: Event) {
        match event {
            Event::Model { name, state } => self.on_model(name, state),
            Event::Scanned => {
                let message = self.state.catalog.scanned();
                self.tell(message);
                self.sweep_snapshots();
            }
            Event::Planned { snapshot, plan } => {
                self.state.planning.remove(&snapshot);
                match plan {
                    Ok(Plan::Ready(environment)) => self.tell(FromLauncher::Prepared { snapshot, environment }),
                    Ok(Plan::Build(plan)) => self.build(snapshot, plan),
                    Err(failure) => self.prepare_failed(snapshot, failure),
                }
            }
            Event::BuildLine { key, line } => {
                let Some(waiting) = self.state.waiting.get_mut(&key) else { return };
                waiting.lines.push_back(line.clone());
                waiting.lines.drain(..waiting.lines.len().saturating_sub(LINES));
                for snapshot in waiting.snapshots.clone() {
                    self.tell(FromLauncher::Progress { snapshot, line: line.clone() });
                }
            }
            Event::Built { key, result } => {
                for snapshot in self.state.waiting.remove(&key).unwrap_or_default().snapshots {
                    match result.clone() {
                        Ok(()) => self.tell(FromLauncher::Prepared { snapshot, environment: key.clone() }),
                        Err(failure) => self.prepare_failed(snapshot, failure),
                    }
                }
            }
            Event::Started { instance, result } => self.on_started(instance, result),
            Event::Gone { instance, cause } => {
                tracing::info!(%instance, %cause, "the instance is gone");
                self.instances.end(&instance);
                self.gone(instance, cause);
                self.sweep_snapshots();
            }
        }
    }

    fn on_model(&mut self, name: String, state: ModelState) {
        match &state {
            ModelState::Taken { snapshot, .. } => tracing::info!(model = name, %snapshot, "model seen"),
            ModelState::Refused { message } => tracing::warn!(model = name, message, "model refused"),
            ModelState::Gone => tracing::info!(model = name, "model gone"),
        }
        let taken = match &state {
            ModelState::Taken { snapshot, .. } => Some(snapshot.clone()),
            ModelState::Refused { .. } | ModelState::Gone => None,
        };
        if let Some(message) = self.state.catalog.seen(name, state) {
            self.tell(message);
        }
        if let Some(snapshot) = taken {
            self.store.release(&snapshot); // the catalog keeps it now
        }
    }

    fn build(&mut self, snapshot: SnapshotDigest, plan: Box<BuildPlan>) {
        let key = plan.key.clone();
        if let Some(waiting) = self.state.waiting.get_mut(&key) {
            waiting.snapshots.insert(snapshot.clone());
            for line in waiting.lines.clone() {
                self.tell(FromLauncher::Progress { snapshot: snapshot.clone(), line });
            }
        } else if self.builds.try_send(plan).is_ok() {
            let waiting = Waiting { snapshots: BTreeSet::from([snapshot]), lines: VecDeque::new() };
            self.state.waiting.insert(key, waiting);
        } else {
            let message = "too many environments wait to be built: try again later".to_owned();
            self.prepare_failed(snapshot, Failure { message, permanent: false });
        }
    }

    fn prepare_failed(&mut self, snapshot: SnapshotDigest, failure: Failure) {
        let Failure { message, permanent } = failure;
        self.tell(FromLauncher::PrepareFailed { snapshot, message: short(message), permanent });
    }

    fn start(&mut self, spec: StartSpec) {
        let instance = spec.instance.clone();
        match self.begin(spec) {
            Ok(()) => {}
            Err(message) => {
                tracing::warn!(%instance, message, "start refused");
                self.tell(FromLauncher::StartFailed { instance, message: short(message) });
            }
        }
    }

    fn begin(&mut self, spec: StartSpec) -> Result<(), String> {
        let name = start::check(&spec, &self.settings.config).map_err(|refused| refused.to_string())?;
        let snapshot =
            self.store.find(&spec.snapshot).ok_or("the content has changed meanwhile: this snapshot is gone")?;
        let environment =
            self.environments.record(&spec.environment).ok_or("its environment is not there: prepare it first")?;
        if self.instances.starting() >= STARTS {
            return Err(format!("{STARTS} instances are being started already: try again"));
        }
        let uid = self.instances.begin(&spec.instance, spec.model.clone(), spec.snapshot.clone()).ok_or(
            "the instance exists, or all user ids are in use (`uid-count` in [node] of the node's configuration)",
        )?;
        let id = spec.instance.clone();
        let start = Start {
            spec,
            name,
            uid,
            snapshot,
            environment,
            package: self.package.dir().to_owned(),
            caches: self.settings.cache_dir.join("models"),
            scheduler_uid: self.settings.scheduler_uid,
            traces: self.traces.clone(),
            driver: Arc::clone(&self.driver),
            worker: Arc::clone(&self.worker),
        };
        let events = self.events.clone();
        let run = move || {
            let result = start.run().map_err(|error| {
                // Nothing of a failed start may be left when the scheduler hears of it.
                reap(&start.spec.instance, None, &*start.driver, &start.traces);
                chain(&error)
            });
            // A main loop that is gone leaves the instance to the next one.
            let _ = events.tell(Event::Started { instance: start.spec.instance.clone(), result });
        };
        thread::Builder::new().name("start".into()).spawn(run).map(drop).map_err(|error| {
            self.instances.end(&id);
            format!("the node cannot start a thread: {error}")
        })
    }

    fn on_started(&mut self, instance: InstanceId, result: Result<Running, String>) {
        match result {
            Ok(running) => {
                let pid = running.pid.as_raw();
                let Some(entry) = self.instances.get_mut(&instance) else { return };
                tracing::info!(%instance, model = entry.model, pid, "the instance is started");
                let killed = matches!(entry.phase, Phase::Starting { kill: true });
                entry.phase = Phase::Running(running);
                self.tell(FromLauncher::Started { instance: instance.clone(), worker_pid: pid });
                if killed {
                    self.kill(instance);
                }
            }
            Err(message) => {
                tracing::warn!(%instance, message, "the instance could not be started");
                self.instances.end(&instance);
                self.tell(FromLauncher::StartFailed { instance, message: short(message) });
            }
        }
    }

    fn kill(&mut self, instance: InstanceId) {
        match self.instances.get_mut(&instance).map(|entry| &mut entry.phase) {
            Some(Phase::Starting { kill }) => *kill = true,
            // Its worker goes with the group; its end is then seen as any other.
            Some(Phase::Running(running)) => {
                if let Err(errno) = crate::sandbox::pidfd_send_signal(&running.pidfd, Signal::SIGKILL) {
                    tracing::warn!(%instance, %errno, "cannot kill a worker");
                }
            }
            Some(Phase::Ending) => {}
            None => self.gone(instance, ExitCause::WorkerLost),
        }
    }

    fn on_worker_end(&mut self, id: &InstanceId) {
        let Some(entry) = self.instances.get_mut(id) else { return };
        let Phase::Running(running) = std::mem::replace(&mut entry.phase, Phase::Ending) else { return };
        let (driver, traces, events) = (Arc::clone(&self.driver), self.traces.clone(), self.events.clone());
        let instance = id.clone();
        let run = move || {
            let cause = reap(&instance, Some(running.pid), &*driver, &traces);
            // A main loop that is gone leaves nothing behind here: all is removed already.
            let _ = events.tell(Event::Gone { instance, cause });
        };
        if let Err(error) = thread::Builder::new().name("reap".into()).spawn(run) {
            tracing::error!(instance = %id, %error, "the traces of an instance are left until the launcher starts again");
        }
    }

    fn gone(&mut self, instance: InstanceId, cause: ExitCause) {
        let message = FromLauncher::WorkerGone { instance, cause };
        if self.state.heard && self.link.peer().is_some() {
            self.link.tell(message);
        } else {
            self.state.unheard.push_back(message);
            self.state.unheard.drain(..self.state.unheard.len().saturating_sub(UNHEARD));
        }
    }

    /// To a scheduler that has said hello; another one hears everything when it says so.
    fn tell(&mut self, message: FromLauncher) {
        if self.state.heard {
            self.link.tell(message);
        }
    }

    /// Removes snapshots that neither a model, an instance nor an environment to be built needs.
    fn sweep_snapshots(&self) {
        let Some(current) = self.state.catalog.snapshots() else { return };
        let building = self.state.waiting.values().flat_map(|waiting| &waiting.snapshots);
        let keep = current.chain(self.instances.snapshots()).chain(building).chain(&self.state.planning);
        match self.store.retain(&keep.cloned().collect()) {
            Ok(removed) => removed.iter().for_each(|snapshot| tracing::debug!(%snapshot, "snapshot removed")),
            Err(error) => tracing::warn!(error = chain(&error), "old snapshots are left"),
        }
    }

    /// A build has nobody to finish it for.
    fn end_builds(&self) {
        let names = self.driver.list().unwrap_or_default();
        for name in names.iter().filter(|name| name.starts_with("build-")) {
            if let Err(error) = self.driver.destroy(name) {
                tracing::warn!(build = name, error = chain(&error), "a build is left");
            }
        }
    }
}

/// A message that fits into a packet, whatever its characters become there.
fn short(message: String) -> String {
    const MOST: usize = MAX_PACKET / 8;
    match message.char_indices().nth(MOST) {
        None => message,
        Some((end, _)) => format!("{} …", message.get(..end).unwrap_or_default()),
    }
}
