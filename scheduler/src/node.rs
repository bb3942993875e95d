//! The node: every model that the launcher sees, and what all of them share.
//!
//! One task owns the set of models. It makes a model's task when a directory (or a surviving instance) is seen, and
//! passes on what the launcher says of directories. HTTP reads the set through [`Node::find`].

mod adoption;
mod ending;
mod not_served;
mod succession;

pub use succession::Held;

use crate::metrics::Metrics;
use crate::model::content::{Content, Unservable};
use crate::model::services::{Activity, Clock, ModelServices};
use crate::model::{self, Message, Model};
use crate::takeover::{PredecessorWatch, SuccessorHandle, UnfinishedWork};
use not_served::{NotServed, refused};
use omni_body::BodyBudget;
use omni_capacity::CapacityHandle;
use omni_config::name::ModelName;
use omni_config::node::NodeConfig;
use omni_config::{Foreign, Models};
use omni_control_api::State;
use omni_gpu::GpuHandle;
use omni_launcher_client::{LauncherEvent, LauncherHandle};
use omni_log::Kind;
use omni_node_protocol::id::{InstanceId, SnapshotDigest};
use omni_node_protocol::launcher::Serves;
use omni_store::{PersistedState, StateStore, age_removed, expired};
use omni_task::{Heartbeat, Watchdog};
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::time::{Duration, Instant};
use tokio::sync::{mpsc, watch};

/// For the launcher's first list of directories: a request for a model that is not known yet waits for it.
const FIRST_SCAN: Duration = Duration::from_secs(5);
/// How often to look who was removed long ago.
const FORGET_EVERY: Duration = Duration::from_mins(10);
/// Messages of the launcher that may wait.
const SEEN: usize = 256;

/// Why a node has no model of a name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NotFound {
    /// There is none.
    NoSuchModel,
    /// The models folder was not read in time.
    NotRead,
}

/// What every part of the scheduler may read.
#[derive(Debug)]
pub struct NodeContext {
    /// The node's configuration.
    pub config: Arc<NodeConfig>,
    /// Clock of the policies.
    pub clock: Clock,
    /// Where models are.
    pub models: Models,
    /// Where sockets are.
    pub runtime_dir: PathBuf,
    /// All metrics.
    pub metrics: Metrics,
    /// The node's GPUs.
    pub gpu: GpuHandle,
    /// What all instances together may use.
    pub capacity: CapacityHandle,
    /// State of models that outlives this scheduler.
    pub state: Arc<StateStore>,
    /// Sees whether the tasks still take turns.
    pub watchdog: Watchdog,
    /// What clients of the data listener must show, where they must.
    pub tokens: Option<omni_auth::Tokens>,
    /// What bodies of requests and answers may take in memory.
    pub budget: Arc<BodyBudget>,
    /// Activity of the models.
    pub activity: Arc<Activity>,
}

impl NodeContext {
    /// The services that a model uses.
    fn services(&self, launcher: &LauncherHandle) -> ModelServices {
        ModelServices {
            clock: self.clock,
            config: Arc::clone(&self.config),
            runtime_dir: self.runtime_dir.clone(),
            launcher: launcher.clone(),
            capacity: self.capacity.clone(),
            gpu: self.gpu.clone(),
            store: Arc::clone(&self.state),
            activity: Arc::clone(&self.activity),
            watchdog: self.watchdog.clone(),
        }
    }
}

/// The set of models.
#[derive(Debug)]
pub struct Node {
    /// Shared by all.
    pub context: Arc<NodeContext>,
    /// The launcher.
    pub launcher: LauncherHandle,
    models: RwLock<BTreeMap<ModelName, Arc<Model>>>,
    /// Of models that have no task yet, or were removed not long ago.
    lasting: Mutex<BTreeMap<ModelName, PersistedState>>,
    /// Directories of the models folder that are no models.
    pub not_served: NotServed,
    scanned: watch::Sender<bool>,
    draining: AtomicBool,
    /// Another scheduler takes over, and where that serves.
    left: AtomicBool,
    successor: watch::Sender<Option<SuccessorHandle>>,
    /// Instances whose sockets were there when this scheduler began; `None` when it could not look.
    found: Mutex<Option<BTreeSet<InstanceId>>>,
    /// Instances that cannot be adopted and still work for the scheduler before this one.
    foreign: Mutex<BTreeSet<InstanceId>>,
    /// The scheduler before this one.
    before: PredecessorWatch,
}

impl Node {
    /// Finds surviving instances, connects to the launcher and serves what it sees. `lasting`: what an earlier scheduler
    /// knew. `before`: the one that finishes what it has begun.
    pub async fn start(
        context: Arc<NodeContext>,
        lasting: BTreeMap<ModelName, PersistedState>,
        before: Option<UnfinishedWork>,
    ) -> Arc<Self> {
        let (seen_sender, seen) = mpsc::channel(SEEN);
        let kept = lasting.iter().map(|(model, lasting)| (model.clone(), lasting.snapshots())).collect();
        // A single model falls back on nothing, and what others remember is not touched.
        let lasting = if context.models.single().is_some() { BTreeMap::new() } else { lasting };
        let heartbeat = context.watchdog.heartbeat("the connection to the launcher");
        // That a single model is another one is told by what the launcher sees of it.
        let folder = if context.models.single().is_some() { Path::new("") } else { context.models.path() };
        let models = folder.to_string_lossy().into_owned();
        let expected = Some(Serves { models, config: context.config.of_launcher() });
        let socket = context.runtime_dir.join("launcher.sock");
        let launcher =
            LauncherHandle::start(socket, expected, kept, context.metrics.of_builds(), seen_sender, heartbeat);
        let zygotes = launcher.clone();
        context.capacity.set_end_zygotes(move |model| zygotes.end_zygotes(model));
        let elsewhere = before.as_ref().map(|working| working.busy.clone()).unwrap_or_default();
        let node = Arc::new(Self {
            context,
            launcher,
            models: RwLock::default(),
            lasting: Mutex::new(lasting),
            not_served: NotServed::default(),
            scanned: watch::Sender::new(false),
            draining: AtomicBool::new(false),
            left: AtomicBool::new(false),
            successor: watch::Sender::new(None),
            found: Mutex::default(),
            foreign: Mutex::default(),
            before: PredecessorWatch::new(before),
        });
        node.adopt_all(&elsewhere).await;
        let (follower, heartbeat) = (Arc::clone(&node), node.context.watchdog.heartbeat("the set of models"));
        heartbeat.spawn(|heartbeat| follow(follower, seen, heartbeat));
        node
    }

    /// The model of this name.
    #[must_use]
    pub fn find(&self, name: &str) -> Option<Arc<Model>> {
        self.models.read().unwrap_or_else(PoisonError::into_inner).get(name).cloned()
    }

    /// All models, sorted by name.
    #[must_use]
    pub fn models(&self) -> Vec<Arc<Model>> {
        self.models.read().unwrap_or_else(PoisonError::into_inner).values().cloned().collect()
    }

    /// Whether every directory was seen once.
    #[must_use]
    pub fn scanned(&self) -> bool {
        *self.scanned.borrow()
    }

    /// Waits until that is so.
    pub async fn whole_scan(&self) {
        let _ = self.scanned.subscribe().wait_for(|scanned| *scanned).await; // the sender is ours
    }

    /// The same, after a wait that is bounded: a node that has just started does not know yet what it has.
    pub async fn first_scan(&self) -> bool {
        let mut scanned = self.scanned.subscribe();
        let waited = tokio::time::timeout(FIRST_SCAN, scanned.wait_for(|scanned| *scanned)).await;
        waited.is_ok_and(|scanned| scanned.is_ok())
    }

    /// The model of this name; while the models folder is read for the first time, once it was.
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

    /// Whether a single model takes requests; a node of many is ready without any of them.
    #[must_use]
    pub fn single_is_ready(&self) -> bool {
        let single = self.context.models.single();
        single.is_none_or(|single| {
            self.find(single.name.as_str()).is_some_and(|model| model.view().state == State::Ready)
        })
    }

    /// When the node last had something to do; `None` while it has.
    #[must_use]
    pub fn idle_since(&self) -> Option<u64> {
        self.context.activity.idle_since()
    }

    /// Whether the node is shutting down.
    #[must_use]
    pub fn draining(&self) -> bool {
        self.draining.load(Ordering::Acquire)
    }

    fn add(&self, name: &ModelName) -> Arc<Model> {
        let mut models = self.models.write().unwrap_or_else(PoisonError::into_inner);
        if let Some(model) = models.get(name)
            && !model.ended()
        {
            return Arc::clone(model);
        }
        let kept = usize::try_from(self.context.config.logs.kept.bytes()).unwrap_or(usize::MAX);
        let lasting = self.lasting.lock().unwrap_or_else(PoisonError::into_inner).remove(name).unwrap_or_default();
        let metrics = self.context.metrics.of_model(name.as_str());
        let (model, ends) = model::new(
            name.clone(),
            kept,
            (metrics, self.context.budget.share()),
            PersistedState { removed_for_ms: None, ..lasting.clone() },
        );
        model::actor::spawn(Arc::clone(&model), ends, lasting, self.context.services(&self.launcher));
        models.insert(name.clone(), Arc::clone(&model));
        model
    }

    /// What a directory, or an instance, says of a model. A single model is kept whether or not requests come.
    fn content(&self, name: &ModelName, snapshot: SnapshotDigest, text: Option<String>) -> Result<Content, String> {
        let content = Content::parse(name, snapshot, text, &self.context.config)?;
        Ok(if self.context.models.single().is_some() { content.kept() } else { content })
    }

    /// Whether this is to be heard. A node of a single model hears of its directory once: what changes there later is for
    /// the next scheduler.
    fn hears(&self, seen: &LauncherEvent) -> bool {
        let Some(single) = self.context.models.single() else { return true };
        match seen {
            LauncherEvent::Model { name, .. } | LauncherEvent::Refused { name, .. } => {
                !self.scanned() && name == single.name.as_str()
            }
            LauncherEvent::Gone { .. } => false,
            LauncherEvent::Scanned => !self.scanned(),
            LauncherEvent::UnknownInstance { .. } | LauncherEvent::Lost => true,
        }
    }

    /// A model is not there any more: its versions are remembered for a while.
    fn retire(&self, name: &ModelName, lasting: PersistedState) {
        let left = lasting.after_removal();
        self.context.state.put(name, left.clone());
        self.launcher.keep(name, left.as_ref().map(PersistedState::snapshots).unwrap_or_default());
        if let Some(left) = left {
            self.lasting.lock().unwrap_or_else(PoisonError::into_inner).insert(name.clone(), left);
        }
    }

    /// All directories were told: what an earlier scheduler knew of others is of models that were removed meanwhile.
    fn retire_unseen(&self) {
        let unseen = std::mem::take(&mut *self.lasting.lock().unwrap_or_else(PoisonError::into_inner));
        for (name, lasting) in unseen {
            self.retire(&name, lasting);
        }
    }

    /// So much time has passed: forgets who was removed long ago.
    fn forget_expired(&self, passed: Duration) {
        let mut lasting = self.lasting.lock().unwrap_or_else(PoisonError::into_inner);
        for name in age_removed(&mut lasting, passed) {
            self.context.state.put(&name, lasting.get(&name).cloned());
        }
        for name in expired(&lasting) {
            lasting.remove(&name);
            self.context.state.put(&name, None);
            self.launcher.keep(&name, BTreeSet::new());
        }
    }
}

async fn follow(node: Arc<Node>, mut seen: mpsc::Receiver<LauncherEvent>, heartbeat: Heartbeat) {
    // Names told since the launcher was last connected: what is missing at `Scanned` is gone.
    let mut told = BTreeSet::new();
    let mut forgotten_at = Instant::now();
    loop {
        let event = match heartbeat.during(tokio::time::timeout(FORGET_EVERY, seen.recv())).await {
            Ok(Some(event)) => Some(event),
            Ok(None) => return,
            Err(_) => None,
        };
        let passed = forgotten_at.elapsed();
        if passed >= FORGET_EVERY {
            forgotten_at += passed;
            node.forget_expired(passed);
        }
        let Some(event) = event else { continue };
        match event {
            LauncherEvent::UnknownInstance { instance } => node.meet(instance),
            _ if node.draining() || !node.hears(&event) => {}
            LauncherEvent::Model { name, snapshot, manifest } => match ModelName::try_from(name) {
                Ok(name) => {
                    let content = node.content(&name, snapshot.clone(), manifest).and_then(Content::sendable);
                    if let Err(message) = &content {
                        tracing::warn!(
                            message_id = Kind::ModelRefused.id(),
                            model = %name,
                            "manifest refused: {}",
                            Foreign(message)
                        );
                    }
                    let content =
                        content.map(Box::new).map_err(|message| Unservable { snapshot: Some(snapshot), message });
                    let _ = node.add(&name).send(Message::Content(content)).await;
                    told.insert(name);
                }
                Err(error) => tracing::warn!(%error, "a directory's name is no model's name"),
            },
            LauncherEvent::Refused { name, message, no_model } => {
                refused(&node, &mut told, name, message, no_model).await
            }
            LauncherEvent::Gone { name } => {
                node.not_served.forget(&name);
                if let Ok(name) = ModelName::try_from(name) {
                    told.remove(&name);
                    remove(&node, &name).await;
                }
            }
            LauncherEvent::Scanned => {
                if let Some(single) = node.context.models.single()
                    && told.insert(single.name.clone())
                {
                    let message =
                        format!("the launcher that runs was not started with `--model {}`", single.dir.display());
                    let unservable = Unservable { snapshot: None, message };
                    let _ = node.add(&single.name).send(Message::Content(Err(unservable))).await;
                }
                for model in node.models() {
                    if !told.contains(&model.name) {
                        remove(&node, &model.name).await;
                    }
                }
                node.retire_unseen();
                node.scanned.send_replace(true);
            }
            LauncherEvent::Lost => {
                told.clear();
                node.not_served.clear();
            }
        }
    }
}

/// Takes the model out of the set at once; its task drains what it has and ends.
async fn remove(node: &Arc<Node>, name: &ModelName) {
    let removed = node.models.write().unwrap_or_else(PoisonError::into_inner).remove(name);
    if let Some(model) = removed {
        tracing::info!(model = %name, "model removed");
        node.retire(name, model.retire().unwrap_or_default());
        let _ = model.send(Message::Removed).await;
    }
}
