//! Which instances the node has room for: `step(event) -> actions` over budgets of memory, processor time, processes.
//!
//! What counts is what an instance may use, its limits, not what it uses; a zygote counts once for all instances of its
//! generation, and on while it waits for the next one. [`crate::capacity`] owns one [`Ledger`] for
//! the node. An instance that wants to start asks for a seat; it gets one at once, or when those that leave for it are
//! gone. The first one of a model and a new version, whose room others are at work in, hope for [`MAX_WAIT`] that one of
//! them becomes idle; else they are refused. What always holds:
//! - the seats that are given never need more than the budget; only instances of an earlier scheduler, which are there
//!   already, can be beyond it, and then nothing is given before they are back within it;
//! - every ask is answered once, as soon as all who leave are gone, and one that hopes when its patience is over; who
//!   hopes has nothing, and those who hope are looked at in the order in which they asked;
//! - only an instance that is idle is displaced, the one that is idle longest first, and none that its model needs for
//!   its `min`. For the first one of a model it goes at once; for a new version and a further one after it has been idle
//!   for [`MIN_IDLE`], and for a further one no model loses all it has that was in use within [`MIN_IDLE_OF_LAST`];
//! - nobody is displaced in vain: with one less of those that go, the asker would not fit;
//! - a zygote that waits keeps nobody from a seat: it goes when its room is given, the one that waits longest first.

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

/// How long the first instance of a model, or a new version, waits for one of the others to become idle.
pub const MAX_WAIT: Duration = Duration::from_secs(10);
/// Idle time after which an instance makes room where no request waits for it: for a further instance of another model or
/// its new version. Between two requests each is idle: without this, two models that are both at work would start in each
/// other's place for as long as they are.
pub const MIN_IDLE: Duration = Duration::from_secs(5);
/// Idle time of all instances of a model after which the last of them makes room for a further one of another model: it
/// costs its next request a start, and spares the other model only a wait.
pub const MIN_IDLE_OF_LAST: Duration = Duration::from_secs(10);

/// How long a zygote without instances waits for the next one before it ends by itself.
pub const ZYGOTE_LINGER: Duration = Duration::from_secs(60);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    /// It will fit as soon as those that leave are gone.
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
    /// Whose instances share its zygote.
    fn family(&self) -> Option<(&str, Generation)> {
        self.zygote.map(|zygote| (&*self.model, zygote.generation))
    }
}

/// All seats of the node.
#[derive(Debug, Clone)]
pub struct Ledger {
    budget: Amounts,
    reservations: BTreeMap<ReservationId, Reservation>,
    pending: BTreeMap<ReservationId, PendingRequest>,
    /// Of models that have one.
    mins: BTreeMap<Arc<str>, u32>,
    idle_zygotes: IdleZygotes,
}

/// An ask that nobody is idle for.
#[derive(Debug, Clone)]
struct PendingRequest {
    requester: Reservation,
    reason: StartReason,
    min: u32,
    until: Moment,
}

impl Ledger {
    /// A node without instances.
    #[must_use]
    pub fn new(budget: Amounts) -> Self {
        let (reservations, pending, mins) = (BTreeMap::new(), BTreeMap::new(), BTreeMap::new());
        Self { budget, reservations, pending, mins, idle_zygotes: IdleZygotes::default() }
    }

    /// What there is and what is promised.
    #[must_use]
    pub fn view(&self) -> View {
        let waiting = self.reservations.values().filter(|reservation| reservation.phase == Phase::Waiting).count();
        let committed = self.commitment(|_| true).sum().plus(self.idle_zygotes.sum());
        let reservations = self.reservations.len() - waiting;
        View { budget: self.budget, committed, reservations, waiting: waiting + self.pending.len() }
    }

    /// Whether somebody hopes, so that [`Event::Retry`] may bring something.
    #[must_use]
    pub fn has_pending(&self) -> bool {
        !self.pending.is_empty()
    }

    /// When the next zygote that waits has waited for long enough: [`Event::Retry`] then has it out of the sum.
    #[must_use]
    pub fn next_expiry(&self) -> Option<Moment> {
        self.idle_zygotes.next_expiry()
    }

    /// Takes one event.
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
                // What leaves does not come back.
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

    /// The last one of its generation leaves its zygote behind, if it has come from it.
    fn leave_zygote(&mut self, gone: &Reservation, now: Moment) {
        let has =
            |reservation: &Reservation| reservation.phase != Phase::Waiting && reservation.family() == gone.family();
        if gone.phase != Phase::Waiting && !self.reservations.values().any(has) {
            self.idle_zygotes.add(gone, now);
        }
    }

    /// As many of those that wait as it takes to be within the budget with all that was given.
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

    /// Whether it is one that waits for others to become idle, and would fit if everybody were.
    fn may_wait(&self, requester: &Reservation, purpose: Purpose, now: Moment) -> bool {
        !matches!(purpose, Purpose::ScaleUp | Purpose::Retry) && self.room_for(requester, purpose, true, now).is_ok()
    }

    /// Whether the model has an instance that takes requests.
    fn serves(&self, model: &Arc<str>) -> bool {
        self.reservations
            .values()
            .any(|reservation| reservation.model == *model && matches!(reservation.phase, Phase::Serving { .. }))
    }

    /// Gives seats to those that fit now, in the order in which they asked. Each of the others fits when those that
    /// leave are gone, whoever is granted before.
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

    /// Those that wait were promised room that is not there any more; who asked last goes first.
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

    /// What is taken once everybody who leaves is gone.
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
