//! Behaviour of instances in the simulated world, and carrying out the policy's actions on them.

use super::{Fake, Later, Nature, World};
use crate::fleet::{Action, Event, Phase};
use crate::{Generation, InstanceNumber};

impl World {
    pub(super) fn place(&mut self, instance: InstanceNumber) {
        let taken = self.fakes.values().filter(|fake| fake.placed).count();
        let Some(fake) = self.fakes.get_mut(&instance) else { return };
        if taken < self.seats as usize {
            fake.placed = true;
            self.pump(Event::Placed(instance));
            self.soon(3000, Later::Outcome { instance });
        } else if self.rng.bool() {
            self.gone(instance, Event::NoCapacity { instance, permanent: false, recreate_fits: false });
        } else {
            self.soon(2000, Later::Place { instance }); // it waits for one
        }
    }

    /// An instance that waits for its place too long is told that there is none.
    pub(super) fn overdue_for_a_place(&mut self) {
        let on_deadline = |phase: &Phase| matches!(phase, Phase::Starting { until } if *until <= self.now);
        let unplaced = |number: InstanceNumber| self.fakes.get(&number).is_some_and(|fake| !fake.placed);
        let late: Vec<_> =
            self.fleet.instances().filter(|(number, _, phase)| on_deadline(phase) && unplaced(*number)).collect();
        for instance in late.into_iter().map(|(number, _, _)| number).collect::<Vec<_>>() {
            self.gone(instance, Event::NoCapacity { instance, permanent: false, recreate_fits: false });
        }
    }

    pub(super) fn outcome(&mut self, instance: InstanceNumber) {
        let Some(fake) = self.fakes.get(&instance) else { return };
        match self.nature(fake.content) {
            Nature::Hangs => return,
            Nature::NoImport => {
                self.pump(Event::ContentRejected(instance));
                return self.gone(instance, Event::Gone(instance));
            }
            Nature::Crashes => return self.gone(instance, Event::Gone(instance)),
            Nature::Works | Nature::NoEnvironment => {}
        }
        if self.chance(self.faults.start) {
            return match self.rng.u8(..3) {
                0 => {}
                1 => self.gone(instance, Event::Gone(instance)),
                _ => self.gone(instance, Event::Gone(instance)),
            };
        }
        let fake = self.fakes.get_mut(&instance).expect("it is there");
        if !fake.deaf {
            fake.ready = true;
            self.ready_once.insert(fake.content);
            self.pump(Event::Ready(instance));
        }
    }

    /// A handler ignores its cancellation, and others are in its instance for a while or not.
    pub(super) fn stick(&mut self, instance: InstanceNumber) {
        let (other_requests, free_slots) = (self.rng.bool(), self.rng.bool());
        self.fakes.get_mut(&instance).expect("it is there").stuck = true;
        if other_requests {
            let ends = self.rng.bool();
            self.soon(2000, if ends { Later::Recovered { instance } } else { Later::Alone { instance } });
        }
        self.pump(Event::StuckHandlers { instance, other_requests, free_slots });
    }

    pub(super) fn gone(&mut self, instance: InstanceNumber, event: Event) {
        if self.fakes.remove(&instance).is_some() {
            self.pump(event);
            if !self.waiting.is_empty() && !self.fakes.values().any(|fake| fake.routed) {
                self.pump(Event::Demand);
            }
        }
    }

    pub(super) fn act(&mut self, action: Action) {
        match action {
            Action::Prepare(generation) => {
                assert!(self.numbers.contains_key(&generation), "prepared without being known");
                self.count += 1;
                let asked = self.count;
                assert!(self.preparing.insert(generation, asked).is_none(), "prepared twice at a time");
                self.soon(5000, Later::Prepared { generation, asked });
            }
            Action::CancelPreparation(generation) => {
                self.preparing.remove(&generation).expect("nothing is being prepared for it");
            }
            Action::Start { instance, generation } => self.start(instance, generation),
            Action::Serve(generation) => {
                let content = self.numbers[&generation];
                let better = self.announced.is_some_and(|old| self.ready_once.contains(&old));
                assert!(
                    self.ready_once.contains(&content) || !better,
                    "content that never was ready serves instead of content that was"
                );
                self.announced = Some(content);
            }
            Action::RecordReady(generation) => {
                assert_eq!(self.fleet.serving(), Some(generation));
                assert!(self.fakes.values().any(|fake| fake.ready && fake.generation == generation));
                self.was_ready.insert(self.numbers[&generation]);
            }
            Action::EnableRoute(instance) => {
                let fake = self.fakes.get_mut(&instance).expect("enable: it is gone");
                assert!(fake.ready && !fake.routed, "enable: {fake:?}");
                assert_eq!(self.announced, Some(fake.content), "enable: it does not serve");
                fake.routed = true;
            }
            Action::DisableRoute(instance) => {
                let fake = self.fakes.get_mut(&instance).expect("close: it is gone");
                assert!(std::mem::take(&mut fake.routed), "disable: it has no route");
            }
            Action::CancelInFlight(instance) => {
                let fake = self.fakes.get_mut(&instance).expect("cancel: it is gone");
                assert!(fake.busy.take().is_some() && !fake.routed, "cancel: {fake:?}");
            }
            Action::Leaving { instance, .. } => assert!(self.fakes.contains_key(&instance), "leaves: it is gone"),
            Action::Stop(instance) => self.end(instance, 2000),
            Action::Kill(instance) => self.end(instance, 200),
            Action::RefuseWaiting => self.refused += std::mem::take(&mut self.waiting).len(),
            Action::Forget(generation) => {
                assert!(self.fakes.values().all(|fake| fake.generation != generation), "forgotten while it lives");
                assert_ne!(Some(generation), self.fleet.serving());
                self.numbers.remove(&generation).expect("forgotten twice");
                assert!(!self.preparing.contains_key(&generation), "forgotten while its environment is made");
            }
            Action::End => {
                assert!(self.fakes.is_empty(), "a task that leaves instances behind");
                self.ended = true;
            }
        }
    }

    pub(super) fn start(&mut self, instance: InstanceNumber, generation: Generation) {
        let content = self.numbers[&generation];
        assert!(!self.fleet.held() && self.announced.is_some(), "a start for nobody");
        let (routed, busy) = (false, None);
        let fake = Fake { generation, content, placed: false, ready: false, routed, busy, stuck: false, deaf: false };
        assert!(self.fakes.insert(instance, fake).is_none(), "a number twice");
        self.bounded(generation);
        self.soon(10, Later::Place { instance });
    }

    pub(super) fn end(&mut self, instance: InstanceNumber, within_ms: u64) {
        let has_no_effect = self.chance(self.faults.stop);
        let fake = self.fakes.get_mut(&instance).expect("an end for one that is gone");
        assert!(!fake.routed, "an end with its route enabled");
        let first = !std::mem::replace(&mut fake.deaf, true);
        if !fake.placed {
            self.at(self.now, Later::Gone { instance });
        } else if !(first && has_no_effect) {
            self.soon(within_ms, Later::Gone { instance });
        }
    }
}
