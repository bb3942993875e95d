//! Views of the cards for operators and metrics: copies, made on demand.

use super::events::Command;
use super::ledger::{Instance, ResidencyState, on};
use super::{CardIndex, CardView, InstanceView, MemoryLocation, Residency};
use std::cmp::Reverse;

impl Residency {
    /// All cards, in the order of the settings.
    #[must_use]
    pub fn cards(&self) -> Vec<CardView> {
        self.cards
            .iter()
            .zip((0..).map(CardIndex))
            .map(|(card, index)| {
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
            location: location(instance),
            idle_since: instance.idle_since(),
        };
        all.into_iter().map(view).collect()
    }
}

fn location(instance: &Instance) -> MemoryLocation {
    match (instance.command.map(|pending| pending.command), instance.state) {
        (Some(Command::Evict { .. }), _) | (_, ResidencyState::Yielding { .. }) => MemoryLocation::Evicting,
        (Some(Command::Restore), _) => MemoryLocation::Restoring,
        (_, ResidencyState::Queued { .. } | ResidencyState::Waiting { .. } | ResidencyState::Admitted { .. }) => {
            MemoryLocation::Waiting
        }
        (_, ResidencyState::Starting | ResidencyState::Granted { .. }) => MemoryLocation::Resident,
        (_, ResidencyState::Inactive | ResidencyState::Ending { .. })
            if instance.on_host() > 0 && instance.is_movable() =>
        {
            MemoryLocation::Evicted
        }
        (_, ResidencyState::Inactive | ResidencyState::Ending { .. }) => MemoryLocation::Resident,
    }
}
