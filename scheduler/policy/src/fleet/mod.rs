//! Lifecycle of one model's instances, within one content and across changes of content: `step(event, now) -> actions`.
//!
//! The model's actor owns one [`Fleet`], feeds it every event and carries out the actions in order. Each event first
//! changes what is known; then [`reconcile`] compares the instances that exist with those that should exist, and emits
//! the difference. The order of events therefore matters little, and no combination of events needs a case of its own.
//!
//! ```text
//!   content ──▶ candidate ──all ready──▶ serving ──next one serves──▶ previous ──unused──▶ forgotten
//!                   │
//!                   └── without a generation that was ready: serving at once, started by its first request
//! ```
//!
//! | module | content |
//! | --- | --- |
//! | `events` | settings, events, actions |
//! | `instance` | phases of one instance, and how it stops |
//! | `generation` | whether a generation may be started: back-off, refusal, capacity |
//! | `commands` | changes of the directory and administrative commands |
//! | `lifecycle` | what happens to instances, and what time does to them |
//! | `overrun` | instances whose handlers ignore their cancellation |
//! | `adoption` | instances of an earlier scheduler |
//! | `reconcile` | which generation serves, which instances start and stop |
//! | `view` | status derived from the state, and the time of the next tick |
//!
//! Invariants:
//! - routes are enabled only to ready instances of the serving generation, so to those of one generation at most;
//! - a generation that never was ready takes no traffic from one that was; without such a fall-back, the newest content
//!   serves at once, and starts with its first request;
//! - a generation has no more instances than its `max`, and all together no more than the serving generation and the
//!   one on its way in or out may have; instances with stuck handlers and their replacements are at most as many again;
//! - an instance with stuck handlers serves with its free slots until a replacement is ready, and ends when no other
//!   request runs in it; ends that clients cause this way never delay a start;
//! - every started instance leaves through `Gone`, `LauncherUnavailable` or `NoCapacity`;
//! - every phase that waits for another process has a deadline;
//! - a model that is held or removed starts nothing.

mod adoption;
mod commands;
mod events;
mod generation;
mod instance;
mod lifecycle;
mod model_state;
mod overrun;
mod reconcile;
#[cfg(test)]
mod tests;
mod view;

pub use events::{Action, Event, Settings, StopReason};
pub use generation::{FIRST_CAPACITY_PAUSE, LAUNCHER_RETRY, LONGEST_CAPACITY_PAUSE, StartState};
pub use instance::{FIRST_USE_GRACE, KILL_RETRY, Phase, STOP_GRACE, StopCause};
pub use model_state::ModelState;

use super::{Generation, InstanceNumber, Moment};
use generation::{Candidate, GenerationState};
use instance::Instance;
use std::collections::BTreeMap;

/// State of one model's instances.
#[derive(Debug, Clone)]
pub struct Fleet {
    generations: BTreeMap<Generation, GenerationState>,
    instances: BTreeMap<InstanceNumber, Instance>,
    last_number: u32,
    target: Target,
    /// Generation that takes the traffic; it may have no instance.
    serving: Option<Generation>,
    /// Generation that takes the traffic once it is ready.
    candidate: Option<Candidate>,
    /// Generation that took the traffic before.
    previous: Option<Generation>,
    /// Generation of the last [`Action::Serve`].
    announced: Option<Generation>,
    /// Number of instances the load calls for.
    wanted: u32,
    /// The serving generation needs an instance whatever the load: a request waits, a command asked for it, or one
    /// died.
    start_requested: bool,
    /// A request or a command needs the instance: it is started again even when the idle time is over.
    start_needed: bool,
    /// A start failed, and nothing has asked for an instance since: no request, no command, no new content.
    failed_unrequested: bool,
    /// Last use of the model: the end of a request, a command, a deployment.
    used_at: Moment,
    held: bool,
    /// A command asked for this generation's environment and weights, though nothing may be started.
    pulled: Option<Generation>,
    deaths: u64,
    /// Deaths of serving generations since this policy began, without those for stuck handlers.
    failures: u64,
}

/// Content the model should serve in the end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Target {
    /// Not known yet: adopted instances are kept as they are.
    Unknown,
    /// The content of this generation.
    Content(Generation),
    /// The directory has nothing that can be served: the serving generation goes on.
    Unservable,
    /// None: the model is gone.
    Removed,
}

impl Fleet {
    /// Fleet of a newly seen model; `held` and `deaths` as an earlier scheduler recorded them.
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
            start_needed: false,
            failed_unrequested: false,
            used_at: Moment::ZERO,
            held,
            pulled: None,
            deaths,
            failures: 0,
        }
    }

    /// Allocates the number of an instance that is about to be adopted.
    pub fn next_number(&mut self) -> InstanceNumber {
        self.last_number += 1;
        InstanceNumber(self.last_number)
    }

    /// Processes one event. `jitter` (`0.0..1.0`) spreads back-off.
    pub fn step(&mut self, event: &Event, now: Moment, jitter: f64) -> Vec<Action> {
        let mut actions = Vec::new();
        let refused_before = self.refuses_requests();
        let refuse = self.apply(event, now, jitter, &mut actions);
        // Sent for each request; nothing else depends on these two.
        if matches!(*event, Event::Busy(_) | Event::Idle(_)) {
            return actions;
        }
        self.reconcile(now, &mut actions);
        // Requests that wait when the launcher is lost wait on: it is asked again shortly.
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

    /// Applies an event to the generations and instances that it names. Returns whether waiting requests are refused
    /// for it.
    fn apply(&mut self, event: &Event, now: Moment, jitter: f64, actions: &mut Vec<Action>) -> bool {
        let mut refuse = false;
        match *event {
            Event::Content { generation, settings, was_ready } => self.on_content(generation, settings, was_ready),
            Event::UnservableContent => self.on_unservable_content(),
            Event::Removed => self.on_removed(),
            Event::Demand => refuse = self.on_demand(now),
            Event::DesiredInstances(count) => self.wanted = count,
            Event::Busy(number) => self.on_busy(number),
            Event::Idle(number) => self.on_idle(number, now, actions),
            Event::Prepared(generation) => {
                if let Some(record) = self.generations.get_mut(&generation) {
                    record.prepared();
                }
                self.pulled = self.pulled.filter(|pulled| *pulled != generation);
            }
            Event::PrepareFailed { generation, permanent } => {
                if self.generations.get_mut(&generation).is_some_and(GenerationState::on_preparation_failed) {
                    self.not_prepared(generation, |record| record.record_failure(permanent, None, now, jitter));
                }
            }
            Event::PrepareTimedOut { generation, after } => {
                if self.generations.get_mut(&generation).is_some_and(GenerationState::on_preparation_failed) {
                    self.not_prepared(generation, |record| record.record_build_timeout(after, now, jitter));
                }
            }
            Event::Placed(number) => self.on_placed(number, now),
            Event::NoCapacity { instance, permanent, recreate_fits } => {
                refuse = self.on_no_capacity(instance, (permanent, recreate_fits), now, jitter);
            }
            Event::CapacityFreed => self.generations.values_mut().for_each(GenerationState::on_capacity_freed),
            Event::Displaced(number) => self.on_displaced(number, now, actions),
            Event::LauncherUnavailable { generation, instance } => {
                self.on_launcher_unavailable(generation, instance, now);
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
                    instance.on_unresponsive(number, now, actions);
                }
            }
            Event::StuckHandlers { instance, other_requests, free_slots } => {
                self.on_stuck_handlers(instance, other_requests, free_slots, now, actions);
            }
            Event::Recovered(number) => self.on_recovered(number),
            // A start without an answer ends like one that was never requested.
            Event::LauncherLost => self.generations.values_mut().for_each(|record| record.launcher_lost(now)),
            Event::Pull => self.on_pull(),
            Event::Start => self.on_start(now),
            Event::Stop => self.on_stop(),
            Event::Restart => self.on_restart(now, actions),
            Event::RollBack { generation, settings } => {
                if self.target != Target::Removed {
                    self.on_content(generation, settings, true);
                }
            }
            Event::Tick => self.on_tick(now, actions),
        }
        refuse
    }
}
