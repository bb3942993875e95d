//! Instances whose handlers ignore their cancellation: a client hung up, or a deadline passed, and the call goes on in C or
//! swallows the exception.
//!
//! Such a handler's slot is lost, and the others in the instance are not to pay for it. Another instance is started beside
//! it, though that makes one more than `max`; when that is ready this one takes nothing new and ends with the last of the
//! others, at their deadlines at the latest. Where no other one can be had it serves on with the slots that it has left, and
//! ends as soon as nobody else is in it: its place is then free for the next one.

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

    /// Instances that have recovered are as good as they were, where none was started in their place.
    pub(super) fn clear_recovered(&mut self, serving: Generation) {
        if self.live(serving) > self.max(serving) {
            return;
        }
        for instance in self.instances.values_mut().filter(|instance| instance.generation == serving) {
            instance.overrun = instance.overrun.filter(|overrun| !overrun.recovered || overrun.retiring);
        }
    }

    /// Ends what is replaced, the oldest first, and what stands in the way of what is to replace it.
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

    /// Instances of a generation that are up, and are to be replaced.
    pub(super) fn stuck(&self, generation: Generation) -> u32 {
        self.count(|instance| instance.generation == generation && instance.is_up() && instance.overrun.is_some())
    }

    /// Instances that count against the generation's `max`: those with stuck handlers, in any phase, are let off, as many
    /// as `max`.
    pub(super) fn counted(&self, generation: Generation) -> u32 {
        let stuck = self.count(|instance| instance.generation == generation && instance.overrun.is_some());
        self.live(generation) - stuck.min(self.max(generation))
    }
}
