//! Handlers that ignore their cancellation: they have `cancel-grace`, then their slots are written off and the fleet is told
//! what they leave of their instance.

use super::ModelTask;
use omni_log::Kind;
use omni_policy::InstanceNumber;
use omni_policy::dispatch::StuckHandlers;
use omni_policy::fleet::Event;
use std::time::Instant;

/// Why such an instance ends.
pub(super) const WHY: &str = "a handler ignored its cancellation";

impl ModelTask {
    /// A handler that runs on after its cancellation has `cancel-grace` from then.
    pub(super) fn watch_grace(&mut self, number: InstanceNumber) {
        let Some(instance) = self.instances.get_mut(number).filter(|instance| !instance.killed) else { return };
        let since = self.dispatch.cancelled_since(number).map(|since| self.context.started + since);
        instance.grace_ends = since.map(|since| since + instance.content.manifest.timeouts.cancel_grace);
    }

    /// Time is over for a handler that was cancelled.
    pub(super) fn write_off(&mut self, number: InstanceNumber) {
        let Some(instance) = self.instances.get(number) else { return };
        let grace = instance.content.manifest.timeouts.cancel_grace;
        let since = Instant::now().saturating_duration_since(self.context.started).saturating_sub(grace);
        self.dispatch.write_off(number, since);
        self.watch_grace(number);
        self.tell_stuck(number);
    }

    /// Tells the fleet what stuck handlers leave of an instance, when that has changed.
    pub(super) fn tell_stuck(&mut self, number: InstanceNumber) {
        let stuck = self.dispatch.stuck_handlers(number);
        let Some(instance) = self.instances.get_mut(number).filter(|instance| instance.stuck != stuck) else { return };
        let before = std::mem::replace(&mut instance.stuck, stuck);
        match stuck {
            Some(StuckHandlers { other_requests, free_slots }) => {
                if before.is_none() {
                    tracing::warn!(
                        message_id = Kind::InstanceReplaced.id(),
                        model = %self.model.name,
                        instance = %instance.id,
                        reason = "cancellation",
                        "the instance is replaced: {WHY}"
                    );
                    self.say_of(number, format!("{WHY}; the instance is being replaced"));
                }
                self.event(&Event::StuckHandlers { instance: number, other_requests, free_slots });
            }
            None => {
                if let Some(generation) = self.instances.get(number).map(|instance| instance.generation) {
                    self.generations.say(generation, None);
                }
                self.event(&Event::Recovered(number));
            }
        }
    }
}
