//! The scheduler's end of the launcher's socket: a handle for the models, and one task that keeps the [`connection`].
//!
//! The launcher may come later than the scheduler and may be restarted at any time; models that run are not touched by
//! that. What is asked of it waits in a bounded outbox, and whoever asks when that is full is told that it is away.

mod connection;
mod error;
mod quitting;
mod serves;

pub use error::LauncherError;

use crate::metrics::BuildMetrics;
use crate::model::Message;
use crate::model::content::Content;
use omni_config::name::ModelName;
use omni_node_protocol::id::{InstanceId, SnapshotDigest};
use omni_node_protocol::launcher::{BuildCounts, FromLauncher, Serves, StartSpec, ToLauncher, VERSIONS};
use omni_task::Heartbeat;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::sync::{Notify, mpsc, watch};

/// Requests that may wait for the connection.
const OUTBOX: usize = 1024;

/// What the launcher says of models; the rest goes to the models directly. Fields are those of `FromLauncher`.
#[derive(Debug)]
pub(crate) enum Seen {
    /// A directory and its content.
    Model { name: String, snapshot: SnapshotDigest, manifest: Option<String> },
    /// A directory of which no snapshot can be taken.
    Refused { name: String, message: String, no_model: bool },
    /// A directory went away.
    Gone { name: String },
    /// All directories were told once.
    Scanned,
    /// An instance runs for which nobody here has asked, and whose socket was perhaps not there when this scheduler looked.
    Stranger { instance: InstanceId },
    /// The connection is lost.
    Lost,
}

#[derive(Debug, Default)]
struct Routes {
    preparing: HashMap<SnapshotDigest, Vec<mpsc::Sender<Message>>>,
    /// Snapshots that models may come back to.
    kept: BTreeMap<ModelName, BTreeSet<SnapshotDigest>>,
    /// Models whose part of it the launcher has not been told.
    unsaid: BTreeSet<ModelName>,
    instances: HashMap<InstanceId, Route>,
    /// The launcher was told to end: its going is no loss.
    quitting: bool,
    /// What it is to have been started with; `None` in tests.
    expected: Option<Serves>,
    /// How often it was asked to read the configuration anew, and has not said that it has.
    renewals: u32,
    /// It serves other models, and is not used.
    foreign: bool,
    /// The version that it speaks, once it has said so.
    spoken: Option<u32>,
}

impl Routes {
    /// What a launcher must be told that knows nothing.
    fn keep_all(&mut self) -> Vec<ToLauncher> {
        self.unsaid = self.kept.keys().cloned().collect();
        let mut keep = self.keep_changed();
        keep.push(ToLauncher::KeptAll);
        keep
    }

    /// What it must be told that knows the others.
    fn keep_changed(&mut self) -> Vec<ToLauncher> {
        let models = std::mem::take(&mut self.unsaid).into_iter();
        let keep = |model: ModelName| {
            let snapshots = self.kept.get(&model).cloned().unwrap_or_default();
            ToLauncher::Keep { model: model.into(), snapshots }
        };
        models.map(keep).collect()
    }
}

/// Where the words about an instance go.
#[derive(Debug, Clone)]
struct Route {
    inbox: mpsc::Sender<Message>,
    /// The launcher that was asked to start it has not answered yet.
    asked: bool,
}

/// For the models' actors.
#[derive(Debug, Clone)]
pub struct LauncherHandle {
    outbox: mpsc::Sender<ToLauncher>,
    routes: Arc<Mutex<Routes>>,
    connected: Arc<watch::Sender<bool>>,
    /// There is something unsaid.
    keeping: Arc<Notify>,
    /// Another scheduler has the launcher.
    leaving: Arc<Notify>,
    builds: BuildMetrics,
}

impl LauncherHandle {
    /// Starts the task that keeps the connection to `<runtime-dir>/launcher.sock`. `expected`: what the launcher is to have
    /// been started with.
    #[must_use]
    pub(crate) fn start(
        path: PathBuf,
        expected: Option<Serves>,
        kept: BTreeMap<ModelName, BTreeSet<SnapshotDigest>>,
        builds: BuildMetrics,
        seen: mpsc::Sender<Seen>,
        heartbeat: Heartbeat,
    ) -> Self {
        let (outbox, commands) = mpsc::channel(OUTBOX);
        let routes = Arc::new(Mutex::new(Routes { kept, expected, ..Routes::default() }));
        let connected = Arc::new(watch::Sender::new(false));
        let handle = Self { outbox, routes, connected, keeping: Arc::default(), leaving: Arc::default(), builds };
        let keeper = handle.clone();
        heartbeat.spawn(async move |heartbeat| {
            let leaving = Arc::clone(&keeper.leaving);
            tokio::select! {
                () = connection::keep(path, keeper, commands, seen, heartbeat) => {}
                () = leaving.notified() => {}
            }
        });
        handle
    }

    /// The version of its wire, when it is older than this scheduler's: the launcher was not replaced yet.
    #[must_use]
    pub fn old_protocol(&self) -> Option<u32> {
        let routes = self.routes();
        routes.spoken.filter(|spoken| self.connected() && *spoken < VERSIONS.newest)
    }

    /// Whether the launcher answers.
    #[must_use]
    pub fn connected(&self) -> bool {
        *self.connected.borrow()
    }

    /// Asks for the environment of a content; the answer goes to the inbox.
    ///
    /// # Errors
    /// The launcher cannot be asked: no answer will come.
    pub fn prepare(
        &self,
        model: &ModelName,
        content: &Content,
        inbox: &mpsc::Sender<Message>,
    ) -> Result<(), LauncherError> {
        let snapshot = content.snapshot.clone();
        let require_hashes = content.manifest.python.require_hashes;
        self.routes().preparing.entry(snapshot.clone()).or_default().push(inbox.clone());
        let interpreter = content.manifest.runtime.interpreter.as_ref();
        let message = ToLauncher::Prepare {
            model: model.as_str().to_owned(),
            snapshot: snapshot.clone(),
            python: content.manifest.runtime.python.to_string(),
            interpreter: interpreter.map(|path| path.to_string_lossy().into_owned()),
            require_hashes,
        };
        if !self.connected() || self.outbox.try_send(message).is_err() {
            // Models of equal content wait here, too.
            if let Some(waiting) = self.routes().preparing.get_mut(&snapshot) {
                waiting.retain(|other| !other.same_channel(inbox));
            }
            return Err(LauncherError::Silent);
        }
        Ok(())
    }

    /// The model does not wait for the environment of a content any more: no answer comes to the inbox.
    pub fn unprepare(&self, model: &ModelName, content: &Content, inbox: &mpsc::Sender<Message>) {
        let mut routes = self.routes();
        if let Some(waiting) = routes.preparing.get_mut(&content.snapshot) {
            waiting.retain(|other| !other.same_channel(inbox));
        }
        routes.preparing.retain(|_, waiting| !waiting.is_empty());
        if routes.spoken.is_some() {
            let (model, snapshot) = (model.as_str().to_owned(), content.snapshot.clone());
            let _ = self.outbox.try_send(ToLauncher::Unprepare { model, snapshot }); // or it ends with the connection
        }
    }

    /// Asks for an instance; what becomes of it goes to the inbox.
    ///
    /// # Errors
    /// The launcher cannot be asked: there is no instance, and no answer will come.
    pub fn start_instance(&self, spec: StartSpec, inbox: &mpsc::Sender<Message>) -> Result<(), LauncherError> {
        let id = spec.instance.clone();
        self.routes().instances.insert(id.clone(), Route { inbox: inbox.clone(), asked: true });
        if !self.connected() || self.outbox.try_send(ToLauncher::Start(Box::new(spec))).is_err() {
            self.routes().instances.remove(&id);
            return Err(LauncherError::Silent);
        }
        Ok(())
    }

    /// Snapshots of a model that are not to be removed, though nothing runs that has them.
    pub fn keep(&self, model: &ModelName, snapshots: BTreeSet<SnapshotDigest>) {
        let mut routes = self.routes();
        if snapshots.is_empty() {
            routes.kept.remove(model);
        } else {
            routes.kept.insert(model.clone(), snapshots);
        }
        routes.unsaid.insert(model.clone());
        self.keeping.notify_one();
    }

    /// Lets an adopted instance's end reach its model.
    pub fn watch(&self, id: InstanceId, inbox: mpsc::Sender<Message>) {
        self.routes().instances.insert(id, Route { inbox, asked: false });
    }

    /// Asks for the end of an instance whose worker does not answer.
    pub fn kill(&self, instance: InstanceId) {
        let _ = self.outbox.try_send(ToLauncher::Kill { instance });
    }

    /// Asks for the end of a model's zygotes that have no instances.
    pub fn end_zygotes(&self, model: &str) {
        if self.routes().spoken.is_some() {
            let _ = self.outbox.try_send(ToLauncher::EndZygotes { model: model.to_owned() });
        }
    }

    /// Lets go of the launcher: it has one scheduler, and that is another one from now on.
    pub fn leave(&self) {
        self.leaving.notify_one();
    }

    fn routes(&self) -> MutexGuard<'_, Routes> {
        self.routes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Passes a message on to the model that it is for, or to the node.
    async fn route(&self, said: FromLauncher, seen: &mpsc::Sender<Seen>) {
        match said {
            FromLauncher::Welcome { protocol } => self.routes().spoken = Some(protocol),
            FromLauncher::Serves(told) => self.compare(&told),
            FromLauncher::Model { name, snapshot, manifest } => {
                let _ = seen.send(Seen::Model { name, snapshot, manifest }).await;
            }
            FromLauncher::ModelRefused { name, message, no_model } => {
                drop(seen.send(Seen::Refused { name, message, no_model }).await);
            }
            FromLauncher::ModelGone { name } => drop(seen.send(Seen::Gone { name }).await),
            FromLauncher::Scanned => {
                if self.old_protocol().is_some() {
                    let hint = "it goes on; SIGUSR2 has the next one take over";
                    tracing::warn!("the launcher is of an earlier release: {hint}");
                }
                let _ = seen.send(Seen::Scanned).await;
            }
            FromLauncher::Progress { snapshot, line } => {
                let inboxes = self.routes().preparing.get(&snapshot).cloned().unwrap_or_default();
                for inbox in inboxes {
                    let _ = inbox.try_send(Message::BuildLine(snapshot.clone(), line.clone()));
                }
            }
            FromLauncher::Prepared { snapshot, environment } => {
                let inboxes = self.routes().preparing.remove(&snapshot).unwrap_or_default();
                for inbox in inboxes {
                    let _ = inbox.send(Message::Prepared(snapshot.clone(), environment.clone())).await;
                }
            }
            FromLauncher::Build { snapshot, stage } => {
                let inboxes = self.routes().preparing.get(&snapshot).cloned().unwrap_or_default();
                for inbox in inboxes {
                    let _ = inbox.send(Message::BuildStage(snapshot.clone(), stage.clone())).await;
                }
            }
            FromLauncher::Builds { wheels, source } => self.builds.set(wheels, source),
            FromLauncher::PrepareFailed { snapshot, message, permanent, after_ms } => {
                let inboxes = self.routes().preparing.remove(&snapshot).unwrap_or_default();
                for inbox in inboxes {
                    let (snapshot, message) = (snapshot.clone(), message.clone());
                    let after = after_ms.map(Duration::from_millis);
                    let _ = inbox.send(Message::PrepareFailed { snapshot, message, permanent, after }).await;
                }
            }
            FromLauncher::Started { instance, worker_pid: _ } => {
                let route = self.routes().instances.get_mut(&instance).map(|route| {
                    route.asked = false;
                    route.clone()
                });
                if route.is_none() {
                    let _ = seen.send(Seen::Stranger { instance: instance.clone() }).await;
                }
                tell(route, Message::WorkerStarted(instance)).await;
            }
            FromLauncher::Runs { instance } => {
                if !self.routes().instances.contains_key(&instance) {
                    let _ = seen.send(Seen::Stranger { instance }).await;
                }
            }
            FromLauncher::StartFailed { instance, message } => {
                let route = self.routes().instances.remove(&instance);
                tell(route, Message::StartFailed(instance, message)).await;
            }
            FromLauncher::WorkerGone { instance, cause } => {
                let route = self.routes().instances.remove(&instance);
                // Not started by the one that was asked: an earlier launcher, which may have begun.
                let unanswered = route.as_ref().is_some_and(|route| route.asked);
                let message = if unanswered {
                    Message::StartNotRequested(instance)
                } else {
                    Message::WorkerExited(instance, cause)
                };
                tell(route, message).await;
            }
        }
    }

    /// Instances that an earlier launcher was to start, and perhaps did.
    fn unanswered(&self) -> Vec<InstanceId> {
        let routes = self.routes();
        routes.instances.iter().filter(|(_, route)| route.asked).map(|(id, _)| id.clone()).collect()
    }

    /// Everybody who waits for an environment hears that there is no answer to come.
    async fn lost(&self, seen: &mpsc::Sender<Seen>) {
        self.connected.send_replace(false);
        self.builds.set(BuildCounts::default(), BuildCounts::default());
        let preparing = std::mem::take(&mut self.routes().preparing);
        for inbox in preparing.into_values().flatten() {
            let _ = inbox.send(Message::LauncherLost).await;
        }
        let _ = seen.send(Seen::Lost).await;
    }
}

async fn tell(route: Option<Route>, message: Message) {
    if let Some(route) = route {
        let _ = route.inbox.send(message).await;
    }
}

/// A launcher that a test plays, for tests of who asks it.
#[cfg(test)]
pub(crate) mod testing {
    use super::*;

    /// What it is asked comes out of the receiver; what it answers, the test tells the model itself.
    pub(crate) fn launcher() -> (LauncherHandle, mpsc::Receiver<ToLauncher>) {
        let (outbox, asked) = mpsc::channel(OUTBOX);
        let connected = Arc::new(watch::Sender::new(true));
        let (keeping, leaving) = (Arc::default(), Arc::default());
        (
            LauncherHandle {
                outbox,
                routes: Arc::default(),
                connected,
                keeping,
                leaving,
                builds: BuildMetrics::default(),
            },
            asked,
        )
    }
}

#[cfg(test)]
#[path = "launcher_tests.rs"]
mod tests;
