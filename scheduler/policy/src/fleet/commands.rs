//! What the directory and people say: which content there is to be, and whether it is to run.

use super::events::{Action, Settings, Why};
use super::generation::{Candidate, Record};
use super::{Aim, Fleet};
use crate::{Generation, Moment};

impl Fleet {
    pub(super) fn on_content(&mut self, generation: Generation, settings: Settings, proven: bool) {
        self.aim = Aim::At(generation);
        let record = self.generations.entry(generation).or_insert_with(|| Record::new(settings));
        record.settings = settings;
        record.proven |= proven;
        record.forgive();
        if self.serving == Some(generation) {
            self.candidate = None;
        } else if self.serving.is_some_and(|serving| self.proven(serving)) {
            if self.candidate.is_none_or(|candidate| candidate.generation != generation) {
                self.candidate = Some(Candidate::new(generation));
            }
        } else {
            self.serving = Some(generation);
            self.candidate = None;
        }
    }

    /// Only what is proven is worth more than the directory's word.
    pub(super) fn on_bad_content(&mut self) {
        self.aim = Aim::Unservable;
        self.candidate = None;
        self.serving = self.serving.filter(|serving| self.proven(*serving));
    }

    pub(super) fn on_removed(&mut self) {
        self.aim = Aim::Removed;
        (self.serving, self.candidate, self.previous) = (None, None, None);
        (self.wanted, self.owed, self.awaited) = (0, false, false);
    }

    pub(super) fn on_start(&mut self, now: Moment) {
        self.held = false;
        self.owed = self.aim != Aim::Removed;
        (self.awaited, self.unasked, self.used_at) = (true, false, now);
        self.generations.values_mut().for_each(Record::forgive);
    }

    pub(super) fn on_stop(&mut self) {
        self.held = true;
        (self.owed, self.awaited) = (false, false);
        if let Some(candidate) = &mut self.candidate {
            candidate.in_place = false;
        }
    }

    /// The newest content is tried again, in place of the serving one if there was no room beside it; or else every
    /// instance is replaced by a new one.
    pub(super) fn on_restart(&mut self, now: Moment, actions: &mut Vec<Action>) {
        self.held = false;
        (self.awaited, self.unasked, self.used_at) = (true, false, now);
        if let Some(candidate) = self.candidate.as_mut() {
            let lacked_place = self.generations.get(&candidate.generation).is_some_and(Record::lacked_place);
            candidate.in_place |= lacked_place;
        } else if let Some(serving) = self.serving {
            self.owed = true;
            for number in self.numbers(serving) {
                self.leave(number, Why::Restarted, now, actions);
            }
        }
        self.generations.values_mut().for_each(Record::forgive);
    }
}
