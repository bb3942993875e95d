//! Events in the life of instances: capacity, readiness, use and idleness, death; and what time does to them.

use super::events::{Action, StopReason};
use super::generation::{GenerationState, RolloutStrategy, StartState};
use super::instance::{Instance, Phase, StopCause};
use super::{Fleet, Target};
use crate::capacity::MIN_IDLE;
use crate::{Generation, InstanceNumber, Moment};

impl Fleet {
    /// Returns whether the waiting requests have to be refused for lack of capacity.
    pub(super) fn on_demand(&mut self, now: Moment) -> bool {
        if self.held || self.target == Target::Removed {
            return false; // refused in any case
        }
        self.used_at = now;
        if let Some(serving) = self.serving
            && self.up(serving) == 0
            && let Some(record) = self.generations.get_mut(&serving)
        {
            record.request_capacity_on_demand(now);
            if matches!(record.start_state, StartState::NoCapacity { .. }) {
                self.start_requested = self.candidate_is_coming();
                return !self.start_requested;
            }
        }
        (self.start_requested, self.start_needed, self.failed_unrequested) = (true, true, false);
        false
    }

    pub(super) fn on_busy(&mut self, number: InstanceNumber) {
        let Some(instance) = self.instances.get_mut(&number) else { return };
        let is_first = !std::mem::replace(&mut instance.used, true);
        instance.in_use = true;
        if let Phase::Ready { idle_since, .. } = &mut instance.phase {
            *idle_since = None;
        }
        // The capacity was of use. Requests of other instances say nothing about whether one more fits.
        if let Some(record) = self.generations.get_mut(&instance.generation).filter(|_| is_first) {
            record.reset_capacity_pause();
        }
    }

    pub(super) fn on_idle(&mut self, number: InstanceNumber, now: Moment, actions: &mut Vec<Action>) {
        let Some(instance) = self.instances.get_mut(&number) else { return };
        if std::mem::take(&mut instance.in_use) {
            self.used_at = now;
        }
        match &mut instance.phase {
            Phase::Ready { idle_since, .. } => {
                idle_since.get_or_insert(now);
            }
            Phase::Draining { .. } => instance.stop(number, now, actions),
            Phase::Starting { .. } | Phase::Stopping { .. } => {}
        }
    }

    pub(super) fn on_placed(&mut self, number: InstanceNumber, now: Moment) {
        if let Some(instance) = self.instances.get_mut(&number)
            && let Some(record) = self.generations.get(&instance.generation)
            && let Phase::Starting { until } = &mut instance.phase
        {
            *until = now + record.settings.startup;
        }
    }

    /// Returns whether the waiting requests have to be refused; the lack of a further instance, or of one beside the
    /// serving generation, costs no request.
    pub(super) fn on_no_capacity(
        &mut self,
        number: InstanceNumber,
        (permanent, recreate_fits): (bool, bool),
        now: Moment,
        jitter: f64,
    ) -> bool {
        let Some(instance) = self.instances.get(&number) else { return false };
        let generation = instance.generation;
        if !matches!(instance.phase, Phase::Starting { .. }) {
            self.on_gone(number, now, jitter);
            return false;
        }
        self.instances.remove(&number);
        let (up, live) = (self.up(generation), self.live(generation));
        let recreate_fits = recreate_fits && self.is_unused(now);
        if let Some(candidate) = self.candidate.as_mut().filter(|candidate| candidate.generation == generation) {
            if up > 0 {
                candidate.fits = Some(up);
                return false;
            }
            // The serving generation is unused: it makes room itself.
            if recreate_fits && candidate.strategy == RolloutStrategy::Parallel {
                candidate.strategy = RolloutStrategy::Recreate;
                return false;
            }
            self.abandon_recreate();
        }
        if let Some(record) = self.generations.get_mut(&generation) {
            record.on_no_capacity(permanent && live == 0, now);
        }
        if self.serving != Some(generation) || up > 0 {
            return false;
        }
        // Requests that wait for the candidate wait for this generation again if the candidate fails.
        self.start_requested = self.candidate_is_coming();
        self.start_needed &= self.start_requested;
        !self.start_requested
    }

    /// Stops the displaced instance; its generation requests capacity again after a pause or on the next request.
    pub(super) fn on_displaced(&mut self, number: InstanceNumber, now: Moment, actions: &mut Vec<Action>) {
        let Some(instance) = self.instances.get(&number) else { return };
        if !instance.is_up() {
            return;
        }
        let generation = instance.generation;
        self.leave(number, StopReason::Displaced, now, actions);
        if self.serving == Some(generation) && self.up(generation) == 0 {
            self.start_requested = false;
        }
        if self.missing(generation) > 0
            && let Some(record) = self.generations.get_mut(&generation)
        {
            record.delay_capacity_request(now);
        }
    }

    /// The idle time of an instance started for a request begins now; that of one started to replace an idle instance
    /// continues from the last use of its model.
    pub(super) fn on_ready(&mut self, number: InstanceNumber, now: Moment) {
        if self.start_needed || self.instances.values().any(|instance| instance.in_use) {
            self.used_at = now;
        }
        if let Some(instance) = self.instances.get_mut(&number)
            && matches!(instance.phase, Phase::Starting { .. })
        {
            instance.phase = Phase::Ready { since: now, idle_since: Some(self.used_at) };
        }
    }

    pub(super) fn on_gone(&mut self, number: InstanceNumber, now: Moment, jitter: f64) {
        let Some(instance) = self.instances.remove(&number) else { return };
        if instance.in_use {
            self.used_at = now;
        }
        let ready_since = match instance.phase {
            Phase::Starting { .. } | Phase::Stopping { end: StopCause::Failed, .. } => None,
            Phase::Ready { since, .. } => Some(since),
            Phase::Stopping { end: StopCause::StuckHandlers, .. } => {
                return self.died(instance.generation, GenerationState::on_stuck_instance_ended);
            }
            Phase::Draining { .. } | Phase::Stopping { end: StopCause::Requested, .. } => return,
        };
        self.failed(instance.generation, |record| record.record_failure(instance.refused, ready_since, now, jitter));
    }

    /// The launcher is asked again shortly.
    pub(super) fn on_launcher_unavailable(
        &mut self,
        generation: Generation,
        instance: Option<InstanceNumber>,
        now: Moment,
    ) {
        if let Some(number) = instance {
            self.instances.remove(&number);
        }
        if let Some(record) = self.generations.get_mut(&generation) {
            record.launcher_unavailable(now);
        }
    }

    /// An environment or weights that cannot be had. Nothing was started, so nothing died; whoever needs an instance still
    /// does.
    pub(super) fn not_prepared(&mut self, generation: Generation, reckon: impl FnOnce(&mut GenerationState)) {
        if self.serving == Some(generation) {
            self.failures += 1;
        }
        self.reckon(generation, reckon);
    }

    /// A death that the model caused.
    fn failed(&mut self, generation: Generation, reckon: impl FnOnce(&mut GenerationState)) {
        if self.serving == Some(generation) {
            self.failures += 1;
        }
        self.died(generation, reckon);
    }

    /// Counts a death. The serving generation is started again, even without a request.
    fn died(&mut self, generation: Generation, reckon: impl FnOnce(&mut GenerationState)) {
        self.deaths += 1;
        if self.serving == Some(generation) {
            self.start_requested |= !self.held;
        }
        self.reckon(generation, reckon);
    }

    /// Counts a failure of a generation. One that is not tried again soon leaves its requests refused.
    fn reckon(&mut self, generation: Generation, reckon: impl FnOnce(&mut GenerationState)) {
        let Some(record) = self.generations.get_mut(&generation) else { return };
        reckon(record);
        let gives_up = !record.start_state.is_coming();
        self.failed_unrequested |= gives_up; // the waiting requests are refused
        if gives_up && self.candidate() == Some(generation) {
            self.abandon_recreate();
        }
    }

    pub(super) fn on_tick(&mut self, now: Moment, actions: &mut Vec<Action>) {
        for (number, instance) in &mut self.instances {
            if instance.deadline().is_some_and(|at| at <= now) {
                instance.on_deadline(*number, now, actions);
            }
        }
        self.generations.values_mut().for_each(|record| record.tick(now));
        while let Some((at, number)) = self.next_idle_stop()
            && at <= now
        {
            self.leave(number, StopReason::Idle, now, actions);
        }
    }

    /// An instance that died while its model was unused is not started again once the idle time is over.
    pub(super) fn expire_start_request(&mut self, now: Moment) {
        let timeout =
            self.serving.and_then(|serving| self.generations.get(&serving)).map(|known| known.settings.idle_timeout);
        let is_over = timeout.is_some_and(|timeout| self.used_at.saturating_add(timeout) <= now);
        if is_over && !self.start_needed && !self.instances.values().any(|instance| instance.in_use) {
            self.start_requested = false;
        }
    }

    /// The candidate failed after the serving generation had made room: the serving generation is started again, even
    /// without a request.
    fn abandon_recreate(&mut self) {
        if let Some(candidate) = &mut self.candidate
            && std::mem::replace(&mut candidate.strategy, RolloutStrategy::Parallel) == RolloutStrategy::Recreate
        {
            self.start_requested = true;
        }
    }

    /// Next instance to stop for being idle, and when, if nothing changes. Instances that the load or `min` needs stay;
    /// the very last one stays for `min` only, as it was idle all that time.
    pub(super) fn next_idle_stop(&self) -> Option<(Moment, InstanceNumber)> {
        let serving = self.serving.filter(|_| !self.held)?;
        let settings = self.generations.get(&serving)?.settings;
        let up = self.up(serving) - self.stuck(serving);
        let needed = if up == 1 { settings.min } else { settings.min.max(self.wanted) };
        if up <= needed {
            return None;
        }
        let is_sound = |instance: &Instance| instance.generation == serving && instance.overrun.is_none();
        let of_serving = self.instances.iter().filter(|(_, instance)| is_sound(instance));
        of_serving.filter_map(|(number, instance)| Some((instance.idle_stop_at(settings.idle_timeout)?, *number))).min()
    }

    /// Returns whether no request waits for the serving generation, and none ran in it for a while.
    pub(super) fn is_unused(&self, now: Moment) -> bool {
        let unused = |instance: &Instance| match instance.phase {
            Phase::Ready { idle_since: Some(since), .. } => since + MIN_IDLE <= now,
            Phase::Ready { idle_since: None, .. } | Phase::Starting { .. } | Phase::Draining { .. } => false,
            Phase::Stopping { .. } => true,
        };
        let mut of_serving = self.instances.values().filter(|instance| Some(instance.generation) == self.serving);
        !self.start_requested && of_serving.all(unused)
    }

    /// Stops an instance gracefully, with the drain time of its own manifest.
    pub(super) fn leave(&mut self, number: InstanceNumber, reason: StopReason, now: Moment, actions: &mut Vec<Action>) {
        let Some(instance) = self.instances.get_mut(&number) else { return };
        let Some(record) = self.generations.get(&instance.generation) else { return };
        if instance.is_up() {
            actions.push(Action::Leaving { instance: number, reason });
        }
        instance.leave(number, record.settings.drain, now, actions);
    }
}
