//! Residency of instances' memory on the node's cards: `step(event, now) -> actions`.
//!
//! The GPU task owns one [`Residency`] for all cards of the node, feeds it every event and carries out the actions in
//! order. An instance that starts requests a place ([`Event::Place`]). A ready one is granted until another needs its
//! room, so models that fit beside each other cost no message; one that is not granted and has a request asks for a
//! grant ([`Event::Wanted`]).
//!
//! ```text
//!   Place ──▶ Queued ──▶ Admitted ──room is free──▶ Starting ──Ready──▶ Granted ◀──────────────┐
//!                                                                        │ Yield               │
//!                                                                        ▼                     │
//!                             Inactive ◀──Yielded, nothing waits─── Yielding                   │
//!                                │                                       │ Yielded, one waits  │
//!                                └──Wanted──▶ Waiting ◀──────────────────┘                     │
//!                                               │                                              │
//!                                               └──room is reserved──▶ Admitted ──restored─────┘
//!   any ──▶ Ending ──▶ (gone)
//! ```
//!
//! | module | content |
//! | --- | --- |
//! | `events` | settings, events, actions, commands, views |
//! | `ledger` | state of each instance: what it needs, has, and will have on its card |
//! | `placement` | which card a new instance gets, or why none |
//! | `displacement` | which instances leave the node for a new one |
//! | `schedule` | whose memory leaves for which instance, in which order, and when |
//! | `commands` | results of commands, and instances that report falsely |
//!
//! Invariants:
//! - as far as can be known, the instances on a card never have more than its budget on it, during an exchange too:
//!   memory is restored only after the room for it was given up. Two exceptions are possible for a while and corrected
//!   at once: growth of a granted instance, and adoption under a smaller budget;
//! - one command at a time to an instance, and none but `Report` to one that has requests;
//! - a granted instance whose room no other needs is left alone;
//! - every `Wanted` ends in a grant or in the end of its instance, within the bound that `schedule` proves.

mod commands;
mod displacement;
mod events;
mod ledger;
mod placement;
mod schedule;
mod view;

pub use events::{
    Action, CardIndex, CardSettings, CardView, Command, EndCause, Event, GpuMode, InstanceKey, InstanceView,
    MemoryLocation, Refusal, Report, Retained, Settings, Usage,
};

use super::Moment;
use super::capacity::{MAX_WAIT, Reclaimable};
use displacement::PlacementRequest;
use ledger::{Instance, Instances, ResidencyState};
use std::collections::BTreeMap;

/// Cards of the node and the instances on them.
#[derive(Debug, Clone)]
pub struct Residency {
    settings: Settings,
    cards: Vec<Card>,
    instances: Instances,
    /// Requests for a place that wait for other instances to become idle.
    pending: BTreeMap<InstanceKey, PlacementRequest>,
    /// Number of commands sent so far.
    commands_sent: u64,
    /// Earliest time at which another instance's quantum expires and it may be asked to yield.
    next_quantum_end: Option<Moment>,
}

/// State of one card.
#[derive(Debug, Clone)]
struct Card {
    total: u64,
    budget: u64,
    commit_limit: u64,
    /// Bytes used by any process, as measured by NVML.
    used: u64,
    /// Part of `used` that no instance accounted for at the time of the measurement; memory that instances give up
    /// later does not add to it.
    others: u64,
    lost: bool,
}

impl Residency {
    /// Policy for empty cards.
    #[must_use]
    pub fn new(settings: Settings) -> Self {
        let card = |card: &CardSettings| Card {
            total: card.total,
            budget: card.budget.min(card.total),
            commit_limit: placement::commit_limit(card, settings.overcommit),
            used: 0,
            others: 0,
            lost: false,
        };
        let cards = settings.cards.iter().map(card).collect();
        Self {
            settings,
            cards,
            instances: Instances::new(),
            pending: BTreeMap::new(),
            commands_sent: 0,
            next_quantum_end: None,
        }
    }

    /// Time of the next [`Event::Tick`].
    #[must_use]
    pub fn wake_at(&self) -> Option<Moment> {
        self.first_deadline().into_iter().chain(self.next_quantum_end).min()
    }

    /// Settings of the policy.
    #[must_use]
    pub fn settings(&self) -> &Settings {
        &self.settings
    }

    /// Processes one event.
    pub fn step(&mut self, event: &Event, now: Moment) -> Vec<Action> {
        let mut actions = Vec::new();
        match event {
            Event::Place { instance, limit, mode, others } => {
                if !self.instances.contains_key(instance) && !self.pending.contains_key(instance) {
                    let request = PlacementRequest { limit: *limit, mode: *mode, until: now + MAX_WAIT };
                    self.place(*instance, request, others, now, &mut actions);
                }
            }
            Event::RetryPlacement { instance, others } => {
                if let Some(request) = self.pending.get(instance) {
                    self.place(*instance, *request, others, now, &mut actions);
                }
            }
            Event::Adopted { instance, card, limit, mode, ready } => {
                if !self.instances.contains_key(instance) {
                    // Running, it needs no place any more.
                    self.pending.remove(instance);
                    let state = if *ready { ResidencyState::Inactive } else { ResidencyState::Starting };
                    self.instances.insert(*instance, Instance::new(*card, *limit, *mode, state, now));
                    self.on_adopted(*instance, now, &mut actions);
                }
            }
            Event::Ready { instance } => self.on_ready(*instance, now, &mut actions),
            Event::Wanted { instance } => self.on_wanted(*instance, now, &mut actions),
            Event::Unwanted { instance } => self.on_unwanted(*instance),
            Event::Busy { instance } => {
                self.on_idle_since(*instance, None, now);
                return actions;
            }
            Event::Idle { instance } => self.on_idle_since(*instance, Some(now), now),
            Event::Yielded { instance } => self.on_yielded(*instance, now),
            Event::UsageSampled { instance, usage } => self.on_usage_sampled(*instance, usage),
            Event::Reported { instance, report } => self.on_report(*instance, report, &mut actions),
            Event::Gone { instance } => self.on_gone(*instance, now),
            Event::Measured { instance, bytes, processes } => {
                self.on_measured(*instance, *bytes, *processes, now, &mut actions);
            }
            Event::CardMeasured { card, bytes } => {
                let ours = ledger::sum(&self.instances, *card, Instance::present);
                if let Some(card) = self.cards.get_mut(card.0) {
                    (card.used, card.others) = (*bytes, bytes.saturating_sub(ours));
                }
            }
            Event::CardLost { card } => self.on_card_lost(*card, now, &mut actions),
            Event::Tick => self.end_unanswered(now, &mut actions),
        }
        self.schedule(now, &mut actions);
        actions
    }

    fn card(&self, index: CardIndex) -> Option<&Card> {
        self.cards.get(index.0)
    }

    fn card_indices(&self) -> impl Iterator<Item = CardIndex> + use<> {
        (0..self.cards.len()).map(CardIndex)
    }

    fn on_adopted(&mut self, key: InstanceKey, now: Moment, actions: &mut Vec<Action>) {
        let Some(instance) = self.instances.get(&key) else { return };
        match instance.card.and_then(|card| self.card(card)) {
            None => self.end(key, EndCause::CardLost, actions),
            Some(card) if card.lost => self.end(key, EndCause::CardLost, actions),
            Some(card) if instance.limit > card.budget => {
                let budget = card.budget;
                self.end(key, EndCause::TooBig { budget }, actions);
            }
            Some(_) if instance.is_movable() && instance.state == ResidencyState::Inactive => {
                self.command(key, Command::Report, now, actions);
            }
            Some(_) => {}
        }
    }

    fn on_ready(&mut self, key: InstanceKey, now: Moment, actions: &mut Vec<Action>) {
        let Some(instance) = self.instances.get_mut(&key).filter(|instance| instance.state == ResidencyState::Starting)
        else {
            return;
        };
        instance.state = ResidencyState::Granted { since: now, idle_since: Some(now) };
        instance.used_at = now;
        instance.peak = 0;
        if instance.is_movable() {
            self.command(key, Command::Report, now, actions);
        }
    }

    fn on_wanted(&mut self, key: InstanceKey, now: Moment, actions: &mut Vec<Action>) {
        let Some(instance) = self.instances.get_mut(&key) else { return };
        let is_movable = instance.is_movable();
        match &mut instance.state {
            ResidencyState::Inactive if is_movable => instance.state = ResidencyState::Waiting { since: now },
            // Adopted, with memory that cannot be moved: it never left the card.
            ResidencyState::Inactive => {
                instance.state = ResidencyState::Granted { since: now, idle_since: Some(now) };
                actions.push(Action::Grant { instance: key, swap: Moment::ZERO });
            }
            ResidencyState::Yielding { wanted_since, .. } => *wanted_since = wanted_since.or(Some(now)),
            ResidencyState::Queued { .. }
            | ResidencyState::Starting
            | ResidencyState::Waiting { .. }
            | ResidencyState::Admitted { .. }
            | ResidencyState::Granted { .. }
            | ResidencyState::Ending { .. } => {}
        }
    }

    fn on_unwanted(&mut self, key: InstanceKey) {
        let Some(instance) = self.instances.get_mut(&key) else { return };
        match &mut instance.state {
            ResidencyState::Waiting { .. } | ResidencyState::Admitted { is_start: false, .. } => {
                instance.state = ResidencyState::Inactive;
            }
            ResidencyState::Yielding { wanted_since, .. } => *wanted_since = None,
            ResidencyState::Queued { .. }
            | ResidencyState::Starting
            | ResidencyState::Inactive
            | ResidencyState::Admitted { is_start: true, .. }
            | ResidencyState::Granted { .. }
            | ResidencyState::Ending { .. } => {}
        }
    }

    fn on_idle_since(&mut self, key: InstanceKey, since: Option<Moment>, now: Moment) {
        let Some(instance) = self.instances.get_mut(&key) else { return };
        match &mut instance.state {
            ResidencyState::Granted { idle_since, .. } | ResidencyState::Yielding { idle_since, .. } => {
                *idle_since = since;
                instance.used_at = now;
            }
            ResidencyState::Queued { .. }
            | ResidencyState::Starting
            | ResidencyState::Inactive
            | ResidencyState::Waiting { .. }
            | ResidencyState::Admitted { .. }
            | ResidencyState::Ending { .. } => {}
        }
    }

    fn on_yielded(&mut self, key: InstanceKey, now: Moment) {
        let Some(instance) = self.instances.get_mut(&key) else { return };
        let ResidencyState::Yielding { idle_since, wanted_since, .. } = instance.state else { return };
        if idle_since.is_none() {
            instance.used_at = now;
        }
        instance.state = wanted_since.map_or(ResidencyState::Inactive, |since| ResidencyState::Waiting { since });
    }

    fn on_card_lost(&mut self, index: CardIndex, now: Moment, actions: &mut Vec<Action>) {
        let Some(card) = self.cards.get_mut(index.0) else { return };
        card.lost = true;
        let on_it: Vec<_> = ledger::on(&self.instances, index).map(|(key, _)| key).collect();
        for key in on_it {
            let Some(instance) = self.instances.get(&key) else { continue };
            let request = PlacementRequest { limit: instance.limit, mode: instance.mode, until: now };
            // An instance that is not started yet can be placed on another card.
            if matches!(instance.state, ResidencyState::Queued { .. } | ResidencyState::Admitted { is_start: true, .. })
            {
                self.instances.remove(&key);
                self.place(key, request, &Reclaimable::default(), now, actions);
            } else {
                self.end(key, EndCause::CardLost, actions);
            }
        }
    }
}

#[cfg(test)]
mod tests;
