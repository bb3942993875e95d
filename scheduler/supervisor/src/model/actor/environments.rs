//! Environments of the model's contents: requested from the launcher, and reports about their builds.

use super::ModelActor;
use crate::clock::unix_ms;
use crate::model::Message;
use omni_config::Foreign;
use omni_control_api as api;
use omni_launcher_client::{LauncherError, ModelEvent};
use omni_node_protocol::id::{EnvironmentKey, SnapshotDigest};
use omni_node_protocol::launcher::{BuildStage, Holder, WeightsStage};
use omni_policy::Generation;
use omni_policy::fleet::{Event, StartState};
use omni_request_error::BuildProgress;
use omni_task::Mailbox;
use std::time::Duration;
use tokio::sync::mpsc;

impl ModelActor {
    /// Requests the environment of a generation.
    pub(super) fn prepare(&mut self, generation: Generation) {
        let Some(info) = self.generations.get_mut(generation) else { return };
        info.begin_preparation(self.now);
        let Some(mailbox) = mailbox(&self.inbox) else { return };
        let request = info.content.environment_request(&self.model.name);
        if let Err(error) = self.services.launcher.prepare(request, &mailbox) {
            info.end_preparation(api::Preparation::Failed);
            info.message = Some(error.to_string());
            self.event(Event::LauncherUnavailable { generation, instance: None });
        }
    }

    /// Cancels the request for the environment of a generation.
    pub(super) fn cancel_preparation(&mut self, generation: Generation) {
        let Some(info) = self.generations.get_mut(generation) else { return };
        info.give_up_preparation();
        if let Some(mailbox) = mailbox(&self.inbox) {
            self.services.launcher.cancel_preparation(&self.model.name, &info.content.snapshot, &mailbox);
        }
    }

    /// Cancels what an earlier scheduler may have requested: the launcher, which goes on over an upgrade, may still build
    /// or fetch it.
    pub(super) fn cancel_earlier_preparations(&mut self) {
        let unknown = self.generations.iter().filter(|(_, info)| info.preparation.is_none());
        let unknown: Vec<_> = unknown.map(|(generation, _)| generation).collect();
        unknown.into_iter().for_each(|generation| self.cancel_preparation(generation));
    }

    /// Handles an event of the launcher.
    pub(super) fn on_launcher_event(&mut self, event: ModelEvent) {
        match event {
            ModelEvent::BuildLine(snapshot, line) => self.on_build_line(&snapshot, line),
            ModelEvent::BuildStage(snapshot, stage) => self.on_build_stage(&snapshot, stage),
            ModelEvent::WeightsStage(snapshot, stage) => self.on_weights_stage(&snapshot, stage),
            ModelEvent::Prepared(snapshot, environment) => self.on_prepared(&snapshot, environment),
            ModelEvent::PrepareFailed { snapshot, message, permanent, after } => {
                self.on_prepare_failed(&snapshot, message, permanent, after);
            }
            ModelEvent::WorkerStarted(id) => self.on_worker_started(id),
            ModelEvent::StartNotRequested(id) => self.on_start_not_requested(&id),
            ModelEvent::StartFailed(id, message) => self.on_start_failed(&id, message),
            ModelEvent::WorkerExited(id, cause) => self.on_worker_exited(&id, cause),
            ModelEvent::Lost => {
                self.generations.end_preparations(&LauncherError::Silent.to_string());
                self.event(Event::LauncherLost);
            }
        }
    }

    fn on_prepared(&mut self, snapshot: &SnapshotDigest, environment: EnvironmentKey) {
        let Some(generation) = self.generations.find(snapshot) else { return };
        if let Some(info) = self.generations.get_mut(generation) {
            let time = self.now.saturating_sub(info.prepare_requested_at);
            self.model.metrics.prepare.observe(time.as_secs_f64());
            info.prepared = Some((info.prepare_requested_at, self.now));
            info.environment = Some(environment);
            info.end_preparation(api::Preparation::Done);
        }
        self.versions.on_prepared(snapshot);
        self.event(Event::Prepared(generation));
    }

    /// A build failed; `after` is the least pause after one that timed out.
    fn on_prepare_failed(
        &mut self,
        snapshot: &SnapshotDigest,
        message: String,
        permanent: bool,
        after: Option<Duration>,
    ) {
        let Some(generation) = self.generations.find(snapshot) else { return };
        if let Some(info) = self.generations.get_mut(generation) {
            self.versions.on_prepare_failed(snapshot, &message);
            info.message = Some(message);
            info.end_preparation(api::Preparation::Failed);
        }
        self.event(match after {
            Some(after) => Event::PrepareTimedOut { generation, after },
            None => Event::PrepareFailed { generation, permanent },
        });
    }

    fn on_build_stage(&mut self, snapshot: &SnapshotDigest, stage: BuildStage) {
        let Some(generation) = self.generations.find(snapshot) else { return };
        let Some(info) = self.generations.get_mut(generation) else { return };
        if let BuildStage::Waits { kind, holders, .. } = &stage {
            let holders = names(holders);
            tracing::info!(model = %self.model.name, ?kind, holders, "waits for a place to build its environment");
        }
        info.on_build(stage);
        self.publish();
    }

    fn on_weights_stage(&mut self, snapshot: &SnapshotDigest, stage: WeightsStage) {
        let Some(generation) = self.generations.find(snapshot) else { return };
        let Some(info) = self.generations.get_mut(generation) else { return };
        info.on_weights(stage);
        self.publish();
    }

    /// Takes a line of a build: the newest are shown with the model's state, and its log has them all.
    fn on_build_line(&mut self, snapshot: &SnapshotDigest, text: String) {
        let Some(generation) = self.generations.find(snapshot) else { return };
        let Some(info) = self.generations.get_mut(generation) else { return };
        info.push_build_line(text.clone());
        self.publish();
        let unix_ms = unix_ms();
        tracing::info!(target: omni_log::MODEL, model = %self.model.name, stream = "build", "{}", Foreign(&text));
        let (instance, stream, request_id) = (String::new(), "build".to_owned(), None);
        self.model.logs.push(api::LogEntry { unix_ms, instance, stream, request_id, text });
    }

    /// Progress of the build that requests wait for.
    pub(super) fn build_progress(&self) -> Option<BuildProgress> {
        let fleet = &self.lifecycle.fleet;
        let is_preparing = |serving: &Generation| fleet.start_state(*serving) == Some(StartState::Preparing);
        let info = self.generations.get(fleet.serving().filter(is_preparing)?)?;
        match &info.build {
            Some(BuildStage::Waits { .. }) => Some(BuildProgress::Queued),
            Some(BuildStage::Runs { .. }) => Some(BuildProgress::Running),
            None => info.weights.map(|_| BuildProgress::Fetching),
        }
    }
}

/// Mailbox of the actor for events of the launcher; `None` when the actor ends.
pub(super) fn mailbox(inbox: &mpsc::WeakSender<Message>) -> Option<Mailbox<ModelEvent>> {
    Some(Mailbox::new(inbox.upgrade()?, Message::Launcher))
}

fn names(holders: &[Holder]) -> String {
    holders.iter().map(|holder| holder.model.as_str()).collect::<Vec<_>>().join(", ")
}
