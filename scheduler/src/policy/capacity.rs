//! Which instances the node has room for: `step(event) -> actions` over budgets of memory, processor time, processes.
//!
//! What counts is what an instance may use, its limits, not what it uses; a zygote counts once for all instances of its
//! generation, as long as there is one. [`crate::capacity`] owns one [`Ledger`] for
//! the node. An instance that wants to start asks for a seat; it gets one at once, or when those that leave for it are
//! gone, or it is refused. What always holds:
//! - the seats that are given never need more than the budget; only instances of an earlier scheduler, which are there
//!   already, can be beyond it, and then nothing is given before they are back within it;
//! - every ask is answered once, as soon as all who leave are gone;
//! - only an instance that is idle is displaced, the one that is idle longest first, and none that its model needs for
//!   its `min`; the last one of a model goes only for a model that has none;
//! - nobody is displaced in vain: with one less of those that go, the asker would not fit.

mod amounts;

use super::{Generation, Moment};
use amounts::Tally;
pub use amounts::{Amounts, Resource};
use std::collections::BTreeMap;
use std::sync::Arc;

/// Names an ask and what comes of it, unique for the life of the scheduler.
pub type SeatKey = u64;

/// What the instances of one generation of a model have in common.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Zygote {
    /// Theirs.
    pub generation: Generation,
    /// What it may use beside them.
    pub need: Amounts,
}

/// What happened.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Event {
    /// An instance wants to start.
    Ask {
        /// Its seat.
        seat: SeatKey,
        /// Whose it is.
        model: Arc<str>,
        /// What it may use.
        need: Amounts,
        /// What it comes from.
        zygote: Option<Zygote>,
        /// The model's `min`.
        min: u32,
    },
    /// An instance of an earlier scheduler, which is there already.
    Adopted {
        /// Its seat.
        seat: SeatKey,
        /// Whose it is.
        model: Arc<str>,
        /// What it may use.
        need: Amounts,
        /// What it comes from.
        zygote: Option<Zygote>,
        /// The model's `min`.
        min: u32,
    },
    /// A model's `min` is this from now on. One without a seat says it when it asks.
    Min {
        /// Of this model.
        model: Arc<str>,
        /// Instances that are kept without requests.
        min: u32,
    },
    /// It takes requests.
    Serves {
        /// The instance's seat.
        seat: SeatKey,
        /// Since when it has none; `None` while it has one.
        idle_since: Option<Moment>,
    },
    /// It is on its way out, for whatever reason.
    Leaves(SeatKey),
    /// It is gone, or does not want to start any more.
    Gone(SeatKey),
}

/// Why there is no room.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Refusal {
    /// The node's whole budget is less.
    TooBig {
        /// Of this.
        resource: Resource,
        /// The whole budget.
        budget: u64,
    },
    /// Others have it, and cannot be displaced.
    Full {
        /// This is missing.
        resource: Resource,
        /// What is left of it.
        free: u64,
    },
}

/// What to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Action {
    /// It may start.
    Grant(SeatKey),
    /// It may not start, now or ever.
    Refuse {
        /// The asker.
        seat: SeatKey,
        /// Why.
        why: Refusal,
    },
    /// This instance has to go: its room is needed.
    Displace(SeatKey),
}

/// The node's budgets and what is promised of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct View {
    /// What there is.
    pub budget: Amounts,
    /// What all who have a seat, wait for one or leave one may use.
    pub committed: Amounts,
    /// Instances that have a seat.
    pub seats: usize,
    /// Instances that wait for one.
    pub waiting: usize,
}

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

/// All seats of the node.
#[derive(Debug, Clone)]
pub struct Ledger {
    budget: Amounts,
    seats: BTreeMap<SeatKey, Seat>,
    /// Of models that have one.
    mins: BTreeMap<Arc<str>, u32>,
}

impl Ledger {
    /// A node without instances.
    #[must_use]
    pub fn new(budget: Amounts) -> Self {
        Self { budget, seats: BTreeMap::new(), mins: BTreeMap::new() }
    }

    /// What there is and what is promised.
    #[must_use]
    pub fn view(&self) -> View {
        let waiting = self.seats.values().filter(|seat| seat.phase == Phase::Waiting).count();
        let committed = self.tally(|_| true).sum();
        View { budget: self.budget, committed, seats: self.seats.len() - waiting, waiting }
    }

    /// Takes one event.
    pub fn step(&mut self, event: &Event) -> Vec<Action> {
        let mut actions = Vec::new();
        match event {
            Event::Ask { seat, model, need, zygote, min } => {
                let asker = Seat { model: Arc::clone(model), need: *need, zygote: *zygote, phase: Phase::Waiting };
                self.ask(*seat, asker, &mut actions);
                self.set_min(model, *min);
            }
            Event::Adopted { seat, model, need, zygote, min } => {
                let there = Seat { model: Arc::clone(model), need: *need, zygote: *zygote, phase: Phase::Starting };
                self.seats.insert(*seat, there);
                self.set_min(model, *min);
                self.refuse_what_cannot_fit(&mut actions);
            }
            Event::Min { model, min } => self.set_min(model, *min),
            Event::Serves { seat, idle_since } => {
                let seat = self.seats.get_mut(seat);
                // What leaves does not come back.
                if let Some(Seat { phase: phase @ (Phase::Starting | Phase::Serving { .. }), .. }) = seat {
                    *phase = Phase::Serving { idle_since: *idle_since };
                }
            }
            Event::Leaves(seat) => self.leaves(*seat),
            Event::Gone(seat) => {
                if let Some(gone) = self.seats.remove(seat) {
                    self.set_min(&gone.model, self.mins.get(&gone.model).copied().unwrap_or(0));
                    self.grant(&mut actions);
                }
            }
        }
        actions
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

    fn ask(&mut self, key: SeatKey, asker: Seat, actions: &mut Vec<Action>) {
        match self.room_for(&asker) {
            Err(why) => actions.push(Action::Refuse { seat: key, why }),
            Ok(displaced) => {
                for seat in displaced {
                    self.leaves(seat);
                    actions.push(Action::Displace(seat));
                }
                self.seats.insert(key, asker);
                self.grant(actions);
            }
        }
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
            actions.push(Action::Refuse { seat, why: Refusal::Full { resource, free } });
        }
    }

    /// What is taken once everybody who leaves is gone.
    fn promised(&self) -> Amounts {
        self.tally(|phase| phase != Phase::Leaving).sum()
    }

    /// Whom to displace so that it fits once everybody who leaves is gone.
    fn room_for(&self, asker: &Seat) -> Result<Vec<SeatKey>, Refusal> {
        let mut alone = Tally::default();
        alone.add(asker);
        if let Some(resource) = alone.sum().beyond(&self.budget) {
            return Err(Refusal::TooBig { resource, budget: self.budget.of(resource) });
        }
        let mut taken = self.tally(|phase| phase != Phase::Leaving);
        let free = self.budget.less(taken.sum());
        taken.add(asker);
        let Some(resource) = taken.sum().beyond(&self.budget) else { return Ok(Vec::new()) };

        let mut displaced = Vec::new();
        for (key, seat) in self.displaceable(&asker.model) {
            displaced.push((key, seat));
            taken.remove(seat);
            if taken.sum().beyond(&self.budget).is_none() {
                break;
            }
        }
        if taken.sum().beyond(&self.budget).is_some() {
            return Err(Refusal::Full { resource, free: free.of(resource) });
        }
        // Some were taken whose room was not enough, and is not needed with that of a later one.
        for at in (0..displaced.len()).rev() {
            if let Some((_, seat)) = displaced.get(at) {
                taken.add(seat);
                if taken.sum().beyond(&self.budget).is_none() {
                    displaced.remove(at);
                } else {
                    taken.remove(seat);
                }
            }
        }
        Ok(displaced.into_iter().map(|(key, _)| key).collect())
    }

    /// Who may be displaced for an instance of this model, the one that is idle longest first.
    fn displaceable(&self, model: &Arc<str>) -> Vec<(SeatKey, &Seat)> {
        let mut spare: BTreeMap<&Arc<str>, u32> = BTreeMap::new();
        for seat in self.seats.values().filter(|seat| matches!(seat.phase, Phase::Serving { .. })) {
            *spare.entry(&seat.model).or_default() += 1;
        }
        let keep_one = u32::from(spare.contains_key(model));
        for (other, spare) in &mut spare {
            let min = self.mins.get(*other).copied().unwrap_or(0);
            *spare = if *other == model { 0 } else { spare.saturating_sub(min.max(keep_one)) };
        }
        let idle = |(key, seat): (&SeatKey, &Seat)| match seat.phase {
            Phase::Serving { idle_since: Some(since) } => Some((since, *key)),
            Phase::Serving { idle_since: None } | Phase::Waiting | Phase::Starting | Phase::Leaving => None,
        };
        let mut idle: Vec<_> = self.seats.iter().filter_map(idle).collect();
        idle.sort_unstable();
        let allowed = |(_, key): (Moment, SeatKey)| {
            let seat = self.seats.get(&key)?;
            let spare = spare.get_mut(&seat.model)?;
            *spare = spare.checked_sub(1)?;
            Some((key, seat))
        };
        idle.into_iter().filter_map(allowed).collect()
    }

    fn tally(&self, counts: impl Fn(Phase) -> bool) -> Tally<'_> {
        let mut tally = Tally::default();
        self.seats.values().filter(|seat| counts(seat.phase)).for_each(|seat| tally.add(seat));
        tally
    }
}

#[cfg(test)]
#[path = "capacity_tests.rs"]
mod tests;
