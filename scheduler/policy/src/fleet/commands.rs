//! Changes of the directory and administrative commands: which content to serve, and whether to run.

use super::events::{Action, Settings, StopReason};
use super::generation::{Candidate, GenerationState, RolloutStrategy};
use super::{Fleet, Target};
use crate::{Generation, Moment};

impl Fleet {
    pub(super) fn on_content(&mut self, generation: Generation, settings: Settings, was_ready: bool) {
        self.target = Target::Content(generation);
        let record = self.generations.entry(generation).or_insert_with(|| GenerationState::new(settings));
        record.settings = settings;
        record.was_ready |= was_ready;
        record.reset_backoff();
        if self.serving == Some(generation) {
            self.candidate = None;
        } else if self.serving.is_some_and(|serving| self.was_ready(serving)) {
            if self.candidate.is_none_or(|candidate| candidate.generation != generation) {
                self.candidate = Some(Candidate::new(generation));
            }
        } else {
            self.serving = Some(generation);
            self.candidate = None;
        }
    }

    /// A generation that was ready goes on serving; one that never was does not.
    pub(super) fn on_unservable_content(&mut self) {
        self.target = Target::Unservable;
        self.candidate = None;
        self.serving = self.serving.filter(|serving| self.was_ready(*serving));
    }

    pub(super) fn on_removed(&mut self) {
        self.target = Target::Removed;
        (self.serving, self.candidate, self.previous) = (None, None, None);
        (self.wanted, self.start_requested, self.start_needed) = (0, false, false);
    }

    pub(super) fn on_start(&mut self, now: Moment) {
        self.held = false;
        self.start_requested = self.target != Target::Removed;
        (self.start_needed, self.failed_unrequested, self.used_at) = (true, false, now);
        self.generations.values_mut().for_each(GenerationState::reset_backoff);
    }

    /// Prepares the newest generation, also of a model that is held: its next start finds all that it needs.
    pub(super) fn on_pull(&mut self) {
        self.pulled = self.candidate().or(self.serving).filter(|_| self.target != Target::Removed);
        if let Some(record) = self.pulled.and_then(|generation| self.generations.get_mut(&generation)) {
            record.reset_backoff();
        }
    }

    /// Ends a pull, too: what it prepares is not needed.
    pub(super) fn on_stop(&mut self) {
        (self.held, self.pulled) = (true, None);
        (self.start_requested, self.start_needed) = (false, false);
        if let Some(candidate) = &mut self.candidate {
            candidate.strategy = RolloutStrategy::Parallel;
        }
    }

    /// Tries the candidate again, recreating the serving generation if there was no capacity beside it; without a
    /// candidate, replaces every instance by a new one.
    pub(super) fn on_restart(&mut self, now: Moment, actions: &mut Vec<Action>) {
        self.held = false;
        (self.start_needed, self.failed_unrequested, self.used_at) = (true, false, now);
        if let Some(candidate) = self.candidate.as_mut() {
            let lacked_capacity =
                self.generations.get(&candidate.generation).is_some_and(GenerationState::lacked_capacity);
            if lacked_capacity {
                candidate.strategy = RolloutStrategy::Recreate;
            }
        } else if let Some(serving) = self.serving {
            self.start_requested = true;
            for number in self.numbers(serving) {
                self.leave(number, StopReason::Restarted, now, actions);
            }
        }
        self.generations.values_mut().for_each(GenerationState::reset_backoff);
    }
}
