//! Instances whose handlers ignore their cancellation: a client hung up, or a deadline passed, and the call goes on in
//! C or swallows the exception.
//!
//! The slot of such a handler is lost, and other requests in the instance must not pay for it. A replacement is started
//! beside it, even if that makes one instance more than `max`; once the replacement is ready, the instance takes
//! nothing new and ends with the last of its other requests, at their deadlines at the latest. Where no replacement can
//! be had it serves on with its free slots, and ends as soon as no other request runs in it: its capacity is then free
//! for the next one.

use super::Fleet;
use super::events::Action;
use super::generation::StartState;
use super::instance::{Instance, Overrun, Phase};
use crate::{Generation, InstanceNumber, Moment};

impl Fleet {
    pub(super) fn on_stuck_handlers(
        &mut self,
        number: InstanceNumber,
        other_requests: bool,
        free_slots: bool,
        now: Moment,
        actions: &mut Vec<Action>,
    ) {
        let Some(instance) = self.instances.get_mut(&number) else { return };
        let retiring = instance.overrun.is_some_and(|overrun| overrun.retiring);
        instance.overrun = Some(Overrun { other_requests, free_slots, recovered: false, retiring });
        instance.end_if_drained(number, now, actions);
    }

    pub(super) fn on_recovered(&mut self, number: InstanceNumber) {
        let overrun = self.instances.get_mut(&number).and_then(|instance| instance.overrun.as_mut());
        if let Some(overrun) = overrun {
            *overrun = Overrun { other_requests: true, free_slots: true, recovered: true, retiring: overrun.retiring };
        }
    }

    /// Clears the mark of recovered instances, unless replacements were started for them.
    pub(super) fn clear_recovered(&mut self, serving: Generation) {
        if self.live(serving) > self.max(serving) {
            return;
        }
        for instance in self.instances.values_mut().filter(|instance| instance.generation == serving) {
            instance.overrun = instance.overrun.filter(|overrun| !overrun.recovered || overrun.retiring);
        }
    }

    /// Stops instances with stuck handlers that have been replaced, oldest first, and those in the way of a
    /// replacement.
    pub(super) fn retire_stuck(&mut self, serving: Generation, now: Moment, actions: &mut Vec<Action>) {
        let is_sound = |instance: &Instance| instance.generation == serving && instance.overrun.is_none();
        let ready = self.count(|instance| is_sound(instance) && instance.is_ready()) + self.stuck(serving);
        let mut replaced = ready.saturating_sub(self.desired(serving));
        let starts = self.count(|instance| is_sound(instance) && matches!(instance.phase, Phase::Starting { .. })) > 0;
        let Some(record) = self.generations.get(&serving) else { return };
        let is_coming = starts
            || match record.start_state {
                StartState::Unprepared | StartState::Preparing | StartState::Prepared => self.room(serving) > 0,
                StartState::BackingOff { .. } | StartState::Refused | StartState::NoCapacity { .. } => false,
            };
        let bound = record.settings.request;
        for (number, instance) in &mut self.instances {
            let is_up = instance.generation == serving && instance.is_ready();
            let Some(overrun) = instance.overrun.filter(|_| is_up) else { continue };
            let is_of_use = overrun.other_requests || (overrun.free_slots && is_coming);
            if replaced > 0 || !is_of_use {
                replaced = replaced.saturating_sub(1);
                instance.retire_stuck(*number, bound, now, actions);
            }
        }
    }

    /// Number of a generation's instances that are up and have stuck handlers.
    pub(super) fn stuck(&self, generation: Generation) -> u32 {
        self.count(|instance| instance.generation == generation && instance.is_up() && instance.overrun.is_some())
    }

    /// Number of instances that count against the generation's `max`; up to `max` instances with stuck handlers, in any
    /// phase, do not.
    pub(super) fn counted(&self, generation: Generation) -> u32 {
        let stuck = self.count(|instance| instance.generation == generation && instance.overrun.is_some());
        self.live(generation) - stuck.min(self.max(generation))
    }
}
