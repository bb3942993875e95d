//! State of each instance, and the sums that every decision compares.
//!
//! Three figures of an instance matter, all in bytes on its card:
//! - [`Instance::need`]: room for a grant. Once it was ready this is its largest observed allocation, not its limit:
//!   the limit is what an author allows for the worst day, and reserving it would move others' memory out for bytes
//!   that do not exist. Allocations beyond it are met after its next report, by memory of idle instances;
//! - [`Instance::present`]: bytes that have to be assumed there now, whatever is moving;
//! - [`Instance::planned`]: bytes left once everything that was decided has happened.
//!
//! Invariant: nothing an instance reports makes one of them larger than its limit.

use super::events::GpuMode;
use super::events::{CardIndex, InstanceKey};
use super::events::{Command, Usage};
use crate::Moment;
use std::collections::{BTreeMap, BTreeSet};

pub(super) type Instances = BTreeMap<InstanceKey, Instance>;

/// Instances that are leaving, or would be displaced.
pub(super) type Departing = BTreeSet<InstanceKey>;

/// An instance on a card.
#[derive(Debug, Clone)]
pub(super) struct Instance {
    /// `None` when its card is not in the settings (any more): it is being ended.
    pub(super) card: Option<CardIndex>,
    pub(super) limit: u64,
    pub(super) mode: GpuMode,
    pub(super) state: ResidencyState,
    /// Instances that have to be gone before this one can start. Empty unless it is queued.
    pub(super) blocked_by: Departing,
    /// Last time it had something in flight.
    pub(super) used_at: Moment,
    /// The instance has reported its usage since it was ready; until then it may have all of its limit.
    pub(super) usage_known: bool,
    pub(super) managed: u64,
    /// Part of `managed` that is on the card.
    pub(super) resident: u64,
    /// Bytes on the card that cannot be moved.
    pub(super) device: u64,
    /// Largest allocation since it was ready: what `setup` needed for a moment does not count.
    pub(super) peak: u64,
    pub(super) command: Option<PendingCommand>,
    /// The last eviction was not carried out.
    pub(super) eviction_failed: bool,
    /// Start of the series of NVML samples above what is allowed.
    pub(super) over_limit_since: Option<Moment>,
}

/// Position of an instance between its grants; see the diagram in [`super`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ResidencyState {
    /// Not started: it waits for room for its whole limit.
    Queued { since: Moment },
    /// The instance runs its `setup`, with its whole limit reserved.
    Starting,
    /// No request waits for it; its memory is where the last grant or eviction left it.
    Inactive,
    /// A request waits for it.
    Waiting { since: Moment },
    /// The room is reserved: others leave for it, or its memory comes back.
    Admitted {
        /// Time of the decision.
        since: Moment,
        /// Time since which it was waiting.
        requested_at: Moment,
        /// The instance is to be started.
        is_start: bool,
        /// The memory was restored: nothing is left to do about it.
        restored: bool,
    },
    /// The memory is on the card and it gets requests.
    Granted { since: Moment, idle_since: Option<Moment> },
    /// The instance was asked to yield and finishes its requests.
    Yielding {
        /// Bytes that others count on.
        releases: u64,
        idle_since: Option<Moment>,
        /// Time since which its next request waits.
        wanted_since: Option<Moment>,
    },
    /// The instance is being ended.
    Ending {
        /// Bytes it may hold until it is gone.
        holds: u64,
    },
}

/// A command that has not been answered.
#[derive(Debug, Clone, Copy)]
pub(super) struct PendingCommand {
    pub(super) number: u64,
    pub(super) command: Command,
    pub(super) at: Moment,
    /// `managed` when it was sent.
    pub(super) managed: u64,
    /// `resident` when it was sent.
    pub(super) resident: u64,
}

impl Instance {
    pub(super) fn new(card: Option<CardIndex>, limit: u64, mode: GpuMode, state: ResidencyState, now: Moment) -> Self {
        Self {
            card,
            limit,
            mode,
            state,
            blocked_by: Departing::new(),
            used_at: now,
            usage_known: false,
            managed: 0,
            resident: 0,
            device: 0,
            peak: 0,
            command: None,
            eviction_failed: false,
            over_limit_since: None,
        }
    }

    /// Takes over the reported usage, clamped to what is possible.
    pub(super) fn set_usage(&mut self, usage: &Usage) {
        self.device = usage.device.min(self.limit);
        self.managed = usage.managed.min(self.limit - self.device);
        self.resident = usage.resident.min(self.managed);
        self.peak = self.peak.max(self.allocated());
    }

    pub(super) fn allocated(&self) -> u64 {
        self.managed + self.device
    }

    /// Reported bytes on the card.
    pub(super) fn on_card(&self) -> u64 {
        self.resident + self.device
    }

    /// Reported bytes in host memory.
    pub(super) fn on_host(&self) -> u64 {
        self.managed - self.resident
    }

    pub(super) fn is_movable(&self) -> bool {
        match self.mode {
            GpuMode::Unified => true,
            GpuMode::Device => false,
        }
    }

    /// Room for a grant or start; see the module.
    pub(super) fn need(&self) -> u64 {
        let is_start = match self.state {
            ResidencyState::Queued { .. } | ResidencyState::Starting => true,
            ResidencyState::Admitted { is_start, .. } => is_start,
            ResidencyState::Inactive
            | ResidencyState::Waiting { .. }
            | ResidencyState::Granted { .. }
            | ResidencyState::Yielding { .. }
            | ResidencyState::Ending { .. } => false,
        };
        if is_start || !self.usage_known || !self.is_movable() { self.limit } else { self.peak.max(self.allocated()) }
    }

    /// Bytes assumed on the card now; see the module.
    pub(super) fn present(&self) -> u64 {
        let comes_back = self.command.is_some_and(|pending| pending.command == Command::Restore);
        match self.state {
            ResidencyState::Queued { .. } | ResidencyState::Admitted { is_start: true, .. } => 0,
            ResidencyState::Ending { holds } => holds,
            ResidencyState::Starting | ResidencyState::Granted { .. } | ResidencyState::Yielding { .. } => self.need(),
            ResidencyState::Admitted { restored: true, .. } => self.need(),
            ResidencyState::Inactive | ResidencyState::Waiting { .. } | ResidencyState::Admitted { .. } => {
                if comes_back || !self.usage_known || !self.is_movable() { self.need() } else { self.on_card() }
            }
        }
    }

    /// Bytes on the card after all decisions; see the module.
    pub(super) fn planned(&self) -> u64 {
        match self.state {
            ResidencyState::Queued { .. } | ResidencyState::Ending { .. } => 0,
            ResidencyState::Starting | ResidencyState::Admitted { .. } | ResidencyState::Granted { .. } => self.need(),
            ResidencyState::Yielding { releases, .. } => self.need().saturating_sub(releases).max(self.unmovable()),
            ResidencyState::Inactive | ResidencyState::Waiting { .. } => {
                match self.command.map(|pending| pending.command) {
                    Some(Command::Evict { bytes }) => self.on_card().saturating_sub(bytes).max(self.unmovable()),
                    Some(Command::Restore | Command::Report) | None => self.present(),
                }
            }
        }
    }

    /// Bytes that stay on the card however long it is idle.
    pub(super) fn unmovable(&self) -> u64 {
        match self.state {
            ResidencyState::Queued { .. }
            | ResidencyState::Admitted { is_start: true, .. }
            | ResidencyState::Ending { .. } => 0,
            ResidencyState::Starting
            | ResidencyState::Inactive
            | ResidencyState::Waiting { .. }
            | ResidencyState::Admitted { .. }
            | ResidencyState::Granted { .. }
            | ResidencyState::Yielding { .. } => {
                if self.is_movable() {
                    self.device
                } else {
                    self.limit
                }
            }
        }
    }

    /// Returns whether it was adopted and has not answered the first `Report` yet.
    pub(super) fn is_unreported(&self) -> bool {
        match self.state {
            ResidencyState::Inactive
            | ResidencyState::Waiting { .. }
            | ResidencyState::Admitted { is_start: false, .. } => !self.usage_known && self.command.is_some(),
            ResidencyState::Queued { .. }
            | ResidencyState::Starting
            | ResidencyState::Admitted { is_start: true, .. }
            | ResidencyState::Granted { .. }
            | ResidencyState::Yielding { .. }
            | ResidencyState::Ending { .. } => false,
        }
    }

    /// Start of its idle time; `None` while it is busy.
    pub(super) fn idle_since(&self) -> Option<Moment> {
        match self.state {
            ResidencyState::Granted { idle_since, .. } | ResidencyState::Yielding { idle_since, .. } => idle_since,
            ResidencyState::Inactive
            | ResidencyState::Waiting { .. }
            | ResidencyState::Admitted { is_start: false, .. }
            | ResidencyState::Ending { .. } => Some(self.used_at),
            ResidencyState::Queued { .. }
            | ResidencyState::Starting
            | ResidencyState::Admitted { is_start: true, .. } => None,
        }
    }

    /// Start of its wait for a grant or its start.
    pub(super) fn waits_since(&self) -> Option<Moment> {
        match self.state {
            ResidencyState::Queued { since } => self.blocked_by.is_empty().then_some(since),
            ResidencyState::Waiting { since } => Some(since),
            ResidencyState::Starting
            | ResidencyState::Inactive
            | ResidencyState::Admitted { .. }
            | ResidencyState::Granted { .. }
            | ResidencyState::Yielding { .. }
            | ResidencyState::Ending { .. } => None,
        }
    }

    /// Returns whether it is admitted or granted: it gets requests, or will.
    pub(super) fn is_admitted(&self) -> bool {
        match self.state {
            ResidencyState::Admitted { .. } | ResidencyState::Granted { .. } => true,
            ResidencyState::Queued { .. }
            | ResidencyState::Starting
            | ResidencyState::Inactive
            | ResidencyState::Waiting { .. }
            | ResidencyState::Yielding { .. }
            | ResidencyState::Ending { .. } => false,
        }
    }
}

/// Instances of one card.
pub(super) fn on(instances: &Instances, card: CardIndex) -> impl Iterator<Item = (InstanceKey, &Instance)> {
    instances.iter().filter(move |(_, instance)| instance.card == Some(card)).map(|(key, instance)| (*key, instance))
}

/// Sum of a figure over the instances of one card.
pub(super) fn sum(instances: &Instances, card: CardIndex, figure: impl Fn(&Instance) -> u64) -> u64 {
    on(instances, card).fold(0, |sum, (_, instance)| sum.saturating_add(figure(instance)))
}
