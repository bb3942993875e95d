//! Handle of the launcher, for models and the node.

use crate::error::LauncherError;
use crate::events::ModelEvent;
use crate::metrics::PreparationMetrics;
use crate::routes::{NodeFiles, Route, Routes};
use omni_config::name::ModelName;
use omni_node_protocol::id::{InstanceId, SnapshotDigest};
use omni_node_protocol::launcher::{OPEN_WEIGHTS_SINCE, StartSpec, ToLauncher, VERSIONS, WeightsPlace, WeightsRequest};
use omni_task::Mailbox;
use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tokio::sync::{Notify, mpsc, oneshot, watch};

/// Capacity of the outbox.
const OUTBOX: usize = 1024;

/// Request for the environment and the weights of a content.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EnvironmentRequest {
    /// Model that it is for.
    pub model: ModelName,
    /// Content that it is for.
    pub snapshot: SnapshotDigest,
    /// Version of Python.
    pub python: String,
    /// Interpreter of the model's choice, instead of one of the node's.
    pub interpreter: Option<PathBuf>,
    /// Every requirement must have a hash.
    pub require_hashes: bool,
    /// Weights to fetch.
    pub weights: Option<WeightsRequest>,
}

/// Handle of the launcher. Clones share it.
#[derive(Debug, Clone)]
pub struct LauncherHandle {
    pub(crate) outbox: mpsc::Sender<ToLauncher>,
    routes: Arc<Mutex<Routes>>,
    pub(crate) connected: Arc<watch::Sender<bool>>,
    /// Notified when kept snapshots have changed.
    pub(crate) keep_changed: Arc<Notify>,
    /// Notified when another scheduler takes the launcher over.
    pub(crate) detached: Arc<Notify>,
    pub(crate) metrics: PreparationMetrics,
}

impl LauncherHandle {
    /// Handle of a launcher that is not connected yet, and the messages to it.
    pub(crate) fn new(routes: Routes, metrics: PreparationMetrics) -> (Self, mpsc::Receiver<ToLauncher>) {
        let (outbox, commands) = mpsc::channel(OUTBOX);
        let routes = Arc::new(Mutex::new(routes));
        let connected = Arc::new(watch::Sender::new(false));
        let (keep_changed, detached) = (Arc::default(), Arc::default());
        (Self { outbox, routes, connected, keep_changed, detached, metrics }, commands)
    }

    /// Protocol version of a launcher that is older than this scheduler: it was not replaced yet.
    #[must_use]
    pub fn old_protocol(&self) -> Option<u32> {
        let routes = self.routes();
        routes.version.filter(|version| self.connected() && *version < VERSIONS.newest)
    }

    /// Tests that the launcher is connected and has answered.
    #[must_use]
    pub fn connected(&self) -> bool {
        *self.connected.borrow()
    }

    /// Requests an environment; the reply goes into the mailbox.
    ///
    /// # Errors
    /// The launcher cannot be asked: no reply will come.
    pub fn prepare(&self, request: EnvironmentRequest, mailbox: &Mailbox<ModelEvent>) -> Result<(), LauncherError> {
        let EnvironmentRequest { model, snapshot, python, interpreter, require_hashes, weights } = request;
        self.routes().preparing.entry(snapshot.clone()).or_default().push(mailbox.clone());
        let interpreter = interpreter.map(|path| path.to_string_lossy().into_owned());
        let (model, content) = (model.into(), snapshot.clone());
        let message = ToLauncher::Prepare { model, snapshot: content, python, interpreter, require_hashes, weights };
        if !self.connected() || self.outbox.try_send(message).is_err() {
            self.routes().stop_waiting(&snapshot, mailbox);
            return Err(LauncherError::Silent);
        }
        Ok(())
    }

    /// Cancels the request of a model for an environment: no reply goes into the mailbox.
    pub fn cancel_preparation(&self, model: &ModelName, snapshot: &SnapshotDigest, mailbox: &Mailbox<ModelEvent>) {
        let mut routes = self.routes();
        routes.stop_waiting(snapshot, mailbox);
        if routes.version.is_some() {
            let (model, snapshot) = (model.as_str().to_owned(), snapshot.clone());
            let _ = self.outbox.try_send(ToLauncher::Unprepare { model, snapshot }); // or it ends with the connection
        }
    }

    /// Requests an instance; its events go into the mailbox.
    ///
    /// # Errors
    /// The launcher cannot be asked: there is no instance, and no reply will come.
    pub fn start_instance(&self, spec: StartSpec, mailbox: Mailbox<ModelEvent>) -> Result<(), LauncherError> {
        let id = spec.instance.clone();
        self.routes().instances.insert(id.clone(), Route { mailbox, requested: true });
        if !self.connected() || self.outbox.try_send(ToLauncher::Start(Box::new(spec))).is_err() {
            self.routes().instances.remove(&id);
            return Err(LauncherError::Silent);
        }
        Ok(())
    }

    /// Requests the files of a snapshot that the node itself reads. The reply never comes if the launcher is lost.
    ///
    /// # Errors
    /// The launcher cannot be asked.
    pub fn open_files(&self, snapshot: &SnapshotDigest) -> Result<oneshot::Receiver<NodeFiles>, LauncherError> {
        let (reply, files) = oneshot::channel();
        self.routes().opening.entry(snapshot.clone()).or_default().push(reply);
        let message = ToLauncher::OpenFiles { snapshot: snapshot.clone() };
        if !self.connected() || self.outbox.try_send(message).is_err() {
            self.routes().opening.remove(snapshot);
            return Err(LauncherError::Silent);
        }
        Ok(files)
    }

    /// Requests the files of the weights of a content that the node itself reads; `None`: the weights are not on the node, or
    /// the launcher is of a release that opens none. The reply never comes if the launcher is lost.
    ///
    /// # Errors
    /// The launcher cannot be asked.
    pub fn open_weights(
        &self,
        snapshot: &SnapshotDigest,
        weights: WeightsPlace,
    ) -> Result<oneshot::Receiver<Option<NodeFiles>>, LauncherError> {
        let (reply, files) = oneshot::channel();
        let mut routes = self.routes();
        if routes.version.is_some_and(|version| version < OPEN_WEIGHTS_SINCE) {
            let _ = reply.send(None); // it knows no such request
            return Ok(files);
        }
        routes.opening_weights.entry(snapshot.clone()).or_default().push(reply);
        let message = ToLauncher::OpenWeights { snapshot: snapshot.clone(), weights };
        if !self.connected() || self.outbox.try_send(message).is_err() {
            routes.opening_weights.remove(snapshot);
            return Err(LauncherError::Silent);
        }
        Ok(files)
    }

    /// Replaces the snapshots of a model that are not removed, though no instance runs from them.
    pub fn keep(&self, model: &ModelName, snapshots: BTreeSet<SnapshotDigest>) {
        self.routes().keep(model, snapshots);
        self.keep_changed.notify_one();
    }

    /// Sends the events of an adopted instance into the mailbox.
    pub fn watch(&self, id: InstanceId, mailbox: Mailbox<ModelEvent>) {
        self.routes().instances.insert(id, Route { mailbox, requested: false });
    }

    /// Requests the end of an instance whose worker does not answer.
    pub fn kill(&self, instance: InstanceId) {
        let _ = self.outbox.try_send(ToLauncher::Kill { instance });
    }

    /// Requests the end of a model's zygotes without instances.
    pub fn end_zygotes(&self, model: &str) {
        if self.routes().version.is_some() {
            let _ = self.outbox.try_send(ToLauncher::EndZygotes { model: model.to_owned() });
        }
    }

    /// Ends the connection for good: the launcher has one scheduler, which is another one from now on.
    pub fn detach(&self) {
        self.detached.notify_one();
    }

    pub(crate) fn routes(&self) -> MutexGuard<'_, Routes> {
        self.routes.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(any(test, feature = "testing"))]
pub(crate) mod testing {
    use super::{LauncherHandle, PreparationMetrics, Routes};
    use omni_node_protocol::launcher::ToLauncher;
    use tokio::sync::mpsc;

    /// Handle of a connected launcher, and the messages to it. The test sends events into the models' mailboxes itself.
    #[must_use]
    pub fn launcher() -> (LauncherHandle, mpsc::Receiver<ToLauncher>) {
        let (handle, messages) = LauncherHandle::new(Routes::default(), PreparationMetrics::default());
        handle.connected.send_replace(true);
        (handle, messages)
    }
}
