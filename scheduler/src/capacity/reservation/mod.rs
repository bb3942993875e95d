//! Where models' tasks and the ledger meet: a handle for all, a seat for each instance.
//!
//! Seats ask and tell without waiting. What they are told goes into a box that one task empties into their inboxes; it
//! is bounded by the seats, since each is answered once and displaced once.

use super::messages;
use super::settings::{need, shown};
use super::waiters::RefusedModels;
use crate::launcher::LauncherHandle;
use crate::metrics::CapacityMetrics;
use crate::model::Message;
use crate::policy::Moment;
use crate::policy::capacity::{
    Action, Amounts, Event, Ledger, Purpose, Refusal, ReservationId, Resource, StartReason, View, Zygote,
};
use crate::watchdog::Pulse;
use omni_config::manifest::Resources;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use tokio::sync::{Notify, mpsc};

/// What a model's task is told of its instance.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Decision {
    /// Start it.
    Granted,
    /// Do not start it.
    Refused {
        /// Trying again cannot help before somebody changes the model or the node.
        permanent: bool,
        /// There would be room in place of the model's instances that serve.
        recreate_fits: bool,
        /// Why, for people on the node; names no other model.
        message: String,
    },
    /// It did nothing wrong: another one needs its room. Let it go; its next request starts it again.
    Displaced {
        /// The model that needs the room.
        by: Arc<str>,
        /// What for.
        purpose: Purpose,
        /// What of it is needed.
        from: DisplacedFrom,
    },
}

/// DisplacedFrom that an instance gives up.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DisplacedFrom {
    /// Its share of the node.
    Node,
    /// Its place on a card.
    Card,
}

/// Who asks for a seat.
#[derive(Debug)]
pub struct ReservationRequest<'a> {
    /// The model's name.
    pub model: &'a str,
    /// What an instance may use.
    pub resources: &'a Resources,
    /// The zygote that it comes from, if it comes from one.
    pub zygote: Option<Zygote>,
    /// The model's `min-instances`.
    pub min: u32,
    /// Why an instance is asked for.
    pub reason: StartReason,
    /// Where the answers go.
    pub inbox: mpsc::Sender<Message>,
}

/// Between two looks at who is idle, while somebody hopes for it.
const POLL: Duration = Duration::from_millis(20);
/// The value of [`ReservationEntry::idle_since`] while there is a request, or while no request can be there.
const BUSY: u64 = u64::MAX;

/// A seat as the ledger's side sees it.
#[derive(Debug)]
struct ReservationEntry {
    need: Amounts,
    zygote: Option<Zygote>,
    inbox: mpsc::Sender<Message>,
    /// In nanoseconds since the scheduler started; [`BUSY`] at other times.
    idle_since: Arc<AtomicU64>,
    on_serving: bool,
    /// There may be processes of it: its end makes room.
    on_launch: bool,
}

impl ReservationEntry {
    /// What it asks for, to be read on.
    fn describe_need(&self, resource: Resource) -> String {
        let need = shown(resource, self.need.of(resource));
        match self.zygote.map(|zygote| zygote.need.of(resource)) {
            None | Some(0) => format!("it may use {need}"),
            Some(zygote) => format!("it may use {need} and its zygote {}", shown(resource, zygote)),
        }
    }
}

#[derive(Debug)]
pub(super) struct CapacityState {
    pub(super) ledger: Ledger,
    entries: BTreeMap<ReservationId, ReservationEntry>,
    next_id: u64,
    /// What is to be told, in order.
    pub(super) decisions: Vec<(ReservationId, Decision)>,
    /// Who ends zygotes, once it is known.
    launcher: Option<LauncherHandle>,
    pub(super) refused: RefusedModels,
    pub(super) metrics: CapacityMetrics,
}

#[derive(Debug)]
pub(super) struct Shared {
    state: Mutex<CapacityState>,
    pub(super) notify: Notify,
    /// When the scheduler started.
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
                // Said before who has their room can be started.
                Action::EndZygotes(model) => {
                    if let Some(launcher) = &self.launcher {
                        launcher.end_zygotes(&model);
                    }
                }
            }
        }
        self.metrics.set(&self.ledger.view());
    }

    fn refused(&self, reservation: ReservationId, refusal: Refusal) -> Decision {
        let describe_need = |resource| {
            self.entries.get(&reservation).map_or_else(String::new, |entries| entries.describe_need(resource))
        };
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

    /// Tells the ledger who is idle since when.
    pub(super) fn poll(&mut self) {
        for (key, entries) in self.entries.iter().filter(|(_, entries)| entries.on_serving) {
            let since = entries.idle_since.load(Ordering::Relaxed);
            let idle_since = (since != BUSY).then(|| Moment::from_nanos(since));
            self.ledger.step(&Event::Serving { reservation: *key, idle_since });
        }
    }
}

/// For models' tasks and for who wants to see what there is.
#[derive(Debug, Clone)]
pub struct CapacityHandle(pub(super) Arc<Shared>);

impl CapacityHandle {
    /// Asks for an instance that is to be started: [`Decision::Granted`] or [`Decision::Refused`] follows. Dropped before that,
    /// the seat asks no more.
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

    /// For an instance of an earlier scheduler, which is there already.
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
        let ReservationRequest { model, resources, zygote, min, reason: _, inbox } = request;
        let (model, need): (Arc<str>, _) = (model.into(), need(resources));
        let idle_since = Arc::new(AtomicU64::new(BUSY));
        let mut state = self.0.state();
        state.poll();
        let key = ReservationId(state.next_id);
        state.next_id += 1;
        state.entries.insert(
            key,
            ReservationEntry {
                need,
                zygote,
                inbox,
                idle_since: Arc::clone(&idle_since),
                on_serving: false,
                on_launch: false,
            },
        );
        state.step(&event(key, Arc::clone(&model), need, zygote, min));
        drop(state);
        self.0.notify.notify_one();
        Reservation { key, model, idle_since, shared: Arc::clone(&self.0) }
    }

    /// From now on this launcher is told of zygotes whose room is needed. Nothing has come from one before.
    pub fn set_launcher(&self, launcher: LauncherHandle) {
        self.0.state().launcher = Some(launcher);
    }

    /// What there is, and what is promised of it.
    #[must_use]
    pub fn view(&self) -> View {
        self.0.state().ledger.view()
    }
}

/// An instance's share of the node. Dropped when the instance is gone, which frees it.
#[derive(Debug)]
pub struct Reservation {
    key: ReservationId,
    model: Arc<str>,
    idle_since: Arc<AtomicU64>,
    shared: Arc<Shared>,
}

impl Reservation {
    /// Which instance the answers are for.
    #[must_use]
    pub fn key(&self) -> ReservationId {
        self.key
    }

    /// The launcher is asked for it: from here on its end makes room.
    pub fn on_launch(&self) {
        if let Some(entries) = self.shared.state().entries.get_mut(&self.key) {
            entries.on_launch = true;
        }
    }

    /// It takes requests, and has none yet. Before this it is not displaced.
    pub fn on_serving(&self, now: Moment) {
        self.on_idle(now);
        let mut state = self.shared.state();
        if let Some(entries) = state.entries.get_mut(&self.key) {
            entries.on_serving = true;
        }
    }

    /// It has a request.
    pub fn on_busy(&self) {
        self.idle_since.store(BUSY, Ordering::Relaxed);
    }

    /// It has no request any more.
    pub fn on_idle(&self, now: Moment) {
        self.idle_since.store(u64::try_from(now.as_nanos()).unwrap_or(BUSY - 1), Ordering::Relaxed);
    }

    /// It is on its way out, for whatever reason: others may count on its room. There is no way back.
    pub fn on_leaving(&self) {
        self.shared.step(&Event::Leaving(self.key));
    }

    /// The model's `min-instances` is another one now.
    pub fn set_min(&self, min: u32) {
        self.shared.step(&Event::MinInstances { model: Arc::clone(&self.model), min });
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        let now = self.shared.started.elapsed();
        let mut state = self.shared.state();
        if state.entries.remove(&self.key).is_some_and(|entries| entries.on_launch) {
            state.on_capacity_freed();
        }
        state.step(&Event::Gone { reservation: self.key, now });
        drop(state);
        self.shared.notify.notify_one();
    }
}

/// The end that stays with the task.
#[derive(Debug)]
pub(super) struct DecisionSender(Arc<Shared>);

impl DecisionSender {
    /// Carries what is told into the inboxes. Models' tasks empty theirs without ever waiting for this.
    pub(super) async fn run(self, pulse: Pulse) {
        loop {
            pulse.during(self.wait()).await;
            for (inbox, message) in self.take() {
                let _ = inbox.send(message).await; // a task that has ended needs no answer
            }
        }
    }

    /// Waits until there may be something to tell. That somebody became idle is nobody's word: while one hopes for it, all
    /// are looked at every now and then.
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
            return Some(POLL);
        }
        state.ledger.next_expiry().map(|expiry| expiry.saturating_sub(self.0.started.elapsed()))
    }

    fn poll(&self) {
        let mut state = self.0.state();
        state.poll();
        state.step(&Event::Retry(self.0.started.elapsed()));
    }

    /// What those are to be told that still have their seat.
    fn take(&self) -> Vec<(mpsc::Sender<Message>, Message)> {
        let mut state = self.0.state();
        let decisions = std::mem::take(&mut state.decisions);
        let address = |(reservation, decisions): (ReservationId, Decision)| {
            let entries = state.entries.get(&reservation)?;
            Some((entries.inbox.clone(), Message::Capacity(reservation, decisions)))
        };
        let mut messages: Vec<_> = decisions.into_iter().filter_map(address).collect();
        messages.extend(state.refused.take().map(|inbox| (inbox, Message::Room)));
        messages
    }
}

/// A desk with nobody at it.
pub(super) fn new(budget: Amounts, metrics: CapacityMetrics, started: Instant) -> (CapacityHandle, DecisionSender) {
    let ledger = Ledger::new(budget);
    metrics.set(&ledger.view());
    let (entries, decisions, refused) = (BTreeMap::new(), Vec::new(), RefusedModels::default());
    let state = CapacityState { ledger, entries, next_id: 0, decisions, launcher: None, refused, metrics };
    let shared = Arc::new(Shared { state: Mutex::new(state), notify: Notify::new(), started });
    (CapacityHandle(Arc::clone(&shared)), DecisionSender(shared))
}

#[cfg(test)]
mod tests;
