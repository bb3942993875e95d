//! A model on this node: its handle, and the messages to its actor.
//!
//! The [`actor`] owns the model: lifecycle, queue, instances and their data connections. Others send it messages through a
//! bounded inbox; cancellations and credit go through [`Signals`], which are bounded by the requests that exist and can
//! never be refused.

pub(crate) mod actor;
pub mod content;
pub mod interactive;
pub mod logs;
pub mod output;
pub(crate) mod services;
pub mod worker_link;

use crate::metrics::ModelMetrics;
use content::{Content, Unservable};
use interactive::Interactive;
use logs::LogRing;
use omni_body::BudgetShare;
use omni_capacity as capacity;
use omni_config::name::ModelName;
use omni_control_api as api;
use omni_engine_client::Request;
use omni_engine_protocol::frame::CancelReason;
use omni_gpu as gpu;
use omni_launcher_client::ModelEvent;
use omni_node_protocol::id::InstanceId;
use omni_node_protocol::instance::{FromWorker, Stats, Welcome};
use omni_policy::capacity::ReservationId;
use omni_policy::dispatch::RequestId;
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

/// Capacity of an actor's inbox.
const INBOX: usize = 1024;

/// A message to the actor of a model.
#[derive(Debug)]
pub enum Message {
    /// A request of a client.
    Submit(Box<Submission>),
    /// Content of the directory, or the reason why it cannot be served.
    Content(Result<Box<Content>, Unservable>),
    /// The directory was removed.
    Removed,
    /// Kill every instance: the node ends at once.
    Kill,
    /// Event of the launcher.
    Launcher(ModelEvent),
    /// The worker of an instance is connected.
    WorkerConnected(Box<Welcome>, WorkerLink),
    /// Take over an instance of an earlier scheduler.
    Adopt(Box<Adoption>),
    /// A worker has sent a message.
    WorkerMessage(InstanceId, FromWorker),
    /// A worker cannot be reached, or its connection has ended.
    WorkerDisconnected(InstanceId),
    /// Hand the model over to another scheduler: requests that no instance got are returned to their submitters.
    HandOver(HandOver),
    /// Number of requests the previous scheduler still has in flight on this instance.
    ExternalRequests(InstanceId, u32),
    /// The previous scheduler has exited: no instance has requests of it any more.
    PredecessorExited,
    /// A command of an operator, answered with the state after it or the reason why it is refused.
    Command(AdminCommand, oneshot::Sender<Result<api::Model, String>>),
    /// Decision of the residency policy about the instance with this key.
    Gpu(InstanceKey, gpu::Decision),
    /// Decision of the capacity about the instance with this key.
    Capacity(ReservationId, capacity::Decision),
    /// An instance on the node has ended, after this model was refused capacity.
    CapacityFreed,
    /// Have each instance report its statistics to this channel, which has space for all.
    Stats(mpsc::Sender<Stats>),
    /// Have all instances write their stacks; answered with the number of instances asked.
    Stacks(oneshot::Sender<usize>),
    /// Report the versions that can be served again.
    History(oneshot::Sender<api::History>),
    /// Explain the number of instances.
    Explain(oneshot::Sender<api::Explain>),
}

/// A request on its way to a model.
#[derive(Debug)]
pub struct Submission {
    /// Unique for the life of the scheduler.
    pub id: RequestId,
    /// Priority, at most [`HIGHEST_PRIORITY`](omni_policy::dispatch::HIGHEST_PRIORITY).
    pub priority: u8,
    /// [`hash_name`](omni_policy::dispatch::hash_name) of the session.
    pub session: Option<u64>,
    /// Cost as a member of a batch, in the model's units; `None`: it is handled alone.
    pub cost: Option<u64>,
    /// Request.
    pub request: Request,
}

/// Receivers of the progress of a hand-over.
#[derive(Debug)]
pub struct HandOver {
    /// Receives what is left of the model's instances.
    pub handed: oneshot::Sender<HandedOver>,
    /// Receives each later number.
    pub updates: mpsc::Sender<InFlightUpdate>,
}

/// Instances of a scheduler that hands over.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct HandedOver {
    /// Number of requests that each still has in flight; without those that have none.
    pub busy: BTreeMap<InstanceId, u32>,
    /// Number of the last line of each that was written to the node's log.
    pub logged: BTreeMap<InstanceId, u64>,
}

/// A model, one of its instances, and the number of requests that a scheduler which hands over still has in flight on it.
pub type InFlightUpdate = (String, InstanceId, u32);

/// An instance of an earlier scheduler.
#[derive(Debug)]
pub struct Adoption {
    /// State of its worker.
    pub welcome: Welcome,
    /// Connection to its worker.
    pub link: WorkerLink,
    /// Content that it runs, by its worker's note.
    pub content: Content,
    /// Number of requests the earlier scheduler still has in flight on it.
    pub external_requests: u32,
    /// Number of its last line that the earlier scheduler wrote to the node's log.
    pub logged: u64,
}

/// A command of an operator.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum AdminCommand {
    /// Prepare the newest content, and start nothing for it.
    Pull,
    /// Start now, whatever the load.
    Start,
    /// Stop, and stay stopped until `Start`.
    Stop,
    /// Replace the instances by new ones; or try the newest content again, if it was refused.
    Restart,
    /// Serve an earlier version again: the one whose digest begins with this text, or the one before.
    RollBack(Option<String>),
}

/// Cancellations and credit of requests, from their clients.
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
    /// Cancels a request whose client is gone or has waited long enough.
    pub fn cancel(&self, id: RequestId, reason: CancelReason) {
        self.change(|pending| pending.cancels.push((id, reason)));
    }

    /// Returns credit for bytes of a stream that the client has taken.
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

/// Facts of a model that HTTP needs before it accepts a body.
#[derive(Debug, Clone)]
pub struct AdmissionInfo {
    /// Content that serves, if any.
    pub content: Option<Arc<Content>>,
    /// Failure with which requests are refused at once.
    pub refusing: Option<Failure>,
    /// Progress of the build that requests wait for.
    pub build: Option<BuildProgress>,
}

impl AdmissionInfo {
    /// Returns whether a content was seen.
    fn is_known(&self) -> bool {
        self.content.is_some() || self.refusing.is_some()
    }
}

/// Handle of a model.
#[derive(Debug)]
pub struct Model {
    /// Name.
    pub name: ModelName,
    /// Newest output of its instances.
    pub logs: Arc<LogRing>,
    /// Cancellations and credit.
    pub signals: Arc<Signals>,
    /// Metrics.
    pub metrics: Arc<ModelMetrics>,
    /// Share of the memory for bodies.
    pub body_budget: Arc<BudgetShare>,
    /// Requests that clients wait for.
    pub interactive: Arc<Interactive>,
    inbox: mpsc::Sender<Message>,
    admission: watch::Receiver<AdmissionInfo>,
    view: watch::Receiver<View>,
    /// State as stored last; `None` once its directory was removed.
    persisted: Mutex<Option<PersistedState>>,
}

/// Published state of a model; ages go on from there.
#[derive(Debug, Clone)]
pub struct View {
    at: Instant,
    model: api::Model,
    /// Requests in flight on each of its instances.
    in_flight: Vec<Arc<AtomicU64>>,
    /// Deaths of serving instances since this scheduler started.
    failures: u64,
    /// Too large for this node, or for each of its cards.
    too_big: bool,
    no_card: bool,
}

impl View {
    pub(crate) fn new(model: api::Model, in_flight: Vec<Arc<AtomicU64>>) -> Self {
        Self { at: Instant::now(), model, in_flight, failures: 0, too_big: false, no_card: false }
    }

    /// Input of the policy of a node with a single model.
    #[must_use]
    pub fn service_status(&self) -> ServiceStatus {
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
    /// Sends a message; returns `false` when the actor has ended.
    pub async fn send(&self, message: Message) -> bool {
        self.inbox.send(message).await.is_ok()
    }

    /// Submits a request.
    ///
    /// # Errors
    /// [`Failure::QueueFull`] when the inbox is full, [`Failure::NoSuchModel`] when the model is gone.
    pub fn submit(&self, submission: Box<Submission>) -> Result<(), Failure> {
        self.inbox.try_send(Message::Submit(submission)).map_err(|error| match error {
            mpsc::error::TrySendError::Full(_) => Failure::QueueFull { retry_after: Duration::from_secs(1) },
            mpsc::error::TrySendError::Closed(_) => Failure::NoSuchModel,
        })
    }

    /// Inbox of its actor.
    #[must_use]
    pub fn inbox(&self) -> mpsc::Sender<Message> {
        self.inbox.clone()
    }

    /// Facts that HTTP needs.
    #[must_use]
    pub fn admission(&self) -> AdmissionInfo {
        self.admission.borrow().clone()
    }

    /// Facts that HTTP needs, once the first content was seen.
    pub async fn first_admission(&self) -> AdmissionInfo {
        let known = self.admission();
        if known.is_known() {
            return known;
        }
        // The actor publishes something before it ends.
        let known = self.admission.clone().wait_for(AdmissionInfo::is_known).await.map(|admission| admission.clone());
        known.unwrap_or_else(|_| self.admission())
    }

    /// State as of the last change; counters as of now.
    #[must_use]
    pub fn view(&self) -> api::Model {
        let mut view = self.view.borrow().now();
        view.in_flight = self.metrics.in_flight.get().try_into().unwrap_or(0);
        view.queued = self.metrics.queued.get().try_into().unwrap_or(0);
        view
    }

    /// Receiver that changes with the state and ends with the actor.
    #[must_use]
    pub fn subscribe(&self) -> watch::Receiver<View> {
        self.view.clone()
    }

    /// Ends storing the state, as the directory was removed. Returns the state as stored last.
    pub fn retire(&self) -> Option<PersistedState> {
        self.persisted.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    /// Stores the state with `write`, unless the model is retired.
    pub(crate) fn keep(&self, persisted: &PersistedState, write: impl FnOnce()) {
        if let Some(kept) = &mut *self.persisted.lock().unwrap_or_else(PoisonError::into_inner) {
            *kept = persisted.clone();
            write();
        }
    }

    /// Returns whether its actor has ended.
    #[must_use]
    pub fn ended(&self) -> bool {
        self.inbox.is_closed()
    }
}

/// Ends that belong to the actor.
#[derive(Debug)]
pub(crate) struct ActorEnds {
    pub(crate) inbox: mpsc::Receiver<Message>,
    pub(crate) own_inbox: mpsc::WeakSender<Message>,
    pub(crate) admission: watch::Sender<AdmissionInfo>,
    pub(crate) view: watch::Sender<View>,
}

/// A new model with its stored state, and the ends for its actor.
pub(crate) fn new(
    name: ModelName,
    kept_log_bytes: usize,
    (metrics, body_budget): (ModelMetrics, Arc<BudgetShare>),
    persisted: PersistedState,
) -> (Arc<Model>, ActorEnds) {
    let (sender, inbox) = mpsc::channel(INBOX);
    let (admission_sender, admission) = watch::channel(AdmissionInfo { content: None, refusing: None, build: None });
    let (view_sender, view) = watch::channel(View::new(api::Model::unseen(name.as_str().to_owned()), Vec::new()));
    let ends = ActorEnds { inbox, own_inbox: sender.downgrade(), admission: admission_sender, view: view_sender };
    let model = Model {
        name,
        logs: Arc::new(LogRing::new(kept_log_bytes)),
        signals: Arc::new(Signals::default()),
        metrics: Arc::new(metrics),
        body_budget,
        interactive: Arc::default(),
        inbox: sender,
        admission,
        view,
        persisted: Mutex::new(Some(persisted)),
    };
    (Arc::new(model), ends)
}
