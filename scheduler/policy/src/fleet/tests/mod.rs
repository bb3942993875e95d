//! Tables for each rule, and generated worlds in which everything goes wrong.

mod adoption;
mod capacity;
mod generations;
mod idle;
mod lifecycle;
mod overrun;
mod properties;
mod pull;
mod scaling;
mod world;

use super::*;
use std::time::Duration;

const SECOND: Duration = Duration::from_secs(1);

// Generations, the first instances of a table, and what is said of them.
const OLD: Generation = Generation(1);
const NEW: Generation = Generation(2);
const NEWEST: Generation = Generation(3);
const A: InstanceNumber = InstanceNumber(1);
const B: InstanceNumber = InstanceNumber(2);
const C: InstanceNumber = InstanceNumber(3);
const D: InstanceNumber = InstanceNumber(4);

fn settings() -> Settings {
    Settings {
        min: 0,
        max: 1,
        idle_timeout: 600 * SECOND,
        startup: 120 * SECOND,
        drain: 30 * SECOND,
        request: 60 * SECOND,
    }
}

fn up_to(max: u32) -> Settings {
    Settings { max, ..settings() }
}

fn content(generation: Generation, settings: Settings) -> Event {
    Event::Content { generation, settings, was_ready: false }
}

fn start(instance: InstanceNumber, generation: Generation) -> Action {
    Action::Start { instance, generation }
}

/// A policy that is fed by hand.
struct Table {
    fleet: Fleet,
    now: Moment,
}

impl Table {
    /// A model that was just seen, with its first content.
    fn new(settings: Settings) -> Self {
        let mut table = Self { fleet: Fleet::new(false, 0), now: Moment::ZERO };
        assert_eq!(table.feed(content(OLD, settings))[0], Action::Serve(OLD));
        table
    }

    /// The same with one ready instance, `A`.
    fn ready(settings: Settings) -> Self {
        let mut table = Self::new(settings);
        table.feed(Event::Demand);
        table.feed(Event::Prepared(OLD));
        assert_eq!(table.feed(Event::Ready(A))[..2], [Action::RecordReady(OLD), Action::EnableRoute(A)]);
        table
    }

    /// Actions of an event, without the reasons for leaving; see [`Self::reasons`].
    fn feed(&mut self, event: Event) -> Vec<Action> {
        let actions = self.fleet.step(&event, self.now, 1.0).into_iter();
        actions.filter(|action| !matches!(action, Action::Leaving { .. })).collect()
    }

    /// Instances that leave, and why.
    fn reasons(&mut self, event: Event) -> Vec<(InstanceNumber, StopReason)> {
        let leaves = |action| match action {
            Action::Leaving { instance, reason } => Some((instance, reason)),
            _ => None,
        };
        self.fleet.step(&event, self.now, 1.0).into_iter().filter_map(leaves).collect()
    }

    fn at(&mut self, seconds: u64, event: Event) -> Vec<Action> {
        self.now = Duration::from_secs(seconds);
        self.feed(event)
    }

    fn phase(&self, instance: InstanceNumber) -> Phase {
        *self.fleet.phase(instance).expect("it is there")
    }
}
