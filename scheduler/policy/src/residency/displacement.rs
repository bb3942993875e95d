//! Room for a new instance: on a card as it is, once departing instances are gone, or in place of idle ones.
//!
//! `placement` decides whether a card takes it, with the instances left out that will be gone. Which instances are idle
//! and may go comes with the request ([`Reclaimable`]): the node's capacity ledger knows it, and the same rules hold
//! for memory on cards.
//!
//! Invariants:
//! - no displacement is in vain: with one displaced instance less, no card would take the new one;
//! - an instance whose place is not free yet counts from then on, and enters no queue before the instances it waits for
//!   are gone: so what has been started is at every moment within the rules of `placement`, and no grant waits for it;
//! - a request that finds no idle instance is pending until its wait is over, if it would fit were all instances idle;
//!   it reserves nothing until then.

use super::events::GpuMode;
use super::events::{Action, CardIndex, InstanceKey, Refusal, Retained};
use super::ledger::{Departing, Instance, ResidencyState};
use super::{Moment, Residency};
use crate::capacity::Reclaimable;

/// Requested place.
#[derive(Debug, Clone, Copy)]
pub(super) struct PlacementRequest {
    pub(super) limit: u64,
    pub(super) mode: GpuMode,
    /// End of its wait.
    pub(super) until: Moment,
}

/// Place on a card, and what it costs.
struct Room {
    card: CardIndex,
    displaced: Vec<InstanceKey>,
    /// Instances that have to be gone before it is free, displaced ones included.
    blocked_by: Departing,
}

impl Residency {
    /// Places an instance, keeps its request pending, or refuses it.
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

    /// Pending requests, in the order of their arrival: [`Event::RetryPlacement`](super::Event::RetryPlacement) may
    /// help them.
    #[must_use]
    pub fn pending_placements(&self) -> Vec<InstanceKey> {
        self.pending.keys().copied().collect()
    }

    /// An instance is gone: its room is free, or its request is withdrawn.
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
        // Drop instances whose room was not enough, or is on another card.
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

    /// Instances that are being ended, and those that leave for other reasons.
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

    /// Ends an idle instance; its bytes count until it is gone.
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
