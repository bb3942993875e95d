//! Main loop: requests of the scheduler, events of the threads, ends of workers. Owns all state; slow work happens in
//! threads, which answer with events.

mod builds;
mod instances;
mod preparation;
mod retention;
mod zygotes;

use super::heartbeat::Heartbeat;
use super::catalog::Catalog;
use super::event::{Event, Events, Inbox, ModelState};
use super::gpu::Gpus;
use super::instances::{Instances, Traces};
use super::link::Link;
use super::links::Links;
use super::watch::Looks;
use super::zygotes::Zygotes;
use super::{Ended, Settings};
pub(super) use builds::Builds;
use retention::Kept;
pub(super) use retention::Unflushed;
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::signal::Signal;
use nix::sys::signalfd::SignalFd;
use omni_cgroup::Driver;
use omni_config::Foreign;
use omni_engine_protocol::packet::MAX_PACKET;
use omni_environment::{Builder, Environments, GROUPS, Package, PlanJob};
use omni_log::chain;
use omni_node_protocol::id::InstanceId;
use omni_node_protocol::launcher::{FromLauncher, Serves, ToLauncher, VERSIONS};
use omni_node_protocol::version::Versions;
use omni_process::SealedProgram;
use omni_snapshot::Store;
use std::collections::VecDeque;
use std::io::stdout;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::mpsc::SyncSender;
use std::thread;
use std::time::{Duration, Instant};

/// Launcher with all that it owns while its loop runs.
pub(super) struct Node {
    pub(super) links: Links,
    pub(super) settings: Arc<Settings>,
    pub(super) link: Link,
    pub(super) inbox: Inbox,
    pub(super) events: Events,
    pub(super) looks: Looks,
    pub(super) signals: SignalFd,
    pub(super) store: Arc<Store>,
    pub(super) unflushed: Unflushed,
    pub(super) driver: Arc<dyn Driver>,
    pub(super) worker: Arc<SealedProgram>,
    pub(super) traces: Traces,
    /// The traces of zygotes.
    pub(super) nests: Traces,
    pub(super) zygotes: Zygotes,
    pub(super) package: Arc<Package>,
    pub(super) gpus: Arc<Gpus>,
    pub(super) environments: Environments,
    pub(super) instances: Instances,
    pub(super) plans: SyncSender<PlanJob>,
    pub(super) builder: Arc<Builder>,
    pub(super) builds: Builds,
    pub(super) state: State,
}

/// State that the loop collects.
#[derive(Default)]
pub(super) struct State {
    pub(super) catalog: Catalog,
    kept: Kept,
    pub(super) unheard: VecDeque<FromLauncher>,
    heard: bool,
    quitting: bool,
    caches_looked_at: Option<Instant>,
    /// Nothing is begun any more: the next launcher does it.
    making_way: bool,
    /// No process starts the next launcher.
    unkept: bool,
}

enum Token {
    Signal,
    Keeper,
    Inbox,
    Links,
    Listener,
    Scheduler,
    Worker(InstanceId),
    Zygote(InstanceId),
}

impl Node {
    /// Runs until SIGTERM, SIGINT, SIGUSR2, or with a keeper until `Quit` and the end of the last worker. Workers are left
    /// as they are.
    pub(super) fn run(&mut self) -> Result<Ended, Errno> {
        let mut beat = Heartbeat::new(self.settings.kept);
        loop {
            beat.turn();
            self.forget_caches();
            for token in self.wait(beat.every())? {
                match token {
                    Token::Signal => {
                        if let Some(info) = self.signals.read_signal()? {
                            let signal = Signal::try_from(info.ssi_signo.cast_signed()).ok();
                            if signal == Some(Signal::SIGUSR2) {
                                self.state.making_way = true;
                                continue;
                            }
                            let signal = signal.map_or("a signal", Signal::as_str);
                            tracing::info!(signal, "the launcher ends; instances go on");
                            self.end_builds();
                            self.end_idle_zygotes();
                            self.remove_group();
                            self.links.remove();
                            return Ok(Ended::Done);
                        }
                    }
                    Token::Keeper => {
                        tracing::warn!(
                            "the process that keeps the launcher running has ended: another one takes its place"
                        );
                        (self.state.making_way, self.state.unkept) = (true, true);
                    }
                    Token::Inbox => self.inbox.take().into_iter().for_each(|event| self.on_event(event)),
                    Token::Links => self.links.mend(),
                    Token::Listener => {
                        self.link.accept();
                        self.state.heard = false;
                        self.state.quitting &= self.settings.kept; // that was the one before
                    }
                    Token::Scheduler => self.link.receive().into_iter().for_each(|message| self.on_message(message)),
                    Token::Worker(id) => self.on_worker_end(&id),
                    Token::Zygote(id) => self.on_zygote_end(id),
                }
            }
            self.link.flush();
            // A start that was not read yet is sent again by the scheduler, and so is a build.
            if self.state.making_way && self.instances.starting() == 0 {
                tracing::info!("the launcher makes way for the next one; instances go on");
                self.end_builds();
                return Ok(if self.state.unkept { Ended::Unkept } else { Ended::MakesWay });
            }
            if self.state.quitting && self.instances.is_empty() {
                self.kill_zygotes();
            }
            if self.state.quitting && self.instances.is_empty() && self.zygotes.is_empty() {
                if self.settings.kept {
                    tracing::info!("the launcher ends with its scheduler");
                    self.end_builds();
                    self.remove_group();
                    self.links.remove();
                    return Ok(Ended::Done);
                }
                tracing::info!("nothing is left of what the scheduler has stopped");
                self.state.quitting = false;
                self.link.let_go();
            }
        }
    }

    /// The node's own group, when no instance is left in it.
    fn remove_group(&self) {
        if let Err(error) = self.driver.remove_parent() {
            tracing::warn!(error = chain(&error), "the parent control group is left");
        }
    }

    fn wait(&self, longest: Option<Duration>) -> Result<Vec<Token>, Errno> {
        let mut fds = vec![
            (self.signals.as_fd(), PollFlags::POLLIN, Token::Signal),
            (self.inbox.as_fd(), PollFlags::POLLIN, Token::Inbox),
            (self.links.changes(), PollFlags::POLLIN, Token::Links),
            (self.link.listener(), PollFlags::POLLIN, Token::Listener),
        ];
        // A pipe whose last reader has ended is reported for any set of events.
        let stdout = stdout();
        if self.settings.kept && !self.state.unkept {
            fds.push((stdout.as_fd(), PollFlags::empty(), Token::Keeper));
        }
        if let Some((fd, more)) = self.link.peer() {
            let write = if more { PollFlags::POLLOUT } else { PollFlags::empty() };
            let read = if self.state.making_way { PollFlags::empty() } else { PollFlags::POLLIN };
            fds.push((fd, read | write, Token::Scheduler));
        }
        fds.extend(self.instances.running().map(|(id, fd)| (fd, PollFlags::POLLIN, Token::Worker(id.clone()))));
        fds.extend(self.zygotes.running().map(|(id, fd, _)| (fd, PollFlags::POLLIN, Token::Zygote(id.clone()))));
        let mut polled: Vec<PollFd<'_>> = fds.iter().map(|(fd, flags, _)| PollFd::new(*fd, *flags)).collect();
        let timeout = longest.map_or(PollTimeout::NONE, |longest| longest.try_into().unwrap_or(PollTimeout::MAX));
        match poll(&mut polled, timeout) {
            Err(Errno::EINTR) => return Ok(Vec::new()),
            other => other?,
        };
        let ready: Vec<bool> = polled.iter().map(|fd| fd.any().unwrap_or(true)).collect();
        Ok(fds.into_iter().zip(ready).filter_map(|((_, _, token), ready)| ready.then_some(token)).collect())
    }

    fn on_message(&mut self, message: ToLauncher) {
        match message {
            ToLauncher::Hello { protocol, oldest } => self.hello(Versions::greeted(protocol, oldest)),
            _ if !self.state.heard => tracing::warn!("a message before hello is ignored"),
            ToLauncher::Keep { model, snapshots } => self.keep(&model, snapshots),
            ToLauncher::KeptAll => self.kept_all(),
            ToLauncher::Prepare { model, snapshot, python, interpreter, require_hashes } => {
                self.prepare(model, snapshot, python, interpreter, require_hashes);
            }
            ToLauncher::Unprepare { model, snapshot } => self.unprepare(model, snapshot),
            ToLauncher::Start(spec) => self.start(*spec),
            ToLauncher::Kill { instance } => self.kill(instance),
            ToLauncher::EndZygotes { model } => self.end_idle_zygotes_of(&model),
            ToLauncher::Renew => self.renew(),
            ToLauncher::Quit => self.state.quitting = true,
        }
    }

    fn hello(&mut self, theirs: Versions) {
        let Some(spoken) = VERSIONS.common(theirs) else {
            tracing::error!(
                theirs = theirs.newest,
                ours = VERSIONS.newest,
                "a scheduler of a version that cannot be spoken to was turned away: upgrade both"
            );
            return self.link.let_go();
        };
        if spoken < theirs.newest.max(VERSIONS.newest) {
            tracing::warn!(
                spoken,
                theirs = theirs.newest,
                ours = VERSIONS.newest,
                "the scheduler is of another release"
            );
        }
        self.state.heard = true;
        self.link.tell(FromLauncher::Welcome { protocol: spoken });
        let models = self.settings.models.path().to_string_lossy().into_owned();
        self.link.tell(FromLauncher::Serves(Serves { models, config: self.settings.config.of_launcher() }));
        for (instance, _) in self.instances.running() {
            self.link.tell(FromLauncher::Runs { instance: instance.clone() });
        }
        self.state.kept.begin();
        if self.looks.again() {
            self.state.catalog = Catalog::default();
        }
        let all: Vec<_> = self.state.catalog.all().chain(self.state.unheard.drain(..)).collect();
        all.into_iter().for_each(|message| self.link.tell(message));
        self.builds.untold();
        self.begin_builds();
    }

    /// The scheduler reads another configuration by now. The next launcher does, too.
    fn renew(&mut self) {
        if self.settings.kept || self.settings.managed {
            self.state.making_way = true;
        } else {
            tracing::warn!(
                "the node's configuration has changed, and nobody would start this launcher again: restart it"
            );
        }
    }

    fn on_event(&mut self, event: Event) {
        match event {
            Event::Model { name, state } => self.on_model(name, state),
            Event::Scanned => {
                let message = self.state.catalog.scanned();
                self.tell(message);
                self.sweep_snapshots();
            }
            Event::Verified { job, intact } => self.on_verified(*job, intact),
            Event::Planned { model, snapshot, plan } => self.on_planned(model, snapshot, plan),
            Event::BuildLine { key, line } => self.on_build_line(&key, &line),
            Event::BuildEnded { key, ended } => self.on_build_ended(&key, ended),
            Event::Started { instance, result } => self.on_started(instance, result),
            Event::ZygoteStarted { id, result } => self.on_zygote_started(&id, result),
            Event::ZygoteGone { id, cause } => self.on_zygote_gone(&id, &cause),
            Event::Gone { instance, cause } => {
                tracing::info!(%instance, %cause, "the instance is gone");
                self.instances.end(&instance);
                self.gone(instance, cause);
                self.sweep_snapshots();
            }
        }
    }

    fn on_model(&mut self, name: String, state: ModelState) {
        // A directory may have any name, and so may what lies in it. As texts: their line ends are escaped, too.
        let model = Foreign(&name).to_string();
        match &state {
            ModelState::Taken { snapshot, .. } => tracing::info!(model, %snapshot, "model seen"),
            ModelState::Refused { message } => {
                tracing::warn!(model, reason = Foreign(message).to_string(), "model refused");
            }
            ModelState::NoModel { message } => {
                tracing::warn!(directory = model, reason = Foreign(message).to_string(), "not served");
            }
            ModelState::Gone => tracing::info!(model, "model gone"),
        }
        let taken = match &state {
            ModelState::Taken { snapshot, .. } => Some(snapshot.clone()),
            ModelState::Refused { .. } | ModelState::NoModel { .. } | ModelState::Gone => None,
        };
        self.forget_late_builds(&name);
        if let Some(message) = self.state.catalog.seen(name, state) {
            self.tell(message);
        }
        if let Some(snapshot) = taken {
            self.store.release(&snapshot); // the catalog keeps it now
        }
    }

    /// Reaps in a thread of its own, for it can take seconds. A node that has no thread to spare waits for it: the
    /// others may need the room of the ended one.
    fn reap(&mut self, work: impl FnOnce() -> Event + Clone + Send + 'static) {
        let (events, aside) = (self.events.clone(), work.clone());
        // A main loop that is gone leaves nothing behind here: all is removed already.
        let run = move || {
            let _ = events.tell(aside());
        };
        if let Err(error) = thread::Builder::new().name("reap".into()).spawn(run) {
            tracing::warn!(%error, "no thread to remove an instance in: the launcher does it before all else");
            self.on_event(work());
        }
    }

    /// Sends a message to a scheduler that has said hello; a new one is sent everything at its hello.
    fn tell(&mut self, message: FromLauncher) {
        if self.state.heard {
            self.link.tell(message);
        }
    }

    /// Ends all builds: without a launcher there is no recipient of their results.
    fn end_builds(&self) {
        let names = self.driver.list().unwrap_or_default();
        for name in names.iter().filter(|name| name.starts_with(GROUPS)) {
            if let Err(error) = self.driver.destroy(name) {
                tracing::warn!(build = name, error = chain(&error), "a build is left");
            }
        }
    }
}

/// Cuts a message so that it fits into a packet with any characters.
fn short(message: String) -> String {
    const MOST: usize = MAX_PACKET / 8;
    match message.char_indices().nth(MOST) {
        None => message,
        Some((end, _)) => format!("{} …", message.get(..end).unwrap_or_default()),
    }
}
