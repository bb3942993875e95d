//! Invariants after every step, whatever went wrong before.

use super::World;
use crate::Generation;
use crate::fleet::{Phase, StartState};
use std::collections::BTreeSet;

impl World {
    /// No more of one generation than it may have, and no more of all than two may have; as many again where a handler
    /// was stuck.
    pub(super) fn bounded(&self, started: Generation) {
        let max = |generation: &Generation| {
            let was_stuck = self.fakes.values().any(|fake| fake.generation == *generation && fake.stuck);
            self.contents[self.numbers[generation]].1.max as usize * if was_stuck { 2 } else { 1 }
        };
        let of = |generation| self.fakes.values().filter(|fake| fake.generation == generation).count();
        assert!(of(started) <= max(&started), "{} of {started:?}", of(started));
        let serving = self.fleet.serving().expect("something is to serve");
        let other_requests = self.fakes.values().map(|fake| fake.generation).filter(|other| *other != serving);
        let beside = other_requests.map(|other| max(&other)).max().unwrap_or(0);
        assert!(self.adopted || self.fakes.len() <= max(&serving) + beside, "{} instances", self.fakes.len());
    }

    pub(super) fn check(&self) {
        let routed: BTreeSet<_> = self.fakes.values().filter(|fake| fake.routed).map(|fake| fake.generation).collect();
        assert!(routed.len() <= 1, "routes of {routed:?} are enabled");
        assert!(routed.iter().all(|generation| Some(*generation) == self.fleet.serving()));
        let known: BTreeSet<_> = self.fleet.instances().map(|(number, _, _)| number).collect();
        assert!(known.iter().eq(self.fakes.keys()), "{known:?} are known, {:?} live", self.fakes.keys());
        let wake = self.fleet.wake_at();
        for (number, _, phase) in self.fleet.instances() {
            let until = match phase {
                Phase::Starting { until } | Phase::Draining { until } | Phase::Stopping { until, .. } => *until,
                Phase::Ready { .. } => continue,
            };
            assert!(wake.is_some_and(|wake| wake <= until), "{number:?} is in {phase:?} for ever");
        }
        for generation in self.numbers.keys() {
            if let Some(StartState::BackingOff { until } | StartState::NoCapacity { retry_at: Some(until) }) =
                self.fleet.start_state(*generation)
            {
                assert!(wake.is_some_and(|wake| wake <= until), "{generation:?} waits for ever");
            }
        }
    }
}
