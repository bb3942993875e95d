//! Asks of the task ([`super::task`]) for a place on a card that idle instances may have to leave.
//!
//! Who is idle is known by the node's capacity, where all instances have their seats. The policy decides under its lock, so
//! that what it counts on cannot be given to another asker meanwhile.

use super::placed::Seated;
use super::task::GpuTask;
use crate::policy::capacity::{Others, SeatKey};
use crate::policy::residency::{Action, Event, InstanceKey};
use std::collections::HashMap;

impl GpuTask {
    /// Looks for those that hope for a place, in the order in which they asked.
    pub(super) async fn look_for_room(&mut self) {
        for instance in self.policy.hoping() {
            self.ask_for_room(instance, |others| Event::Look { instance, others }).await;
        }
    }

    /// Feeds an ask to the policy, with what the others could do for it.
    pub(super) async fn ask_for_room(&mut self, key: InstanceKey, ask: impl FnOnce(Others<InstanceKey>) -> Event) {
        let Some(Seated { applicant, .. }) = self.seated.get(&key) else { return };
        let (seat, cause, now) = (applicant.seat, applicant.cause, self.now());
        let keys: HashMap<SeatKey, InstanceKey> =
            self.seated.iter().map(|(key, seated)| (seated.applicant.seat, *key)).collect();
        let (policy, seated) = (&mut self.policy, &self.seated);
        let actions = self.capacity.displace_from_card(seat, cause, |others| {
            let actions = policy.step(&ask(others.renamed(|seat| keys.get(&seat).copied())), now);
            let seat_of = |action: &Action| match action {
                Action::Displace { instance, .. } => seated.get(instance).map(|seated| seated.applicant.seat),
                Action::Placed { .. }
                | Action::Refused { .. }
                | Action::Grant { .. }
                | Action::Yield { .. }
                | Action::Order { .. }
                | Action::End { .. } => None,
            };
            (actions.iter().filter_map(seat_of).collect(), actions)
        });
        for action in actions {
            self.act(action).await;
        }
    }
}
