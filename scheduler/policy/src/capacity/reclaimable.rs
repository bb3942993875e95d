//! Capacity that other instances could give up, as an input for the residency policy, which shares out the cards.
//!
//! Which instances are idle, kept, or were used a moment ago is the same for both policies, and is known to the ledger
//! only.

use super::StartReason;
use super::events::{Purpose, ReservationId};
use super::{Ledger, Moment, Phase, Reservation};
use std::sync::Arc;

/// Other instances by what they could give up for a request. `K` identifies an instance.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Reclaimable<K> {
    /// Leaving in any case.
    pub leaving: Vec<K>,
    /// Idle and displaceable, longest idle first, in any selection.
    pub idle: Vec<K>,
    /// Displaceable if all instances were idle; empty for a request that does not wait for that.
    pub if_idle: Vec<K>,
    /// Serving instances of the request's own model, which a rollout could replace; empty for other requests.
    pub own: Vec<K>,
    /// Idle, but kept for the `min` of their model.
    pub kept: Vec<K>,
    /// Idle, but used too short a time ago.
    pub recent: Vec<K>,
}

impl<K> Default for Reclaimable<K> {
    fn default() -> Self {
        let [leaving, idle, if_idle, own, kept, recent] = [const { Vec::new() }; 6];
        Self { leaving, idle, if_idle, own, kept, recent }
    }
}

impl<K> Reclaimable<K> {
    /// Replaces the keys; instances without a new key are left out.
    #[must_use]
    pub fn map_keys<L>(self, name: impl Fn(K) -> Option<L>) -> Reclaimable<L> {
        let all = |keys: Vec<K>| keys.into_iter().filter_map(&name).collect();
        Reclaimable {
            leaving: all(self.leaving),
            idle: all(self.idle),
            if_idle: all(self.if_idle),
            own: all(self.own),
            kept: all(self.kept),
            recent: all(self.recent),
        }
    }
}

impl Ledger {
    /// Purpose of a reservation, and what other instances could give up for it; `None` if there is no such reservation.
    #[must_use]
    pub fn reclaimable(
        &self,
        requester: ReservationId,
        reason: StartReason,
        now: Moment,
    ) -> Option<(Purpose, Reclaimable<ReservationId>)> {
        let model = &self.reservations.get(&requester)?.model;
        let purpose = self.purpose(model, reason);
        let keys = |which: &dyn Fn(&Reservation) -> bool| -> Vec<ReservationId> {
            self.reservations.iter().filter(|(_, reservation)| which(reservation)).map(|(key, _)| *key).collect()
        };
        let may_go = |assume_idle| -> Vec<ReservationId> {
            self.displaceable(model, purpose, assume_idle, now).into_iter().map(|(key, _)| key).collect()
        };
        let idle = may_go(false);
        let serves = |reservation: &Reservation| matches!(reservation.phase, Phase::Serving { .. });
        let stays = |key: &ReservationId| {
            let is_idle =
                |reservation: &Reservation| matches!(reservation.phase, Phase::Serving { idle_since: Some(_) });
            self.reservations.get(key).is_some_and(|reservation| is_idle(reservation) && reservation.model != *model)
                && !idle.contains(key)
        };
        let is_kept = |key: &ReservationId| {
            self.reservations.get(key).is_some_and(|reservation| self.mins.contains_key(&reservation.model))
        };
        let (kept, recent) = self.reservations.keys().copied().filter(stays).partition(is_kept);
        let reclaimable = Reclaimable {
            leaving: keys(&|reservation| reservation.phase == Phase::Leaving),
            if_idle: if matches!(purpose, Purpose::ScaleUp | Purpose::Retry) { Vec::new() } else { may_go(true) },
            own: if purpose == Purpose::Candidate {
                keys(&|reservation| serves(reservation) && reservation.model == *model)
            } else {
                Vec::new()
            },
            idle,
            kept,
            recent,
        };
        Some((purpose, reclaimable))
    }

    /// Model of a reservation.
    #[must_use]
    pub fn model(&self, reservation: ReservationId) -> Option<&Arc<str>> {
        self.reservations.get(&reservation).map(|reservation| &reservation.model)
    }
}
