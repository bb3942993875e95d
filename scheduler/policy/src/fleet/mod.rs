//! The instances of one model, of one content and across changes of content: `step(event, now) -> actions`.
//!
//! The model's task owns one [`Fleet`], feeds it every event and carries out the actions in order. Each event first
//! changes what is known; then [`settle`] compares what is there with what there is to be, and says what to do. So the
//! order in which events come is of little account, and no case has to be foreseen twice.
//!
//! | module | what |
//! | --- | --- |
//! | `events` | nothing is decided: the shapes of events, actions, settings |
//! | `instance` | the phases of one instance, and the ways down |
//! | `generation` | whether a generation may be started: back-off, refusal, no place |
//! | `orders` | what the directory and people say |
//! | `life` | what becomes of instances, and what time does to them |
//! | `overrun` | instances whose handlers ignore their cancellation |
//! | `adoption` | what an instance of an earlier scheduler means |
//! | `settle` | which generation serves, who starts, who leaves |
//! | `view` | nothing is decided: what others see, when time matters next |
//!
//! What always holds:
//! - lanes are open only to ready instances of the generation that serves, so to those of one generation at most;
//! - a generation that never was ready takes no traffic from one that was; without such a one to fall back on, the
//!   newest content serves at once, and starts with its first request;
//! - a generation has no more instances than its `max`, and all together no more than the serving one and the one on
//!   its way, or on its way out, may have; instances with stuck handlers and what replaces them are at most as many again;
//! - an instance with stuck handlers serves with the slots that it has left until another one is ready in its place, and
//!   ends when nobody else is in it; what clients cause so never delays a start;
//! - every instance that was started leaves through `Gone`, `NotAsked` or `NoPlace`;
//! - in every phase that waits for somebody else there is a moment at which it stops waiting;
//! - a model that is held or removed starts nothing.

mod adoption;
mod commands;
mod events;
mod generation;
mod instance;
mod lifecycle;
mod overrun;
mod reconcile;
#[cfg(test)]
mod tests;
mod view;

pub use events::{Action, Event, Settings, StopReason};
pub use generation::{FIRST_CAPACITY_PAUSE, LAUNCHER_RETRY, LONGEST_CAPACITY_PAUSE, StartState};
pub use instance::{FIRST_USE_GRACE, KILL_RETRY, Phase, STOP_GRACE, StopCause};
pub use view::ModelState;

use super::{Generation, InstanceNumber, Moment};
use generation::{Candidate, GenerationState};
use instance::Instance;
use std::collections::BTreeMap;

/// The state of one model.
#[derive(Debug, Clone)]
pub struct Fleet {
    generations: BTreeMap<Generation, GenerationState>,
    instances: BTreeMap<InstanceNumber, Instance>,
    last_number: u32,
    target: Target,
    /// It takes the traffic, though it may be cold.
    serving: Option<Generation>,
    /// It is to take the traffic as soon as it is ready.
    candidate: Option<Candidate>,
    /// It took the traffic before.
    previous: Option<Generation>,
    /// [`Action::Serve`] was last said for it.
    announced: Option<Generation>,
    /// By the load.
    wanted: u32,
    /// The serving generation owes an instance, whatever the load says: a request waits, a person asked, or one died.
    start_requested: bool,
    /// What is owed is owed to a request or a person.
    awaited: bool,
    /// A start has failed, and since then nothing has asked: no request, no person, no new content.
    unasked: bool,
    /// When the model was last used: the end of a request, a person's word, a deployment.
    used_at: Moment,
    held: bool,
    deaths: u64,
    /// Of them, since this policy began, those of what took the traffic, without those for stuck handlers.
    failures: u64,
}

/// What there is to serve in the end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Target {
    /// Nobody said yet: adopted instances are kept as they are.
    Unknown,
    /// This content.
    Content(Generation),
    /// The directory has nothing that can be served: what serves goes on.
    Unservable,
    /// Nothing: the model is gone.
    Removed,
}

impl Fleet {
    /// A model that was just seen, `held` and with so many `deaths` as an earlier scheduler knew it.
    #[must_use]
    pub fn new(held: bool, deaths: u64) -> Self {
        Self {
            generations: BTreeMap::new(),
            instances: BTreeMap::new(),
            last_number: 0,
            target: Target::Unknown,
            serving: None,
            candidate: None,
            previous: None,
            announced: None,
            wanted: 0,
            start_requested: false,
            awaited: false,
            unasked: false,
            used_at: Moment::ZERO,
            held,
            deaths,
            failures: 0,
        }
    }

    /// A number for an instance that is about to be adopted.
    pub fn next_number(&mut self) -> InstanceNumber {
        self.last_number += 1;
        InstanceNumber(self.last_number)
    }

    /// Takes one event. `jitter` (`0.0..1.0`) spreads back-off.
    pub fn step(&mut self, event: &Event, now: Moment, jitter: f64) -> Vec<Action> {
        let mut actions = Vec::new();
        let refused_before = self.refuses_requests();
        let mut refuse = false;
        match *event {
            Event::Content { generation, settings, was_ready } => self.on_content(generation, settings, was_ready),
            Event::UnservableContent => self.on_unservable_content(),
            Event::Removed => self.on_removed(),
            Event::Demand => refuse = self.on_demand(now),
            Event::DesiredInstances(count) => self.wanted = count,
            // Each request comes by here. Nothing follows from it for others.
            Event::Busy(number) => {
                self.on_busy(number);
                return actions;
            }
            Event::Idle(number) => {
                self.on_idle(number, now, &mut actions);
                return actions;
            }
            Event::Prepared(generation) => {
                if let Some(record) = self.generations.get_mut(&generation) {
                    record.prepared();
                }
            }
            Event::PrepareFailed { generation, permanent } => {
                if self.generations.get_mut(&generation).is_some_and(GenerationState::on_preparation_failed) {
                    self.failed(generation, |record| record.record_failure(permanent, None, now, jitter));
                }
            }
            Event::PrepareTimedOut { generation, after } => {
                if self.generations.get_mut(&generation).is_some_and(GenerationState::on_preparation_failed) {
                    self.failed(generation, |record| record.record_build_timeout(after, now, jitter));
                }
            }
            Event::Placed(number) => self.on_placed(number, now),
            Event::NoCapacity { instance, permanent, recreate_fits } => {
                refuse = self.on_no_capacity(instance, (permanent, recreate_fits), now, jitter);
            }
            Event::CapacityFreed => self.generations.values_mut().for_each(GenerationState::on_capacity_freed),
            Event::Displaced(number) => self.on_displaced(number, now, &mut actions),
            Event::LauncherUnavailable { generation, instance } => {
                self.on_launcher_unavailable(generation, instance, now)
            }
            Event::Gone(number) => self.on_gone(number, now, jitter),
            Event::Ready(number) => self.on_ready(number, now),
            Event::ContentRejected(number) => {
                if let Some(instance) = self.instances.get_mut(&number) {
                    instance.refused = true;
                }
            }
            Event::LastServed { generation, settings } => self.on_last_served(generation, settings),
            Event::Adopted { instance, generation, settings, ready, was_ready } => {
                let record = self.generations.entry(generation).or_insert_with(|| GenerationState::new(settings));
                record.was_ready |= was_ready;
                self.on_adopted(instance, generation, settings, ready, now);
            }
            Event::Unresponsive(number) => {
                if let Some(instance) = self.instances.get_mut(&number) {
                    instance.on_unresponsive(number, now, &mut actions);
                }
            }
            Event::StuckHandlers { instance, other_requests, free_slots } => {
                self.on_stuck_handlers(instance, other_requests, free_slots, now, &mut actions)
            }
            Event::Recovered(number) => self.on_recovered(number),
            // A start that was asked for and is not answered ends as one that was never asked for.
            Event::LauncherLost => self.generations.values_mut().for_each(|record| record.launcher_lost(now)),
            Event::Start => self.on_start(now),
            Event::Stop => self.on_stop(),
            Event::Restart => self.on_restart(now, &mut actions),
            Event::RollBack { generation, settings } => {
                if self.target != Target::Removed {
                    self.on_content(generation, settings, true);
                }
            }
            Event::Tick => self.on_tick(now, &mut actions),
        }
        self.reconcile(now, &mut actions);
        // What waits when the launcher is lost waits on: it is asked again in a moment.
        let ends = matches!(*event, Event::Stop | Event::Removed | Event::UnservableContent);
        let launcher = matches!(*event, Event::LauncherLost | Event::LauncherUnavailable { .. });
        let news = ends || *event == Event::Demand || (!refused_before && !launcher);
        if refuse || (news && self.refuses_requests()) {
            actions.push(Action::RefuseWaiting);
        }
        if self.target == Target::Removed && self.instances.is_empty() {
            actions.push(Action::End);
        }
        actions
    }
}
