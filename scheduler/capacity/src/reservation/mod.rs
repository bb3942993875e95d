//! Handle and reservations through which models' actors use the ledger.
//!
//! Requests never wait: decisions are collected and one task delivers them into the models' mailboxes, in the order in
//! which they were made. The collection is bounded by the reservations: each is answered once and displaced once.

mod waiters;

use super::messages;
use super::settings::{need, shown};
use crate::metrics::CapacityMetrics;
use omni_config::manifest::Resources;
use omni_policy::Moment;
use omni_policy::capacity::{
    Action, Amounts, Event, Ledger, Purpose, Refusal, ReservationId, Resource, StartReason, View, Zygote,
};
use omni_task::{Heartbeat, Mailbox};
use std::collections::BTreeMap;
use std::fmt::{self, Debug, Formatter};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use tokio::sync::Notify;
use waiters::Waiters;

/// Decision about the capacity of an instance.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Decision {
    /// The instance may start.
    Granted,
    /// The instance may not start.
    Refused {
        /// Another try cannot help before the model or the node is changed.
        permanent: bool,
        /// The instance would fit if the model's serving instances went first.
        recreate_fits: bool,
        /// Reason for the node's operators; names no other model.
        message: String,
    },
    /// Another instance needs the capacity of this one, which did nothing wrong: stop it; its next request starts it
    /// again.
    Displaced {
        /// Model of the instance that takes the capacity.
        by: Arc<str>,
        /// Purpose of that instance.
        purpose: Purpose,
        /// Resource that is taken.
        from: DisplacedFrom,
    },
}

/// Resource from which an instance is displaced.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DisplacedFrom {
    /// Share of the node.
    Node,
    /// Place on a card.
    Card,
}

/// Request for the capacity of one instance.
#[derive(Debug)]
pub struct ReservationRequest<'a> {
    /// Name of the model.
    pub model: &'a str,
    /// Limits of the instance.
    pub resources: &'a Resources,
    /// Zygote that the instance is forked from, if any.
    pub zygote: Option<Zygote>,
    /// `min-instances` of the model.
    pub min: u32,
    /// Why the instance is started.
    pub reason: StartReason,
    /// Destination of the decisions.
    pub mailbox: DecisionMailbox,
}

/// Interval of polls for idle instances while a request is pending.
const POLL_INTERVAL: Duration = Duration::from_millis(20);

/// Start of an instance's idle time, written with every request without a lock.
///
/// Nanoseconds since the scheduler started, plus one; zero while the instance is busy or cannot get requests.
#[derive(Debug, Default)]
struct IdleSince(AtomicU64);

impl IdleSince {
    fn set(&self, since: Option<Moment>) {
        let encoded = since.map_or(0, |since| u64::try_from(since.as_nanos()).unwrap_or(u64::MAX).saturating_add(1));
        self.0.store(encoded, Ordering::Relaxed);
    }

    fn get(&self) -> Option<Moment> {
        self.0.load(Ordering::Relaxed).checked_sub(1).map(Moment::from_nanos)
    }
}

/// State of a reservation beside the ledger's.
#[derive(Debug)]
struct ReservationEntry {
    need: Amounts,
    zygote: Option<Zygote>,
    mailbox: DecisionMailbox,
    idle_since: Arc<IdleSince>,
    is_serving: bool,
    /// The launcher was asked to start it: its end frees capacity.
    is_launched: bool,
}

impl ReservationEntry {
    /// First half of a refusal's message.
    fn describe_need(&self, resource: Resource) -> String {
        let need = shown(resource, self.need.of(resource));
        match self.zygote.map(|zygote| zygote.need.of(resource)) {
            None | Some(0) => format!("it may use {need}"),
            Some(zygote) => format!("it may use {need} and its zygote {}", shown(resource, zygote)),
        }
    }
}

/// Ends the idle zygotes of a model.
type EndZygotes = Box<dyn Fn(&str) + Send>;

pub(super) struct CapacityState {
    pub(super) ledger: Ledger,
    entries: BTreeMap<ReservationId, ReservationEntry>,
    next_id: u64,
    /// Undelivered decisions, oldest first.
    pub(super) decisions: Vec<(ReservationId, Decision)>,
    /// `None` before a launcher is connected.
    end_zygotes: Option<EndZygotes>,
    waiters: Waiters,
    pub(super) metrics: CapacityMetrics,
}

impl Debug for CapacityState {
    fn fmt(&self, out: &mut Formatter<'_>) -> fmt::Result {
        out.debug_struct("CapacityState").field("ledger", &self.ledger).finish_non_exhaustive()
    }
}

#[derive(Debug)]
pub(super) struct Shared {
    state: Mutex<CapacityState>,
    pub(super) notify: Notify,
    /// Start of the scheduler.
    pub(super) started: Instant,
}

impl Shared {
    pub(super) fn state(&self) -> MutexGuard<'_, CapacityState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn step(&self, event: &Event) {
        self.state().step(event);
        self.notify.notify_one();
    }
}

impl CapacityState {
    pub(super) fn step(&mut self, event: &Event) {
        for action in self.ledger.step(event) {
            match action {
                Action::Grant(reservation) => self.decisions.push((reservation, Decision::Granted)),
                Action::Refuse { reservation, refusal } => {
                    let refused = self.refused(reservation, refusal);
                    self.decisions.push((reservation, refused));
                }
                Action::Displace { reservation, by, purpose } => {
                    self.metrics.displaced();
                    self.decisions.push((reservation, Decision::Displaced { by, purpose, from: DisplacedFrom::Node }));
                }
                // Sent before the instance that takes their capacity can be started.
                Action::EndZygotes(model) => {
                    if let Some(end_zygotes) = &self.end_zygotes {
                        end_zygotes(&model);
                    }
                }
            }
        }
        self.metrics.set(&self.ledger.view());
    }

    fn refused(&self, reservation: ReservationId, refusal: Refusal) -> Decision {
        let describe_need =
            |resource| self.entries.get(&reservation).map_or_else(String::new, |entry| entry.describe_need(resource));
        match refusal {
            Refusal::TooBig { resource, budget } => {
                self.metrics.refused(resource, "too-big");
                let (describe_need, budget) = (describe_need(resource), shown(resource, budget));
                let message = format!("{describe_need}, and [capacity] gives all instances of the node {budget}");
                Decision::Refused { permanent: true, recreate_fits: false, message }
            }
            Refusal::Full(shortage) => {
                self.metrics.refused(shortage.resource, "full");
                let message = messages::shortage(&describe_need(shortage.resource), &shortage);
                Decision::Refused { permanent: false, recreate_fits: shortage.recreate_fits, message }
            }
        }
    }

    /// Feeds the idle times of all serving instances to the ledger.
    pub(super) fn read_idle_times(&mut self) {
        for (id, entry) in self.entries.iter().filter(|(_, entry)| entry.is_serving) {
            self.ledger.step(&Event::Serving { reservation: *id, idle_since: entry.idle_since.get() });
        }
    }
}

/// Handle of the node's capacity, for models' actors and for views.
#[derive(Debug, Clone)]
pub struct CapacityHandle(pub(super) Arc<Shared>);

impl CapacityHandle {
    /// Requests capacity for an instance; [`Decision::Granted`] or [`Decision::Refused`] follows. Dropping the
    /// reservation before that withdraws the request.
    #[must_use]
    pub fn reserve(&self, request: ReservationRequest<'_>) -> Reservation {
        let now = self.0.started.elapsed();
        let reason = request.reason;
        self.reservation(request, |reservation, model, need, zygote, min| Event::Request {
            reservation,
            model,
            need,
            zygote,
            min,
            reason,
            now,
        })
    }

    /// Reservation for a running instance of an earlier scheduler.
    #[must_use]
    pub fn adopt(&self, request: ReservationRequest<'_>) -> Reservation {
        let adopted = |reservation, model, need, zygote, min| Event::Adopted { reservation, model, need, zygote, min };
        let reservation = self.reservation(request, adopted);
        reservation.on_launch();
        reservation
    }

    fn reservation(
        &self,
        request: ReservationRequest<'_>,
        event: impl Fn(ReservationId, Arc<str>, Amounts, Option<Zygote>, u32) -> Event,
    ) -> Reservation {
        let ReservationRequest { model, resources, zygote, min, reason: _, mailbox } = request;
        let (model, need): (Arc<str>, _) = (model.into(), need(resources));
        let idle_since = Arc::new(IdleSince::default());
        let mut state = self.0.state();
        state.read_idle_times();
        let id = ReservationId(state.next_id);
        state.next_id += 1;
        let entry_idle_since = Arc::clone(&idle_since);
        let entry = ReservationEntry {
            need,
            zygote,
            mailbox,
            idle_since: entry_idle_since,
            is_serving: false,
            is_launched: false,
        };
        state.entries.insert(id, entry);
        state.step(&event(id, Arc::clone(&model), need, zygote, min));
        drop(state);
        self.0.notify.notify_one();
        Reservation { id, model, idle_since, shared: Arc::clone(&self.0) }
    }

    /// Sets how idle zygotes of a model are ended when their capacity is needed. Nothing was started from one before.
    pub fn set_end_zygotes(&self, end_zygotes: impl Fn(&str) + Send + 'static) {
        self.0.state().end_zygotes = Some(Box::new(end_zygotes));
    }

    /// Budgets and what is committed of them.
    #[must_use]
    pub fn view(&self) -> View {
        self.0.state().ledger.view()
    }
}

/// Capacity of one instance. Dropped when the instance is gone, which frees it.
#[derive(Debug)]
pub struct Reservation {
    id: ReservationId,
    model: Arc<str>,
    idle_since: Arc<IdleSince>,
    shared: Arc<Shared>,
}

impl Reservation {
    /// Id that decisions about it carry.
    #[must_use]
    pub fn id(&self) -> ReservationId {
        self.id
    }

    /// The launcher is asked to start the instance: from here on its end frees capacity.
    pub fn on_launch(&self) {
        if let Some(entry) = self.shared.state().entries.get_mut(&self.id) {
            entry.is_launched = true;
        }
    }

    /// The instance takes requests, and has none yet. It is not displaced before this.
    pub fn on_serving(&self, now: Moment) {
        self.on_idle(now);
        let mut state = self.shared.state();
        if let Some(entry) = state.entries.get_mut(&self.id) {
            entry.is_serving = true;
        }
    }

    /// The instance has a request.
    pub fn on_busy(&self) {
        self.idle_since.set(None);
    }

    /// The instance has no request any more.
    pub fn on_idle(&self, now: Moment) {
        self.idle_since.set(Some(now));
    }

    /// The instance is stopping, for whatever reason: others may count on its capacity. This is final.
    pub fn on_leaving(&self) {
        self.shared.step(&Event::Leaving(self.id));
    }

    /// Sets the `min-instances` of the model.
    pub fn set_min(&self, min: u32) {
        self.shared.step(&Event::MinInstances { model: Arc::clone(&self.model), min });
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        let now = self.shared.started.elapsed();
        let mut state = self.shared.state();
        if state.entries.remove(&self.id).is_some_and(|entry| entry.is_launched) {
            state.on_capacity_freed();
        }
        state.step(&Event::Gone { reservation: self.id, now });
        drop(state);
        self.shared.notify.notify_one();
    }
}

/// Inbox of a model, for decisions about its reservations.
type DecisionMailbox = Mailbox<(ReservationId, Decision)>;

/// Deliveries that are due, in order.
#[derive(Debug)]
struct Due {
    decisions: Vec<(DecisionMailbox, ReservationId, Decision)>,
    freed: Vec<Mailbox<()>>,
}

/// Task that delivers decisions into the models' mailboxes.
#[derive(Debug)]
pub(super) struct DecisionSender(Arc<Shared>);

impl DecisionSender {
    /// Delivers until the scheduler ends. Models' actors empty their inboxes without ever waiting for this task.
    pub(super) async fn run(self, heartbeat: Heartbeat) {
        loop {
            heartbeat.during(self.wait()).await;
            let Due { decisions, freed } = self.take_due();
            for (mailbox, id, decision) in decisions {
                mailbox.send((id, decision)).await;
            }
            for mailbox in freed {
                mailbox.send(()).await;
            }
        }
    }

    /// Waits until there may be something to deliver. Becoming idle sends no event: while a request is pending, all
    /// instances are polled every [`POLL_INTERVAL`].
    async fn wait(&self) {
        let next_poll = self.next_poll();
        tokio::select! {
            () = self.0.notify.notified() => {}
            () = tokio::time::sleep(next_poll.unwrap_or_default()), if next_poll.is_some() => self.poll(),
        }
    }

    fn next_poll(&self) -> Option<Duration> {
        let state = self.0.state();
        if state.ledger.has_pending() {
            return Some(POLL_INTERVAL);
        }
        state.ledger.next_expiry().map(|expiry| expiry.saturating_sub(self.0.started.elapsed()))
    }

    fn poll(&self) {
        let mut state = self.0.state();
        state.read_idle_times();
        state.step(&Event::Retry(self.0.started.elapsed()));
    }

    /// Removes the undelivered decisions; those for reservations that were dropped meanwhile are discarded.
    fn take_due(&self) -> Due {
        let mut state = self.0.state();
        let decisions = std::mem::take(&mut state.decisions);
        let address = |(id, decision): (ReservationId, Decision)| {
            let entry = state.entries.get(&id)?;
            Some((entry.mailbox.clone(), id, decision))
        };
        let decisions: Vec<_> = decisions.into_iter().filter_map(address).collect();
        Due { decisions, freed: state.waiters.take_due().collect() }
    }
}

/// Capacity without reservations, and the task that delivers its decisions.
pub(super) fn new(budget: Amounts, metrics: CapacityMetrics, started: Instant) -> (CapacityHandle, DecisionSender) {
    let ledger = Ledger::new(budget);
    metrics.set(&ledger.view());
    let (entries, decisions, waiters) = (BTreeMap::new(), Vec::new(), Waiters::default());
    let state = CapacityState { ledger, entries, next_id: 0, decisions, end_zygotes: None, waiters, metrics };
    let shared = Arc::new(Shared { state: Mutex::new(state), notify: Notify::new(), started });
    (CapacityHandle(Arc::clone(&shared)), DecisionSender(shared))
}

#[cfg(test)]
mod tests;
