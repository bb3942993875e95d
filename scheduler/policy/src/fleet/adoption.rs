//! Instances of an earlier scheduler: each may serve, be a candidate, or not be needed.
//!
//! Instances are found one after the other, before or after the directory's content is known, so each is judged by what
//! is known so far. No instance that could serve is stopped before another one is ready, and a candidate that is found
//! first, with fewer instances than serve, goes on as a candidate.

use super::generation::{Candidate, GenerationState};
use super::instance::{Instance, Phase};
use super::{Fleet, Settings, Target};
use crate::{Generation, InstanceNumber, Moment};

impl Fleet {
    /// The generation serves, with or without instances, until another one is ready.
    pub(super) fn on_last_served(&mut self, generation: Generation, settings: Settings) {
        self.generations.entry(generation).or_insert_with(|| GenerationState::new(settings)).was_ready = true;
        if self.target == Target::Unknown && self.serving.is_none_or(|serving| !self.was_ready(serving)) {
            self.serving = Some(generation);
        }
    }

    pub(super) fn on_adopted(
        &mut self,
        number: InstanceNumber,
        generation: Generation,
        settings: Settings,
        ready: bool,
        now: Moment,
    ) {
        let phase = if ready {
            Phase::Ready { since: now, idle_since: Some(now) }
        } else {
            Phase::Starting { until: now + settings.startup }
        };
        self.instances.insert(number, Instance::new(generation, phase));
        // The time of its last request is not known: its idle time begins now at the earliest.
        self.used_at = now;
        if self.target == Target::Removed {
            return;
        }
        match self.serving {
            None => self.serving = Some(generation),
            Some(serving) => {
                let is_other = generation != serving && self.candidate() != Some(generation);
                // An instance of the serving generation may still be found, and only the directory tells whether this
                // one is a candidate.
                let may_be_candidate = self.target == Target::Unknown && self.was_ready(serving);
                if is_other && ready && self.ready(serving) == 0 && !may_be_candidate {
                    self.serving = Some(generation);
                    if self.target == Target::Content(serving) {
                        self.candidate = Some(Candidate::new(serving));
                    }
                }
            }
        }
    }
}
