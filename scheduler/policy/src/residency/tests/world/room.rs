//! Memory on the cards of the world, its bounds, and the instances that could leave.

use super::*;

impl World {
    /// Reclaimable memory for an instance of this model.
    pub(super) fn others(&self, asker: usize) -> Reclaimable<InstanceKey> {
        if !self.makes_room {
            return Reclaimable::default();
        }
        let is_idle = |fake: &Fake| fake.ready && !fake.busy && self.models[fake.model].waiting.is_empty();
        let keys = |which: &dyn Fn(&Fake) -> bool| -> Vec<InstanceKey> {
            let of_others = self.fakes.iter().filter(|(_, fake)| fake.model != asker);
            of_others.filter(|(_, fake)| which(fake)).map(|(key, _)| *key).collect()
        };
        Reclaimable {
            leaving: keys(&|fake| fake.ended),
            idle: keys(&|fake| !fake.ended && is_idle(fake)),
            if_idle: keys(&|fake| !fake.ended),
            ..Reclaimable::default()
        }
    }

    pub(super) fn look_later(&mut self, key: InstanceKey) {
        if self.policy.pending_placements().contains(&key) {
            self.at(self.now + SECOND / 4, Later::RetryPlacement { key });
        }
    }

    /// Invariants: started instances never exceed what may be started; the memory really there never exceeds the
    /// budget, unless models grow when they like.
    pub(super) fn check(&self) {
        for (index, card) in self.policy.cards().iter().enumerate() {
            let started = self.fakes.values().filter(|fake| fake.card == Some(CardIndex(index)));
            let limits = started.map(|fake| self.models[fake.model].limit).sum::<u64>();
            assert!(limits <= card.commit_limit, "{limits} of {} are promised on card {index}", card.commit_limit);
        }
        if self.faults.grow > 0.0 || self.faults.disobey > 0.0 {
            return;
        }
        for (index, card) in self.policy.settings().cards.iter().enumerate() {
            let there =
                self.fakes.values().filter(|fake| fake.card == Some(CardIndex(index))).map(Fake::there).sum::<u64>();
            assert!(there <= card.budget, "{there} of {} bytes on card {index} at {:?}", card.budget, self.now);
        }
    }
}

impl Fake {
    pub(super) fn usage(&self) -> Usage {
        Usage { managed: self.managed, resident: self.resident, device: self.device }
    }

    /// While memory comes back, all of it counts.
    pub(super) fn there(&self) -> u64 {
        match self.command {
            Some((_, Command::Restore)) => self.managed + self.device,
            Some((_, Command::Evict { .. } | Command::Report)) | None => self.resident + self.device,
        }
    }
}
