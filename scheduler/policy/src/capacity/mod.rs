//! Capacity of the node for instances: `step(event) -> actions` over budgets of memory, processor time, processes.
//!
//! An instance counts with its limits, not with its use; a zygote counts once for all instances of its generation, and
//! on while it waits for the next one. The capacity service owns one [`Ledger`] for the node.
//!
//! ```text
//!   request ──fits──────────▶ Waiting ──exits are done──▶ Starting ──▶ Serving ──▶ Leaving ──▶ (gone)
//!      │                         ▲                            ▲
//!      ├──may wait──▶ pending ───┘ another became idle        └── adopted
//!      │                 │
//!      └──▶ refused ◀────┘ [`MAX_WAIT`] is over
//! ```
//!
//! A request is granted at once, or when the instances that leave for it are gone. The first instance of a model and a
//! new version, whose room is used by busy instances, are pending for up to [`MAX_WAIT`] until one becomes idle.
//!
//! Invariants:
//! - granted reservations never need more than the budget; only adopted instances, which are running already, can
//!   exceed it, and then nothing is granted before they are back within it;
//! - every request is answered once, as soon as all leaving instances are gone, and a pending one at the end of its
//!   wait; a pending request reserves nothing, and pending requests are retried in the order of their arrival;
//! - only idle instances are displaced, longest idle first, and none that its model needs for its `min`. For the first
//!   instance of a model they go at once; for a new version or a further instance after being idle for [`MIN_IDLE`],
//!   and for a further instance no model loses all instances if one was used within [`MIN_IDLE_OF_LAST`];
//! - no displacement is in vain: with one displaced instance less, the requested one would not fit;
//! - an idle zygote delays no grant: it is ended when its capacity is granted, longest waiting first.

mod amounts;
mod displacement;
mod events;
mod idle_zygotes;
mod reclaimable;

use super::{Generation, Moment};
use amounts::Commitment;
pub use amounts::{Amounts, Resource};
pub use events::{Action, Event, Purpose, Refusal, ReservationId, Shortage, StartReason, View, Zygote};
use idle_zygotes::IdleZygotes;
pub use reclaimable::Reclaimable;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

/// Longest wait of a model's first instance, or of a new version, for another instance to become idle.
pub const MAX_WAIT: Duration = Duration::from_secs(10);
/// Idle time after which an instance makes room although no request waits for that: for a further instance of another
/// model or for its new version. Between two requests every instance is idle: without this, two busy models would keep
/// starting in each other's place.
pub const MIN_IDLE: Duration = Duration::from_secs(5);
/// Idle time of all instances of a model after which the last one makes room for a further instance of another model:
/// that costs its next request a start, and saves the other model only a wait.
pub const MIN_IDLE_OF_LAST: Duration = Duration::from_secs(10);

/// Time that a zygote without instances waits for the next one before it ends by itself.
pub const ZYGOTE_LINGER: Duration = Duration::from_secs(60);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    /// Accepted; it fits once the leaving instances are gone.
    Waiting,
    Starting,
    Serving {
        idle_since: Option<Moment>,
    },
    Leaving,
}

#[derive(Debug, Clone)]
struct Reservation {
    model: Arc<str>,
    need: Amounts,
    zygote: Option<Zygote>,
    phase: Phase,
}

impl Reservation {
    /// Model and generation whose instances share its zygote.
    fn family(&self) -> Option<(&str, Generation)> {
        self.zygote.map(|zygote| (&*self.model, zygote.generation))
    }
}

/// All reservations of the node.
#[derive(Debug, Clone)]
pub struct Ledger {
    budget: Amounts,
    reservations: BTreeMap<ReservationId, Reservation>,
    pending: BTreeMap<ReservationId, PendingRequest>,
    /// `min_instances` per model, non-zero only.
    mins: BTreeMap<Arc<str>, u32>,
    idle_zygotes: IdleZygotes,
}

/// Request that waits for another instance to become idle.
#[derive(Debug, Clone)]
struct PendingRequest {
    requester: Reservation,
    reason: StartReason,
    min: u32,
    until: Moment,
}

impl Ledger {
    /// Ledger without reservations.
    #[must_use]
    pub fn new(budget: Amounts) -> Self {
        let (reservations, pending, mins) = (BTreeMap::new(), BTreeMap::new(), BTreeMap::new());
        Self { budget, reservations, pending, mins, idle_zygotes: IdleZygotes::default() }
    }

    /// Budget and what is committed of it.
    #[must_use]
    pub fn view(&self) -> View {
        let waiting = self.reservations.values().filter(|reservation| reservation.phase == Phase::Waiting).count();
        let committed = self.commitment(|_| true).sum().plus(self.idle_zygotes.sum());
        let reservations = self.reservations.len() - waiting;
        View { budget: self.budget, committed, reservations, waiting: waiting + self.pending.len() }
    }

    /// Returns whether a request is pending, so that [`Event::Retry`] may grant it.
    #[must_use]
    pub fn has_pending(&self) -> bool {
        !self.pending.is_empty()
    }

    /// Time at which the next idle zygote ends by itself: [`Event::Retry`] then stops counting it.
    #[must_use]
    pub fn next_expiry(&self) -> Option<Moment> {
        self.idle_zygotes.next_expiry()
    }

    /// Processes one event.
    pub fn step(&mut self, event: &Event) -> Vec<Action> {
        let mut actions = Vec::new();
        match event {
            Event::Request { reservation, model, need, zygote, min, reason, now } => {
                self.idle_zygotes.expire(*now);
                self.retry_pending(*now, &mut actions);
                let requester =
                    Reservation { model: Arc::clone(model), need: *need, zygote: *zygote, phase: Phase::Waiting };
                let (reason, min, until) = (*reason, *min, *now + MAX_WAIT);
                self.request(*reservation, PendingRequest { requester, reason, min, until }, *now, &mut actions);
            }
            Event::Retry(now) => {
                self.idle_zygotes.expire(*now);
                self.retry_pending(*now, &mut actions);
            }
            Event::Adopted { reservation, model, need, zygote, min } => {
                let there =
                    Reservation { model: Arc::clone(model), need: *need, zygote: *zygote, phase: Phase::Starting };
                self.idle_zygotes.remove_used(&there);
                self.reservations.insert(*reservation, there);
                self.set_min(model, *min);
                self.refuse_what_cannot_fit(&mut actions);
            }
            Event::MinInstances { model, min } => {
                self.pending
                    .values_mut()
                    .filter(|request| request.requester.model == *model)
                    .for_each(|request| request.min = *min);
                self.set_min(model, *min);
            }
            Event::Serving { reservation, idle_since } => {
                let reservation = self.reservations.get_mut(reservation);
                // Leaving is final.
                if let Some(Reservation { phase: phase @ (Phase::Starting | Phase::Serving { .. }), .. }) = reservation
                {
                    *phase = Phase::Serving { idle_since: *idle_since };
                }
            }
            Event::Leaving(reservation) => self.leave(*reservation),
            Event::Gone { reservation, now } => {
                self.idle_zygotes.expire(*now);
                self.pending.remove(reservation);
                if let Some(gone) = self.reservations.remove(reservation) {
                    self.leave_zygote(&gone, *now);
                    self.set_min(&gone.model, self.mins.get(&gone.model).copied().unwrap_or(0));
                    self.grant(&mut actions);
                }
            }
        }
        self.end_zygotes(&mut actions);
        actions
    }

    /// Counts the zygote as idle when the last instance of its generation is gone.
    fn leave_zygote(&mut self, gone: &Reservation, now: Moment) {
        let has =
            |reservation: &Reservation| reservation.phase != Phase::Waiting && reservation.family() == gone.family();
        if gone.phase != Phase::Waiting && !self.reservations.values().any(has) {
            self.idle_zygotes.add(gone, now);
        }
    }

    /// Ends idle zygotes until all granted reservations are within the budget with them.
    fn end_zygotes(&mut self, actions: &mut Vec<Action>) {
        let granted_sum = self.commitment(|phase| phase != Phase::Waiting).sum();
        while granted_sum.plus(self.idle_zygotes.sum()).beyond(&self.budget).is_some()
            && let Some(model) = self.idle_zygotes.end_first()
        {
            actions.push(Action::EndZygotes(model));
        }
    }

    fn set_min(&mut self, model: &Arc<str>, min: u32) {
        if min > 0 && self.reservations.values().any(|reservation| reservation.model == *model) {
            self.mins.insert(Arc::clone(model), min);
        } else {
            self.mins.remove(model);
        }
    }

    fn leave(&mut self, key: ReservationId) {
        if let Some(reservation) = self.reservations.get_mut(&key) {
            reservation.phase = Phase::Leaving;
        }
    }

    fn request(&mut self, key: ReservationId, request: PendingRequest, now: Moment, actions: &mut Vec<Action>) {
        let (model, min) = (Arc::clone(&request.requester.model), request.min);
        let purpose = self.purpose(&request.requester.model, request.reason);
        match self.room_for(&request.requester, purpose, false, now) {
            Err(_) if now < request.until && self.may_wait(&request.requester, purpose, now) => {
                self.pending.insert(key, request);
            }
            Err(refusal) => actions.push(Action::Refuse { reservation: key, refusal }),
            Ok(displaced) => {
                for reservation in displaced {
                    self.leave(reservation);
                    actions.push(Action::Displace { reservation, by: Arc::clone(&model), purpose });
                }
                self.reservations.insert(key, request.requester);
                self.grant(actions);
            }
        }
        self.set_min(&model, min);
    }

    fn retry_pending(&mut self, now: Moment, actions: &mut Vec<Action>) {
        for (key, request) in std::mem::take(&mut self.pending) {
            self.request(key, request, now, actions);
        }
    }

    fn purpose(&self, model: &Arc<str>, reason: StartReason) -> Purpose {
        match (self.serves(model), reason) {
            (false, StartReason::Retry) => Purpose::Retry,
            (false, StartReason::Load | StartReason::Rollout) => Purpose::First,
            (true, StartReason::Rollout) => Purpose::Candidate,
            (true, StartReason::Load | StartReason::Retry) => Purpose::ScaleUp,
        }
    }

    /// Returns whether the request may be pending: its purpose allows it, and it would fit if all others were idle.
    fn may_wait(&self, requester: &Reservation, purpose: Purpose, now: Moment) -> bool {
        !matches!(purpose, Purpose::ScaleUp | Purpose::Retry) && self.room_for(requester, purpose, true, now).is_ok()
    }

    /// Returns whether the model has an instance that takes requests.
    fn serves(&self, model: &Arc<str>) -> bool {
        self.reservations
            .values()
            .any(|reservation| reservation.model == *model && matches!(reservation.phase, Phase::Serving { .. }))
    }

    /// Grants the waiting reservations that fit now, in the order of their requests. Each of the others fits once the
    /// leaving instances are gone, whichever is granted before.
    fn grant(&mut self, actions: &mut Vec<Action>) {
        let mut granted_sum = self.commitment(|phase| phase != Phase::Waiting);
        let mut granted = Vec::new();
        for (key, reservation) in
            self.reservations.iter().filter(|(_, reservation)| reservation.phase == Phase::Waiting)
        {
            granted_sum.add(reservation);
            if granted_sum.sum().beyond(&self.budget).is_none() {
                granted.push(*key);
            } else {
                granted_sum.remove(reservation);
            }
        }
        for key in granted {
            if let Some(reservation) = self.reservations.get_mut(&key) {
                reservation.phase = Phase::Starting;
                self.idle_zygotes.remove_used(reservation);
                actions.push(Action::Grant(key));
            }
        }
    }

    /// Refuses waiting reservations whose room was taken by an adopted instance, latest request first.
    fn refuse_what_cannot_fit(&mut self, actions: &mut Vec<Action>) {
        let waiting =
            |(key, reservation): (&ReservationId, &Reservation)| (reservation.phase == Phase::Waiting).then_some(*key);
        while let Some(resource) = self.committed_after_exits().beyond(&self.budget)
            && let Some(reservation) = self.reservations.iter().filter_map(waiting).next_back()
        {
            self.reservations.remove(&reservation);
            let free = self.budget.less(self.committed_after_exits()).of(resource);
            let shortage = Shortage { resource, free, idle: 0, kept: 0, recent: 0, recreate_fits: false };
            actions.push(Action::Refuse { reservation, refusal: Refusal::Full(shortage) });
        }
    }

    /// Sum of the reservations once the leaving instances are gone.
    fn committed_after_exits(&self) -> Amounts {
        self.commitment(|phase| phase != Phase::Leaving).sum()
    }

    fn commitment(&self, counts: impl Fn(Phase) -> bool) -> Commitment<'_> {
        let mut commitment = Commitment::default();
        self.reservations
            .values()
            .filter(|reservation| counts(reservation.phase))
            .for_each(|reservation| commitment.add(reservation));
        commitment
    }
}

#[cfg(test)]
mod tests;
