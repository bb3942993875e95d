//! A model on this node: the handle that everybody else holds, and the messages its task takes.
//!
//! One task owns a model: its life, its queue, its instances and their data connections ([`task`]). Others talk to it
//! through a bounded inbox; cancellations and credit go through [`Signals`], which are bounded by the requests that
//! exist, so that they can never be refused for want of room.

pub mod content;
pub mod logs;
pub(crate) mod output;
pub mod task;
pub mod worker_link;

use crate::metrics::ModelMetrics;
use content::{Content, Unservable};
use logs::LogRing;
use omni_body::BudgetShare;
use omni_capacity as capacity;
use omni_config::name::ModelName;
use omni_control_api as api;
use omni_engine_client::Request;
use omni_engine_protocol::frame::CancelReason;
use omni_gpu as gpu;
use omni_node_protocol::exit::ExitCause;
use omni_node_protocol::id::{EnvironmentKey, InstanceId, SnapshotDigest};
use omni_node_protocol::instance::{FromWorker, Stats, Welcome};
use omni_node_protocol::launcher::BuildStage;
use omni_policy::capacity::ReservationId;
use omni_policy::dispatch::{RequestId, Ticket};
use omni_policy::residency::InstanceKey;
use omni_policy::single::ServiceStatus;
use omni_request_error::{BuildProgress, Failure};
use omni_store::PersistedState;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};
use tokio::sync::{Notify, mpsc, oneshot, watch};
use worker_link::WorkerLink;

/// Messages that may wait for a model's task.
const INBOX: usize = 1024;

/// What a model's task is told.
#[derive(Debug)]
pub enum Message {
    /// A request of a client.
    Submit(Box<Submission>),
    /// The directory's content, or why it cannot be served.
    Content(Result<Box<Content>, Unservable>),
    /// The directory is gone.
    Removed,
    /// The node ends at once: every instance is killed.
    Kill,
    /// A line of the environment's build.
    BuildProgress(SnapshotDigest, String),
    /// The environment is there.
    Prepared(SnapshotDigest, EnvironmentKey),
    /// The environment cannot be made.
    PrepareFailed {
        /// Of which content.
        snapshot: SnapshotDigest,
        /// The builder's words.
        message: String,
        /// Trying again cannot help.
        permanent: bool,
        /// The least pause before the next try, of a build that timed out.
        after: Option<Duration>,
    },
    /// The stage of the environment's build.
    Build(SnapshotDigest, BuildStage),
    /// The launcher has started the worker.
    Started(InstanceId),
    /// The launcher could not.
    StartFailed(InstanceId, String),
    /// The launcher that was to start it is gone, and nothing is left of what it may have done.
    NotAsked(InstanceId),
    /// The launcher says that the worker is gone.
    WorkerGone(InstanceId, ExitCause),
    /// The launcher is lost.
    LauncherLost,
    /// The worker of an instance that was asked for is connected.
    Connected(Box<Welcome>, WorkerLink),
    /// An instance of an earlier scheduler.
    Adopt(Box<Adoption>),
    /// The worker speaks.
    Worker(InstanceId, FromWorker),
    /// The worker's connection ended.
    WorkerClosed(InstanceId),
    /// Another scheduler takes the model: what no instance has goes back to who asked.
    Leave(Leave),
    /// So many requests of the scheduler before this one an instance has still.
    Elsewhere(InstanceId, u32),
    /// The scheduler before this one has ended: no instance has any of its.
    NoneElsewhere,
    /// A person's word, answered with the state after it was taken, or with why it cannot be.
    Order(Order, oneshot::Sender<Result<api::Model, String>>),
    /// The GPU task speaks, of the instance with this key.
    Gpu(InstanceKey, gpu::Decision),
    /// The node's capacity speaks, of the instance with this key.
    Capacity(ReservationId, capacity::Decision),
    /// An instance on the node has ended, after this model was refused room for one.
    Room,
    /// Asks each instance for its use, which is answered by those that are there. The channel has room for all.
    Stats(mpsc::Sender<Stats>),
    /// All instances are to write where their threads are; the answer is how many were asked.
    Stacks(oneshot::Sender<usize>),
    /// Asks for the versions that can be served again.
    History(oneshot::Sender<api::History>),
    /// Asks how the number of instances comes about.
    Explain(oneshot::Sender<api::Explain>),
}

/// A request on its way to a model.
#[derive(Debug)]
pub struct Submission {
    /// Identity and order. The id is unique for the life of the scheduler.
    pub ticket: Ticket,
    /// Request.
    pub request: Request,
}

/// Who hears what a model leaves behind with its instances.
#[derive(Debug)]
pub struct Leave {
    /// Instances that have requests still, and how many.
    pub busy: oneshot::Sender<BTreeMap<InstanceId, u32>>,
    /// Hears when it is fewer.
    pub has: mpsc::Sender<Has>,
}

/// A model, one of its instances, and how many requests of a scheduler that leaves it has still.
pub type Has = (String, InstanceId, u32);

/// An instance of an earlier scheduler, and what it runs as its worker's note says.
#[derive(Debug)]
pub struct Adoption {
    /// What the worker said.
    pub welcome: Welcome,
    /// Its connection.
    pub link: WorkerLink,
    /// What it runs.
    pub content: Content,
    /// Requests of the earlier scheduler that it has still.
    pub elsewhere: u32,
}

/// A person's word.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Order {
    /// Start now, whatever the tally says.
    Start,
    /// Stop, and stay stopped until `Start`.
    Stop,
    /// New instances in place of those that are there; or the newest content again, if it was refused.
    Restart,
    /// Serve an earlier version again: the one whose digest begins like this, or the one before.
    RollBack(Option<String>),
}

/// What clients tell about requests that are under way.
#[derive(Debug, Default)]
pub struct Signals {
    pending: Mutex<Pending>,
    notify: Notify,
}

#[derive(Debug, Default)]
pub(crate) struct Pending {
    pub(crate) cancels: Vec<(RequestId, CancelReason)>,
    pub(crate) credits: Vec<(RequestId, u32)>,
}

impl Signals {
    /// Nobody waits for this request any more.
    pub fn cancel(&self, id: RequestId, reason: CancelReason) {
        self.change(|pending| pending.cancels.push((id, reason)));
    }

    /// The client took that much of a stream.
    pub fn credit(&self, id: RequestId, bytes: u32) {
        self.change(|pending| pending.credits.push((id, bytes)));
    }

    fn change(&self, change: impl FnOnce(&mut Pending)) {
        change(&mut self.pending.lock().unwrap_or_else(PoisonError::into_inner));
        self.notify.notify_one();
    }

    pub(crate) fn take(&self) -> Pending {
        std::mem::take(&mut self.pending.lock().unwrap_or_else(PoisonError::into_inner))
    }

    pub(crate) async fn changed(&self) {
        self.notify.notified().await;
    }
}

/// What HTTP must know of a model before it accepts a body.
#[derive(Debug, Clone)]
pub struct Front {
    /// The content now served; `None` when there is none that can be served.
    pub content: Option<Arc<Content>>,
    /// Why requests are refused without being queued.
    pub refusing: Option<Failure>,
    /// The stage of the build that requests wait for.
    pub build: Option<BuildProgress>,
}

impl Front {
    /// Whether the model's task has seen a content.
    fn is_known(&self) -> bool {
        self.content.is_some() || self.refusing.is_some()
    }
}

/// The handle of a model.
#[derive(Debug)]
pub struct Model {
    /// Its name.
    pub name: ModelName,
    /// What its instances wrote.
    pub logs: Arc<LogRing>,
    /// Cancellations and credit.
    pub signals: Arc<Signals>,
    /// Its counters.
    pub metrics: Arc<ModelMetrics>,
    /// Its share of the memory that bodies may take.
    pub room: Arc<BudgetShare>,
    inbox: mpsc::Sender<Message>,
    front: watch::Receiver<Front>,
    view: watch::Receiver<View>,
    /// What lasts of it, as it was written last; `None` once its directory is gone.
    lasting: Mutex<Option<PersistedState>>,
}

/// A model's state as it was published; ages go on from there.
#[derive(Debug, Clone)]
pub struct View {
    at: Instant,
    model: api::Model,
    /// Requests that run, for each of its instances.
    in_flight: Vec<Arc<AtomicU64>>,
    /// What has failed of what serves, since the model's task began.
    failures: u64,
    /// It does not fit on this node, or on none of its cards.
    too_big: bool,
    no_card: bool,
}

impl View {
    pub(crate) fn new(model: api::Model, in_flight: Vec<Arc<AtomicU64>>) -> Self {
        Self { at: Instant::now(), model, in_flight, failures: 0, too_big: false, no_card: false }
    }

    /// For a node that serves nothing else.
    #[must_use]
    pub fn seen(&self) -> ServiceStatus {
        let model = &self.model;
        ServiceStatus {
            refused: model.directory.refused.is_some() && model.version.is_none(),
            failures: self.failures,
            too_big: self.too_big,
            no_card: self.no_card,
            ready: model.state == api::State::Ready,
        }
    }

    /// The state with its ages as of now.
    #[must_use]
    pub fn now(&self) -> api::Model {
        let mut model = self.model.clone();
        let passed = self.at.elapsed().as_secs_f64();
        for (instance, in_flight) in model.instances.iter_mut().zip(&self.in_flight) {
            instance.age_seconds += passed;
            instance.in_flight = in_flight.load(Ordering::Relaxed);
        }
        let generations = model.generations.iter_mut().map(|generation| &mut generation.retry_in_seconds);
        for seconds in generations.chain([&mut model.retry_in_seconds]).flatten() {
            *seconds = (*seconds - passed).max(0.0);
        }
        model
    }
}

impl Model {
    /// Sends a message; returns `false` when the model's task has ended.
    pub async fn tell(&self, message: Message) -> bool {
        self.inbox.send(message).await.is_ok()
    }

    /// Hands over a request; the failure when its task does not take it.
    ///
    /// # Errors
    /// [`Failure::QueueFull`] when the inbox is full, [`Failure::NoSuchModel`] when the model is gone.
    pub fn submit(&self, submission: Box<Submission>) -> Result<(), Failure> {
        self.inbox.try_send(Message::Submit(submission)).map_err(|error| match error {
            mpsc::error::TrySendError::Full(_) => Failure::QueueFull { retry_after: Duration::from_secs(1) },
            mpsc::error::TrySendError::Closed(_) => Failure::NoSuchModel,
        })
    }

    /// A sender of messages to its task.
    #[must_use]
    pub fn inbox(&self) -> mpsc::Sender<Message> {
        self.inbox.clone()
    }

    /// What HTTP must know.
    #[must_use]
    pub fn front(&self) -> Front {
        self.front.borrow().clone()
    }

    /// What HTTP must know, once the model's task has seen its first content.
    pub async fn first_front(&self) -> Front {
        let known = self.front();
        if known.is_known() {
            return known;
        }
        // The task ends only after it has said something.
        let known = self.front.clone().wait_for(Front::is_known).await.map(|front| front.clone());
        known.unwrap_or_else(|_| self.front())
    }

    /// Its state, as of the last change; counters as of now.
    #[must_use]
    pub fn view(&self) -> api::Model {
        let mut view = self.view.borrow().now();
        view.in_flight = self.metrics.in_flight.get().try_into().unwrap_or(0);
        view.queued = self.metrics.queued.get().try_into().unwrap_or(0);
        view
    }

    /// A receiver that changes with the state and ends with the model's task.
    #[must_use]
    pub fn subscribe(&self) -> watch::Receiver<View> {
        self.view.clone()
    }

    /// Its directory is gone: from now on its task has nothing written. What lasted until now.
    pub fn retire(&self) -> Option<PersistedState> {
        self.lasting.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    /// Has `write` write what lasts from now on, unless it is retired.
    pub(crate) fn keep(&self, lasting: &PersistedState, write: impl FnOnce()) {
        if let Some(kept) = &mut *self.lasting.lock().unwrap_or_else(PoisonError::into_inner) {
            *kept = lasting.clone();
            write();
        }
    }

    /// Whether its task has ended.
    #[must_use]
    pub fn ended(&self) -> bool {
        self.inbox.is_closed()
    }
}

/// The ends that stay with the model's task.
#[derive(Debug)]
pub(crate) struct TaskEnds {
    pub(crate) inbox: mpsc::Receiver<Message>,
    pub(crate) own_inbox: mpsc::WeakSender<Message>,
    pub(crate) front: watch::Sender<Front>,
    pub(crate) view: watch::Sender<View>,
}

/// A new model, of which so much lasts, and the ends for its task.
pub(crate) fn new(
    name: ModelName,
    kept_log_bytes: usize,
    (metrics, room): (ModelMetrics, Arc<BudgetShare>),
    lasting: PersistedState,
) -> (Arc<Model>, TaskEnds) {
    let (sender, inbox) = mpsc::channel(INBOX);
    let (front_sender, front) = watch::channel(Front { content: None, refusing: None, build: None });
    let (view_sender, view) = watch::channel(View::new(api::Model::unseen(name.as_str().to_owned()), Vec::new()));
    let ends = TaskEnds { inbox, own_inbox: sender.downgrade(), front: front_sender, view: view_sender };
    let model = Model {
        name,
        logs: Arc::new(LogRing::new(kept_log_bytes)),
        signals: Arc::new(Signals::default()),
        metrics: Arc::new(metrics),
        room,
        inbox: sender,
        front,
        view,
        lasting: Mutex::new(Some(lasting)),
    };
    (Arc::new(model), ends)
}
