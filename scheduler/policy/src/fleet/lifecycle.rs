//! What becomes of instances: they get their place and get ready, work and rest, die; and what time does to them.

use super::events::{Action, Why};
use super::generation::{Record, Standing};
use super::instance::{End, Phase};
use super::{Aim, Fleet};
use crate::{Generation, InstanceNumber, Moment};

impl Fleet {
    /// Whether what waits has to be refused for want of a place.
    pub(super) fn on_demand(&mut self, now: Moment) -> bool {
        if self.held || self.aim == Aim::Removed {
            return false; // it is refused anyhow
        }
        self.used_at = now;
        if let Some(serving) = self.serving
            && self.up(serving) == 0
            && let Some(record) = self.generations.get_mut(&serving)
        {
            record.ask_for_place(now);
            if matches!(record.standing, Standing::NoPlace { .. }) {
                self.owed = self.candidate_is_coming();
                return !self.owed;
            }
        }
        (self.owed, self.awaited, self.unasked) = (true, true, false);
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
            record.forget_place();
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
    pub(super) fn on_no_place(
        &mut self,
        number: InstanceNumber,
        (hopeless, in_place): (bool, bool),
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
        let in_place = in_place && self.is_unused(now);
        if let Some(candidate) = self.candidate.as_mut().filter(|candidate| candidate.generation == generation) {
            if up > 0 {
                candidate.most = up;
                return false;
            }
            // Nobody asks for what serves either: it makes the room itself.
            if in_place && !candidate.in_place {
                candidate.in_place = true;
                return false;
            }
            self.give_back_place();
        }
        if let Some(record) = self.generations.get_mut(&generation) {
            record.no_place(hopeless && live == 0, now);
        }
        if self.serving != Some(generation) || up > 0 {
            return false;
        }
        // What waits for the candidate waits for this one again, should that fail.
        self.owed = self.candidate_is_coming();
        self.awaited &= self.owed;
        !self.owed
    }

    /// It rests; what it was there for asks for a place again after a pause, or with the next request.
    pub(super) fn on_displaced(&mut self, number: InstanceNumber, now: Moment, actions: &mut Vec<Action>) {
        let Some(instance) = self.instances.get(&number) else { return };
        if !instance.is_up() {
            return;
        }
        let generation = instance.generation;
        self.leave(number, Why::Displaced, now, actions);
        if self.serving == Some(generation) && self.up(generation) == 0 {
            self.owed = false;
        }
        if self.missing(generation) > 0
            && let Some(record) = self.generations.get_mut(&generation)
        {
            record.pause_for_place(now);
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
            Phase::Starting { .. } | Phase::Stopping { end: End::Failed, .. } => None,
            Phase::Ready { since, .. } => Some(since),
            Phase::Stopping { end: End::Overran, .. } => return self.died(instance.generation, Record::overrun),
            Phase::Draining { .. } | Phase::Stopping { end: End::Wanted, .. } => return,
        };
        self.failed(instance.generation, |record| record.fail(instance.refused, ready_since, now, jitter));
    }

    /// It is asked again in a moment.
    pub(super) fn on_not_asked(&mut self, generation: Generation, instance: Option<InstanceNumber>, now: Moment) {
        if let Some(number) = instance {
            self.instances.remove(&number);
        }
        if let Some(record) = self.generations.get_mut(&generation) {
            record.launcher_away(now);
        }
    }

    /// A death of the model's own doing, or the like of one.
    pub(super) fn failed(&mut self, generation: Generation, reckon: impl FnOnce(&mut Record)) {
        if self.serving == Some(generation) {
            self.failures += 1;
        }
        self.died(generation, reckon);
    }

    /// A death. What served is brought up again, though nobody may ask at the moment.
    fn died(&mut self, generation: Generation, reckon: impl FnOnce(&mut Record)) {
        self.deaths += 1;
        let Some(record) = self.generations.get_mut(&generation) else { return };
        reckon(record);
        let gives_up = !record.standing.is_coming();
        self.unasked |= gives_up; // what waited is refused
        if self.serving == Some(generation) {
            self.owed |= !self.held;
        }
        if gives_up && self.candidate() == Some(generation) {
            self.give_back_place();
        }
    }

    pub(super) fn on_tick(&mut self, now: Moment, actions: &mut Vec<Action>) {
        for (number, instance) in &mut self.instances {
            if instance.deadline().is_some_and(|at| at <= now) {
                instance.overdue(*number, now, actions);
            }
        }
        self.generations.values_mut().for_each(|record| record.tick(now));
        while let Some((at, number)) = self.next_idle_end()
            && at <= now
        {
            self.leave(number, Why::Idle, now, actions);
        }
    }

    /// What died while nobody used its model is not brought up again once its idle time is over.
    pub(super) fn forget_debt(&mut self, now: Moment) {
        let timeout =
            self.serving.and_then(|serving| self.generations.get(&serving)).map(|known| known.settings.idle_timeout);
        let is_over = timeout.is_some_and(|timeout| self.used_at.saturating_add(timeout) <= now);
        if is_over && !self.awaited && !self.instances.values().any(|instance| instance.in_use) {
            self.owed = false;
        }
    }

    /// The candidate did not get ready in place of the serving generation, which comes back though nobody may ask.
    fn give_back_place(&mut self) {
        if let Some(candidate) = &mut self.candidate
            && std::mem::take(&mut candidate.in_place)
        {
            self.owed = true;
        }
    }
}
