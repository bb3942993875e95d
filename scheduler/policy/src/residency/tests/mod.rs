//! Tables for each rule, stories with exact bytes, generated sequences, and traces in modelled time.

mod commands;
mod displacement;
mod placement;
mod properties;
mod schedule;
mod stories;
mod traces;
mod world;

use super::*;
use std::time::Duration;

const GIB: u64 = 1 << 30;
const MS: Duration = Duration::from_millis(1);
const SECOND: Duration = Duration::from_secs(1);

/// Cards with budgets in GiB, 4 times over-committed.
fn settings(budgets: &[u64]) -> Settings {
    let card = |budget: &u64| CardSettings { total: (budget + 2) * GIB, budget: budget * GIB };
    Settings {
        cards: budgets.iter().map(card).collect(),
        overcommit: 4.0,
        host_budget: 1024 * GIB,
        quantum: 2 * SECOND,
        evict_timeout: 10 * SECOND,
        process_margin: GIB / 2,
    }
}

fn usage(managed: u64, resident: u64, device: u64) -> Usage {
    Usage { managed: managed * GIB, resident: resident * GIB, device: device * GIB }
}

/// A policy that is fed by hand.
struct Table {
    policy: Residency,
    now: Moment,
}

impl Table {
    fn new(budgets: &[u64]) -> Self {
        Self::with(settings(budgets))
    }

    fn with(settings: Settings) -> Self {
        Self { policy: Residency::new(settings), now: Moment::ZERO }
    }

    fn feed(&mut self, event: &Event) -> Vec<Action> {
        self.policy.step(event, self.now)
    }

    fn place(&mut self, instance: InstanceKey, gib: u64) -> Vec<Action> {
        self.place_with(instance, gib, GpuMode::Unified, Reclaimable::default())
    }

    fn place_device(&mut self, instance: InstanceKey, gib: u64) -> Vec<Action> {
        self.place_with(instance, gib, GpuMode::Device, Reclaimable::default())
    }

    fn place_with(
        &mut self,
        instance: InstanceKey,
        gib: u64,
        mode: GpuMode,
        others: Reclaimable<InstanceKey>,
    ) -> Vec<Action> {
        self.feed(&Event::Place { instance, limit: gib * GIB, mode, others })
    }

    /// From `Ready` to idle with all of this many GiB allocated, one millisecond later.
    fn ready(&mut self, instance: InstanceKey, gib: u64) -> Vec<Action> {
        let requested_at = self.feed(&Event::Ready { instance });
        self.now += MS;
        let number = only_command(&requested_at, instance, Command::Report);
        self.moved(instance, number, usage(gib, gib, 0))
    }

    /// A placed and ready instance that has its whole limit on the card.
    fn run(&mut self, instance: InstanceKey, gib: u64) {
        assert_eq!(self.place(instance, gib), [Action::Placed { instance, card: CardIndex(0) }]);
        assert_eq!(self.ready(instance, gib), []);
    }

    fn want(&mut self, instance: InstanceKey) -> Vec<Action> {
        self.feed(&Event::Wanted { instance })
    }

    fn busy(&mut self, instance: InstanceKey) -> Vec<Action> {
        self.feed(&Event::Busy { instance })
    }

    fn idle(&mut self, instance: InstanceKey) -> Vec<Action> {
        self.feed(&Event::Idle { instance })
    }

    fn yielded(&mut self, instance: InstanceKey) -> Vec<Action> {
        self.feed(&Event::Yielded { instance })
    }

    fn moved(&mut self, instance: InstanceKey, number: u64, usage: Usage) -> Vec<Action> {
        self.feed(&Event::Reported { instance, report: Report { number, usage, error: 0, unanswered: 0 } })
    }

    fn at(&mut self, now: Moment) -> Vec<Action> {
        self.now = now;
        self.feed(&Event::Tick)
    }
}

/// The number of the one command that was sent.
fn only_command(actions: &[Action], to: InstanceKey, what: Command) -> u64 {
    match actions {
        [Action::Command { instance, number, command }] if *instance == to && *command == what => *number,
        other => panic!("not one {what:?} to {to:?}: {other:?}"),
    }
}

fn evict(gib: u64) -> Command {
    Command::Evict { bytes: gib * GIB }
}
