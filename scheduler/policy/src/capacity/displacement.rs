//! Displacement: which instances make room for a request, or the shortage that is reported when none can.

use super::amounts::Commitment;
use super::events::{Purpose, Refusal, ReservationId, Shortage};
use super::{Ledger, MIN_IDLE, MIN_IDLE_OF_LAST, Moment, Phase, Reservation, Resource};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

impl Ledger {
    /// Instances to displace so that the request fits once the leaving ones are gone. `assume_idle`: as if all were
    /// idle.
    pub(super) fn room_for(
        &self,
        requester: &Reservation,
        purpose: Purpose,
        assume_idle: bool,
        now: Moment,
    ) -> Result<Vec<ReservationId>, Refusal> {
        let mut alone = Commitment::default();
        alone.add(requester);
        if let Some(resource) = alone.sum().beyond(&self.budget) {
            return Err(Refusal::TooBig { resource, budget: self.budget.of(resource) });
        }
        let mut taken = self.commitment(|phase| phase != Phase::Leaving);
        taken.add(requester);
        let Some(resource) = taken.sum().beyond(&self.budget) else { return Ok(Vec::new()) };

        let mut displaced = Vec::new();
        for (key, reservation) in self.displaceable(&requester.model, purpose, assume_idle, now) {
            displaced.push((key, reservation));
            taken.remove(reservation);
            if taken.sum().beyond(&self.budget).is_none() {
                break;
            }
        }
        if taken.sum().beyond(&self.budget).is_some() {
            let candidate = purpose == Purpose::Candidate;
            let of_model = |reservation: &&Reservation| candidate && reservation.model == requester.model;
            let serves = |reservation: &&Reservation| matches!(reservation.phase, Phase::Serving { .. });
            self.reservations
                .values()
                .filter(of_model)
                .filter(serves)
                .for_each(|reservation| taken.remove(reservation));
            let recreate_fits = taken.sum().beyond(&self.budget).is_none();
            return Err(Refusal::Full(self.shortage(resource, &displaced, &requester.model, recreate_fits)));
        }
        // Drop instances whose room was not enough, and is not needed beside that of a later one.
        for at in (0..displaced.len()).rev() {
            if let Some((_, reservation)) = displaced.get(at) {
                taken.add(reservation);
                if taken.sum().beyond(&self.budget).is_none() {
                    displaced.remove(at);
                } else {
                    taken.remove(reservation);
                }
            }
        }
        Ok(displaced.into_iter().map(|(key, _)| key).collect())
    }

    /// Shortage when even all displaceable instances are not enough.
    fn shortage(
        &self,
        resource: Resource,
        idle: &[(ReservationId, &Reservation)],
        model: &Arc<str>,
        recreate_fits: bool,
    ) -> Shortage {
        let taken = self.committed_after_exits();
        let mut without = self.commitment(|phase| phase != Phase::Leaving);
        idle.iter().for_each(|(_, reservation)| without.remove(reservation));
        let (mut kept, mut recent) = (0, 0);
        for (key, reservation) in &self.reservations {
            let is_idle = matches!(reservation.phase, Phase::Serving { idle_since: Some(_) });
            if !is_idle || reservation.model == *model || idle.iter().any(|(other, _)| other == key) {
                continue;
            }
            match self.mins.get(&reservation.model) {
                Some(_) => kept += 1,
                None => recent += 1,
            }
        }
        let free = self.budget.less(taken).of(resource);
        let idle = taken.less(without.sum()).of(resource);
        Shortage { resource, free, idle, kept, recent, recreate_fits }
    }

    /// Instances that may be displaced for an instance of this model, longest idle first.
    pub(super) fn displaceable(
        &self,
        model: &Arc<str>,
        purpose: Purpose,
        assume_idle: bool,
        now: Moment,
    ) -> Vec<(ReservationId, &Reservation)> {
        if purpose == Purpose::Retry {
            return Vec::new();
        }
        let rests = |since: Moment, least: Duration| since.saturating_add(least) <= now;
        let idle_since = |reservation: &Reservation| match reservation.phase {
            Phase::Serving { idle_since: Some(since) } if purpose == Purpose::First || rests(since, MIN_IDLE) => {
                Some(since)
            }
            Phase::Serving { .. } | Phase::Starting | Phase::Waiting => assume_idle.then_some(Moment::MAX),
            Phase::Leaving => None,
        };
        let counts = |reservation: &&Reservation| match reservation.phase {
            Phase::Serving { .. } => true,
            Phase::Starting | Phase::Waiting => assume_idle,
            Phase::Leaving => false,
        };
        // By model: how many may go, and whether all are unused.
        let mut spare: BTreeMap<&Arc<str>, (u32, bool)> = BTreeMap::new();
        for reservation in self.reservations.values().filter(counts) {
            let is_unused = matches!(reservation.phase, Phase::Serving { idle_since: Some(since) } if rests(since, MIN_IDLE_OF_LAST));
            let (count, all_unused) = spare.entry(&reservation.model).or_insert((0, true));
            *count += 1;
            *all_unused &= is_unused;
        }
        for (other, (count, all_unused)) in &mut spare {
            let min = self.mins.get(*other).copied().unwrap_or(0);
            let keep_one = purpose == Purpose::ScaleUp && !*all_unused;
            *count = if *other == model { 0 } else { count.saturating_sub(min.max(u32::from(keep_one))) };
        }
        let idle = self.reservations.iter().filter_map(|(key, reservation)| Some((idle_since(reservation)?, *key)));
        let mut idle: Vec<_> = idle.collect();
        idle.sort_unstable();
        let allowed = |(_, key): (Moment, ReservationId)| {
            let reservation = self.reservations.get(&key)?;
            let (count, _) = spare.get_mut(&reservation.model)?;
            *count = count.checked_sub(1)?;
            Some((key, reservation))
        };
        idle.into_iter().filter_map(allowed).collect()
    }
}
