//! What is known of each instance, and the sums that every decision compares.
//!
//! Three figures of an instance matter, all in bytes on its card:
//! - [`Instance::need`]: what its turn takes. Once it was ready this is the most it was seen to have allocated, not its
//!   limit: the limit is what an author allows for the worst day, and reserving it would move others' memory out for
//!   bytes that do not exist. What it allocates beyond is met at its next report, by others that are idle;
//! - [`Instance::present`]: what has to be assumed there now, whatever is on its way;
//! - [`Instance::planned`]: what is left once everything that was decided has happened.
//!
//! What always holds: nothing an instance says makes one of them larger than its limit.

use super::displacement::Gone;
use super::events::GpuMode;
use super::events::{CardIndex, InstanceKey};
use super::events::{Command, Usage};
use crate::Moment;
use std::collections::BTreeMap;

pub(super) type Instances = BTreeMap<InstanceKey, Instance>;

/// An instance on a card.
#[derive(Debug, Clone)]
pub(super) struct Instance {
    pub(super) card: CardIndex,
    pub(super) limit: u64,
    pub(super) mode: GpuMode,
    pub(super) turn: Turn,
    /// Those that have to be gone before it can be started. Only a queued one has any.
    pub(super) awaited: Gone,
    /// When it last had something to do.
    pub(super) used_at: Moment,
    /// Whether it said what it has since it was ready; until then it may have all of its limit.
    pub(super) known: bool,
    pub(super) managed: u64,
    /// Of `managed`, on the card.
    pub(super) resident: u64,
    /// On the card, and cannot be moved.
    pub(super) device: u64,
    /// The most it had allocated, since it was ready: what `setup` needed for a moment does not count.
    pub(super) peak: u64,
    pub(super) order: Option<Sent>,
    /// The last eviction was not carried out.
    pub(super) disobeyed: bool,
    /// Since when NVML's looks do not fit to what it says.
    pub(super) suspected: Option<Moment>,
}

/// Where an instance is between its turns on the card.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Turn {
    /// It is not started: it waits for room for all of its limit.
    Queued { since: Moment },
    /// It runs its `setup`.
    Starting,
    /// Nobody wants it. Its memory is where it was left.
    Off,
    /// A request waits for it.
    Waiting { since: Moment },
    /// It is its turn; others leave for it, or its memory comes back.
    Coming {
        /// When that was decided.
        since: Moment,
        /// Since when it was waited for.
        asked: Moment,
        /// It is not started.
        start: bool,
        /// Its memory was ordered back: nothing more to do about it.
        restored: bool,
    },
    /// It gets requests.
    On { since: Moment, idle_since: Option<Moment> },
    /// It was told to yield.
    Leaving {
        /// What others count on.
        gives: u64,
        idle_since: Option<Moment>,
        /// The next request waits already, since then.
        wanted: Option<Moment>,
    },
    /// It was told to end.
    Ending {
        /// What it may hold until it is gone.
        held: u64,
    },
}

/// An order on its way.
#[derive(Debug, Clone, Copy)]
pub(super) struct Sent {
    pub(super) number: u64,
    pub(super) order: Command,
    pub(super) at: Moment,
    /// As it was before.
    pub(super) managed: u64,
    /// As it was before.
    pub(super) resident: u64,
}

impl Instance {
    pub(super) fn new(card: CardIndex, limit: u64, mode: GpuMode, turn: Turn, now: Moment) -> Self {
        Self {
            card,
            limit,
            mode,
            turn,
            awaited: Gone::new(),
            used_at: now,
            known: false,
            managed: 0,
            resident: 0,
            device: 0,
            peak: 0,
            order: None,
            disobeyed: false,
            suspected: None,
        }
    }

    /// Takes what it says, as far as it can be true.
    pub(super) fn believe(&mut self, usage: &Usage) {
        self.device = usage.device.min(self.limit);
        self.managed = usage.managed.min(self.limit - self.device);
        self.resident = usage.resident.min(self.managed);
        self.peak = self.peak.max(self.allocated());
    }

    pub(super) fn allocated(&self) -> u64 {
        self.managed + self.device
    }

    /// What it says it has on the card.
    pub(super) fn on_card(&self) -> u64 {
        self.resident + self.device
    }

    /// What it says it has in host memory.
    pub(super) fn on_host(&self) -> u64 {
        self.managed - self.resident
    }

    pub(super) fn is_movable(&self) -> bool {
        match self.mode {
            GpuMode::Unified => true,
            GpuMode::Device => false,
        }
    }

    /// See the header.
    pub(super) fn need(&self) -> u64 {
        let is_start = match self.turn {
            Turn::Queued { .. } | Turn::Starting => true,
            Turn::Coming { start, .. } => start,
            Turn::Off | Turn::Waiting { .. } | Turn::On { .. } | Turn::Leaving { .. } | Turn::Ending { .. } => false,
        };
        if is_start || !self.known || !self.is_movable() { self.limit } else { self.peak.max(self.allocated()) }
    }

    /// See the header.
    pub(super) fn present(&self) -> u64 {
        let comes_back = self.order.is_some_and(|sent| sent.order == Command::Restore);
        match self.turn {
            Turn::Queued { .. } | Turn::Coming { start: true, .. } => 0,
            Turn::Ending { held } => held,
            Turn::Starting | Turn::On { .. } | Turn::Leaving { .. } => self.need(),
            Turn::Coming { restored: true, .. } => self.need(),
            Turn::Off | Turn::Waiting { .. } | Turn::Coming { .. } => {
                if comes_back || !self.known || !self.is_movable() { self.need() } else { self.on_card() }
            }
        }
    }

    /// See the header.
    pub(super) fn planned(&self) -> u64 {
        match self.turn {
            Turn::Queued { .. } | Turn::Ending { .. } => 0,
            Turn::Starting | Turn::Coming { .. } | Turn::On { .. } => self.need(),
            Turn::Leaving { gives, .. } => self.need().saturating_sub(gives).max(self.unmovable()),
            Turn::Off | Turn::Waiting { .. } => match self.order.map(|sent| sent.order) {
                Some(Command::Evict { bytes }) => self.on_card().saturating_sub(bytes).max(self.unmovable()),
                Some(Command::Restore | Command::Report) | None => self.present(),
            },
        }
    }

    /// What stays on the card however long it is idle.
    pub(super) fn unmovable(&self) -> u64 {
        match self.turn {
            Turn::Queued { .. } | Turn::Coming { start: true, .. } | Turn::Ending { .. } => 0,
            Turn::Starting
            | Turn::Off
            | Turn::Waiting { .. }
            | Turn::Coming { .. }
            | Turn::On { .. }
            | Turn::Leaving { .. } => {
                if self.is_movable() {
                    self.device
                } else {
                    self.limit
                }
            }
        }
    }

    /// An adopted one that was asked what it has and has not said it yet.
    pub(super) fn is_unheard(&self) -> bool {
        match self.turn {
            Turn::Off | Turn::Waiting { .. } | Turn::Coming { start: false, .. } => !self.known && self.order.is_some(),
            Turn::Queued { .. }
            | Turn::Starting
            | Turn::Coming { start: true, .. }
            | Turn::On { .. }
            | Turn::Leaving { .. }
            | Turn::Ending { .. } => false,
        }
    }

    /// Since when it has had nothing to do; none while it has.
    pub(super) fn idle_since(&self) -> Option<Moment> {
        match self.turn {
            Turn::On { idle_since, .. } | Turn::Leaving { idle_since, .. } => idle_since,
            Turn::Off | Turn::Waiting { .. } | Turn::Coming { start: false, .. } | Turn::Ending { .. } => {
                Some(self.used_at)
            }
            Turn::Queued { .. } | Turn::Starting | Turn::Coming { start: true, .. } => None,
        }
    }

    /// Since when its turn, or its start, is waited for.
    pub(super) fn waits_since(&self) -> Option<Moment> {
        match self.turn {
            Turn::Queued { since } => self.awaited.is_empty().then_some(since),
            Turn::Waiting { since } => Some(since),
            Turn::Starting
            | Turn::Off
            | Turn::Coming { .. }
            | Turn::On { .. }
            | Turn::Leaving { .. }
            | Turn::Ending { .. } => None,
        }
    }

    /// Whether its turn has been decided: it gets requests, or will.
    pub(super) fn has_turn(&self) -> bool {
        match self.turn {
            Turn::Coming { .. } | Turn::On { .. } => true,
            Turn::Queued { .. }
            | Turn::Starting
            | Turn::Off
            | Turn::Waiting { .. }
            | Turn::Leaving { .. }
            | Turn::Ending { .. } => false,
        }
    }
}

/// The instances of one card.
pub(super) fn on(instances: &Instances, card: CardIndex) -> impl Iterator<Item = (InstanceKey, &Instance)> {
    instances.iter().filter(move |(_, instance)| instance.card == card).map(|(key, instance)| (*key, instance))
}

/// The sum of a figure over the instances of one card.
pub(super) fn sum(instances: &Instances, card: CardIndex, figure: impl Fn(&Instance) -> u64) -> u64 {
    on(instances, card).fold(0, |sum, (_, instance)| sum.saturating_add(figure(instance)))
}
