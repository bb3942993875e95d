//! Room for an instance that is to be placed: on a card as it is, once those that leave are gone, or in place of idle
//! ones.
//!
//! Whether a card takes it is asked of `placement`, with those left out that will be gone. Who is idle and may go is said
//! with the ask ([`Others`]): the node's capacity knows it, and the same holds for its memory. What always holds:
//! - nobody is displaced in vain: with one less of those that go, no card would take the asker;
//! - an asker whose place is not free yet counts from then on, and stands in no line before those it waits for are gone:
//!   so what has been started is at every moment within the rules of `placement`, and nobody's turn waits for it;
//! - an asker for which nobody is idle hopes until its patience is over, if it would fit were everybody idle; it has
//!   nothing until then.

use super::events::GpuMode;
use super::events::{Action, CardIndex, InstanceKey, Refusal, Stay};
use super::ledger::{Instance, Turn};
use super::{Moment, Residency};
use crate::capacity::Others;
use std::collections::BTreeSet;

/// Instances that are as good as gone.
pub(super) type Gone = BTreeSet<InstanceKey>;

/// What is asked for.
#[derive(Debug, Clone, Copy)]
pub(super) struct Ask {
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
    awaited: Gone,
}

impl Residency {
    /// Places an instance, has it hope, or refuses it.
    pub(super) fn place(
        &mut self,
        key: InstanceKey,
        ask: Ask,
        others: &Others<InstanceKey>,
        now: Moment,
        actions: &mut Vec<Action>,
    ) {
        self.hopes.remove(&key);
        match self.room(ask, others) {
            Ok(Room { card, displaced, awaited }) => {
                for instance in displaced {
                    self.displace(instance);
                    actions.push(Action::Displace { instance, by: key });
                }
                let turn = Turn::Queued { since: now };
                let placed = Instance::new(card, ask.limit, ask.mode, turn, now);
                self.instances.insert(key, Instance { awaited, ..placed });
            }
            Err(_) if now < ask.until && self.takes(ask, self.going(others).chain(others.hoped.iter().copied())) => {
                self.hopes.insert(key, ask);
            }
            Err(why) => {
                let own = self.going(others).chain(others.idle.iter().copied()).chain(others.own.iter().copied());
                let in_place = !others.own.is_empty() && self.takes(ask, own);
                let stay = Stay { kept: others.kept.len(), recent: others.recent.len() };
                actions.push(Action::Refused { instance: key, why, in_place, stay });
            }
        }
    }

    /// Askers that hope, in the order in which they asked: [`Event::Look`](super::Event::Look) may help them.
    #[must_use]
    pub fn hoping(&self) -> Vec<InstanceKey> {
        self.hopes.keys().copied().collect()
    }

    /// An instance is gone: it makes room, or asks for none any more.
    pub(super) fn on_gone(&mut self, key: InstanceKey, now: Moment) {
        self.hopes.remove(&key);
        self.instances.remove(&key);
        for instance in self.instances.values_mut() {
            if let Turn::Queued { since } = &mut instance.turn
                && instance.awaited.remove(&key)
                && instance.awaited.is_empty()
            {
                *since = now;
            }
        }
    }

    fn room(&self, ask: Ask, others: &Others<InstanceKey>) -> Result<Room, Refusal> {
        let as_it_is = match self.choose(ask.limit, ask.mode, &Gone::new()) {
            Ok(card) => return Ok(Room { card, displaced: Vec::new(), awaited: Gone::new() }),
            Err(why) => why,
        };
        let (going, idle) = (self.going(others).collect::<Vec<_>>(), self.idle(others));
        let mut gone: Gone = going.iter().copied().collect();
        let mut chosen = self.choose(ask.limit, ask.mode, &gone);
        for key in &idle {
            if chosen.is_ok() {
                break;
            }
            gone.insert(*key);
            chosen = self.choose(ask.limit, ask.mode, &gone);
        }
        let mut card = chosen.map_err(|_| as_it_is)?;
        // Some were taken whose room was not enough, or is on another card.
        for key in going.iter().chain(&idle).rev() {
            if !gone.remove(key) {
                continue;
            }
            match self.choose(ask.limit, ask.mode, &gone) {
                Ok(other) => card = other,
                Err(_) => drop(gone.insert(*key)),
            }
        }
        let displaced = idle.into_iter().filter(|key| gone.contains(key)).collect();
        Ok(Room { card, displaced, awaited: gone })
    }

    fn takes(&self, ask: Ask, without: impl Iterator<Item = InstanceKey>) -> bool {
        self.choose(ask.limit, ask.mode, &without.collect()).is_ok()
    }

    /// Those that were told to end, and those that leave for other reasons.
    fn going<'a>(&'a self, others: &'a Others<InstanceKey>) -> impl Iterator<Item = InstanceKey> + 'a {
        let leaves = |key: &InstanceKey| self.instances.get(key).is_some_and(|instance| !ends(instance));
        let ending = self.instances.iter().filter(|(_, instance)| ends(instance)).map(|(key, _)| *key);
        ending.chain(others.leaving.iter().copied().filter(leaves))
    }

    fn idle(&self, others: &Others<InstanceKey>) -> Vec<InstanceKey> {
        let mut known: Gone = self.going(others).collect();
        let is_here = |key: &InstanceKey| self.instances.contains_key(key) && known.insert(*key);
        others.idle.iter().copied().filter(is_here).collect()
    }

    /// What it holds counts until it is gone.
    fn displace(&mut self, key: InstanceKey) {
        if let Some(instance) = self.instances.get_mut(&key) {
            instance.turn = Turn::Ending { held: instance.present() };
            instance.order = None;
        }
    }
}

fn ends(instance: &Instance) -> bool {
    matches!(instance.turn, Turn::Ending { .. })
}
