//! The other instances of the node as what they could leave to one that asks: for a ledger of something else than the
//! node's own capacity, which are the places on cards. Called by [`super::Ledger`]'s owner.
//!
//! Who is idle, who is kept and who was in use a moment ago is the same for both, and is known here alone.

use super::StartReason;
use super::events::{Purpose, ReservationId};
use super::{Ledger, Moment, Phase, Reservation};
use std::sync::Arc;

/// The others, by what they could do for an asker. `K` names an instance.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Reclaimable<K> {
    /// On their way out anyhow.
    pub leaving: Vec<K>,
    /// Idle, and may go for it; the one that is idle longest first. Any part of them may.
    pub idle: Vec<K>,
    /// Those that may go if everybody were idle; none for an asker that does not wait for that.
    pub if_idle: Vec<K>,
    /// Instances of its own model that serve, in place of which a new version could be; none for other askers.
    pub own: Vec<K>,
    /// Idle, and kept for the `min` of their model.
    pub kept: Vec<K>,
    /// Idle, and in use too short a while ago.
    pub recent: Vec<K>,
}

impl<K> Default for Reclaimable<K> {
    fn default() -> Self {
        let [leaving, idle, if_idle, own, kept, recent] = [const { Vec::new() }; 6];
        Self { leaving, idle, if_idle, own, kept, recent }
    }
}

impl<K> Reclaimable<K> {
    /// The same by other names; those that have none are left out.
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
    /// What the others could do for an instance that has its seat here; `None` when it has none (any more).
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

    /// The model of a seat.
    #[must_use]
    pub fn model(&self, reservation: ReservationId) -> Option<&Arc<str>> {
        self.reservations.get(&reservation).map(|reservation| &reservation.model)
    }
}
