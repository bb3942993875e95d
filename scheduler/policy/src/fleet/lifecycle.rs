//! What becomes of instances: they get their place and get ready, work and rest, die; and what time does to them.

use super::events::{Action, StopReason};
use super::generation::{GenerationState, RolloutStrategy, StartState};
use super::instance::{Phase, StopCause};
use super::{Fleet, Target};
use crate::{Generation, InstanceNumber, Moment};

impl Fleet {
    /// Whether what waits has to be refused for want of a place.
    pub(super) fn on_demand(&mut self, now: Moment) -> bool {
        if self.held || self.target == Target::Removed {
            return false; // it is refused anyhow
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
        (self.start_requested, self.awaited, self.unasked) = (true, true, false);
        false
    }

    pub(super) fn on_busy(&mut self, number: InstanceNumber) {
        let Some(instance) = self.instances.get_mut(&number) else { return };
        let is_first = !std::mem::replace(&mut instance.used, true);
        instance.in_use = true;
        if let Phase::Ready { idle_since, .. } = &mut instance.phase {
            *idle_since = None;
        }
        // It had its place for something. Requests of the others say nothing of whether there is one more.
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

    /// Whether what waits has to be refused: a further instance, or one beside the serving generation, is no loss.
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
            // Nobody asks for what serves either: it makes the room itself.
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
        // What waits for the candidate waits for this one again, should that fail.
        self.start_requested = self.candidate_is_coming();
        self.awaited &= self.start_requested;
        !self.start_requested
    }

    /// It rests; what it was there for asks for a place again after a pause, or with the next request.
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

    /// What was started for a request begins its idle time now; what replaces an idle one goes on with its model's.
    pub(super) fn on_ready(&mut self, number: InstanceNumber, now: Moment) {
        if self.awaited || self.instances.values().any(|instance| instance.in_use) {
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

    /// It is asked again in a moment.
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

    /// A death of the model's own doing, or the like of one.
    pub(super) fn failed(&mut self, generation: Generation, reckon: impl FnOnce(&mut GenerationState)) {
        if self.serving == Some(generation) {
            self.failures += 1;
        }
        self.died(generation, reckon);
    }

    /// A death. What served is brought up again, though nobody may ask at the moment.
    fn died(&mut self, generation: Generation, reckon: impl FnOnce(&mut GenerationState)) {
        self.deaths += 1;
        let Some(record) = self.generations.get_mut(&generation) else { return };
        reckon(record);
        let gives_up = !record.start_state.is_coming();
        self.unasked |= gives_up; // what waited is refused
        if self.serving == Some(generation) {
            self.start_requested |= !self.held;
        }
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

    /// What died while nobody used its model is not brought up again once its idle time is over.
    pub(super) fn expire_start_request(&mut self, now: Moment) {
        let timeout =
            self.serving.and_then(|serving| self.generations.get(&serving)).map(|known| known.settings.idle_timeout);
        let is_over = timeout.is_some_and(|timeout| self.used_at.saturating_add(timeout) <= now);
        if is_over && !self.awaited && !self.instances.values().any(|instance| instance.in_use) {
            self.start_requested = false;
        }
    }

    /// The candidate did not get ready in place of the serving generation, which comes back though nobody may ask.
    fn abandon_recreate(&mut self) {
        if let Some(candidate) = &mut self.candidate
            && std::mem::replace(&mut candidate.strategy, RolloutStrategy::Parallel) == RolloutStrategy::Recreate
        {
            self.start_requested = true;
        }
    }
}
