//! Idle instances that make room on a card. Which of them do is decided by the cards' own ledger; that they may, and what
//! they are told, is the same as for the node's capacity.

use super::reservation::{CapacityHandle, Decision, DisplacedFrom};
use crate::policy::capacity::{Event, Reclaimable, ReservationId, StartReason};
use std::sync::Arc;

impl CapacityHandle {
    /// Has `choose` decide which instances go for the one with this seat, and tells them. They are out of the others' reach
    /// at once: no second one counts on them, and no model loses more than it may.
    pub fn displace_from_card<T>(
        &self,
        requester: ReservationId,
        reason: StartReason,
        choose: impl FnOnce(Reclaimable<ReservationId>) -> (Vec<ReservationId>, T),
    ) -> T {
        let mut state = self.0.state();
        state.poll();
        let reclaimable = state.ledger.reclaimable(requester, reason, self.0.started.elapsed());
        let Some((purpose, reclaimable)) = reclaimable else { return choose(Reclaimable::default()).1 };
        let by = state.ledger.model(requester).map(Arc::clone);
        let (displaced, chosen) = choose(reclaimable);
        for reservation in displaced {
            if let Some(by) = by.clone() {
                state.step(&Event::Leaving(reservation));
                state.metrics.displaced();
                state.decisions.push((reservation, Decision::Displaced { by, purpose, from: DisplacedFrom::Card }));
            }
        }
        drop(state);
        self.0.notify.notify_one();
        chosen
    }
}
