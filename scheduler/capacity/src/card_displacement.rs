//! Displacement of idle instances from a card.
//!
//! The residency policy chooses the instances; which of them may go, and the notification, are the same as for the
//! node's own capacity.

use super::reservation::{CapacityHandle, Decision, DisplacedFrom};
use omni_policy::capacity::{Event, Reclaimable, ReservationId, StartReason};
use std::sync::Arc;

impl CapacityHandle {
    /// Lets `choose` decide which instances make room for the one with this reservation, and displaces them. They leave
    /// the ledger's reach at once: no second request counts on them, and no model loses more than it may.
    pub fn displace_from_card<T>(
        &self,
        requester: ReservationId,
        reason: StartReason,
        choose: impl FnOnce(Reclaimable<ReservationId>) -> (Vec<ReservationId>, T),
    ) -> T {
        let mut state = self.0.state();
        state.read_idle_times();
        let reclaimable = state.ledger.reclaimable(requester, reason, self.0.started.elapsed());
        let Some((purpose, reclaimable)) = reclaimable else { return choose(Reclaimable::default()).1 };
        let by = state.ledger.model(requester).map(Arc::clone);
        let (displaced, chosen) = choose(reclaimable);
        for id in displaced {
            if let Some(by) = by.clone() {
                state.step(&Event::Leaving(id));
                state.metrics.displaced();
                state.decisions.push((id, Decision::Displaced { by, purpose, from: DisplacedFrom::Card }));
            }
        }
        drop(state);
        self.0.notify.notify_one();
        chosen
    }
}
