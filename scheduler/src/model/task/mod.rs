//! The task of one model: it alone changes the model's life, queue, instance and connection.
//!
//! Everything arrives through one inbox, [`Signals`](super::Signals) and the data connection; pure policy decides
//! ([`Lifecycle`], [`Dispatch`]); this file carries out.

mod data;
mod gpu;
mod instance;
mod life;

use super::content::Content;
use super::requests::Requests;
use super::worker_link::WorkerLink;
use super::{Front, Message, Model, Order, TaskEnds, View};
use crate::failure::Failure;
use crate::launcher::LauncherHandle;
use crate::node::NodeContext;
use crate::policy::Moment;
use crate::policy::dispatch::{Admission, Cancelled, Dispatch, RequestId};
use crate::policy::lifecycle::{Event, Lifecycle, Phase};
use crate::wire::connection::DataConnection;
use omni_api as api;
use omni_config::name::ModelName;
use omni_ipc::engine::HandlerMode;
use omni_ipc::exit::ExitCause;
use omni_ipc::frame::CancelReason;
use omni_ipc::id::{EnvironmentKey, InstanceId, SnapshotDigest};
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::sync::mpsc;

/// Inbox messages handled before the connection is looked at again.
const BATCH: usize = 64;
/// Lines of a build that are kept for `omnictl status`.
const BUILD_LOG: usize = 50;

/// The model's instance, from the moment it was asked for.
#[derive(Debug)]
struct Instance {
    id: InstanceId,
    asked_at: Instant,
    pid: Option<i32>,
    link: Option<WorkerLink>,
    connection: Option<DataConnection>,
    mode: Option<HandlerMode>,
    log_seen: u64,
    /// Its GPU memory; `None` for a model without.
    turn: Option<gpu::Turn>,
    /// The launcher has said how it ended; what the worker said before that is being read.
    ended: Option<ExitCause>,
}

impl Instance {
    /// An instance of which only the id is known.
    fn new(id: InstanceId) -> Self {
        Self {
            id,
            asked_at: Instant::now(),
            pid: None,
            link: None,
            connection: None,
            mode: None,
            log_seen: 0,
            turn: None,
            ended: None,
        }
    }
}

pub(crate) struct ModelTask {
    model: Arc<Model>,
    context: Arc<NodeContext>,
    launcher: LauncherHandle,
    front: tokio::sync::watch::Sender<Front>,
    view: tokio::sync::watch::Sender<View>,
    own_inbox: mpsc::WeakSender<Message>,
    life: Lifecycle,
    dispatch: Dispatch,
    requests: Requests,
    content: Option<Arc<Content>>,
    environment: Option<(SnapshotDigest, EnvironmentKey)>,
    instance: Option<Instance>,
    /// A cancelled handler that runs on is replaced then.
    grace_ends: Option<Instant>,
    /// The data connection is broken; an engine that lives on then is killed.
    broken_ends: Option<Instant>,
    prepare_asked: Instant,
    message: Option<String>,
    /// What the log said was the reason, when it failed last.
    failed_for: String,
    last_exit: Option<String>,
    build_log: VecDeque<String>,
    stats_waiters: Vec<tokio::sync::oneshot::Sender<omni_ipc::instance::Stats>>,
    was_busy: bool,
    ended: bool,
}

/// The state of a model of which nothing is known yet.
pub(crate) fn empty_view(name: &ModelName) -> api::Model {
    api::Model {
        name: name.as_str().to_owned(),
        state: api::State::Stopped,
        held: false,
        version: None,
        message: None,
        instance: None,
        in_flight: 0,
        queued: 0,
        queue_limit: 0,
        restarts: 0,
        last_exit: None,
        retry_in_seconds: None,
        build_log: Vec::new(),
    }
}

/// Starts the task of a model.
pub(crate) fn spawn(model: Arc<Model>, ends: TaskEnds, context: Arc<NodeContext>, launcher: LauncherHandle) {
    let TaskEnds { inbox, own_inbox, front, view } = ends;
    let settings = crate::policy::lifecycle::Settings {
        always_on: false,
        idle_timeout: Duration::ZERO,
        startup: Duration::ZERO,
        drain: Duration::ZERO,
    };
    let task = ModelTask {
        model,
        context,
        launcher,
        front,
        view,
        own_inbox,
        life: Lifecycle::new(settings),
        dispatch: Dispatch::new(1, 0),
        requests: Requests::default(),
        content: None,
        environment: None,
        instance: None,
        grace_ends: None,
        broken_ends: None,
        prepare_asked: Instant::now(),
        message: None,
        failed_for: String::new(),
        last_exit: None,
        build_log: VecDeque::new(),
        stats_waiters: Vec::new(),
        was_busy: false,
        ended: false,
    };
    tokio::spawn(task.run(inbox));
}

impl ModelTask {
    async fn run(mut self, mut inbox: mpsc::Receiver<Message>) {
        let mut batch = Vec::with_capacity(BATCH);
        let signals = Arc::clone(&self.model.signals);
        while !self.ended {
            let wake = self.wake_at();
            let connection = self.instance.as_ref().and_then(|instance| instance.connection.as_ref());
            let (readable, writable) = tokio::select! {
                received = inbox.recv_many(&mut batch, BATCH) => {
                    if received == 0 {
                        break;
                    }
                    (false, false)
                }
                () = signals.changed() => (false, false),
                () = readable(connection) => (true, false),
                () = writable(connection) => (false, true),
                () = sleep_until(wake) => (false, false),
            };
            if readable {
                self.read();
            }
            if writable {
                self.flush();
            }
            for message in batch.drain(..) {
                self.take(message);
            }
            self.take_signals();
            self.take_time();
            self.send_waiting();
        }
        self.model.metrics.state(None);
    }

    fn now(&self) -> Moment {
        self.context.started.elapsed()
    }

    fn wake_at(&self) -> Option<Instant> {
        let life = self.life.wake_at().map(|at| self.context.started + at);
        [life, self.grace_ends, self.broken_ends].into_iter().flatten().min()
    }

    fn take(&mut self, message: Message) {
        match message {
            Message::Submit(submission) => {
                let id = submission.id;
                self.requests.add(*submission);
                match self.dispatch.submit(id) {
                    Admission::Full => {
                        let retry_after = self.queue_time();
                        self.requests.fail(id, &Failure::QueueFull { retry_after });
                    }
                    Admission::Waits => match self.life.phase() {
                        Phase::Ready { .. } if !self.life.refuses() => {}
                        _ => self.event(&Event::Demand),
                    },
                }
            }
            Message::Content(Ok(content)) => self.new_content(*content),
            Message::Content(Err(message)) => {
                self.content = None;
                self.message = Some(message);
                self.event(&Event::BadContent);
            }
            Message::Removed => self.event(&Event::Removed),
            Message::BuildProgress(snapshot, line) => {
                if self.is_current(&snapshot) {
                    self.log_build(line);
                }
            }
            Message::Prepared(snapshot, environment) => {
                if self.is_current(&snapshot) {
                    self.model.metrics.prepare.observe(self.prepare_asked.elapsed().as_secs_f64());
                    self.environment = Some((snapshot, environment));
                    self.event(&Event::Prepared);
                }
            }
            Message::PrepareFailed { snapshot, message, permanent } => {
                if self.is_current(&snapshot) {
                    self.message = Some(message);
                    self.event(&Event::PrepareFailed { permanent });
                }
            }
            Message::Started(id) => self.connect_worker(id),
            Message::StartFailed(id, message) => {
                if self.is_instance(&id) {
                    self.message = Some(message.clone());
                    self.gone(&ExitCause::StartFailed { message }, &Event::StartFailed);
                }
            }
            Message::WorkerGone(id, cause) => self.worker_gone(&id, cause),
            Message::LauncherLost => self.event(&Event::LauncherLost),
            Message::Adopt(welcome, link) => self.adopt(&welcome, link),
            Message::Worker(id, said) => {
                if self.is_instance(&id) {
                    self.worker_says(said);
                }
            }
            Message::WorkerClosed(id) => self.worker_closed(&id),
            Message::Order(order, answer) => {
                self.event(&match order {
                    Order::Start => Event::Start,
                    Order::Stop => Event::Stop,
                    Order::Restart => Event::Restart,
                });
                let _ = answer.send(self.view.borrow().now());
            }
            Message::Gpu(key, told) => self.told(key, told),
            Message::Stats(answer) => self.ask_stats(answer),
        }
    }

    fn new_content(&mut self, content: Content) {
        let known = self.content.as_ref().is_some_and(|known| known.snapshot == content.snapshot);
        if known {
            return; // the launcher came back and told everything again
        }
        let scaling = &content.manifest.scaling;
        self.dispatch.set_bounds(scaling.concurrency, scaling.queue);
        let settings = content.settings();
        self.content = Some(Arc::new(content));
        self.message = None;
        self.build_log.clear();
        self.event(&Event::Content(settings));
    }

    fn is_current(&self, snapshot: &SnapshotDigest) -> bool {
        self.content.as_ref().is_some_and(|content| content.snapshot == *snapshot)
    }

    fn is_instance(&self, id: &InstanceId) -> bool {
        self.instance.as_ref().is_some_and(|instance| instance.id == *id)
    }

    fn take_signals(&mut self) {
        let pending = self.model.signals.take();
        for (id, reason) in pending.cancels {
            self.cancel(id, reason);
        }
        let connection = self.instance.as_mut().and_then(|instance| instance.connection.as_mut());
        if let Some(connection) = connection {
            for (id, bytes) in pending.credits {
                connection.credit(id, bytes);
            }
        }
    }

    fn cancel(&mut self, id: RequestId, reason: CancelReason) {
        match self.dispatch.cancel(id) {
            Cancelled::Unqueued => self.requests.forget(id),
            Cancelled::Unknown => {}
            Cancelled::TellModel => {
                let connection = self.instance.as_ref().and_then(|instance| instance.connection.as_ref());
                if connection.is_some_and(|connection| !connection.cancel(id, reason)) {
                    self.event(&Event::Unresponsive);
                }
            }
        }
        self.watch_grace();
    }

    /// A handler that runs on after its cancellation has `cancel-grace` from now.
    fn watch_grace(&mut self) {
        if !self.dispatch.cancelled_and_begun() {
            self.grace_ends = None;
        } else if self.grace_ends.is_none() {
            let grace = self.content.as_ref().map_or(Duration::ZERO, |content| content.manifest.timeouts.cancel_grace);
            self.grace_ends = Some(Instant::now() + grace);
        }
    }

    fn take_time(&mut self) {
        if self.grace_ends.is_some_and(|at| at <= Instant::now()) {
            self.grace_ends = None;
            self.replace("a handler ignored its cancellation");
        }
        if self.broken_ends.is_some_and(|at| at <= Instant::now()) {
            self.broken_ends = None;
            self.replace("the engine closed its data connection and went on");
        }
        if self.life.wake_at().is_some_and(|at| at <= self.now()) {
            if matches!(self.life.phase(), Phase::Starting { .. }) {
                let limit = self.content.as_ref().map_or(Duration::ZERO, |content| content.manifest.timeouts.startup);
                if self.is_unplaced() {
                    return self.place_took_too_long(limit);
                }
                self.message = Some(format!("it was not ready within {limit:?}, its `startup` in [timeouts]"));
            }
            self.event(&Event::Tick);
        }
    }

    /// The instance is of no use any more.
    fn replace(&mut self, why: &str) {
        tracing::warn!(model = %self.model.name, "{why}: the instance is replaced");
        self.message = Some(format!("{why}; the instance was replaced"));
        self.event(&Event::Unresponsive);
    }
}

async fn readable(connection: Option<&DataConnection>) {
    match connection {
        Some(connection) => drop(connection.readable().await),
        None => std::future::pending().await,
    }
}

async fn writable(connection: Option<&DataConnection>) {
    match connection {
        Some(connection) if connection.wants_write() => drop(connection.writable().await),
        Some(_) | None => std::future::pending().await,
    }
}

async fn sleep_until(at: Option<Instant>) {
    match at {
        Some(at) => tokio::time::sleep_until(at.into()).await,
        None => std::future::pending().await,
    }
}
