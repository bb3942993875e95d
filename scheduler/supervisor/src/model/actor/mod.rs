//! The actor of one model: the only owner of the model's fleet, queue, instances and connections.
//!
//! Everything arrives through one inbox, [`Signals`] and the data connections. Pure policies decide
//! ([`Fleet`], [`Dispatch`](omni_policy::dispatch::Dispatch), [`Demand`](omni_policy::scaling::Demand)); the actor carries out.
//!
//! | module | part or topic |
//! | --- | --- |
//! | [`lifecycle`] | part: the fleet policy, its events and its timer |
//! | [`requests`] | part: queue and request table |
//! | [`generations`] | part: contents of the model, and what became of their environments |
//! | [`instances`], [`instance`] | part: instances, each a state with the data of that state |
//! | [`versions`] | part: directory, history, rollback |
//! | [`load`] | part: how many instances the requests call for |
//! | [`status`] | part: what is published, and what the log was told of it |
//! | `actions` | actions of the fleet policy |
//! | `environments` | preparations of environments |
//! | `start` | capacity, a place on a card, the launch |
//! | `gpu` | decisions of the residency policy |
//! | `workers` | messages of launcher and workers, and ends of instances |
//! | `data` | data connections |
//! | `checks` | timers and health checks of instances |
//! | `logs` | log lines and stacks |
//! | `hand_over` | the end of the actor when another scheduler takes the model over |

mod actions;
mod checks;
mod data;
mod environments;
mod generations;
mod gpu;
mod hand_over;
mod instance;
mod instances;
mod lifecycle;
mod load;
mod logs;
mod requests;
mod start;
mod status;
mod versions;
mod workers;

use super::services::ModelServices;
use super::{ActorEnds, InFlightUpdate, Message, Model, Signals};
use generations::Generations;
use instance::Instance;
use instances::Instances;
use lifecycle::Lifecycle;
use load::LoadMonitor;
use omni_engine_protocol::frame::CancelReason;
use omni_policy::dispatch::RequestId;
use omni_policy::fleet::{Event, Fleet};
use omni_policy::{InstanceNumber, Moment};
use omni_store::PersistedState;
use omni_task::{FineTimer, Heartbeat};
use requests::{Cancellation, Requests};
use status::Status;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::mpsc;
use versions::Versions;

/// Messages handled before the connections are looked at again.
const BATCH: usize = 64;

/// The actor of one model.
pub(crate) struct ModelActor {
    model: Arc<Model>,
    services: ModelServices,
    /// The actor's inbox, for services that answer into it.
    inbox: mpsc::WeakSender<Message>,
    /// Beginning of this turn of the loop: for the policies a turn is one moment.
    now: Moment,
    mode: Mode,
    lifecycle: Lifecycle,
    requests: Requests,
    generations: Generations,
    instances: Instances,
    versions: Versions,
    load: LoadMonitor,
    status: Status,
}

/// Mode of the actor.
///
/// ```text
///   Active ──▶ HandingOver ──▶ (the inbox is closed)
///      └─────▶ Ended
/// ```
#[derive(Debug)]
enum Mode {
    /// Manages the model.
    Active,
    /// Finishes requests in flight and reports their number: another scheduler has the model.
    HandingOver(mpsc::Sender<InFlightUpdate>),
    /// The model is removed, and no instance is left.
    Ended,
}

/// Starts the actor of a model with the state that an earlier scheduler stored.
pub(crate) fn spawn(model: Arc<Model>, ends: ActorEnds, persisted: PersistedState, services: ModelServices) {
    let ActorEnds { inbox, own_inbox, admission, view } = ends;
    let heartbeat = services.watchdog.heartbeat(format!("model {}", model.name));
    let actor = ModelActor {
        model,
        now: services.clock.now(),
        services,
        inbox: own_inbox,
        mode: Mode::Active,
        lifecycle: Lifecycle::new(Fleet::new(persisted.held, persisted.deaths)),
        requests: Requests::default(),
        generations: Generations::default(),
        instances: Instances::default(),
        versions: Versions::new(persisted),
        load: LoadMonitor::default(),
        status: Status::new(admission, view),
    };
    heartbeat.spawn(|heartbeat| actor.run(inbox, heartbeat));
}

impl ModelActor {
    async fn run(mut self, mut inbox: mpsc::Receiver<Message>, heartbeat: Heartbeat) {
        let mut batch = Vec::with_capacity(BATCH);
        let signals: Arc<Signals> = Arc::clone(&self.model.signals);
        let mut timer = pin!(tokio::time::sleep(Duration::ZERO));
        let mut batch_timer = FineTimer::default();
        let mut batch_waits = None;
        while !matches!(self.mode, Mode::Ended) {
            let wakes_at = self.wakes_at().map(|at| tokio::time::Instant::from(self.services.clock.instant(at)));
            // Many requests in a row leave the timer as it is, and setting one costs more than looking.
            if let Some(at) = wakes_at.filter(|at| *at != timer.deadline()) {
                timer.as_mut().reset(at);
            }
            let waits = self.requests.dispatch.wakes_at().filter(|_| !self.is_handing_over());
            if std::mem::replace(&mut batch_waits, waits) != waits
                && let Some(at) = waits
                && let Err(error) = batch_timer.set(at.saturating_sub(self.services.clock.now()))
            {
                tracing::warn!(model = %self.model.name, %error, "timer of batches: they wait up to two milliseconds longer");
            }
            heartbeat.turn();
            let has_input = tokio::select! {
                () = heartbeat.asked() => false,
                received = inbox.recv_many(&mut batch, BATCH) => {
                    if received == 0 {
                        break;
                    }
                    false
                }
                () = signals.changed() => false,
                () = self.instances.ready(self.now) => true,
                () = &mut timer, if wakes_at.is_some() => false,
                () = batch_timer.expired(), if batch_waits.is_some() => false,
            };
            self.now = self.services.clock.now();
            if has_input {
                self.read_connections();
            }
            for message in batch.drain(..) {
                self.on_message(message);
            }
            self.on_signals();
            if self.is_handing_over() {
                self.finish_requests();
            } else {
                self.on_time();
                self.send_requests();
            }
        }
        self.model.metrics.gone();
    }

    fn wakes_at(&self) -> Option<Moment> {
        if self.is_handing_over() {
            return None;
        }
        let moments = [
            self.lifecycle.wakes_at(),
            self.load_wakes_at(),
            self.instances.wakes_at(self.now),
            self.requests.dispatch.wakes_at(),
        ];
        moments.into_iter().flatten().min()
    }

    fn is_handing_over(&self) -> bool {
        matches!(self.mode, Mode::HandingOver(_))
    }

    /// Calls `visit` for each instance, in the order of their numbers; instances may come and go meanwhile.
    fn for_each_instance(&mut self, mut visit: impl FnMut(&mut Self, InstanceNumber)) {
        let mut last = None;
        while let Some(number) = self.instances.next_after(last) {
            last = Some(number);
            visit(self, number);
        }
    }

    fn on_message(&mut self, message: Message) {
        if self.is_handing_over() {
            return self.on_message_while_handing_over(message);
        }
        match message {
            // A client that is gone has cancelled its request, perhaps before this message was received.
            Message::Submit(submission) if submission.request.reply.is_closed() => {}
            Message::Submit(submission) => {
                let deadline = self.services.clock.moment(submission.request.deadline);
                if self.requests.submit(*submission, deadline, self.now) && !self.accepts_requests() {
                    self.event(Event::Demand);
                }
            }
            Message::Content(content) => self.on_content(content.map(|content| *content)),
            Message::Removed => self.event(Event::Removed),
            Message::Kill => self.kill_all(),
            Message::Launcher(event) => self.on_launcher_event(event),
            Message::WorkerConnected(welcome, link) => self.on_worker_connected(&welcome, link),
            Message::Adopt(adoption) => self.adopt(*adoption),
            Message::WorkerMessage(id, message) => self.on_worker_message(&id, message),
            Message::WorkerDisconnected(id) => self.on_worker_disconnected(&id),
            Message::HandOver(hand_over) => self.hand_over(hand_over),
            Message::ExternalRequests(id, requests) => self.on_external_requests(Some(&id), requests),
            Message::PredecessorExited => self.on_external_requests(None, 0),
            Message::Command(command, answer) => {
                let done = self.on_command(&command);
                let _ = answer.send(done.map(|()| self.status.view()));
            }
            Message::Gpu(key, decision) => self.on_gpu_decision(key, decision),
            Message::Capacity(key, decision) => self.on_capacity_decision(key, decision),
            Message::CapacityFreed => self.event(Event::CapacityFreed),
            Message::Stats(answer) => self.request_stats(&answer),
            Message::Stacks(answer) => drop(answer.send(self.request_stacks())),
            Message::History(answer) => drop(answer.send(self.history())),
            Message::Explain(answer) => drop(answer.send(self.explain())),
        }
    }

    /// Returns whether an instance takes requests, now or after those that it has.
    fn accepts_requests(&self) -> bool {
        self.instances.iter().any(Instance::accepts_requests)
    }

    fn on_signals(&mut self) {
        let pending = self.model.signals.take();
        for (id, reason) in pending.cancels {
            self.cancel(id, reason);
        }
        for (id, bytes) in pending.credits {
            let instance = self.requests.table.recipient(id).and_then(|number| self.instances.get_mut(number));
            if let Some(connection) = instance.and_then(Instance::connection_mut) {
                connection.send_credit(id.0, bytes);
            }
        }
    }

    /// Cancels a request; an instance that has it gets a grace to end it.
    fn cancel(&mut self, id: RequestId, reason: CancelReason) {
        let Cancellation::InFlight(number) = self.requests.cancel(id, reason, self.now) else { return };
        let connection = self.instances.get_mut(number).and_then(Instance::connection_mut);
        if connection.is_some_and(|connection| !connection.send_cancel(id.0, reason)) {
            self.event(Event::Unresponsive(number));
        }
        self.watch_cancellations(number);
    }
}

#[cfg(test)]
mod tests;
