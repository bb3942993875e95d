//! An instance of a model, from its request for capacity until all of its processes are gone.
//!
//! ```text
//!                       (adopted) ─────┐
//!                                      ▼
//!   Reserving ──▶ Placing ──▶ Launching ──▶ Starting ──▶ Ready
//!       │            │          ▲ │            │           │
//!       ├────────────┼──────────┘ └────────────┴───────────┴──▶ Stopping ──▶ (gone)
//!       └────────────┴──▶ (gone: there was never a process)
//! ```
//!
//! A model without GPU memory skips `Placing`. From `Launching` on there may be processes, and every state can end with
//! (gone): the end of all of them was reported. In `Stopping` the instance is killed, and killed again, until then. The
//! states are those of its resources; the fleet policy has phases of its own: a draining instance is `Ready` here, with its
//! route disabled.

mod engine;
mod lease;
mod worker;

pub(super) use engine::{CheckAnswer, Engine};
pub(super) use lease::GpuLease;
pub(super) use worker::{CHECK_WORKER, Disconnected, Worker};

use crate::model::content::Content;
use crate::model::worker_link::WorkerLink;
use omni_capacity::Reservation;
use omni_engine_client::{DataConnection, InstanceName};
use omni_engine_protocol::control::HandlerMode;
use omni_node_protocol::id::InstanceId;
use omni_node_protocol::instance::{Stats, Welcome};
use omni_policy::deadlines::StartProgress;
use omni_policy::dispatch::StuckHandlers;
use omni_policy::{Generation, InstanceNumber, Moment};
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

/// An instance.
#[derive(Debug)]
pub(super) struct Instance {
    pub(super) number: InstanceNumber,
    pub(super) id: InstanceId,
    pub(super) generation: Generation,
    pub(super) content: Arc<Content>,
    /// For answers, and records of usage.
    pub(super) name: Arc<InstanceName>,
    pub(super) requested_at: Moment,
    /// Request for the instance, and its readiness, if this scheduler has started it.
    pub(super) started: Option<(Moment, Moment)>,
    pub(super) state: InstanceState,
    /// GPU memory; `None` for a model without, and before a place was requested.
    pub(super) lease: Option<GpuLease>,
    /// Share of the node's capacity. Dropped after the place on a card: waiters are notified of freed capacity then.
    pub(super) reservation: Option<Reservation>,
    pub(super) load: InstanceLoad,
    /// Reason why it is being replaced: a label of the metrics, and a message.
    pub(super) replaced_for: Option<(&'static str, String)>,
    /// Message that names the model whose instance takes its place.
    pub(super) displaced_by: Option<String>,
}

/// State of an instance's resources.
#[derive(Debug)]
pub(super) enum InstanceState {
    /// Waits for its share of the node's capacity. There is no process.
    Reserving,
    /// Waits for a place on a card. There is no process.
    Placing,
    /// The launcher was asked to start it; its worker is not connected yet.
    Launching,
    /// The worker is connected, and the engine loads the model.
    Starting(Box<Process>),
    /// The engine takes requests in this mode.
    Ready(Box<Process>, HandlerMode),
    /// Told to stop, or killed.
    Stopping(Stopping),
}

/// Processes of an instance, as the scheduler is connected to them.
#[derive(Debug)]
pub(super) struct Process {
    pub(super) worker: Worker,
    pub(super) engine: Engine,
}

/// An instance on its way out.
#[derive(Debug)]
pub(super) struct Stopping {
    /// `None` if its worker never connected.
    process: Option<Box<Process>>,
    /// The worker was told to kill it. A worker that has to be told again does not listen.
    is_killed: bool,
}

/// Requests of an instance, as others were informed of them.
#[derive(Debug, Default)]
pub(super) struct InstanceLoad {
    /// Requests in flight, shared with readers of the model's state.
    pub(super) in_flight: Arc<AtomicU64>,
    /// Requests that the previous scheduler still has in flight on this instance.
    pub(super) external: u32,
    /// During a hand-over: requests in flight as last reported to the next scheduler.
    pub(super) reported: u32,
    /// The fleet and the capacity regard it as busy.
    pub(super) is_busy: bool,
    /// Stuck handlers, as the fleet knows them.
    pub(super) stuck: Option<StuckHandlers>,
}

impl InstanceState {
    fn process(&self) -> Option<&Process> {
        match self {
            Self::Reserving | Self::Placing | Self::Launching => None,
            Self::Starting(process) | Self::Ready(process, _) => Some(process),
            Self::Stopping(stopping) => stopping.process.as_deref(),
        }
    }

    fn process_mut(&mut self) -> Option<&mut Process> {
        match self {
            Self::Reserving | Self::Placing | Self::Launching => None,
            Self::Starting(process) | Self::Ready(process, _) => Some(process),
            Self::Stopping(stopping) => stopping.process.as_deref_mut(),
        }
    }
}

impl Instance {
    /// An instance that begins to wait for capacity.
    pub(super) fn new(
        number: InstanceNumber,
        id: InstanceId,
        (generation, content): (Generation, Arc<Content>),
        now: Moment,
    ) -> Self {
        let name = InstanceName { id: id.as_str().to_owned(), version: content.short_version().to_owned() };
        Self {
            number,
            id,
            generation,
            name: Arc::new(name),
            content,
            requested_at: now,
            started: None,
            state: InstanceState::Reserving,
            lease: None,
            reservation: None,
            load: InstanceLoad::default(),
            replaced_for: None,
            displaced_by: None,
        }
    }

    pub(super) fn worker(&self) -> Option<&Worker> {
        self.state.process().map(|process| &process.worker)
    }

    pub(super) fn worker_mut(&mut self) -> Option<&mut Worker> {
        self.state.process_mut().map(|process| &mut process.worker)
    }

    pub(super) fn engine(&self) -> Option<&Engine> {
        self.state.process().map(|process| &process.engine)
    }

    pub(super) fn engine_mut(&mut self) -> Option<&mut Engine> {
        self.state.process_mut().map(|process| &mut process.engine)
    }

    pub(super) fn connection_mut(&mut self) -> Option<&mut DataConnection> {
        self.engine_mut()?.connection.as_mut()
    }

    pub(super) fn take_connection(&mut self) -> Option<DataConnection> {
        self.engine_mut()?.connection.take()
    }

    /// Progress of its start, as far as deadlines are concerned.
    pub(super) fn start_progress(&self) -> StartProgress {
        match self.state {
            InstanceState::Reserving => StartProgress::Reserving,
            InstanceState::Placing => StartProgress::Placing,
            InstanceState::Launching
            | InstanceState::Starting(_)
            | InstanceState::Ready(..)
            | InstanceState::Stopping(_) => StartProgress::Launched,
        }
    }

    /// Returns whether there may be processes.
    pub(super) fn is_launched(&self) -> bool {
        self.start_progress() == StartProgress::Launched
    }

    pub(super) fn is_stopping(&self) -> bool {
        matches!(self.state, InstanceState::Stopping(_))
    }

    /// Returns whether the route to it is enabled.
    pub(super) fn accepts_requests(&self) -> bool {
        self.engine().is_some_and(|engine| engine.accepts)
    }

    /// Returns whether its engine has reported why it cannot work.
    pub(super) fn has_failed(&self) -> bool {
        self.engine().is_some_and(|engine| engine.has_failed)
    }

    /// Gives it the processes of a connected worker. In a state without a launch, or with processes, nothing changes.
    pub(super) fn on_connected(&mut self, worker: Worker, connection: Option<DataConnection>) {
        let process = Box::new(Process { worker, engine: Engine::new(connection) });
        match &mut self.state {
            InstanceState::Stopping(stopping) => stopping.process.get_or_insert(process).worker.stop_checks(),
            InstanceState::Reserving | InstanceState::Placing | InstanceState::Launching => {
                self.state = InstanceState::Starting(process);
            }
            InstanceState::Starting(_) | InstanceState::Ready(..) => {}
        }
    }

    /// Takes the connection of a worker that was connected before.
    pub(super) fn on_reconnected(&mut self, link: WorkerLink, welcome: &Welcome, now: Moment) {
        let stops = self.is_stopping();
        let Some(worker) = self.worker_mut() else { return };
        worker.on_connected(link, welcome, now);
        if stops {
            worker.stop_checks();
        }
    }

    /// Moves from `Starting` to `Ready`. Returns whether it did.
    pub(super) fn on_ready(&mut self, mode: HandlerMode) -> bool {
        match std::mem::replace(&mut self.state, InstanceState::Launching) {
            InstanceState::Starting(process) => {
                self.state = InstanceState::Ready(process, mode);
                if let Some(lease) = &mut self.lease {
                    lease.on_ready();
                }
                true
            }
            other => {
                self.state = other;
                false
            }
        }
    }

    /// Moves to `Stopping`; the next command is a kill or not. Returns whether the worker was already told to kill it.
    pub(super) fn on_stopping(&mut self, kill: bool) -> bool {
        let (process, was_killed) = match std::mem::replace(&mut self.state, InstanceState::Launching) {
            InstanceState::Reserving | InstanceState::Placing | InstanceState::Launching => (None, false),
            InstanceState::Starting(process) | InstanceState::Ready(process, _) => (Some(process), false),
            InstanceState::Stopping(Stopping { process, is_killed }) => (process, is_killed),
        };
        self.state = InstanceState::Stopping(Stopping { process, is_killed: kill });
        if let Some(process) = self.state.process_mut() {
            process.worker.stop_checks();
            process.engine.stop_checks();
            if kill {
                process.engine.deadlines.on_kill();
            }
        }
        was_killed
    }

    /// Returns whether the worker was told to kill it.
    pub(super) fn is_killed(&self) -> bool {
        matches!(self.state, InstanceState::Stopping(Stopping { is_killed: true, .. }))
    }

    /// Returns whether a request can be sent at this moment.
    pub(super) fn may_send(&self) -> bool {
        let InstanceState::Ready(process, mode) = &self.state else { return false };
        // An engine that serves one request at a time serves the previous scheduler first.
        let serves_both = *mode == HandlerMode::Concurrent && self.content.manifest.scaling.concurrency > 1;
        let is_taken = self.load.external > 0 && !serves_both;
        let engine = &process.engine;
        let is_free = !is_taken && !engine.is_checked();
        engine.connection.is_some() && is_free && self.lease.as_ref().is_none_or(GpuLease::is_granted)
    }

    /// Earliest moment at which it has to be looked at: deadlines, checks, paused input.
    pub(super) fn wakes_at(&self, now: Moment) -> Option<Moment> {
        let Process { worker, engine } = self.state.process()?;
        [worker.check_due(), engine.check_due(), engine.deadlines.next(), engine.intake.resumes_at(now)]
            .into_iter()
            .flatten()
            .min()
    }

    /// Passes statistics to those who asked for them.
    pub(super) fn on_stats(&mut self, stats: Stats) {
        if let Some(worker) = self.worker_mut() {
            worker.on_stats(stats);
        }
    }

    /// Notes whether requests are in flight, which decides when the engine is checked.
    pub(super) fn note_work(&mut self, works: bool, now: Moment) {
        let every = self.content.manifest.timeouts.healthcheck;
        if let Some(engine) = self.engine_mut() {
            engine.note_work(works, every, now);
        }
    }

    /// Sends a health check to the engine: the model's own one only while its GPU memory is on the card, and then once
    /// after each use.
    pub(super) fn send_check(&mut self) {
        let has_lease = self.lease.is_some();
        let is_on_card = self.lease.as_ref().is_none_or(GpuLease::is_granted);
        if let Some(engine) = self.engine_mut() {
            engine.send_check(has_lease, is_on_card);
        }
    }
}

#[cfg(test)]
mod tests;
