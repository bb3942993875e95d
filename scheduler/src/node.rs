//! The node: every model that the launcher sees, and what all of them share.
//!
//! One task owns the set of models. It makes a model's task when a directory (or a surviving instance) is seen, and
//! passes on what the launcher says of directories. HTTP reads the set through [`Node::find`].

mod succession;

use crate::budget::Budget;
use crate::capacity::CapacityHandle;
use crate::gpu::GpuHandle;
use crate::launcher::{LauncherHandle, Seen};
use crate::machine::unix_ms;
use crate::metrics::Metrics;
use crate::model::content::{Content, Unservable};
use crate::model::{self, Adoption, Message, Model, worker_link, worker_link::WorkerLink};
use crate::state::{Lasting, StateStore, expired};
use crate::takeover::Heir;
use crate::watchdog::{Pulse, Watchdog};
use omni_config::name::ModelName;
use omni_config::node::NodeConfig;
use omni_ipc::id::InstanceId;
use omni_ipc::instance::{ToWorker, Welcome};
use omni_log::Kind;
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};
use std::time::{Duration, Instant};
use tokio::sync::{mpsc, watch};

/// Longest wait for the end of all models at shutdown, beyond their own drain.
const SHUTDOWN_MARGIN: Duration = Duration::from_secs(20);
/// For the launcher's first list of directories: a request for a model that is not known yet waits for it.
const FIRST_SCAN: Duration = Duration::from_secs(5);
/// How often to look who was removed long ago.
const FORGET_EVERY: Duration = Duration::from_mins(10);
/// Messages of the launcher that may wait.
const SEEN: usize = 256;

/// What every part of the scheduler may read.
#[derive(Debug)]
pub struct NodeContext {
    /// The node's configuration.
    pub config: NodeConfig,
    /// The moment zero of all policies.
    pub started: Instant,
    /// The models folder.
    pub models_dir: PathBuf,
    /// Where sockets are.
    pub runtime_dir: PathBuf,
    /// All metrics.
    pub metrics: Metrics,
    /// The node's GPUs.
    pub gpu: GpuHandle,
    /// What all instances together may use.
    pub capacity: CapacityHandle,
    /// What models remember beyond this scheduler.
    pub state: StateStore,
    /// Sees whether the tasks still take turns.
    pub watchdog: Watchdog,
    /// What clients of the data listener must show, where they must.
    pub tokens: Option<crate::tokens::Tokens>,
    /// What bodies of requests and answers may take in memory.
    pub budget: Arc<Budget>,
    /// Models that have something in flight.
    pub busy_models: AtomicI64,
    /// When that number last changed, in milliseconds since the Unix epoch.
    pub touched_unix_ms: AtomicU64,
}

impl NodeContext {
    /// The socket of an instance's worker.
    #[must_use]
    pub fn instance_socket(&self, id: &InstanceId) -> PathBuf {
        self.runtime_dir.join("instances").join(format!("{id}.sock"))
    }

    /// Work began or ended just now.
    pub fn touch(&self) {
        self.touched_unix_ms.store(unix_ms(), Ordering::Relaxed);
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
    lasting: Mutex<BTreeMap<ModelName, Lasting>>,
    scanned: watch::Sender<bool>,
    draining: AtomicBool,
    /// Another scheduler takes over, and where that serves.
    left: AtomicBool,
    successor: watch::Sender<Option<Heir>>,
    /// Instances whose sockets were there when this scheduler began; `None` when it could not look.
    found: Mutex<Option<BTreeSet<InstanceId>>>,
    /// Instances that cannot be adopted and still work for the scheduler before this one.
    foreign: Mutex<BTreeSet<InstanceId>>,
}

impl Node {
    /// Finds surviving instances, connects to the launcher and serves what it sees. `lasting`: what an earlier scheduler
    /// knew. `elsewhere`: instances that work for it still, and how many requests each has.
    pub async fn start(
        context: Arc<NodeContext>,
        lasting: BTreeMap<ModelName, Lasting>,
        elsewhere: BTreeMap<InstanceId, u32>,
    ) -> Arc<Self> {
        let (seen_sender, seen) = mpsc::channel(SEEN);
        let kept = lasting.iter().map(|(model, lasting)| (model.clone(), lasting.snapshots())).collect();
        let pulse = context.watchdog.pulse("the connection to the launcher");
        let launcher = LauncherHandle::start(context.runtime_dir.join("launcher.sock"), kept, seen_sender, pulse);
        let node = Arc::new(Self {
            context,
            launcher,
            models: RwLock::default(),
            lasting: Mutex::new(lasting),
            scanned: watch::Sender::new(false),
            draining: AtomicBool::new(false),
            left: AtomicBool::new(false),
            successor: watch::Sender::new(None),
            found: Mutex::default(),
            foreign: Mutex::default(),
        });
        node.adopt_all(&elsewhere).await;
        let (follower, pulse) = (Arc::clone(&node), node.context.watchdog.pulse("the set of models"));
        pulse.spawn(|pulse| follow(follower, seen, pulse));
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

    /// The same, after a wait that is bounded: a node that has just started does not know yet what it has.
    pub async fn first_scan(&self) -> bool {
        let mut scanned = self.scanned.subscribe();
        let waited = tokio::time::timeout(FIRST_SCAN, scanned.wait_for(|scanned| *scanned)).await;
        waited.is_ok_and(|scanned| scanned.is_ok())
    }

    /// When the node last had something to do; `None` while it has.
    #[must_use]
    pub fn idle_since(&self) -> Option<u64> {
        let busy = self.context.busy_models.load(Ordering::Relaxed) > 0;
        (!busy).then(|| self.context.touched_unix_ms.load(Ordering::Relaxed))
    }

    /// Whether the node is shutting down.
    #[must_use]
    pub fn draining(&self) -> bool {
        self.draining.load(Ordering::Acquire)
    }

    /// Stops every model and waits for the ends. What is in flight may finish within each model's drain.
    pub async fn shut_down(&self) {
        self.draining.store(true, Ordering::Release);
        self.end_foreign();
        let models = self.models();
        let limit = self.longest_drain() + SHUTDOWN_MARGIN;
        let all_ended = async {
            for model in &models {
                let _ = model.tell(Message::Removed).await;
            }
            for model in &models {
                let mut view = model.subscribe();
                while view.changed().await.is_ok() {}
            }
        };
        if tokio::time::timeout(limit, all_ended).await.is_err() {
            tracing::error!(?limit, "some models did not end; their workers are left to the launcher");
        }
        self.launcher.quit().await;
    }

    /// The longest time that a model gives to its requests in flight.
    #[must_use]
    pub fn longest_drain(&self) -> Duration {
        let contents = self.models().into_iter().filter_map(|model| model.front().content);
        contents.map(|content| content.manifest.timeouts.drain).max().unwrap_or_default()
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
        let (model, ends) =
            model::new(name.clone(), kept, metrics, Lasting { removed_unix_ms: None, ..lasting.clone() });
        model::task::spawn(Arc::clone(&model), ends, lasting, Arc::clone(&self.context), self.launcher.clone());
        models.insert(name.clone(), Arc::clone(&model));
        model
    }

    /// Takes over the instances that an earlier scheduler left.
    async fn adopt_all(&self, elsewhere: &BTreeMap<InstanceId, u32>) {
        let directory = self.context.runtime_dir.join("instances");
        let Ok(entries) = std::fs::read_dir(&directory) else { return };
        let sockets: Vec<PathBuf> = entries
            .flatten()
            .map(|entry| entry.path())
            .filter(|path| path.extension().is_some_and(|e| e == "sock"))
            .collect();
        *self.found() = Some(sockets.iter().filter_map(|path| instance_of(path)).collect());
        let mut connecting = tokio::task::JoinSet::new();
        for path in sockets {
            connecting.spawn(async move { (WorkerLink::connect(&path, 0, worker_link::ALIVE).await, path) });
        }
        while let Some(Ok((connected, path))) = connecting.join_next().await {
            match connected {
                Ok((link, welcome)) => {
                    let elsewhere = elsewhere.get(&welcome.instance).copied().unwrap_or(0);
                    self.adopt(link, welcome, elsewhere).await;
                }
                Err(error) => {
                    let (socket, error) = (path.display(), omni_log::chain(&error));
                    match instance_of(&path) {
                        Some(id) if elsewhere.contains_key(&id) => {
                            tracing::warn!(%socket, error, "instance not adopted: it is ended when it has answered what it has");
                            self.foreign().insert(id);
                        }
                        Some(id) => {
                            tracing::warn!(%socket, error, "instance not adopted: it is ended");
                            self.launcher.kill(id);
                        }
                        None => tracing::warn!(%socket, error, "a socket whose name is no instance's"),
                    }
                }
            }
        }
    }

    async fn adopt(&self, link: WorkerLink, welcome: Welcome, elsewhere: u32) {
        let Ok(name) = ModelName::try_from(welcome.model.clone()) else { return };
        if welcome.ending {
            // Its worker keeps to the time it was given, and the launcher removes what it leaves.
            tracing::info!(model = %name, instance = %welcome.instance, "an instance is about to end");
            tokio::spawn(link.outlast());
            return;
        }
        let text = Some(welcome.note.clone()).filter(|note| !note.is_empty());
        match Content::parse(&name, welcome.snapshot.clone(), text, &self.context.config) {
            Ok(content) => {
                let adoption = Adoption { welcome, link, content, elsewhere };
                let _ = self.add(&name).tell(Message::Adopt(Box::new(adoption))).await;
            }
            Err(message) => {
                tracing::warn!(model = %name, instance = %welcome.instance, "instance not adopted, it is ended: {message}");
                if link.send(&ToWorker::Kill, &[]).is_err() {
                    self.launcher.kill(welcome.instance);
                }
            }
        }
    }

    /// An instance runs that no task has. One that was found is being adopted; any other was asked for by a scheduler that is
    /// gone, and nobody would ever end it.
    fn meet(&self, stranger: InstanceId) {
        if self.found().as_ref().is_some_and(|found| !found.contains(&stranger)) {
            let why = "an earlier scheduler has asked for it, and this one has not found it";
            tracing::warn!(instance = %stranger, "an instance is ended: {why}");
            self.launcher.kill(stranger);
        }
    }

    fn found(&self) -> MutexGuard<'_, Option<BTreeSet<InstanceId>>> {
        self.found.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A model is not there any more: its versions are remembered for a while.
    fn retire(&self, name: &ModelName, lasting: Lasting) {
        let left = lasting.removed(unix_ms());
        self.context.state.put(name, left.clone());
        self.launcher.keep(name, left.as_ref().map(Lasting::snapshots).unwrap_or_default());
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

    /// Forgets who was removed long ago.
    fn forget_expired(&self) {
        let mut lasting = self.lasting.lock().unwrap_or_else(PoisonError::into_inner);
        for name in expired(&lasting, unix_ms()) {
            lasting.remove(&name);
            self.context.state.put(&name, None);
            self.launcher.keep(&name, BTreeSet::new());
        }
    }
}

/// Whose socket this is.
fn instance_of(socket: &Path) -> Option<InstanceId> {
    InstanceId::parse(socket.file_stem()?.to_str()?).ok()
}

async fn follow(node: Arc<Node>, mut seen: mpsc::Receiver<Seen>, pulse: Pulse) {
    // Names told since the launcher was last connected: what is missing at `Scanned` is gone.
    let mut told = BTreeSet::new();
    let mut forgotten_at = Instant::now();
    loop {
        let event = match pulse.during(tokio::time::timeout(FORGET_EVERY, seen.recv())).await {
            Ok(Some(event)) => Some(event),
            Ok(None) => return,
            Err(_) => None,
        };
        if forgotten_at.elapsed() >= FORGET_EVERY {
            forgotten_at = Instant::now();
            node.forget_expired();
        }
        let Some(event) = event else { continue };
        match event {
            Seen::Stranger { instance } => node.meet(instance),
            _ if node.draining() => {}
            Seen::Model { name, snapshot, manifest } => match ModelName::try_from(name) {
                Ok(name) => {
                    let content = Content::parse(&name, snapshot.clone(), manifest, &node.context.config);
                    if let Err(message) = &content {
                        tracing::warn!(
                            message_id = Kind::ModelRefused.id(),
                            model = %name,
                            "manifest refused: {message}"
                        );
                    }
                    let content =
                        content.map(Box::new).map_err(|message| Unservable { snapshot: Some(snapshot), message });
                    let _ = node.add(&name).tell(Message::Content(content)).await;
                    told.insert(name);
                }
                Err(error) => tracing::warn!(%error, "a directory's name is no model's name"),
            },
            Seen::Refused { name, message } => match ModelName::try_from(name.clone()) {
                Ok(name) => {
                    tracing::warn!(message_id = Kind::ModelRefused.id(), model = %name, "directory refused: {message}");
                    let unservable = Unservable { snapshot: None, message };
                    let _ = node.add(&name).tell(Message::Content(Err(unservable))).await;
                    told.insert(name);
                }
                // It has no place among the models: the log alone can say why. Quoted, as anybody may have named it.
                Err(_) => tracing::warn!(directory = ?name, "not served: {message}"),
            },
            Seen::Gone { name } => {
                if let Ok(name) = ModelName::try_from(name) {
                    told.remove(&name);
                    remove(&node, &name).await;
                }
            }
            Seen::Scanned => {
                for model in node.models() {
                    if !told.contains(&model.name) {
                        remove(&node, &model.name).await;
                    }
                }
                node.retire_unseen();
                node.scanned.send_replace(true);
            }
            Seen::Lost => told.clear(),
        }
    }
}

/// Takes the model out of the set at once; its task drains what it has and ends.
async fn remove(node: &Arc<Node>, name: &ModelName) {
    let removed = node.models.write().unwrap_or_else(PoisonError::into_inner).remove(name);
    if let Some(model) = removed {
        tracing::info!(model = %name, "model removed");
        node.retire(name, model.retire().unwrap_or_default());
        let _ = model.tell(Message::Removed).await;
    }
}
