//! What people and metrics see of the cards: a copy, made on demand.

use super::events::Command;
use super::ledger::{Instance, Turn, on};
use super::{CardIndex, CardView, InstanceView, Place, Residency};
use std::cmp::Reverse;

impl Residency {
    /// The cards, in the order of the settings.
    #[must_use]
    pub fn cards(&self) -> Vec<CardView> {
        self.cards
            .iter()
            .enumerate()
            .map(|(index, card)| {
                let instances = self.instances_on(index);
                CardView {
                    budget: card.budget,
                    commit_limit: card.commit_limit,
                    committed: self.committed(index),
                    resident: instances.iter().fold(0, |sum: u64, instance| sum.saturating_add(instance.resident)),
                    used: card.used,
                    lost: card.lost,
                    instances,
                }
            })
            .collect()
    }

    fn instances_on(&self, index: CardIndex) -> Vec<InstanceView> {
        let mut all: Vec<_> = on(&self.instances, index).collect();
        all.sort_by_key(|(key, instance)| (Reverse(instance.used_at), *key));
        let view = |(key, instance): (_, &Instance)| InstanceView {
            instance: key,
            limit: instance.limit,
            allocated: instance.allocated(),
            resident: if instance.is_movable() { instance.on_card() } else { instance.allocated() },
            place: place(instance),
            idle_since: instance.idle_since(),
        };
        all.into_iter().map(view).collect()
    }
}

fn place(instance: &Instance) -> Place {
    match (instance.order.map(|sent| sent.order), instance.turn) {
        (Some(Command::Evict { .. }), _) | (_, Turn::Leaving { .. }) => Place::Evicting,
        (Some(Command::Restore), _) => Place::Restoring,
        (_, Turn::Queued { .. } | Turn::Waiting { .. } | Turn::Coming { .. }) => Place::Waiting,
        (_, Turn::Starting | Turn::On { .. }) => Place::Resident,
        (_, Turn::Off | Turn::Ending { .. }) if instance.on_host() > 0 && instance.is_movable() => Place::Evicted,
        (_, Turn::Off | Turn::Ending { .. }) => Place::Resident,
    }
}
