//! Preparation of environments: planning, building, and messages to the waiting models.

use super::builds::Builds;
use super::{Launcher, shortened};
use crate::event::Event;
use crate::weights_look::Look;
use omni_environment::queue::{Counts, Kind, Place};
use omni_environment::{BuildPlan, Builder, Ended, Environments, Failure, Plan, PlanJob, log_end};
use omni_log::chain;
use omni_node_protocol::id::{EnvironmentKey, SnapshotDigest};
use omni_node_protocol::launcher::FromLauncher;
use omni_sandbox::Weights as Folder;
use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::mpsc::SyncSender;
use std::thread;

/// Jobs for the planner that wait.
pub(crate) const JOBS: usize = 256;
/// Folders of weights that are looked at, at a time.
const FOLDER_CHECKS: usize = 16;

/// Environments: those on the disk, the queue of the planner, and builds.
pub(crate) struct Preparation {
    pub(super) environments: Environments,
    plans: SyncSender<PlanJob>,
    builder: Arc<Builder>,
    pub(super) builds: Builds,
    /// Handles, one for each look at a folder of weights.
    folder_checks: Arc<()>,
}

impl Preparation {
    /// Without any build; `plans` leads to the planner.
    pub(crate) fn new(
        environments: Environments,
        plans: SyncSender<PlanJob>,
        builder: Arc<Builder>,
        places: Counts,
    ) -> Self {
        Self { environments, plans, builder, builds: Builds::new(places), folder_checks: Arc::new(()) }
    }
}

impl Launcher {
    pub(super) fn prepare(
        &mut self,
        model: String,
        snapshot: SnapshotDigest,
        python: String,
        interpreter: Option<String>,
        require_hashes: bool,
        folder: Option<Folder>,
    ) {
        let Some(dir) = self.snapshots.store().find(&snapshot) else {
            let message = "the content has changed meanwhile: this snapshot is gone".to_owned();
            return self.prepare_failed([snapshot], Failure { message, permanent: false });
        };
        let job = PlanJob { model, snapshot, dir, python, interpreter, require_hashes };
        if self.preparation.builds.planning.len() >= JOBS {
            return self.too_many(job.snapshot);
        }
        self.preparation.builds.planning.insert((job.model.clone(), job.snapshot.clone()));
        match folder {
            Some(folder) => self.check_folder(job, folder),
            None => self.verify(job),
        }
    }

    /// Has the folder of a content's weights looked at. One beyond [`FOLDER_CHECKS`] at once is left to the instance's start.
    fn check_folder(&mut self, job: PlanJob, folder: Folder) {
        let checks = Arc::clone(&self.preparation.folder_checks);
        let (events, of) = (self.threads.events.clone(), job.clone());
        let run = move || {
            let mut look = Look::begin(&folder).ok();
            let checked = look.as_mut().map_or(Ok(()), Look::result);
            let _ = events.send(Event::FolderChecked { job: Box::new(of), checked });
            if let Some(look) = look {
                look.reap();
            }
            drop(checks);
        };
        let has_room = Arc::strong_count(&self.preparation.folder_checks) <= FOLDER_CHECKS;
        if !has_room || thread::Builder::new().name("folder".into()).spawn(run).is_err() {
            self.verify(job);
        }
    }

    /// Handles what was seen of the folder of a content's weights.
    pub(super) fn on_folder_checked(&mut self, job: PlanJob, checked: Result<(), String>) {
        let waits = (job.model.clone(), job.snapshot.clone());
        if !self.preparation.builds.planning.contains(&waits) {
            return;
        }
        match checked {
            Ok(()) => self.verify(job),
            Err(message) => {
                self.preparation.builds.planning.remove(&waits);
                self.prepare_failed([job.snapshot], Failure { message, permanent: false });
            }
        }
    }

    /// Plans the environment of a content that is intact.
    fn verify(&mut self, job: PlanJob) {
        if self.models.catalog.snapshot(&job.model) == Some(&job.snapshot) {
            return self.plan(job);
        }
        // A version to come back to may have been on the disk for long: it is read before anything runs from it.
        let (store, events, of) = (Arc::clone(self.snapshots.store()), self.threads.events.clone(), job.clone());
        let run = move || {
            let intact = store.is_intact(&of.snapshot).map_err(|error| chain(&error));
            let _ = events.send(Event::Verified { job: Box::new(of), intact }); // a main loop that is gone needs it no more
        };
        if let Err(error) = thread::Builder::new().name("verify".into()).spawn(run) {
            let message = format!("the node has no thread to read this version in: {error}");
            self.preparation.builds.planning.remove(&(job.model, job.snapshot.clone()));
            self.prepare_failed([job.snapshot], Failure { message, permanent: false });
        }
    }

    /// Handles the result of comparing a version's copy with its digest; a version that is not its directory's content
    /// now.
    pub(super) fn on_verified(&mut self, job: PlanJob, intact: Result<bool, String>) {
        if !self.preparation.builds.planning.contains(&(job.model.clone(), job.snapshot.clone())) {
            return;
        }
        let failure = match intact {
            Ok(true) => return self.plan(job),
            Ok(false) => Failure {
                message: format!(
                    "the node's copy of this version is damaged on the disk (its files are not those that it had): put \
                     its files into the model's directory once more, which replaces the copy, or go back to another \
                     version (`omnictl history {}`)",
                    job.model
                ),
                permanent: true,
            },
            // Out of descriptors or memory, say: the same copy may be read later.
            Err(error) => Failure {
                message: format!(
                    "the node's copy of this version cannot be read, which is tried again: {error}. If that lasts, put its \
                     files into the model's directory once more, or go back to another version (`omnictl history {}`)",
                    job.model
                ),
                permanent: false,
            },
        };
        self.preparation.builds.planning.remove(&(job.model, job.snapshot.clone()));
        self.prepare_failed([job.snapshot], failure);
    }

    fn plan(&mut self, job: PlanJob) {
        let waits = (job.model.clone(), job.snapshot.clone());
        if self.preparation.plans.try_send(job).is_err() {
            self.preparation.builds.planning.remove(&waits);
            self.too_many(waits.1);
        }
    }

    fn too_many(&mut self, snapshot: SnapshotDigest) {
        let message = "too many environments are being asked for: try again".to_owned();
        self.prepare_failed([snapshot], Failure { message, permanent: false });
    }

    /// Forgets a model that waits for an environment; a build without waiters ends.
    pub(super) fn unprepare(&mut self, model: String, snapshot: SnapshotDigest) {
        let waits = (model, snapshot);
        self.preparation.builds.planning.remove(&waits);
        self.preparation.builds.leave(&waits);
        self.begin_builds();
        self.weights.fetches.leave(&waits);
        self.begin_fetches();
    }

    /// Handles the plan of a snapshot's environment.
    pub(super) fn on_planned(&mut self, model: String, snapshot: SnapshotDigest, plan: Result<Plan, Failure>) {
        let waits = (model, snapshot);
        if !self.preparation.builds.planning.remove(&waits) {
            return;
        }
        match plan {
            Ok(Plan::Ready(environment)) => {
                self.environment_ready(waits.1, environment);
            }
            Ok(Plan::Build(plan)) => self.build(waits, plan),
            Err(failure) => self.prepare_failed([waits.1], failure),
        }
    }

    /// A build said something.
    pub(super) fn on_build_line(&mut self, key: &EnvironmentKey, line: &str) {
        for snapshot in self.preparation.builds.add_line(key, line) {
            self.scheduler.send(FromLauncher::Progress { snapshot, line: line.to_owned() });
        }
    }

    /// A build ended.
    pub(super) fn on_build_ended(&mut self, key: &EnvironmentKey, ended: Ended) {
        self.build_ended(key, ended);
        self.begin_builds();
    }

    fn build_ended(&mut self, key: &EnvironmentKey, ended: Ended) {
        let Some(waiting) = self.preparation.builds.ended(key, &ended) else { return };
        let snapshots = waiting.snapshots();
        match ended {
            Ended::Built => {
                self.preparation.builds.late.forget(key);
                for snapshot in snapshots {
                    self.environment_ready(snapshot, key.clone());
                }
            }
            Ended::TimedOut(message) => {
                let (pause, evicted) = self.preparation.builds.late.add(
                    key,
                    &waiting.plan.model,
                    self.context.settings.config.python.build_timeout,
                );
                evicted.iter().for_each(|key| self.preparation.builder.discard(key));
                let after_ms = Some(u64::try_from(pause.as_millis()).unwrap_or(u64::MAX));
                let message = format!("{message}\nwhat was built is kept; the next try is in {}s", pause.as_secs());
                for snapshot in snapshots {
                    let message = shortened(message.clone());
                    self.weights.fetches.forget(&snapshot);
                    self.scheduler.send(FromLauncher::PrepareFailed { snapshot, message, permanent: false, after_ms });
                }
            }
            Ended::Failed(failure) => {
                if failure.permanent && self.preparation.builds.late.forget(key) {
                    self.preparation.builder.discard(key);
                }
                self.prepare_failed(snapshots, failure);
            }
            // A build from source goes on in another place, and a cancelled one has no waiters.
            Ended::NeedsSource | Ended::Cancelled => {}
        }
    }

    /// The content of a directory is another one: what was kept for builds that timed out is not needed.
    pub(super) fn forget_late_builds(&mut self, model: &str) {
        for key in self.preparation.builds.late.forget_model(model) {
            if !self.preparation.builds.has(&key) {
                self.preparation.builder.discard(&key);
            }
        }
    }

    fn build(&mut self, waits: (String, SnapshotDigest), plan: Box<BuildPlan>) {
        let snapshot = waits.1.clone();
        if let Some(waiting) = self.preparation.builds.join(&plan.key, &waits) {
            let (lines, stage) = (waiting.lines.clone(), waiting.told.clone());
            for line in lines {
                self.scheduler.send(FromLauncher::Progress { snapshot: snapshot.clone(), line });
            }
            if let Some(stage) = stage {
                self.scheduler.send(FromLauncher::Build { snapshot, stage });
            }
            return;
        }
        let (key, is_bare) = (plan.key.clone(), plan.is_bare());
        if let Err(full) = self.preparation.builds.add(plan, waits) {
            return self.prepare_failed([snapshot], Failure { message: full.to_string(), permanent: false });
        }
        if is_bare {
            self.begin_build(&key, None);
        }
        self.begin_builds();
    }

    /// Begins the builds that there are places for, and sends the changed stages.
    pub(super) fn begin_builds(&mut self) {
        while let Some((key, place)) = self.preparation.builds.queue.begin_next() {
            self.begin_build(&key, Some(place));
        }
        for message in self.preparation.builds.take_changes() {
            self.scheduler.send(message);
        }
    }

    fn begin_build(&mut self, key: &EnvironmentKey, place: Option<Place>) {
        let Some((plan, cancelled)) = self.preparation.builds.begin(key) else { return };
        let from_source = place.is_some_and(|place| place.kind == Kind::Source);
        tracing::info!(environment = %key, model = plan.model, from_source, "building an environment");
        let (builder, events, key_of) =
            (Arc::clone(&self.preparation.builder), self.threads.events.clone(), key.clone());
        let run = move || {
            let mut line = |line: &str| {
                // Without a main loop the line has no recipient.
                let _ = events.send(Event::BuildLine { key: key_of.clone(), line: line.to_owned() });
            };
            let ended = builder.build(&plan, place, &cancelled, &mut line);
            log_end(&plan, &ended);
            let _ = events.send(Event::BuildEnded { key: key_of, ended });
        };
        if let Err(error) = thread::Builder::new().name("build".into()).spawn(run) {
            let message = format!("the node has no thread to build the environment in: {error}");
            self.build_ended(key, Ended::Failed(Failure { message, permanent: false }));
        }
    }

    pub(super) fn prepare_failed(&mut self, snapshots: impl IntoIterator<Item = SnapshotDigest>, failure: Failure) {
        let Failure { message, permanent } = failure;
        let message = shortened(message);
        for snapshot in snapshots.into_iter().collect::<BTreeSet<_>>() {
            self.weights.fetches.forget(&snapshot);
            self.scheduler.send(FromLauncher::PrepareFailed {
                snapshot,
                message: message.clone(),
                permanent,
                after_ms: None,
            });
        }
    }
}
