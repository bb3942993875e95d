//! From the instances that exist to those that should exist: which generation serves, which instances start and stop.
//!
//! Called at the end of each step. Level-triggered: it looks at the whole state, never at the event.

use super::events::{Action, StopReason};
use super::generation::{Candidate, GenerationState, RolloutStrategy, StartState};
use super::instance::{Instance, Phase};
use super::{Fleet, Target};
use crate::{Generation, InstanceNumber, Moment};

impl Fleet {
    pub(super) fn reconcile(&mut self, now: Moment, actions: &mut Vec<Action>) {
        let ready = self.ready_of_serving();
        if let Some(Candidate { goal: Some(goal), .. }) = &mut self.candidate {
            *goal = ready.max(*goal);
        }
        self.promote_candidate(now);
        self.expire_start_request(now);
        let reason = match self.target {
            _ if self.held => StopReason::Held,
            Target::Removed => StopReason::Removed,
            Target::Unknown | Target::Content(_) | Target::Unservable => StopReason::Replaced,
        };
        for number in self.surplus_instances() {
            self.leave(number, reason, now, actions);
        }
        self.enable_routes(now, actions);
        // Before the directory's content is known, more instances of an earlier scheduler may be adopted: a missing one
        // perhaps exists. Nothing could be started before either, as the content is reported by the launcher.
        if !self.held
            && self.target != Target::Unknown
            && let Some(serving) = self.serving
        {
            self.clear_recovered(serving);
            self.retire_stuck(serving, now, actions);
            self.start_missing(serving, now, actions);
        }
        if !self.held
            && let Some(candidate) = self.candidate
        {
            self.start_missing(candidate.generation, now, actions);
        }
        self.prepare_pulled(actions);
        self.forget(actions);
    }

    /// Lets the candidate serve once it has as many ready instances as the serving generation, as far as they fit.
    fn promote_candidate(&mut self, now: Moment) {
        let Some(candidate) = self.candidate.filter(|_| !self.held) else { return };
        let generation = candidate.generation;
        let most = candidate.fitting(self.max(generation)).max(1);
        if self.ready(generation) < self.ready_of_serving().clamp(1, most) {
            return;
        }
        self.previous = self.serving;
        self.serving = Some(generation);
        self.candidate = None;
        // A deployment counts as use of the model: its idle time begins now.
        self.used_at = now;
        for instance in self.instances.values_mut().filter(|instance| instance.generation == generation) {
            if let Phase::Ready { idle_since, .. } = &mut instance.phase {
                *idle_since = Some(now);
            }
        }
    }

    /// Running instances that belong neither to the serving nor to the candidate generation.
    fn surplus_instances(&self) -> Vec<InstanceNumber> {
        let candidate = self.candidate();
        let is_needed = |instance: &Instance| {
            if self.held {
                false
            } else if Some(instance.generation) == self.serving {
                !self.serving_makes_way()
            } else if Some(instance.generation) == candidate {
                self.start_state(instance.generation) != Some(StartState::Refused)
            } else {
                self.target == Target::Unknown
            }
        };
        let up = self.instances.iter().filter(|(_, instance)| instance.is_up());
        up.filter(|(_, instance)| !is_needed(instance)).map(|(number, _)| *number).collect()
    }

    fn enable_routes(&mut self, now: Moment, actions: &mut Vec<Action>) {
        let Some(serving) = self.serving else {
            self.announced = None;
            return;
        };
        if self.announced != Some(serving) {
            self.announced = Some(serving);
            actions.push(Action::Serve(serving));
        }
        if self.ready(serving) == 0 {
            return;
        }
        (self.start_requested, self.start_needed, self.failed_unrequested) = (false, false, false);
        if let Some(record) = self.generations.get_mut(&serving)
            && !record.was_ready
        {
            record.was_ready = true;
            actions.push(Action::RecordReady(serving));
        }
        for (number, instance) in &mut self.instances {
            if instance.generation == serving && instance.is_ready() && !instance.routed {
                (instance.routed, instance.routed_at) = (true, now);
                actions.push(Action::EnableRoute(*number));
            }
        }
    }

    /// Starts missing instances, as far as the generation may be started and has room.
    fn start_missing(&mut self, generation: Generation, now: Moment, actions: &mut Vec<Action>) {
        let (missing, desired) = (self.missing(generation), self.desired(generation));
        let startable = missing.min(self.room(generation));
        let Some(record) = self.generations.get_mut(&generation) else { return };
        match record.start_state {
            StartState::Unprepared if missing > 0 => {
                if record.prepare() {
                    actions.push(Action::Prepare(generation));
                }
            }
            StartState::Unprepared => record.reset_capacity_pause(),
            StartState::Prepared if startable > 0 => {
                let until = now + record.settings.startup;
                if let Some(candidate) = self.candidate.as_mut().filter(|candidate| candidate.generation == generation)
                {
                    candidate.goal.get_or_insert(desired);
                }
                for _ in 0..startable {
                    let instance = self.next_number();
                    self.instances.insert(instance, Instance::new(generation, Phase::Starting { until }));
                    actions.push(Action::Start { instance, generation });
                }
            }
            StartState::Prepared
            | StartState::Preparing
            | StartState::BackingOff { .. }
            | StartState::Refused
            | StartState::NoCapacity { .. } => {}
        }
    }

    /// Prepares a generation that a command asked for; once, whatever comes of it.
    fn prepare_pulled(&mut self, actions: &mut Vec<Action>) {
        let Some(generation) = self.pulled else { return };
        let known = [self.serving, self.candidate()].contains(&Some(generation));
        let Some(record) = self.generations.get_mut(&generation).filter(|_| known) else {
            self.pulled = None;
            return;
        };
        match record.start_state {
            StartState::Unprepared => {
                if record.prepare() {
                    actions.push(Action::Prepare(generation));
                }
            }
            StartState::Preparing => {}
            StartState::Prepared
            | StartState::BackingOff { .. }
            | StartState::Refused
            | StartState::NoCapacity { .. } => self.pulled = None,
        }
    }

    /// Forgets generations that are not needed any more. An environment that no instance uses may be swept away, so it
    /// is requested again when needed; a preparation that is not needed is cancelled.
    fn forget(&mut self, actions: &mut Vec<Action>) {
        let known = [self.serving, self.candidate(), self.previous];
        let unused = |generation: &Generation| {
            let is_wanted = self.pulled == Some(*generation) || (!self.held && self.missing(*generation) > 0);
            self.live(*generation) == 0 && !is_wanted
        };
        let unused: Vec<_> = self.generations.keys().copied().filter(unused).collect();
        for generation in unused {
            if self.generations.get_mut(&generation).is_some_and(GenerationState::cancel_preparation) {
                actions.push(Action::CancelPreparation(generation));
            }
            if !known.contains(&Some(generation)) {
                self.generations.remove(&generation);
                actions.push(Action::Forget(generation));
            } else if let Some(record) = self.generations.get_mut(&generation)
                && record.start_state == StartState::Prepared
            {
                record.start_state = StartState::Unprepared;
            }
        }
    }

    /// Number of instances this generation should have.
    pub(super) fn desired(&self, generation: Generation) -> u32 {
        let Some(record) = self.generations.get(&generation) else { return 0 };
        let settings = record.settings;
        let count = if self.serving == Some(generation) {
            if self.serving_makes_way() {
                0
            } else if self.start_requested {
                settings.min.max(self.wanted).max(1)
            } else if self.up(generation) == 0 {
                settings.min
            } else {
                settings.min.max(self.wanted).max(self.stuck(generation))
            }
        } else {
            let candidate = self.candidate.filter(|candidate| candidate.generation == generation);
            candidate.map_or(0, |candidate| candidate.fitting(candidate.goal.unwrap_or(self.ready_of_serving().max(1))))
        };
        count.min(settings.max.max(1))
    }

    /// Number of instances to start. A dying instance is replaced once its death is counted, one with stuck handlers at
    /// once.
    pub(super) fn missing(&self, generation: Generation) -> u32 {
        let dying = self.count(|instance| instance.generation == generation && instance.is_dying());
        let sound = self.up(generation) - self.stuck(generation);
        self.desired(generation).saturating_sub(sound + dying)
    }

    /// Number of further instances allowed now. Stopping instances count: a candidate's room is not doubled by earlier
    /// candidates or by the generation that served before, and beside the serving generation there may be no more
    /// instances than one other generation may have.
    pub(super) fn room(&self, generation: Generation) -> u32 {
        let Some(serving) = self.serving else { return 0 };
        let of = |generations: &[Option<Generation>]| {
            self.count(|instance| generations.contains(&Some(instance.generation)))
        };
        let candidate = self.candidate();
        let in_the_way = if generation == serving {
            let beside = of(&[candidate, self.previous]);
            let usual = [candidate, self.previous].into_iter().flatten().map(|other| self.max(other)).max();
            self.count(|_| true) - of(&[Some(serving), candidate, self.previous])
                + beside.saturating_sub(usual.unwrap_or(0))
        } else if self.candidate.is_some_and(|candidate| candidate.strategy == RolloutStrategy::Recreate)
            && self.live_of_serving() > 0
        {
            return 0;
        } else {
            self.count(|_| true) - of(&[Some(serving), candidate])
        };
        self.max(generation).saturating_sub(self.counted(generation) + in_the_way)
    }

    /// Returns whether the serving generation makes room for a candidate that is rolled out by recreation.
    fn serving_makes_way(&self) -> bool {
        self.candidate.filter(|candidate| candidate.strategy == RolloutStrategy::Recreate).is_some_and(|candidate| {
            self.start_state(candidate.generation) == Some(StartState::Prepared) || self.up(candidate.generation) > 0
        })
    }
}
