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
//! | `adoption` | what an instance of an earlier scheduler means |
//! | `settle` | which generation serves, who starts, who leaves |
//! | `view` | nothing is decided: what others see, when time matters next |
//!
//! What always holds:
//! - lanes are open only to ready instances of the generation that serves, so to those of one generation at most;
//! - a generation that never was ready takes no traffic from one that was; without such a one to fall back on, the
//!   newest content serves at once, and starts with its first request;
//! - a generation has no more instances than its `max`, and all together no more than the serving one and the one on
//!   its way, or on its way out, may have;
//! - every instance that was started leaves through `Gone`, `StartFailed` or `NoPlace`;
//! - in every phase that waits for somebody else there is a moment at which it stops waiting;
//! - a model that is held or removed starts nothing.

mod adoption;
mod events;
mod generation;
mod instance;
mod settle;
#[cfg(test)]
mod tests;
mod view;

pub use events::{Action, Event, Settings};
pub use generation::{ASK_AGAIN, PLACE_AGAIN, PLACE_AGAIN_AT_MOST, Standing};
pub use instance::{End, FIRST_USE, GONE_AFTER_KILL, Phase, STOP_GRACE};

use super::{Generation, InstanceNumber, Moment};
use generation::{Candidate, Record};
use instance::Instance;
use std::collections::BTreeMap;

/// The state of one model.
#[derive(Debug, Clone)]
pub struct Fleet {
    generations: BTreeMap<Generation, Record>,
    instances: BTreeMap<InstanceNumber, Instance>,
    last_number: u32,
    aim: Aim,
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
    owed: bool,
    held: bool,
    deaths: u64,
}

/// What there is to serve in the end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Aim {
    /// Nobody said yet: adopted instances are kept as they are.
    Unknown,
    /// This.
    At(Generation),
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
            aim: Aim::Unknown,
            serving: None,
            candidate: None,
            previous: None,
            announced: None,
            wanted: 0,
            owed: false,
            held,
            deaths,
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
        let refused_before = self.refuses();
        let mut refuse = false;
        match *event {
            Event::Content { generation, settings, proven } => self.on_content(generation, settings, proven),
            Event::BadContent => self.on_bad_content(),
            Event::Removed => self.on_removed(),
            Event::Demand => refuse = self.on_demand(now),
            Event::Wanted(count) => self.wanted = count,
            Event::Busy(number) => self.on_busy(number),
            Event::Idle(number) => self.on_idle(number, now, &mut actions),
            Event::Prepared(generation) => {
                if let Some(record) = self.generations.get_mut(&generation)
                    && record.standing == Standing::Preparing
                {
                    record.standing = Standing::Prepared;
                }
            }
            Event::PrepareFailed { generation, permanent } => {
                if self.standing(generation) == Some(Standing::Preparing) {
                    self.died(generation, |record| record.prepare_failed(permanent, now, jitter));
                }
            }
            Event::Placed(number) => self.on_placed(number, now),
            Event::NoPlace { instance, hopeless } => refuse = self.on_no_place(instance, hopeless, now, jitter),
            Event::Displaced(number) => self.on_displaced(number, now, &mut actions),
            Event::StartFailed(number) | Event::Gone(number) => self.on_gone(number, now, jitter),
            Event::Ready(number) => self.on_ready(number, now),
            Event::EngineRefused(number) => {
                if let Some(instance) = self.instances.get_mut(&number) {
                    instance.refused = true;
                }
            }
            Event::Adopted { instance, generation, settings, ready } => {
                self.on_adopted(instance, generation, settings, ready, now);
            }
            Event::Unresponsive(number) => {
                if let Some(instance) = self.instances.get_mut(&number) {
                    instance.give_up(number, now, &mut actions);
                }
            }
            // A start that was asked for may or may not have happened: the instance, if any, is found and adopted.
            Event::LauncherLost => {
                for record in self.generations.values_mut().filter(|record| record.standing == Standing::Preparing) {
                    record.standing = Standing::Waiting { until: now + ASK_AGAIN };
                }
            }
            Event::Start => self.on_start(),
            Event::Stop => {
                self.held = true;
                self.owed = false;
            }
            Event::Restart => self.on_restart(now, &mut actions),
            Event::RollBack { generation, settings } => {
                if self.aim != Aim::Removed {
                    self.on_content(generation, settings, true);
                }
            }
            Event::Tick => self.on_tick(now, &mut actions),
        }
        self.settle(now, &mut actions);
        // What waits when the launcher is lost waits on: it is asked again in a moment.
        let news = *event == Event::Demand || (!refused_before && *event != Event::LauncherLost);
        if refuse || (news && self.refuses()) {
            actions.push(Action::RefuseWaiting);
        }
        if self.aim == Aim::Removed && self.instances.is_empty() {
            actions.push(Action::End);
        }
        actions
    }

    fn on_content(&mut self, generation: Generation, settings: Settings, proven: bool) {
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
    fn on_bad_content(&mut self) {
        self.aim = Aim::Unservable;
        self.candidate = None;
        self.serving = self.serving.filter(|serving| self.proven(*serving));
    }

    fn on_removed(&mut self) {
        self.aim = Aim::Removed;
        (self.serving, self.candidate, self.previous) = (None, None, None);
        (self.wanted, self.owed) = (0, false);
    }

    /// Whether what waits has to be refused for want of a place.
    fn on_demand(&mut self, now: Moment) -> bool {
        if self.held || self.aim == Aim::Removed {
            return false; // it is refused anyhow
        }
        if let Some(serving) = self.serving
            && self.up(serving) == 0
            && let Some(record) = self.generations.get_mut(&serving)
        {
            record.ask_for_place(now);
            if matches!(record.standing, Standing::NoPlace { .. }) {
                return !self.candidate_is_coming();
            }
        }
        self.owed = true;
        false
    }

    fn on_busy(&mut self, number: InstanceNumber) {
        let Some(instance) = self.instances.get_mut(&number) else { return };
        instance.used = true;
        if let Phase::Ready { idle_since, .. } = &mut instance.phase {
            *idle_since = None;
        }
        if let Some(record) = self.generations.get_mut(&instance.generation) {
            record.forget_place();
        }
    }

    fn on_idle(&mut self, number: InstanceNumber, now: Moment, actions: &mut Vec<Action>) {
        let Some(instance) = self.instances.get_mut(&number) else { return };
        match &mut instance.phase {
            Phase::Ready { idle_since, .. } => {
                idle_since.get_or_insert(now);
            }
            Phase::Draining { .. } => instance.stop(number, now, actions),
            Phase::Starting { .. } | Phase::Stopping { .. } => {}
        }
    }

    fn on_placed(&mut self, number: InstanceNumber, now: Moment) {
        if let Some(instance) = self.instances.get_mut(&number)
            && let Some(record) = self.generations.get(&instance.generation)
            && let Phase::Starting { until } = &mut instance.phase
        {
            *until = now + record.settings.startup;
        }
    }

    /// Whether what waits has to be refused: a further instance, or one beside the serving generation, is no loss.
    fn on_no_place(&mut self, number: InstanceNumber, hopeless: bool, now: Moment, jitter: f64) -> bool {
        let Some(instance) = self.instances.get(&number) else { return false };
        let generation = instance.generation;
        if !matches!(instance.phase, Phase::Starting { .. }) {
            self.on_gone(number, now, jitter);
            return false;
        }
        self.instances.remove(&number);
        let (up, live) = (self.up(generation), self.live(generation));
        let candidate = self.candidate.as_mut().filter(|candidate| candidate.generation == generation);
        if let Some(candidate) = candidate {
            candidate.in_place = false;
            if up > 0 {
                candidate.goal = Some(up); // as many as there is room for
                return false;
            }
        }
        if let Some(record) = self.generations.get_mut(&generation) {
            record.no_place(hopeless && live == 0, now);
        }
        if self.serving != Some(generation) || up > 0 {
            return false;
        }
        self.owed = false;
        !self.candidate_is_coming()
    }

    /// It rests; what it was there for asks for a place again after a pause, or with the next request.
    fn on_displaced(&mut self, number: InstanceNumber, now: Moment, actions: &mut Vec<Action>) {
        let Some(instance) = self.instances.get(&number) else { return };
        if !instance.is_up() {
            return;
        }
        let generation = instance.generation;
        self.leave(number, now, actions);
        if self.serving == Some(generation) && self.up(generation) == 0 {
            self.owed = false;
        }
        if self.missing(generation) > 0
            && let Some(record) = self.generations.get_mut(&generation)
        {
            record.pause_for_place(now);
        }
    }

    fn on_ready(&mut self, number: InstanceNumber, now: Moment) {
        if let Some(instance) = self.instances.get_mut(&number)
            && matches!(instance.phase, Phase::Starting { .. })
        {
            instance.phase = Phase::Ready { since: now, idle_since: Some(now) };
        }
    }

    fn on_gone(&mut self, number: InstanceNumber, now: Moment, jitter: f64) {
        let Some(instance) = self.instances.remove(&number) else { return };
        let ready_since = match instance.phase {
            Phase::Starting { .. } | Phase::Stopping { end: End::Failed, .. } => None,
            Phase::Ready { since, .. } => Some(since),
            Phase::Draining { .. } | Phase::Stopping { end: End::Wanted, .. } => return,
        };
        self.died(instance.generation, |record| record.fail(instance.refused, ready_since, now, jitter));
    }

    /// A death, or the like of one. What served is brought up again, though nobody may ask at the moment.
    fn died(&mut self, generation: Generation, reckon: impl FnOnce(&mut Record)) {
        self.deaths += 1;
        let Some(record) = self.generations.get_mut(&generation) else { return };
        reckon(record);
        let gives_up = !record.standing.is_coming();
        if self.serving == Some(generation) && !self.held {
            self.owed = true;
        }
        if let Some(candidate) = self.candidate.as_mut().filter(|candidate| candidate.generation == generation) {
            candidate.in_place &= !gives_up;
        }
    }

    fn on_start(&mut self) {
        self.held = false;
        self.owed = self.aim != Aim::Removed;
        self.generations.values_mut().for_each(Record::forgive);
    }

    /// The newest content is tried again, in place of the serving one if there was no room beside it; or else every
    /// instance is replaced by a new one.
    fn on_restart(&mut self, now: Moment, actions: &mut Vec<Action>) {
        self.held = false;
        if let Some(candidate) = self.candidate.as_mut() {
            let standing = self.generations.get(&candidate.generation).map(|record| record.standing);
            candidate.in_place |= matches!(standing, Some(Standing::NoPlace { .. }));
            self.owed |= candidate.in_place;
        } else if let Some(serving) = self.serving {
            self.owed = true;
            for number in self.numbers(serving) {
                self.leave(number, now, actions);
            }
        }
        self.generations.values_mut().for_each(Record::forgive);
    }

    fn on_tick(&mut self, now: Moment, actions: &mut Vec<Action>) {
        for (number, instance) in &mut self.instances {
            if instance.deadline().is_some_and(|at| at <= now) {
                instance.overdue(*number, now, actions);
            }
        }
        self.generations.values_mut().for_each(|record| record.tick(now));
        while let Some((at, number)) = self.next_idle_end()
            && at <= now
        {
            self.leave(number, now, actions);
        }
    }
}
