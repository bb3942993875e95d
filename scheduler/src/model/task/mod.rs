//! The task of one model: it alone changes the model's fleet, queue, instances and connections.
//!
//! Everything arrives through one inbox, [`Signals`](super::Signals) and the data connections; pure policy decides
//! ([`Fleet`], [`Dispatch`], [`Demand`]); the files here carry out.
//!
//! | module | what |
//! | --- | --- |
//! | `generations` | the contents that the model had and has |
//! | `environment` | the environments of its contents, and where their builds are |
//! | `instances` | its instances, and waiting for what they say |
//! | `life` | what the fleet decides, and time |
//! | `leave` | what is left to do once another scheduler has the model |
//! | `place` | what an instance needs before it starts: capacity, then a card |
//! | `gpu` | turns on the card |
//! | `instance` | what launcher and workers say |
//! | `health` | whether workers and engines answer |
//! | `data` | requests and answers |
//! | `overrun` | handlers that ignore their cancellation |
//! | `logs` | what instances write, and where their threads are |
//! | `load` | how many instances are wanted |
//! | `stops` | why instances that do well are stopped |
//! | `versions` | which content is to serve, and what lasts |
//! | `view` | what others see |

mod data;
mod environment;
mod generations;
mod gpu;
mod health;
mod instance;
mod instances;
mod leave;
mod life;
mod load;
mod logs;
mod overrun;
mod place;
mod stops;
mod versions;
mod view;

use super::content::Content;
use super::{Front, Has, Message, Model, Order, Submission, TaskEnds, View};
use crate::launcher::LauncherHandle;
use crate::node::NodeContext;
use generations::Generations;
use instances::Instances;
use omni_control_api as api;
use omni_engine_client::RequestTable;
use omni_engine_protocol::frame::CancelReason;
use omni_policy::Moment;
use omni_policy::dispatch::{Admission, Cancelled, Dispatch, RequestId};
use omni_policy::fleet::{Event, Fleet};
use omni_policy::scaling::Demand;
use omni_request_error::Failure;
use omni_store::PersistedState;
use omni_task::Heartbeat;
use place::Lack;
use std::collections::VecDeque;
use std::pin::pin;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::sync::mpsc;

/// Inbox messages handled before the connections are looked at again.
const BATCH: usize = 64;

pub(crate) struct ModelTask {
    model: Arc<Model>,
    context: Arc<NodeContext>,
    launcher: LauncherHandle,
    /// When this turn of the loop began: for the policies a turn is one moment.
    now: Moment,
    front: tokio::sync::watch::Sender<Front>,
    view: tokio::sync::watch::Sender<View>,
    own_inbox: mpsc::WeakSender<Message>,
    fleet: Fleet,
    /// When the fleet is to be told the time; it changes with its events only.
    fleet_wakes: Option<Moment>,
    /// The event that is being carried out, and those that came of it.
    events: VecDeque<Event>,
    dispatch: Dispatch,
    demand: Demand,
    requests: RequestTable,
    generations: Generations,
    instances: Instances,
    /// What takes the traffic.
    serving: Option<Arc<Content>>,
    /// What was last seen in the directory.
    directory: Option<api::Directory>,
    /// What lasts, as of now and as it was put into the store.
    lasting: PersistedState,
    saved: PersistedState,
    /// Its directory had been removed.
    came_back: bool,
    /// What the last instance that had no place had none in.
    lack: Lack,
    /// As published.
    state: api::State,
    /// Why it had no room, as the log said it last; `None` once it has some.
    asked_in_vain: Option<String>,
    last_exit: Option<String>,
    last_stop: Option<api::Stop>,
    /// Requests in flight and waiting, and how many instances they want, as they were last said.
    load: u32,
    wanted: u32,
    was_busy: bool,
    /// Another scheduler has the model: who hears how many requests each instance has still.
    leaving: Option<mpsc::Sender<Has>>,
    ended: bool,
}

/// Starts the task of a model, of which so much is known from an earlier scheduler.
pub(crate) fn spawn(
    model: Arc<Model>,
    ends: TaskEnds,
    lasting: PersistedState,
    context: Arc<NodeContext>,
    launcher: LauncherHandle,
) {
    let TaskEnds { inbox, own_inbox, front, view } = ends;
    let task = ModelTask {
        model,
        now: context.started.elapsed(),
        context,
        launcher,
        front,
        view,
        own_inbox,
        fleet: Fleet::new(lasting.held, lasting.deaths),
        fleet_wakes: None,
        events: VecDeque::new(),
        dispatch: Dispatch::default(),
        demand: Demand::default(),
        requests: RequestTable::default(),
        generations: Generations::default(),
        instances: Instances::default(),
        serving: None,
        directory: None,
        came_back: lasting.removed_for_ms.is_some(),
        saved: lasting.clone(),
        lasting: PersistedState { removed_for_ms: None, ..lasting },
        lack: Lack::Node,
        state: api::State::Stopped,
        asked_in_vain: None,
        last_exit: None,
        last_stop: None,
        load: 0,
        wanted: 0,
        was_busy: false,
        leaving: None,
        ended: false,
    };
    let heartbeat = task.context.watchdog.heartbeat(format!("model {}", task.model.name));
    heartbeat.spawn(|heartbeat| task.run(inbox, heartbeat));
}

impl ModelTask {
    async fn run(mut self, mut inbox: mpsc::Receiver<Message>, heartbeat: Heartbeat) {
        let mut batch = Vec::with_capacity(BATCH);
        let signals = Arc::clone(&self.model.signals);
        let mut time = pin!(tokio::time::sleep(Duration::ZERO));
        while !self.ended {
            let wake = self.wake_at().map(tokio::time::Instant::from);
            // It is the same moment for many requests, and setting a timer costs more than looking.
            if let Some(at) = wake.filter(|at| *at != time.deadline()) {
                time.as_mut().reset(at);
            }
            heartbeat.turn();
            let said = tokio::select! {
                () = heartbeat.asked() => false,
                received = inbox.recv_many(&mut batch, BATCH) => {
                    if received == 0 {
                        break;
                    }
                    false
                }
                () = signals.changed() => false,
                () = self.instances.ready(self.now) => true,
                () = &mut time, if wake.is_some() => false,
            };
            self.now = self.context.started.elapsed();
            if said {
                self.read_all();
            }
            for message in batch.drain(..) {
                self.take(message);
            }
            self.take_signals();
            if self.leaving.is_some() {
                self.finish();
            } else {
                self.take_time();
                self.send_waiting();
            }
        }
        self.model.metrics.gone();
    }

    fn now(&self) -> Moment {
        self.now
    }

    fn wake_at(&self) -> Option<Instant> {
        if self.leaving.is_some() {
            return None;
        }
        let moments = [self.fleet_wakes, self.load_wakes_at(), self.instances.look_at(self.now)];
        let moments = moments.into_iter().flatten().map(|at| self.context.started + at);
        moments.chain(self.instances.wake_at()).min()
    }

    fn take(&mut self, message: Message) {
        if self.leaving.is_some() {
            return self.turn_away(message);
        }
        match message {
            // Whoever is gone already has cancelled it, and that may have been heard before this.
            Message::Submit(submission) if submission.request.reply.is_closed() => {}
            Message::Submit(submission) => {
                let Submission { ticket, request } = *submission;
                self.requests.insert(ticket.id, request);
                match self.dispatch.submit(ticket, self.now()) {
                    Admission::Full => {
                        let retry_after = self.queue_time();
                        self.requests.fail(ticket.id, &Failure::QueueFull { retry_after });
                    }
                    Admission::Queued if self.takes_requests() => {}
                    Admission::Queued => self.event(&Event::Demand),
                }
            }
            Message::Content(content) => self.directory_has(content.map(|content| *content)),
            Message::Removed => self.event(&Event::Removed),
            Message::Kill => self.kill_all(),
            Message::BuildProgress(snapshot, line) => self.built(&snapshot, line),
            Message::Build(snapshot, stage) => self.build_is_at(&snapshot, stage),
            Message::Prepared(snapshot, environment) => self.prepared(&snapshot, environment),
            Message::PrepareFailed { snapshot, message, permanent, after } => {
                self.prepare_failed(&snapshot, message, permanent, after);
            }
            Message::Started(id) => self.worker_started(id),
            Message::NotAsked(id) => self.not_asked(&id),
            Message::StartFailed(id, message) => self.start_failed(&id, message),
            Message::WorkerGone(id, cause) => self.worker_gone(&id, cause),
            Message::LauncherLost => {
                self.generations.forget_builds();
                self.event(&Event::LauncherLost);
            }
            Message::Connected(welcome, link) => self.connected(&welcome, link),
            Message::Adopt(adoption) => self.adopt(*adoption),
            Message::Worker(id, said) => self.worker_says(&id, said),
            Message::WorkerClosed(id) => self.worker_closed(&id),
            Message::Leave(leave) => self.leave(leave),
            Message::Elsewhere(id, requests) => self.elsewhere(Some(&id), requests),
            Message::NoneElsewhere => self.elsewhere(None, 0),
            Message::Order(order, answer) => {
                let done = self.obey(&order);
                let _ = answer.send(done.map(|()| self.view.borrow().now()));
            }
            Message::Gpu(key, told) => self.on_gpu_decision(key, told),
            Message::Capacity(key, told) => self.on_capacity_decision(key, told),
            Message::Room => self.event(&Event::CapacityFreed),
            Message::Stats(answer) => self.ask_stats(&answer),
            Message::Stacks(answer) => drop(answer.send(self.ask_stacks())),
            Message::History(answer) => drop(answer.send(self.history())),
            Message::Explain(answer) => drop(answer.send(self.explain())),
        }
    }

    fn obey(&mut self, order: &Order) -> Result<(), String> {
        match order {
            Order::Start => self.event(&Event::Start),
            Order::Stop => self.event(&Event::Stop),
            Order::Restart => self.event(&Event::Restart),
            Order::RollBack(to) => return self.roll_back(to.as_deref()),
        }
        Ok(())
    }

    /// Whether an instance takes requests, now or as soon as it has done what it has.
    fn takes_requests(&self) -> bool {
        self.instances.iter().any(|(_, instance)| instance.open)
    }

    fn take_signals(&mut self) {
        let pending = self.model.signals.take();
        for (id, reason) in pending.cancels {
            self.cancel(id, reason);
        }
        for (id, bytes) in pending.credits {
            let connection = self.requests.recipient(id).and_then(|number| self.instances.get_mut(number));
            if let Some(connection) = connection.and_then(|instance| instance.connection.as_mut()) {
                connection.send_credit(id.0, bytes);
            }
        }
    }

    fn cancel(&mut self, id: RequestId, reason: CancelReason) {
        match self.dispatch.cancel(id, self.now()) {
            Cancelled::Dequeued => self.requests.forget(id),
            Cancelled::Unknown => {}
            Cancelled::InFlight(number) => {
                let connection = self.instances.get(number).and_then(|instance| instance.connection.as_ref());
                if connection.is_some_and(|connection| !connection.send_cancel(id.0, reason)) {
                    self.event(&Event::Unresponsive(number));
                }
                self.watch_grace(number);
            }
        }
    }
}
