//! Requests of the GPU task ([`super::task`]) for a place that idle instances may have to leave.
//!
//! The node's capacity knows which instances are idle, as all have reservations there. The policy decides under its
//! lock, so that what it counts on cannot be given to another request meanwhile.

use super::placed::PlacedInstance;
use super::task::GpuTask;
use omni_policy::capacity::{Reclaimable, ReservationId};
use omni_policy::residency::{Action, Event, InstanceKey};
use std::collections::HashMap;

impl GpuTask {
    /// Retries the pending requests for a place, in the order of their arrival.
    pub(super) async fn retry_placements(&mut self) {
        for instance in self.policy.pending_placements() {
            self.place_with(instance, |others| Event::RetryPlacement { instance, others }).await;
        }
    }

    /// Feeds a request to the policy, with the instances that could make room.
    pub(super) async fn place_with(
        &mut self,
        key: InstanceKey,
        place_event: impl FnOnce(Reclaimable<InstanceKey>) -> Event,
    ) {
        let Some(PlacedInstance { request, .. }) = self.placed.get(&key) else { return };
        let (reservation, reason, now) = (request.reservation, request.reason, self.now());
        let keys: HashMap<ReservationId, InstanceKey> =
            self.placed.iter().map(|(key, placed)| (placed.request.reservation, *key)).collect();
        let (policy, placed) = (&mut self.policy, &self.placed);
        let actions = self.capacity.displace_from_card(reservation, reason, |others| {
            let actions =
                policy.step(&place_event(others.map_keys(|reservation| keys.get(&reservation).copied())), now);
            let seat_of = |action: &Action| match action {
                Action::Displace { instance, .. } => placed.get(instance).map(|placed| placed.request.reservation),
                Action::Placed { .. }
                | Action::Refused { .. }
                | Action::Grant { .. }
                | Action::Yield { .. }
                | Action::Command { .. }
                | Action::End { .. } => None,
            };
            (actions.iter().filter_map(seat_of).collect(), actions)
        });
        for action in actions {
            self.act(action).await;
        }
    }
}
