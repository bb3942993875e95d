//! Routing state of the connection: who waits for which reply, and what the launcher has been told.

use crate::events::ModelEvent;
use omni_config::name::ModelName;
use omni_node_protocol::id::{InstanceId, SnapshotDigest};
use omni_node_protocol::launcher::{Serves, ToLauncher};
use omni_task::Mailbox;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fs::File;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use tokio::sync::oneshot;

/// Files of a snapshot, or of the folder of a content's weights, that the node itself reads, by their names.
pub type NodeFiles = Arc<BTreeMap<String, File>>;

/// State shared by the handle and the task of the connection.
#[derive(Debug, Default)]
pub(crate) struct Routes {
    /// Models that wait for an environment, by content; models of equal content wait together.
    pub(crate) preparing: HashMap<SnapshotDigest, Vec<Mailbox<ModelEvent>>>,
    pub(crate) instances: HashMap<InstanceId, Route>,
    /// Waiters for the files of snapshots.
    pub(crate) opening: HashMap<SnapshotDigest, Vec<oneshot::Sender<NodeFiles>>>,
    /// Waiters for the files of the weights of contents.
    pub(crate) opening_weights: HashMap<SnapshotDigest, Vec<oneshot::Sender<Option<NodeFiles>>>>,
    /// Snapshots that models may return to.
    kept: BTreeMap<ModelName, BTreeSet<SnapshotDigest>>,
    /// Models whose kept snapshots were not sent to the launcher yet.
    unsent: BTreeSet<ModelName>,
    /// The launcher was asked to end: the loss of the connection is expected.
    pub(crate) quitting: bool,
    /// Models and configuration that the launcher must have been started with; `None` in tests.
    pub(crate) expected: Option<Serves>,
    /// Number of times that the launcher was asked to read the configuration again without having reported it since.
    pub(crate) renewals: u32,
    /// The launcher serves other models, and is not used.
    pub(crate) foreign: bool,
    /// Protocol version of the launcher, once it has reported it.
    pub(crate) version: Option<u32>,
}

/// Destination of the events of an instance.
#[derive(Debug, Clone)]
pub(crate) struct Route {
    pub(crate) mailbox: Mailbox<ModelEvent>,
    /// The launcher has not answered the request to start it yet.
    pub(crate) requested: bool,
}

impl Routes {
    /// Routes without waiters.
    pub(crate) fn new(expected: Option<Serves>, kept: BTreeMap<ModelName, BTreeSet<SnapshotDigest>>) -> Self {
        Self { kept, expected, ..Self::default() }
    }

    /// Replaces the snapshots that a model may return to.
    pub(crate) fn keep(&mut self, model: &ModelName, snapshots: BTreeSet<SnapshotDigest>) {
        if snapshots.is_empty() {
            self.kept.remove(model);
        } else {
            self.kept.insert(model.clone(), snapshots);
        }
        self.unsent.insert(model.clone());
    }

    /// Messages about kept snapshots for a launcher that knows none.
    pub(crate) fn keep_all(&mut self) -> Vec<ToLauncher> {
        self.unsent = self.kept.keys().cloned().collect();
        let mut keep = self.keep_changed();
        keep.push(ToLauncher::KeptAll);
        keep
    }

    /// Messages about kept snapshots that have changed since the last call.
    pub(crate) fn keep_changed(&mut self) -> Vec<ToLauncher> {
        let models = std::mem::take(&mut self.unsent).into_iter();
        let keep = |model: ModelName| {
            let snapshots = self.kept.get(&model).cloned().unwrap_or_default();
            ToLauncher::Keep { model: model.into(), snapshots }
        };
        models.map(keep).collect()
    }

    /// Removes a model from those that wait for an environment. Models of equal content go on waiting.
    pub(crate) fn stop_waiting(&mut self, snapshot: &SnapshotDigest, mailbox: &Mailbox<ModelEvent>) {
        if let Some(waiting) = self.preparing.get_mut(snapshot) {
            waiting.retain(|other| !other.same_inbox(mailbox));
        }
        self.preparing.retain(|_, waiting| !waiting.is_empty());
    }

    /// Mailboxes of the models that wait for an environment.
    pub(crate) fn waiting(&self, snapshot: &SnapshotDigest) -> Vec<Mailbox<ModelEvent>> {
        self.preparing.get(snapshot).cloned().unwrap_or_default()
    }

    /// Removes and returns them: their reply has come.
    pub(crate) fn take_waiting(&mut self, snapshot: &SnapshotDigest) -> Vec<Mailbox<ModelEvent>> {
        self.preparing.remove(snapshot).unwrap_or_default()
    }

    /// Passes the files of a snapshot on to those that wait for them.
    pub(crate) fn on_files(&mut self, snapshot: &SnapshotDigest, names: Vec<String>, files: Vec<OwnedFd>) {
        let files = by_name(names, files);
        for waiter in self.opening.remove(snapshot).unwrap_or_default() {
            let _ = waiter.send(Arc::clone(&files)); // or it waits no longer
        }
    }

    /// Passes the files of the weights of a content on to those that wait for them.
    pub(crate) fn on_weights_files(
        &mut self,
        snapshot: &SnapshotDigest,
        names: Option<Vec<String>>,
        files: Vec<OwnedFd>,
    ) {
        let files = names.map(|names| by_name(names, files));
        for waiter in self.opening_weights.remove(snapshot).unwrap_or_default() {
            let _ = waiter.send(files.clone()); // or it waits no longer
        }
    }

    /// Ends the wait for files: the launcher is lost.
    pub(crate) fn clear_openings(&mut self) {
        self.opening.clear();
        self.opening_weights.clear();
    }

    /// Instances whose start an earlier launcher was asked for and may have carried out.
    pub(crate) fn unanswered(&self) -> Vec<InstanceId> {
        self.instances.iter().filter(|(_, route)| route.requested).map(|(id, _)| id.clone()).collect()
    }
}

fn by_name(names: Vec<String>, files: Vec<OwnedFd>) -> NodeFiles {
    Arc::new(names.into_iter().zip(files.into_iter().map(File::from)).collect())
}
