//! Which instances the node has room for: `step(event) -> actions` over budgets of memory, processor time, processes.
//!
//! What counts is what an instance may use, its limits, not what it uses; a zygote counts once for all instances of its
//! generation, and on while it waits for the next one. [`crate::capacity`] owns one [`Ledger`] for
//! the node. An instance that wants to start asks for a seat; it gets one at once, or when those that leave for it are
//! gone. The first one of a model and a new version, whose room others are at work in, hope for [`PATIENCE`] that one of
//! them becomes idle; else they are refused. What always holds:
//! - the seats that are given never need more than the budget; only instances of an earlier scheduler, which are there
//!   already, can be beyond it, and then nothing is given before they are back within it;
//! - every ask is answered once, as soon as all who leave are gone, and one that hopes when its patience is over; who
//!   hopes has nothing, and those who hope are looked at in the order in which they asked;
//! - only an instance that is idle is displaced, the one that is idle longest first, and none that its model needs for
//!   its `min`. For the first one of a model it goes at once; for a new version and a further one after it has been idle
//!   for [`UNUSED`], and for a further one no model loses all it has that was in use within [`UNUSED_MODEL`];
//! - nobody is displaced in vain: with one less of those that go, the asker would not fit;
//! - a zygote that waits keeps nobody from a seat: it goes when its room is given, the one that waits longest first.

mod amounts;
mod displacement;
mod events;
mod idle_zygotes;
mod reclaimable;

use super::{Generation, Moment};
use amounts::Tally;
pub use amounts::{Amounts, Resource};
pub use events::{Action, Cause, Event, Purpose, Refusal, SeatKey, Shortage, View, Zygote};
use idle_zygotes::Lingering;
pub use reclaimable::Others;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

/// How long the first instance of a model, or a new version, waits for one of the others to become idle.
pub const PATIENCE: Duration = Duration::from_secs(10);
/// Idle time after which an instance makes room where no request waits for it: for a further instance of another model or
/// its new version. Between two requests each is idle: without this, two models that are both at work would start in each
/// other's place for as long as they are.
pub const UNUSED: Duration = Duration::from_secs(5);
/// Idle time of all instances of a model after which the last of them makes room for a further one of another model: it
/// costs its next request a start, and spares the other model only a wait.
pub const UNUSED_MODEL: Duration = Duration::from_secs(10);

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
struct Seat {
    model: Arc<str>,
    need: Amounts,
    zygote: Option<Zygote>,
    phase: Phase,
}

impl Seat {
    /// Whose instances share its zygote.
    fn family(&self) -> Option<(&str, Generation)> {
        self.zygote.map(|zygote| (&*self.model, zygote.generation))
    }
}

/// All seats of the node.
#[derive(Debug, Clone)]
pub struct Ledger {
    budget: Amounts,
    seats: BTreeMap<SeatKey, Seat>,
    hopes: BTreeMap<SeatKey, Hope>,
    /// Of models that have one.
    mins: BTreeMap<Arc<str>, u32>,
    lingering: Lingering,
}

/// An ask that nobody is idle for.
#[derive(Debug, Clone)]
struct Hope {
    asker: Seat,
    cause: Cause,
    min: u32,
    until: Moment,
}

impl Ledger {
    /// A node without instances.
    #[must_use]
    pub fn new(budget: Amounts) -> Self {
        let (seats, hopes, mins) = (BTreeMap::new(), BTreeMap::new(), BTreeMap::new());
        Self { budget, seats, hopes, mins, lingering: Lingering::default() }
    }

    /// What there is and what is promised.
    #[must_use]
    pub fn view(&self) -> View {
        let waiting = self.seats.values().filter(|seat| seat.phase == Phase::Waiting).count();
        let committed = self.tally(|_| true).sum().plus(self.lingering.sum());
        let seats = self.seats.len() - waiting;
        View { budget: self.budget, committed, seats, waiting: waiting + self.hopes.len() }
    }

    /// Whether somebody hopes, so that [`Event::Look`] may bring something.
    #[must_use]
    pub fn has_hopes(&self) -> bool {
        !self.hopes.is_empty()
    }

    /// When the next zygote that waits has waited for long enough: [`Event::Look`] then has it out of the sum.
    #[must_use]
    pub fn next_expiry(&self) -> Option<Moment> {
        self.lingering.next_expiry()
    }

    /// Takes one event.
    pub fn step(&mut self, event: &Event) -> Vec<Action> {
        let mut actions = Vec::new();
        match event {
            Event::Ask { seat, model, need, zygote, min, cause, now } => {
                self.lingering.expire(*now);
                self.look(*now, &mut actions);
                let asker = Seat { model: Arc::clone(model), need: *need, zygote: *zygote, phase: Phase::Waiting };
                let (cause, min, until) = (*cause, *min, *now + PATIENCE);
                self.ask(*seat, Hope { asker, cause, min, until }, *now, &mut actions);
            }
            Event::Look(now) => {
                self.lingering.expire(*now);
                self.look(*now, &mut actions);
            }
            Event::Adopted { seat, model, need, zygote, min } => {
                let there = Seat { model: Arc::clone(model), need: *need, zygote: *zygote, phase: Phase::Starting };
                self.lingering.is_used(&there);
                self.seats.insert(*seat, there);
                self.set_min(model, *min);
                self.refuse_what_cannot_fit(&mut actions);
            }
            Event::Min { model, min } => {
                self.hopes.values_mut().filter(|hope| hope.asker.model == *model).for_each(|hope| hope.min = *min);
                self.set_min(model, *min);
            }
            Event::Serves { seat, idle_since } => {
                let seat = self.seats.get_mut(seat);
                // What leaves does not come back.
                if let Some(Seat { phase: phase @ (Phase::Starting | Phase::Serving { .. }), .. }) = seat {
                    *phase = Phase::Serving { idle_since: *idle_since };
                }
            }
            Event::Leaves(seat) => self.leaves(*seat),
            Event::Gone { seat, now } => {
                self.lingering.expire(*now);
                self.hopes.remove(seat);
                if let Some(gone) = self.seats.remove(seat) {
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
    fn leave_zygote(&mut self, gone: &Seat, now: Moment) {
        let has = |seat: &Seat| seat.phase != Phase::Waiting && seat.family() == gone.family();
        if gone.phase != Phase::Waiting && !self.seats.values().any(has) {
            self.lingering.begin(gone, now);
        }
    }

    /// As many of those that wait as it takes to be within the budget with all that was given.
    fn end_zygotes(&mut self, actions: &mut Vec<Action>) {
        let given = self.tally(|phase| phase != Phase::Waiting).sum();
        while given.plus(self.lingering.sum()).beyond(&self.budget).is_some()
            && let Some(model) = self.lingering.end_first()
        {
            actions.push(Action::EndZygotes(model));
        }
    }

    fn set_min(&mut self, model: &Arc<str>, min: u32) {
        if min > 0 && self.seats.values().any(|seat| seat.model == *model) {
            self.mins.insert(Arc::clone(model), min);
        } else {
            self.mins.remove(model);
        }
    }

    fn leaves(&mut self, key: SeatKey) {
        if let Some(seat) = self.seats.get_mut(&key) {
            seat.phase = Phase::Leaving;
        }
    }

    fn ask(&mut self, key: SeatKey, hope: Hope, now: Moment, actions: &mut Vec<Action>) {
        let (model, min) = (Arc::clone(&hope.asker.model), hope.min);
        let purpose = self.purpose(&hope.asker.model, hope.cause);
        match self.room_for(&hope.asker, purpose, false, now) {
            Err(_) if now < hope.until && self.may_hope(&hope.asker, purpose, now) => {
                self.hopes.insert(key, hope);
            }
            Err(why) => actions.push(Action::Refuse { seat: key, why }),
            Ok(displaced) => {
                for seat in displaced {
                    self.leaves(seat);
                    actions.push(Action::Displace { seat, by: Arc::clone(&model), purpose });
                }
                self.seats.insert(key, hope.asker);
                self.grant(actions);
            }
        }
        self.set_min(&model, min);
    }

    fn look(&mut self, now: Moment, actions: &mut Vec<Action>) {
        for (key, hope) in std::mem::take(&mut self.hopes) {
            self.ask(key, hope, now, actions);
        }
    }

    fn purpose(&self, model: &Arc<str>, cause: Cause) -> Purpose {
        match (self.serves(model), cause) {
            (false, Cause::Retry) => Purpose::Retry,
            (false, Cause::Load | Cause::Version) => Purpose::First,
            (true, Cause::Version) => Purpose::Candidate,
            (true, Cause::Load | Cause::Retry) => Purpose::Further,
        }
    }

    /// Whether it is one that waits for others to become idle, and would fit if everybody were.
    fn may_hope(&self, asker: &Seat, purpose: Purpose, now: Moment) -> bool {
        !matches!(purpose, Purpose::Further | Purpose::Retry) && self.room_for(asker, purpose, true, now).is_ok()
    }

    /// Whether the model has an instance that takes requests.
    fn serves(&self, model: &Arc<str>) -> bool {
        self.seats.values().any(|seat| seat.model == *model && matches!(seat.phase, Phase::Serving { .. }))
    }

    /// Gives seats to those that fit now, in the order in which they asked. Each of the others fits when those that
    /// leave are gone, whoever is granted before.
    fn grant(&mut self, actions: &mut Vec<Action>) {
        let mut given = self.tally(|phase| phase != Phase::Waiting);
        let mut granted = Vec::new();
        for (key, seat) in self.seats.iter().filter(|(_, seat)| seat.phase == Phase::Waiting) {
            given.add(seat);
            if given.sum().beyond(&self.budget).is_none() {
                granted.push(*key);
            } else {
                given.remove(seat);
            }
        }
        for key in granted {
            if let Some(seat) = self.seats.get_mut(&key) {
                seat.phase = Phase::Starting;
                self.lingering.is_used(seat);
                actions.push(Action::Grant(key));
            }
        }
    }

    /// Those that wait were promised room that is not there any more; who asked last goes first.
    fn refuse_what_cannot_fit(&mut self, actions: &mut Vec<Action>) {
        let waiting = |(key, seat): (&SeatKey, &Seat)| (seat.phase == Phase::Waiting).then_some(*key);
        while let Some(resource) = self.promised().beyond(&self.budget)
            && let Some(seat) = self.seats.iter().filter_map(waiting).next_back()
        {
            self.seats.remove(&seat);
            let free = self.budget.less(self.promised()).of(resource);
            let shortage = Shortage { resource, free, idle: 0, kept: 0, recent: 0, in_place: false };
            actions.push(Action::Refuse { seat, why: Refusal::Full(shortage) });
        }
    }

    /// What is taken once everybody who leaves is gone.
    fn promised(&self) -> Amounts {
        self.tally(|phase| phase != Phase::Leaving).sum()
    }

    fn tally(&self, counts: impl Fn(Phase) -> bool) -> Tally<'_> {
        let mut tally = Tally::default();
        self.seats.values().filter(|seat| counts(seat.phase)).for_each(|seat| tally.add(seat));
        tally
    }
}

#[cfg(test)]
mod tests;
