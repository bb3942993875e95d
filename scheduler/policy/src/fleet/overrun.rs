//! Instances whose handlers ignore their cancellation: a client hung up, or a deadline passed, and the call goes on in C or
//! swallows the exception.
//!
//! Such a handler's slot is lost, and the others in the instance are not to pay for it. Another instance is started beside
//! it, though that makes one more than `max`; when that is ready this one takes nothing new and ends with the last of the
//! others, at their deadlines at the latest. Where no other one can be had it serves on with the slots that it has left, and
//! ends as soon as nobody else is in it: its place is then free for the next one.

use super::Fleet;
use super::events::Action;
use super::generation::Standing;
use super::instance::{Instance, Overrun, Phase};
use crate::{Generation, InstanceNumber, Moment};

impl Fleet {
    pub(super) fn on_overran(
        &mut self,
        number: InstanceNumber,
        others: bool,
        takes: bool,
        now: Moment,
        actions: &mut Vec<Action>,
    ) {
        let Some(instance) = self.instances.get_mut(&number) else { return };
        let retired = instance.overrun.is_some_and(|overrun| overrun.retired);
        instance.overrun = Some(Overrun { others, takes, recovered: false, retired });
        instance.end_drained(number, now, actions);
    }

    pub(super) fn on_recovered(&mut self, number: InstanceNumber) {
        let overrun = self.instances.get_mut(&number).and_then(|instance| instance.overrun.as_mut());
        if let Some(overrun) = overrun {
            *overrun = Overrun { others: true, takes: true, recovered: true, retired: overrun.retired };
        }
    }

    /// Instances that have recovered are as good as they were, where none was started in their place.
    pub(super) fn pardon(&mut self, serving: Generation) {
        if self.live(serving) > self.max(serving) {
            return;
        }
        for instance in self.instances.values_mut().filter(|instance| instance.generation == serving) {
            instance.overrun = instance.overrun.filter(|overrun| !overrun.recovered || overrun.retired);
        }
    }

    /// Ends what is replaced, the oldest first, and what stands in the way of what is to replace it.
    pub(super) fn retire(&mut self, serving: Generation, now: Moment, actions: &mut Vec<Action>) {
        let is_sound = |instance: &Instance| instance.generation == serving && instance.overrun.is_none();
        let ready = self.count(|instance| is_sound(instance) && instance.is_ready()) + self.overrun(serving);
        let mut replaced = ready.saturating_sub(self.desired(serving));
        let starts = self.count(|instance| is_sound(instance) && matches!(instance.phase, Phase::Starting { .. })) > 0;
        let Some(record) = self.generations.get(&serving) else { return };
        let is_coming = starts
            || match record.standing {
                Standing::Fresh | Standing::Preparing | Standing::Prepared => self.room(serving) > 0,
                Standing::Waiting { .. } | Standing::Refused | Standing::NoPlace { .. } => false,
            };
        let bound = record.settings.request;
        for (number, instance) in &mut self.instances {
            let is_up = instance.generation == serving && instance.is_ready();
            let Some(overrun) = instance.overrun.filter(|_| is_up) else { continue };
            let is_of_use = overrun.others || (overrun.takes && is_coming);
            if replaced > 0 || !is_of_use {
                replaced = replaced.saturating_sub(1);
                instance.retire(*number, bound, now, actions);
            }
        }
    }

    /// Instances of a generation that are up, and are to be replaced.
    pub(super) fn overrun(&self, generation: Generation) -> u32 {
        self.count(|instance| instance.generation == generation && instance.is_up() && instance.overrun.is_some())
    }

    /// Instances that count against the generation's `max`: those with stuck handlers, in any phase, are let off, as many
    /// as `max`.
    pub(super) fn counted(&self, generation: Generation) -> u32 {
        let stuck = self.count(|instance| instance.generation == generation && instance.overrun.is_some());
        self.live(generation) - stuck.min(self.max(generation))
    }
}
