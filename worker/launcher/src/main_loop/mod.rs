//! Main loop: requests of the scheduler, events of the threads, ends of workers. Owns all state; slow work happens in
//! threads, which answer with events.

mod builds;
mod fetches;
mod instances;
mod preparation;
mod retention;
mod turns;
mod weights;
mod zygotes;

use super::Ended;
use super::catalog::Catalog;
use super::event::{Event, Events, Inbox, ModelState};
use super::heartbeat::Heartbeat;
use super::instances::Instances;
use super::runtime_dir::RuntimeDir;
use super::scheduler::Scheduler;
use super::start::StartContext;
use super::watch::RescanHandle;
use super::zygotes::Zygotes;
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::signal::Signal;
use nix::sys::signalfd::SignalFd;
use omni_config::Foreign;
use omni_engine_protocol::packet::MAX_PACKET;
use omni_environment::GROUPS;
use omni_log::chain;
use omni_node_protocol::id::InstanceId;
use omni_node_protocol::launcher::{FromLauncher, Serves, ToLauncher, VERSIONS};
use omni_node_protocol::version::Versions;
pub(super) use preparation::{JOBS, Preparation};
pub(super) use retention::Snapshots;
use std::io::stdout;
use std::os::fd::AsFd;
use std::thread;
use std::time::{Duration, Instant};
pub(super) use weights::Weights;

/// Launcher while it runs: all its parts, owned by the main loop.
pub(super) struct Launcher {
    pub(super) context: StartContext,
    pub(super) scheduler: Scheduler,
    pub(super) models: Models,
    pub(super) snapshots: Snapshots,
    pub(super) preparation: Preparation,
    pub(super) weights: Weights,
    pub(super) instances: Instances,
    pub(super) zygotes: Zygotes,
    /// `<runtime-dir>/zygotes`.
    pub(super) zygote_dir: RuntimeDir,
    pub(super) threads: Threads,
    pub(super) signals: SignalFd,
    pub(super) end: EndState,
    /// Time of the last removal of unused cache directories.
    pub(super) caches_checked: Option<Instant>,
}

/// Models folder: its content as the watcher reported it, and requests to the watcher.
pub(super) struct Models {
    pub(super) catalog: Catalog,
    pub(super) rescan: RescanHandle,
}

/// Both ends of the queue of events.
pub(super) struct Threads {
    pub(super) events: Events,
    pub(super) inbox: Inbox,
}

/// Reasons for the launcher to end.
#[derive(Default)]
pub(super) struct EndState {
    /// The node is being shut down: the launcher ends after the last worker.
    quitting: bool,
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

impl Launcher {
    /// Runs until SIGTERM, SIGINT, SIGUSR2, or with a keeper until `Quit` and the end of the last worker. Workers are left
    /// as they are.
    pub(super) fn run(&mut self) -> Result<Ended, Errno> {
        let mut heartbeat = Heartbeat::new(self.context.settings.kept);
        loop {
            heartbeat.turn();
            self.forget_caches();
            let turn_ends = self.weights.fetches.end_turns(Instant::now());
            for token in self.wait(heartbeat.every().into_iter().chain(turn_ends).min())? {
                if let Some(ended) = self.on_ready(token)? {
                    return Ok(ended);
                }
            }
            self.scheduler.connection.flush();
            if let Some(ended) = self.end_if_due() {
                return Ok(ended);
            }
        }
    }

    /// Handles one ready descriptor; returns how the launcher ends when that was a signal to end.
    fn on_ready(&mut self, token: Token) -> Result<Option<Ended>, Errno> {
        match token {
            Token::Signal => return self.on_signal(),
            Token::Keeper => {
                tracing::warn!("the process that keeps the launcher running has ended: another one takes its place");
                (self.end.making_way, self.end.unkept) = (true, true);
            }
            Token::Inbox => self.threads.inbox.take().into_iter().for_each(|event| self.on_event(event)),
            Token::Links => self.scheduler.links.mend(),
            Token::Listener => {
                self.scheduler.accept();
                // The request to quit was the previous scheduler's.
                self.end.quitting &= self.context.settings.kept;
            }
            Token::Scheduler => {
                self.scheduler.connection.receive().into_iter().for_each(|message| self.on_message(message));
            }
            Token::Worker(id) => self.on_worker_end(&id),
            Token::Zygote(id) => self.on_zygote_end(id),
        }
        Ok(None)
    }

    /// Handles a signal: SIGUSR2 makes way for the next launcher, all others end this one.
    fn on_signal(&mut self) -> Result<Option<Ended>, Errno> {
        let Some(info) = self.signals.read_signal()? else { return Ok(None) };
        let signal = Signal::try_from(info.ssi_signo.cast_signed()).ok();
        if signal == Some(Signal::SIGUSR2) {
            self.end.making_way = true;
            return Ok(None);
        }
        let signal = signal.map_or("a signal", Signal::as_str);
        tracing::info!(signal, "the launcher ends; instances go on");
        self.end_builds();
        self.end_idle_zygotes();
        self.remove_group();
        self.scheduler.links.remove();
        Ok(Some(Ended::Done))
    }

    /// Ends the launcher once nothing holds up a requested end.
    fn end_if_due(&mut self) -> Option<Ended> {
        // A start that was not read yet is sent again by the scheduler, and so is a build.
        if self.end.making_way && self.instances.starting() == 0 {
            tracing::info!("the launcher makes way for the next one; instances go on");
            self.end_builds();
            return Some(if self.end.unkept { Ended::Unkept } else { Ended::MakesWay });
        }
        if self.end.quitting && self.instances.is_empty() {
            self.kill_zygotes();
        }
        if self.end.quitting && self.instances.is_empty() && self.zygotes.is_empty() {
            if self.context.settings.kept {
                tracing::info!("the launcher ends with its scheduler");
                self.end_builds();
                self.remove_group();
                self.scheduler.links.remove();
                return Some(Ended::Done);
            }
            tracing::info!("all instances of the scheduler have ended");
            self.end.quitting = false;
            self.scheduler.connection.close();
        }
        None
    }

    /// The node's own group, when no instance is left in it.
    fn remove_group(&self) {
        if let Err(error) = self.context.driver.remove_parent() {
            tracing::warn!(error = chain(&error), "the parent control group is left");
        }
    }

    fn wait(&self, longest: Option<Duration>) -> Result<Vec<Token>, Errno> {
        let mut fds = vec![
            (self.signals.as_fd(), PollFlags::POLLIN, Token::Signal),
            (self.threads.inbox.as_fd(), PollFlags::POLLIN, Token::Inbox),
            (self.scheduler.links.changes(), PollFlags::POLLIN, Token::Links),
            (self.scheduler.connection.listener(), PollFlags::POLLIN, Token::Listener),
        ];
        // A pipe whose last reader has ended is reported for any set of events.
        let stdout = stdout();
        if self.context.settings.kept && !self.end.unkept {
            fds.push((stdout.as_fd(), PollFlags::empty(), Token::Keeper));
        }
        if let Some((fd, more)) = self.scheduler.connection.peer() {
            let write = if more { PollFlags::POLLOUT } else { PollFlags::empty() };
            let read = if self.end.making_way { PollFlags::empty() } else { PollFlags::POLLIN };
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
            _ if !self.scheduler.is_greeted() => tracing::warn!("a message before hello is ignored"),
            ToLauncher::Keep { model, snapshots } => self.keep(&model, snapshots),
            ToLauncher::KeptAll => self.keep_complete(),
            ToLauncher::Prepare { model, snapshot, python, interpreter, require_hashes, weights } => {
                match weights.map_or(Ok(None), |request| self.want_weights(&model, &snapshot, &request)) {
                    Ok(folder) => self.prepare(model, snapshot, python, interpreter, require_hashes, folder),
                    Err(failure) => self.prepare_failed([snapshot], failure),
                }
            }
            ToLauncher::Unprepare { model, snapshot } => self.unprepare(model, snapshot),
            ToLauncher::Start(spec) => self.start(*spec),
            ToLauncher::Kill { instance } => self.kill(instance),
            ToLauncher::EndZygotes { model } => self.end_idle_zygotes_of(&model),
            ToLauncher::OpenFiles { snapshot } => self.open_files(snapshot),
            ToLauncher::OpenWeights { snapshot, weights } => self.open_weights(snapshot, &weights),
            ToLauncher::Renew => self.renew(),
            ToLauncher::Quit => self.end.quitting = true,
        }
    }

    fn hello(&mut self, theirs: Versions) {
        let Some(spoken) = VERSIONS.common(theirs) else {
            tracing::error!(
                theirs = theirs.newest,
                ours = VERSIONS.newest,
                "refused a scheduler with an unsupported protocol version: upgrade both"
            );
            return self.scheduler.connection.close();
        };
        if spoken < theirs.newest.max(VERSIONS.newest) {
            tracing::warn!(
                spoken,
                theirs = theirs.newest,
                ours = VERSIONS.newest,
                "the scheduler is of another release"
            );
        }
        self.scheduler.greet();
        self.scheduler.send(FromLauncher::Welcome { protocol: spoken });
        let settings = &self.context.settings;
        let models = settings.models.path().to_string_lossy().into_owned();
        self.scheduler.send(FromLauncher::Serves(Serves { models, config: settings.config.of_launcher() }));
        for (instance, _) in self.instances.running() {
            self.scheduler.send(FromLauncher::Runs { instance: instance.clone() });
        }
        self.snapshots.begin();
        if self.models.rescan.again() {
            self.models.catalog = Catalog::default();
        }
        for message in self.models.catalog.all() {
            self.scheduler.send(message);
        }
        self.scheduler.send_unsent();
        self.preparation.builds.reset_sent();
        self.begin_builds();
        self.send_weights_counts();
    }

    /// The scheduler reads another configuration by now. The next launcher does, too.
    fn renew(&mut self) {
        if self.context.settings.kept || self.context.settings.managed {
            self.end.making_way = true;
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
                let message = self.models.catalog.scanned();
                self.scheduler.send(message);
                self.sweep_snapshots();
            }
            Event::FolderChecked { job, checked } => self.on_folder_checked(*job, checked),
            Event::WeightsOpened { snapshot, files } => self.on_weights_opened(snapshot, files),
            Event::Verified { job, intact } => self.on_verified(*job, intact),
            Event::Planned { model, snapshot, plan } => self.on_planned(model, snapshot, plan),
            Event::BuildLine { key, line } => self.on_build_line(&key, &line),
            Event::BuildEnded { key, ended } => self.on_build_ended(&key, ended),
            Event::WeightsReport { key, report } => self.on_weights_report(&key, report),
            Event::WeightsEnded { key, result } => self.on_weights_ended(&key, &result),
            Event::Started { instance, result } => self.on_started(instance, result),
            Event::ZygoteStarted { id, result } => self.on_zygote_started(&id, result),
            Event::ZygoteGone { id, cause } => self.on_zygote_gone(&id, &cause),
            Event::Gone { instance, cause } => {
                tracing::info!(%instance, %cause, "the instance is gone");
                self.instances.end(&instance);
                self.send_gone(instance, cause);
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
        if let Some(message) = self.models.catalog.seen(name, state) {
            self.scheduler.send(message);
        }
        if let Some(snapshot) = taken {
            self.snapshots.release(&snapshot); // the catalog keeps it now
        }
    }

    /// Reaps in a thread of its own, for it can take seconds. A node that has no thread to spare waits for it: the
    /// others may need the room of the ended one.
    fn reap(&mut self, work: impl FnOnce() -> Event + Clone + Send + 'static) {
        let (events, aside) = (self.threads.events.clone(), work.clone());
        // A main loop that is gone leaves nothing behind here: all is removed already.
        let run = move || {
            let _ = events.send(aside());
        };
        if let Err(error) = thread::Builder::new().name("reap".into()).spawn(run) {
            tracing::warn!(%error, "no thread to remove an instance in: the launcher does it before all else");
            self.on_event(work());
        }
    }

    /// Ends all builds: without a launcher there is no recipient of their results.
    fn end_builds(&self) {
        let names = self.context.driver.list().unwrap_or_default();
        for name in names.iter().filter(|name| name.starts_with(GROUPS)) {
            if let Err(error) = self.context.driver.destroy(name) {
                tracing::warn!(build = name, error = chain(&error), "a build is left");
            }
        }
    }
}

/// Cuts a message so that it fits into a packet with any characters.
fn shortened(message: String) -> String {
    const MOST: usize = MAX_PACKET / 8;
    match message.char_indices().nth(MOST) {
        None => message,
        Some((end, _)) => format!("{} …", message.get(..end).unwrap_or_default()),
    }
}
