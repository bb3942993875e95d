//! Task that owns the set of models: handles the launcher's reports about directories, and forgets models that were
//! removed long ago.

use super::Node;
use super::content_checks::{Checked, ContentChecks};
use crate::model::Message;
use crate::model::content::{Content, Unservable};
use omni_config::Foreign;
use omni_config::name::ModelName;
use omni_launcher_client::LauncherEvent;
use omni_log::Kind;
use omni_node_protocol::id::SnapshotDigest;
use omni_store::{PersistedState, age_removed, expired};
use omni_task::Heartbeat;
use std::collections::BTreeSet;
use std::sync::{Arc, PoisonError};
use std::time::{Duration, Instant};
use tokio::sync::mpsc;

/// Interval of the search for models that were removed long ago.
const FORGET_EVERY: Duration = Duration::from_mins(10);

/// Handles reports until the sender is gone.
pub(super) async fn follow(node: Arc<Node>, mut reports: mpsc::Receiver<LauncherEvent>, heartbeat: Heartbeat) {
    let checks = ContentChecks::new(node.parts.check);
    let mut directories = Directories { node, reported: BTreeSet::new(), checks, scan_ended: false };
    let mut forgotten_at = Instant::now();
    loop {
        let step = heartbeat.during(async {
            tokio::select! {
                report = reports.recv() => report.map(Step::Report),
                checked = directories.checks.next() => Some(Step::Checked(checked)),
                () = tokio::time::sleep(FORGET_EVERY) => Some(Step::Forget),
            }
        });
        let Some(step) = step.await else { return };
        let passed = forgotten_at.elapsed();
        if passed >= FORGET_EVERY {
            forgotten_at += passed;
            directories.node.forget_expired(passed);
        }
        match step {
            Step::Report(event) => directories.on_event(event).await,
            Step::Checked(checked) => directories.on_checked(checked).await,
            Step::Forget => {}
        }
    }
}

/// Cause of a turn.
enum Step {
    /// A report of the launcher.
    Report(LauncherEvent),
    /// A content whose files were checked.
    Checked(Checked),
    /// Time to look for models that were removed long ago.
    Forget,
}

struct Directories {
    node: Arc<Node>,
    /// Models reported since the launcher was last connected. Those that are missing at the end of its scan are gone.
    reported: BTreeSet<ModelName>,
    /// Checks of contents that have not reached their models.
    checks: ContentChecks,
    /// The launcher's scan has ended; handled when no check runs.
    scan_ended: bool,
}

impl Directories {
    async fn on_event(&mut self, event: LauncherEvent) {
        match event {
            LauncherEvent::UnknownInstance { instance } => self.node.on_unknown_instance(instance),
            _ if self.node.draining() || self.is_ignored(&event) => {}
            LauncherEvent::Model { name, snapshot, manifest } => self.on_model(name, snapshot, manifest).await,
            LauncherEvent::Refused { name, message, no_model } => self.on_refused(name, message, no_model).await,
            LauncherEvent::Gone { name } => {
                self.node.not_served.remove(&name);
                if let Ok(name) = ModelName::try_from(name) {
                    self.checks.supersede(&name);
                    self.reported.remove(&name);
                    self.remove(&name).await;
                }
            }
            LauncherEvent::Scanned => self.scan_ended = true,
            LauncherEvent::Lost => {
                self.checks.clear();
                self.scan_ended = false;
                self.reported.clear();
                self.node.not_served.clear();
            }
        }
        self.end_scan().await;
    }

    /// Handles a content whose files were checked.
    async fn on_checked(&mut self, Checked { name, content }: Checked) {
        if !self.node.draining() {
            self.pass_on(&name, content).await;
        }
        self.end_scan().await;
    }

    /// Handles the end of the launcher's scan, once every content has reached its model.
    async fn end_scan(&mut self) {
        if self.checks.is_empty() && std::mem::take(&mut self.scan_ended) {
            self.on_scanned().await;
        }
    }

    /// Tests that a report has no effect: a node of a single model takes its directory once, and later changes are for
    /// the next scheduler.
    fn is_ignored(&self, event: &LauncherEvent) -> bool {
        let Some(single) = self.node.single() else { return false };
        match event {
            LauncherEvent::Model { name, .. } | LauncherEvent::Refused { name, .. } => {
                self.node.scanned() || name != single.name.as_str()
            }
            LauncherEvent::Gone { .. } => true,
            LauncherEvent::Scanned => self.node.scanned(),
            LauncherEvent::UnknownInstance { .. } | LauncherEvent::Lost => false,
        }
    }

    async fn on_model(&mut self, name: String, snapshot: SnapshotDigest, manifest: Option<String>) {
        let name = match ModelName::try_from(name) {
            Ok(name) => name,
            Err(error) => return tracing::warn!(%error, "a directory's name is no model's name"),
        };
        let content = self.node.content(&name, snapshot.clone(), manifest).and_then(Content::sendable);
        self.reported.insert(name.clone());
        match content {
            Ok(content) if ContentChecks::concerns(&content) => {
                self.checks.start(name, Box::new(content), &self.node.launcher);
            }
            content => {
                self.checks.supersede(&name);
                let unservable = |message| Unservable { snapshot: Some(snapshot), message };
                self.pass_on(&name, content.map(Box::new).map_err(unservable)).await;
            }
        }
    }

    /// Passes a content of a directory on to its model.
    async fn pass_on(&self, name: &ModelName, content: Result<Box<Content>, Unservable>) {
        if let Err(Unservable { message, .. }) = &content {
            let message_id = Kind::ModelRefused.id();
            tracing::warn!(message_id, model = %name, "content refused: {}", Foreign(message));
        }
        let _ = self.node.add(name).send(Message::Content(content)).await;
    }

    /// Handles a directory that is not served: a model whose content is refused, or no model at all.
    async fn on_refused(&mut self, directory: String, message: String, no_model: bool) {
        match ModelName::try_from(directory.clone()) {
            Ok(name) if !no_model => {
                self.checks.supersede(&name);
                self.node.not_served.remove(&directory);
                let message_id = Kind::ModelRefused.id();
                tracing::warn!(message_id, model = %name, "directory refused: {}", Foreign(&message));
                let unservable = Unservable { snapshot: None, message };
                let _ = self.node.add(&name).send(Message::Content(Err(unservable))).await;
                self.reported.insert(name);
            }
            name => {
                // Quoted, since any user may have named it.
                tracing::warn!(directory = ?directory, "not served: {}", Foreign(&message));
                self.node.not_served.insert(directory, message);
                if let Ok(name) = name {
                    self.checks.supersede(&name);
                    if self.reported.remove(&name) {
                        self.remove(&name).await;
                    }
                }
            }
        }
    }

    /// Handles the end of the launcher's scan: removes the models whose directories were not reported.
    async fn on_scanned(&mut self) {
        if let Some(single) = self.node.single()
            && self.reported.insert(single.name.clone())
        {
            let message = format!("the launcher that runs was not started with `--model {}`", single.dir.display());
            let unservable = Unservable { snapshot: None, message };
            let _ = self.node.add(&single.name).send(Message::Content(Err(unservable))).await;
        }
        for model in self.node.models() {
            if !self.reported.contains(&model.name) {
                self.remove(&model.name).await;
            }
        }
        self.node.retire_unreported();
        self.node.scanned.send_replace(true);
    }

    /// Takes a model out of the set at once; its actor drains it and ends.
    async fn remove(&self, name: &ModelName) {
        let removed = self.node.models.write().unwrap_or_else(PoisonError::into_inner).remove(name);
        if let Some(model) = removed {
            tracing::info!(model = %name, "model removed");
            self.node.retire(name, model.retire().unwrap_or_default());
            let _ = model.send(Message::Removed).await;
        }
    }
}

impl Node {
    /// Keeps the versions of a model whose directory is gone, for a while.
    fn retire(&self, name: &ModelName, state: PersistedState) {
        let left = state.after_removal();
        self.parts.store.put(name, left.clone());
        self.launcher.keep(name, left.as_ref().map(PersistedState::snapshots).unwrap_or_default());
        if let Some(left) = left {
            self.dormant.lock().unwrap_or_else(PoisonError::into_inner).insert(name.clone(), left);
        }
    }

    /// Retires the models that an earlier scheduler knew and whose directories are gone by the first scan.
    fn retire_unreported(&self) {
        let unreported = std::mem::take(&mut *self.dormant.lock().unwrap_or_else(PoisonError::into_inner));
        for (name, state) in unreported {
            self.retire(&name, state);
        }
    }

    /// Ages the state of removed models by `passed`, and forgets what is too old.
    fn forget_expired(&self, passed: Duration) {
        let mut dormant = self.dormant.lock().unwrap_or_else(PoisonError::into_inner);
        for name in age_removed(&mut dormant, passed) {
            self.parts.store.put(&name, dormant.get(&name).cloned());
        }
        for name in expired(&dormant) {
            dormant.remove(&name);
            self.parts.store.put(&name, None);
            self.launcher.keep(&name, BTreeSet::new());
        }
    }
}
