//! Room for an instance that is to be placed: on a card as it is, once those that leave are gone, or in place of idle
//! ones.
//!
//! Whether a card takes it is asked of `placement`, with those left out that will be gone. Who is idle and may go is said
//! with the ask ([`Reclaimable`]): the node's capacity knows it, and the same holds for its memory. What always holds:
//! - nobody is displaced in vain: with one less of those that go, no card would take the asker;
//! - an asker whose place is not free yet counts from then on, and stands in no line before those it waits for are gone:
//!   so what has been started is at every moment within the rules of `placement`, and nobody's turn waits for it;
//! - an asker for which nobody is idle hopes until its patience is over, if it would fit were everybody idle; it has
//!   nothing until then.

use super::events::GpuMode;
use super::events::{Action, CardIndex, InstanceKey, Refusal, Retained};
use super::ledger::{Instance, ResidencyState};
use super::{Moment, Residency};
use crate::capacity::Reclaimable;
use std::collections::BTreeSet;

/// Instances that are as good as gone.
pub(super) type Departing = BTreeSet<InstanceKey>;

/// What is asked for.
#[derive(Debug, Clone, Copy)]
pub(super) struct PlacementRequest {
    pub(super) limit: u64,
    pub(super) mode: GpuMode,
    /// It hopes for no longer.
    pub(super) until: Moment,
}

/// A place, and what it costs.
struct Room {
    card: CardIndex,
    displaced: Vec<InstanceKey>,
    /// Those that have to be gone before it is free, the displaced ones among them.
    blocked_by: Departing,
}

impl Residency {
    /// Places an instance, has it hope, or refuses it.
    pub(super) fn place(
        &mut self,
        key: InstanceKey,
        request: PlacementRequest,
        others: &Reclaimable<InstanceKey>,
        now: Moment,
        actions: &mut Vec<Action>,
    ) {
        self.pending.remove(&key);
        match self.room(request, others) {
            Ok(Room { card, displaced, blocked_by }) => {
                for instance in displaced {
                    self.displace(instance);
                    actions.push(Action::Displace { instance, by: key });
                }
                let state = ResidencyState::Queued { since: now };
                let placed = Instance::new(Some(card), request.limit, request.mode, state, now);
                self.instances.insert(key, Instance { blocked_by, ..placed });
            }
            Err(_)
                if now < request.until
                    && self.takes(request, self.going(others).chain(others.if_idle.iter().copied())) =>
            {
                self.pending.insert(key, request);
            }
            Err(reason) => {
                let own = self.going(others).chain(others.idle.iter().copied()).chain(others.own.iter().copied());
                let recreate_fits = !others.own.is_empty() && self.takes(request, own);
                let retained = Retained { kept: others.kept.len(), recent: others.recent.len() };
                actions.push(Action::Refused { instance: key, reason, recreate_fits, retained });
            }
        }
    }

    /// Askers that hope, in the order in which they asked: [`Event::RetryPlacement`](super::Event::RetryPlacement) may help them.
    #[must_use]
    pub fn pending_placements(&self) -> Vec<InstanceKey> {
        self.pending.keys().copied().collect()
    }

    /// An instance is gone: it makes room, or asks for none any more.
    pub(super) fn on_gone(&mut self, key: InstanceKey, now: Moment) {
        self.pending.remove(&key);
        self.instances.remove(&key);
        for instance in self.instances.values_mut() {
            if let ResidencyState::Queued { since } = &mut instance.state
                && instance.blocked_by.remove(&key)
                && instance.blocked_by.is_empty()
            {
                *since = now;
            }
        }
    }

    fn room(&self, request: PlacementRequest, others: &Reclaimable<InstanceKey>) -> Result<Room, Refusal> {
        let as_it_is = match self.choose(request.limit, request.mode, &Departing::new()) {
            Ok(card) => return Ok(Room { card, displaced: Vec::new(), blocked_by: Departing::new() }),
            Err(reason) => reason,
        };
        let (going, idle) = (self.going(others).collect::<Vec<_>>(), self.idle(others));
        let mut gone: Departing = going.iter().copied().collect();
        let mut chosen = self.choose(request.limit, request.mode, &gone);
        for key in &idle {
            if chosen.is_ok() {
                break;
            }
            gone.insert(*key);
            chosen = self.choose(request.limit, request.mode, &gone);
        }
        let mut card = chosen.map_err(|_| as_it_is)?;
        // Some were taken whose room was not enough, or is on another card.
        for key in going.iter().chain(&idle).rev() {
            if !gone.remove(key) {
                continue;
            }
            match self.choose(request.limit, request.mode, &gone) {
                Ok(other) => card = other,
                Err(_) => drop(gone.insert(*key)),
            }
        }
        let displaced = idle.into_iter().filter(|key| gone.contains(key)).collect();
        Ok(Room { card, displaced, blocked_by: gone })
    }

    fn takes(&self, request: PlacementRequest, without: impl Iterator<Item = InstanceKey>) -> bool {
        self.choose(request.limit, request.mode, &without.collect()).is_ok()
    }

    /// Those that were told to end, and those that leave for other reasons.
    fn going<'a>(&'a self, others: &'a Reclaimable<InstanceKey>) -> impl Iterator<Item = InstanceKey> + 'a {
        let leaves = |key: &InstanceKey| self.instances.get(key).is_some_and(|instance| !ends(instance));
        let ending = self.instances.iter().filter(|(_, instance)| ends(instance)).map(|(key, _)| *key);
        ending.chain(others.leaving.iter().copied().filter(leaves))
    }

    fn idle(&self, others: &Reclaimable<InstanceKey>) -> Vec<InstanceKey> {
        let mut usage_known: Departing = self.going(others).collect();
        let is_here = |key: &InstanceKey| self.instances.contains_key(key) && usage_known.insert(*key);
        others.idle.iter().copied().filter(is_here).collect()
    }

    /// What it holds counts until it is gone.
    fn displace(&mut self, key: InstanceKey) {
        if let Some(instance) = self.instances.get_mut(&key) {
            instance.state = ResidencyState::Ending { holds: instance.present() };
            instance.command = None;
        }
    }
}

fn ends(instance: &Instance) -> bool {
    matches!(instance.state, ResidencyState::Ending { .. })
}
