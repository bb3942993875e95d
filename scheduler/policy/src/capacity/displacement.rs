//! Displacement: whose room an instance gets, or what is said of a node on which nobody makes room. Called by
//! [`super::Ledger`].

use super::amounts::Tally;
use super::events::{Purpose, Refusal, SeatKey, Shortage};
use super::{Ledger, Moment, Phase, Resource, Seat, UNUSED, UNUSED_MODEL};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

impl Ledger {
    /// Whom to displace so that it fits once everybody who leaves is gone. `hoping`: as if everybody were idle.
    pub(super) fn room_for(
        &self,
        asker: &Seat,
        purpose: Purpose,
        hoping: bool,
        now: Moment,
    ) -> Result<Vec<SeatKey>, Refusal> {
        let mut alone = Tally::default();
        alone.add(asker);
        if let Some(resource) = alone.sum().beyond(&self.budget) {
            return Err(Refusal::TooBig { resource, budget: self.budget.of(resource) });
        }
        let mut taken = self.tally(|phase| phase != Phase::Leaving);
        taken.add(asker);
        let Some(resource) = taken.sum().beyond(&self.budget) else { return Ok(Vec::new()) };

        let mut displaced = Vec::new();
        for (key, seat) in self.displaceable(&asker.model, purpose, hoping, now) {
            displaced.push((key, seat));
            taken.remove(seat);
            if taken.sum().beyond(&self.budget).is_none() {
                break;
            }
        }
        if taken.sum().beyond(&self.budget).is_some() {
            let candidate = purpose == Purpose::Candidate;
            let of_model = |seat: &&Seat| candidate && seat.model == asker.model;
            let serves = |seat: &&Seat| matches!(seat.phase, Phase::Serving { .. });
            self.seats.values().filter(of_model).filter(serves).for_each(|seat| taken.remove(seat));
            let in_place = taken.sum().beyond(&self.budget).is_none();
            return Err(Refusal::Full(self.shortage(resource, &displaced, &asker.model, in_place)));
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

    /// What is said of a node on which even all that may be displaced are not enough.
    fn shortage(&self, resource: Resource, idle: &[(SeatKey, &Seat)], model: &Arc<str>, in_place: bool) -> Shortage {
        let taken = self.promised();
        let mut without = self.tally(|phase| phase != Phase::Leaving);
        idle.iter().for_each(|(_, seat)| without.remove(seat));
        let (mut kept, mut recent) = (0, 0);
        for (key, seat) in &self.seats {
            let is_idle = matches!(seat.phase, Phase::Serving { idle_since: Some(_) });
            if !is_idle || seat.model == *model || idle.iter().any(|(other, _)| other == key) {
                continue;
            }
            match self.mins.get(&seat.model) {
                Some(_) => kept += 1,
                None => recent += 1,
            }
        }
        let free = self.budget.less(taken).of(resource);
        let idle = taken.less(without.sum()).of(resource);
        Shortage { resource, free, idle, kept, recent, in_place }
    }

    /// Who may be displaced for an instance of this model, the one that is idle longest first.
    pub(super) fn displaceable(
        &self,
        model: &Arc<str>,
        purpose: Purpose,
        hoping: bool,
        now: Moment,
    ) -> Vec<(SeatKey, &Seat)> {
        if purpose == Purpose::Retry {
            return Vec::new();
        }
        let rests = |since: Moment, least: Duration| since.saturating_add(least) <= now;
        let idle_since = |seat: &Seat| match seat.phase {
            Phase::Serving { idle_since: Some(since) } if purpose == Purpose::First || rests(since, UNUSED) => {
                Some(since)
            }
            Phase::Serving { .. } | Phase::Starting | Phase::Waiting => hoping.then_some(Moment::MAX),
            Phase::Leaving => None,
        };
        let counts = |seat: &&Seat| match seat.phase {
            Phase::Serving { .. } => true,
            Phase::Starting | Phase::Waiting => hoping,
            Phase::Leaving => false,
        };
        // By model: how many may go, and whether all may.
        let mut spare: BTreeMap<&Arc<str>, (u32, bool)> = BTreeMap::new();
        for seat in self.seats.values().filter(counts) {
            let is_unused =
                matches!(seat.phase, Phase::Serving { idle_since: Some(since) } if rests(since, UNUSED_MODEL));
            let (count, all_unused) = spare.entry(&seat.model).or_insert((0, true));
            *count += 1;
            *all_unused &= is_unused;
        }
        for (other, (count, all_unused)) in &mut spare {
            let min = self.mins.get(*other).copied().unwrap_or(0);
            let keep_one = purpose == Purpose::Further && !*all_unused;
            *count = if *other == model { 0 } else { count.saturating_sub(min.max(u32::from(keep_one))) };
        }
        let idle = self.seats.iter().filter_map(|(key, seat)| Some((idle_since(seat)?, *key)));
        let mut idle: Vec<_> = idle.collect();
        idle.sort_unstable();
        let allowed = |(_, key): (Moment, SeatKey)| {
            let seat = self.seats.get(&key)?;
            let (count, _) = spare.get_mut(&seat.model)?;
            *count = count.checked_sub(1)?;
            Some((key, seat))
        };
        idle.into_iter().filter_map(allowed).collect()
    }
}
