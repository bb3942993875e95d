//! The node: the set of its models, and what they share.
//!
//! One task ([`directories`]) owns the set. It makes a model's actor when a directory or a surviving instance is seen, and
//! passes the launcher's reports on. HTTP reads the set through [`Node::find`].

mod adoption;
mod content_checks;
mod directories;
mod not_served;
mod predecessor;
mod shutdown;
mod succession;
mod successor;

pub use content_checks::ContentCheck;
pub use not_served::NotServed;
pub use predecessor::UnfinishedWork;
pub use succession::Ownership;
pub use successor::SuccessorHandle;

use crate::clock::Clock;
use crate::metrics::NodeMetrics;
use crate::model::content::Content;
use crate::model::services::{Activity, ModelServices};
use crate::model::{self, Model};
use omni_body::BodyBudget;
use omni_capacity::CapacityHandle;
use omni_config::name::ModelName;
use omni_config::node::NodeConfig;
use omni_config::{Models, SingleModel};
use omni_control_api::State;
use omni_gpu::GpuHandle;
use omni_launcher_client::LauncherHandle;
use omni_node_protocol::id::{InstanceId, SnapshotDigest};
use omni_node_protocol::launcher::Serves;
use omni_store::{PersistedState, StateStore};
use omni_task::Watchdog;
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::time::Duration;
use tokio::sync::{mpsc, watch};

/// Longest wait for the launcher's first scan of the directories, by a request for a model that is not known yet.
const FIRST_SCAN: Duration = Duration::from_secs(5);
/// Capacity of the queue of the launcher's reports.
const REPORTS: usize = 256;

/// Reason why the node has no model of a name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NotFound {
    /// There is no such model.
    NoSuchModel,
    /// The models folder was not read in time, or is gone.
    NotRead,
}

/// Parts that a node is built from.
#[derive(Debug)]
pub struct NodeParts {
    /// Configuration.
    pub config: Arc<NodeConfig>,
    /// Clock of the policies.
    pub clock: Clock,
    /// Directories of the models.
    pub models: Models,
    /// Directory of the sockets.
    pub runtime_dir: PathBuf,
    /// Metrics of models.
    pub metrics: NodeMetrics,
    /// GPUs.
    pub gpu: GpuHandle,
    /// Capacity for instances.
    pub capacity: CapacityHandle,
    /// State of models that outlives this scheduler.
    pub store: Arc<StateStore>,
    /// Watchdog of the tasks.
    pub watchdog: Watchdog,
    /// Memory for the bodies of requests and responses.
    pub budget: Arc<BodyBudget>,
    /// Check of the files of contents that the node itself reads.
    pub check: ContentCheck,
}

/// The set of models.
#[derive(Debug)]
pub struct Node {
    parts: NodeParts,
    /// Launcher.
    pub launcher: LauncherHandle,
    models: RwLock<BTreeMap<ModelName, Arc<Model>>>,
    /// State of models that have no actor yet, or whose directory was removed not long ago.
    dormant: Mutex<BTreeMap<ModelName, PersistedState>>,
    /// Directories of the models folder that are not served.
    pub not_served: NotServed,
    activity: Arc<Activity>,
    scanned: watch::Sender<bool>,
    draining: AtomicBool,
    /// The models were handed over, or are about to be.
    handed_over: AtomicBool,
    successor: watch::Sender<Option<SuccessorHandle>>,
    /// Instances whose sockets existed when this scheduler started; `None` when the directory could not be read.
    found: Mutex<Option<BTreeSet<InstanceId>>>,
    predecessor: adoption::Predecessor,
}

impl Node {
    /// Adopts surviving instances, connects to the launcher and serves what it reports. `persisted`: state of the models
    /// that an earlier scheduler stored. `unfinished`: work of a predecessor that still runs.
    pub async fn start(
        parts: NodeParts,
        persisted: BTreeMap<ModelName, PersistedState>,
        unfinished: Option<UnfinishedWork>,
    ) -> Arc<Self> {
        let (sender, reports) = mpsc::channel(REPORTS);
        let launcher = connect(&parts, &persisted, sender);
        let is_single = parts.models.single().is_some();
        // A single model returns to no other version, and the stored state of others is not touched.
        let dormant = if is_single { BTreeMap::new() } else { persisted };
        let handed = unfinished.as_ref().map(|work| work.handed.clone()).unwrap_or_default();
        let node = Arc::new(Self {
            parts,
            launcher,
            models: RwLock::default(),
            dormant: Mutex::new(dormant),
            not_served: NotServed::default(),
            activity: Arc::default(),
            scanned: watch::Sender::new(false),
            draining: AtomicBool::new(false),
            handed_over: AtomicBool::new(false),
            successor: watch::Sender::new(None),
            found: Mutex::default(),
            predecessor: adoption::Predecessor::new(unfinished),
        });
        node.adopt_all(&handed).await;
        let (owner, heartbeat) = (Arc::clone(&node), node.parts.watchdog.heartbeat("the set of models"));
        heartbeat.spawn(|heartbeat| directories::follow(owner, reports, heartbeat));
        node
    }

    /// Model of this name.
    #[must_use]
    pub fn find(&self, name: &str) -> Option<Arc<Model>> {
        self.models.read().unwrap_or_else(PoisonError::into_inner).get(name).cloned()
    }

    /// All models, sorted by name.
    #[must_use]
    pub fn models(&self) -> Vec<Arc<Model>> {
        self.models.read().unwrap_or_else(PoisonError::into_inner).values().cloned().collect()
    }

    /// The only model, on a node that serves one.
    #[must_use]
    pub fn single(&self) -> Option<&SingleModel> {
        self.parts.models.single()
    }

    /// Cards of the node, and the instances that have a place on them.
    #[must_use]
    pub fn gpus(&self) -> omni_control_api::Gpus {
        self.parts.gpu.view()
    }

    /// State of models that outlives this scheduler.
    #[must_use]
    pub fn store(&self) -> &StateStore {
        &self.parts.store
    }

    /// Returns whether every directory was reported once.
    #[must_use]
    pub fn scanned(&self) -> bool {
        *self.scanned.borrow()
    }

    /// Waits until every directory was reported once.
    pub async fn whole_scan(&self) {
        let _ = self.scanned.subscribe().wait_for(|scanned| *scanned).await; // the sender is ours
    }

    /// Waits as [`Self::whole_scan`], within a bound: a node that has just started does not know its models yet. Returns
    /// true if every directory was reported by then.
    pub async fn first_scan(&self) -> bool {
        let mut scanned = self.scanned.subscribe();
        let waited = tokio::time::timeout(FIRST_SCAN, scanned.wait_for(|scanned| *scanned)).await;
        waited.is_ok_and(|scanned| scanned.is_ok())
    }

    /// Model of this name; during the first scan, after it.
    ///
    /// # Errors
    /// [`NotFound`] says whether that is final.
    pub async fn look_up(&self, name: &str) -> Result<Arc<Model>, NotFound> {
        if let Some(model) = self.find(name) {
            return Ok(model);
        }
        if !self.first_scan().await {
            return Err(NotFound::NotRead);
        }
        let why = if self.not_served.has_no_folder() { NotFound::NotRead } else { NotFound::NoSuchModel };
        self.find(name).ok_or(why)
    }

    /// Returns whether a single model is ready; a node of many is ready without any of them.
    #[must_use]
    pub fn single_is_ready(&self) -> bool {
        self.single().is_none_or(|single| {
            self.find(single.name.as_str()).is_some_and(|model| model.view().state == State::Ready)
        })
    }

    /// Time since which no model has requests; `None` while one has.
    #[must_use]
    pub fn idle_since(&self) -> Option<u64> {
        self.activity.idle_since()
    }

    /// Returns whether the node is shutting down.
    #[must_use]
    pub fn draining(&self) -> bool {
        self.draining.load(Ordering::Acquire)
    }

    /// Returns the model of this name, with a new actor if it has none.
    fn add(&self, name: &ModelName) -> Arc<Model> {
        let mut models = self.models.write().unwrap_or_else(PoisonError::into_inner);
        if let Some(model) = models.get(name)
            && !model.ended()
        {
            return Arc::clone(model);
        }
        let kept = usize::try_from(self.parts.config.logs.kept.bytes()).unwrap_or(usize::MAX);
        let persisted = self.dormant.lock().unwrap_or_else(PoisonError::into_inner).remove(name).unwrap_or_default();
        let metrics = self.parts.metrics.of_model(name.as_str());
        let (model, ends) = model::new(
            name.clone(),
            kept,
            (metrics, self.parts.budget.share()),
            PersistedState { removed_for_ms: None, ..persisted.clone() },
        );
        model::actor::spawn(Arc::clone(&model), ends, persisted, self.services());
        models.insert(name.clone(), Arc::clone(&model));
        model
    }

    /// Services that a model uses.
    fn services(&self) -> ModelServices {
        let parts = &self.parts;
        ModelServices {
            clock: parts.clock,
            config: Arc::clone(&parts.config),
            runtime_dir: parts.runtime_dir.clone(),
            launcher: self.launcher.clone(),
            capacity: parts.capacity.clone(),
            gpu: parts.gpu.clone(),
            store: Arc::clone(&parts.store),
            activity: Arc::clone(&self.activity),
            watchdog: parts.watchdog.clone(),
        }
    }

    /// Content of a directory or an instance. A single model is kept running without requests.
    fn content(&self, name: &ModelName, snapshot: SnapshotDigest, text: Option<String>) -> Result<Content, String> {
        let content = Content::parse(name, snapshot, text, &self.parts.config)?;
        Ok(if self.single().is_some() { content.kept() } else { content })
    }
}

/// Starts the connection to the launcher, which ends idle zygotes when capacity is short.
fn connect(
    parts: &NodeParts,
    persisted: &BTreeMap<ModelName, PersistedState>,
    reports: mpsc::Sender<omni_launcher_client::LauncherEvent>,
) -> LauncherHandle {
    let kept = persisted.iter().map(|(model, state)| (model.clone(), state.snapshots())).collect();
    // A launcher that serves another single model is recognised by the directory that it reports.
    let folder = if parts.models.single().is_some() { Path::new("") } else { parts.models.path() };
    let models = folder.to_string_lossy().into_owned();
    let expected = Some(Serves { models, config: parts.config.of_launcher() });
    let socket = parts.runtime_dir.join("launcher.sock");
    let heartbeat = parts.watchdog.heartbeat("the connection to the launcher");
    let launcher = LauncherHandle::start(socket, expected, kept, parts.metrics.preparations(), reports, heartbeat);
    let zygotes = launcher.clone();
    parts.capacity.set_end_zygotes(move |model| zygotes.end_zygotes(model));
    launcher
}
