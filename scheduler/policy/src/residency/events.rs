//! What the policy is told and what it says: the shapes between it and the task that owns the node's GPUs.
//!
//! All sizes are in bytes. Whatever comes from an instance (usage, moved bytes) may be a lie: it is clamped to what the
//! instance may have, and costs at worst the instance itself.

use crate::Moment;
use crate::capacity::Reclaimable;
use std::time::Duration;

/// What an instance's shim makes of its allocations.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum GpuMode {
    /// Managed memory, which can be moved to the host while the instance is idle.
    Unified,
    /// Device memory, which stays on the card.
    Device,
}

/// Command to an instance about its memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Command {
    /// Move managed memory to the host until at least this much is moved, or all of it is.
    Evict {
        /// Over all processes of the instance.
        bytes: u64,
    },
    /// Move everything back to the card.
    Restore,
    /// Move nothing, report the usage.
    Report,
}

/// GPU memory of an instance as its accounting says, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Usage {
    /// Managed memory: it can be moved.
    pub managed: u64,
    /// Part of `managed` that is on the card.
    pub resident: u64,
    /// Device memory that cannot be moved.
    pub device: u64,
}

/// Result of a [`Command`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Report {
    /// Number of the command.
    pub number: u64,
    /// Usage after it.
    pub usage: Usage,
    /// The first `CUresult` other than success; 0 for none.
    pub error: u32,
    /// Processes of the instance that did not answer the worker.
    pub unanswered: u32,
}

/// Key of an instance, unique for the life of the scheduler; the caller counts them up.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct InstanceKey(pub u64);

/// Index of a card in [`Settings::cards`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CardIndex(pub usize);

/// What the node's configuration says, with its defaults filled in.
#[derive(Debug, Clone, PartialEq)]
pub struct Settings {
    /// The cards that models may use.
    pub cards: Vec<CardSettings>,
    /// The sum of the instances' limits on a card may be this many times its budget; at least 1.
    pub overcommit: f64,
    /// What evicted instances of all cards may need of the host's memory.
    pub host_budget: u64,
    /// What an instance gets at least, once it was granted, before one that waits takes its place.
    pub quantum: Duration,
    /// An order that is not answered by then costs the instance its life.
    pub evict_timeout: Duration,
    /// What the driver needs for one process of an instance beside its allocations: context, kernels, tables.
    pub process_margin: u64,
}

/// One card.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CardSettings {
    /// What the card has.
    pub total: u64,
    /// What instances may have on it at a time; not above `total`.
    pub budget: u64,
}

/// Something happened. An event that names an instance which is not known is ignored, except `Place` and `Adopted`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Event {
    /// A model wants to start. Answered once, by [`Action::Placed`] when there is room for the whole limit (it may take
    /// the time of others' turns, or until idle ones have gone for it) or by [`Action::Refused`]; [`Event::Gone`] withdraws
    /// it.
    Place {
        /// A new key.
        instance: InstanceKey,
        /// What the model sees as the card's memory; above 0.
        limit: u64,
        /// Whether its memory can be moved.
        mode: GpuMode,
        /// Who could make room.
        others: Reclaimable<InstanceKey>,
    },
    /// Time has passed for one of [`Residency::hoping`](super::Residency::hoping), and who is idle may have changed.
    RetryPlacement {
        /// Which.
        instance: InstanceKey,
        /// Who could make room now.
        others: Reclaimable<InstanceKey>,
    },
    /// An instance of an earlier scheduler is here. It is not granted: requests for it begin with [`Event::Wanted`], and so
    /// does what it still does for that scheduler.
    Adopted {
        /// A new key.
        instance: InstanceKey,
        /// Where it is; none when its card is not in the settings (any more).
        card: Option<CardIndex>,
        /// As it was started.
        limit: u64,
        /// As it was started.
        mode: GpuMode,
        /// Whether its engine is ready; one that still starts keeps its whole limit until [`Event::Ready`].
        ready: bool,
    },
    /// A placed instance has finished its `setup`. It is granted from here on, without an action.
    Ready {
        /// Which.
        instance: InstanceKey,
    },
    /// A request waits for an instance that is ready and not granted.
    Wanted {
        /// Which.
        instance: InstanceKey,
    },
    /// A granted instance has something in flight now.
    Busy {
        /// Which.
        instance: InstanceKey,
    },
    /// A granted instance has nothing in flight any more.
    Idle {
        /// Which.
        instance: InstanceKey,
    },
    /// No request waits any more. Ignored once it is granted: then it is an idle one.
    Unwanted {
        /// Which.
        instance: InstanceKey,
    },
    /// The one answer to [`Action::Yield`]: nothing is in flight, and nothing is sent until it is granted again.
    /// Requests that wait for it are told by [`Event::Wanted`], before or after this.
    Yielded {
        /// Which.
        instance: InstanceKey,
    },
    /// What the instance's accounting says, between orders.
    UsageSampled {
        /// Which.
        instance: InstanceKey,
        /// What it says.
        usage: Usage,
    },
    /// A command has finished.
    Reported {
        /// Which.
        instance: InstanceKey,
        /// What came of it.
        report: Report,
    },
    /// All processes of the instance are gone, or it never started.
    Gone {
        /// Which.
        instance: InstanceKey,
    },
    /// NVML: what the instance's processes have on the card, contexts included. Sampled after the last event was fed.
    Measured {
        /// Which.
        instance: InstanceKey,
        /// The sum over its processes.
        bytes: u64,
        /// How many processes NVML named.
        processes: u32,
    },
    /// NVML: what is used on the card, by anybody.
    CardMeasured {
        /// Which.
        card: CardIndex,
        /// All of it.
        bytes: u64,
    },
    /// The card does not answer any more (fell off the bus, an uncorrectable error). It stays lost until a restart.
    CardLost {
        /// Which.
        card: CardIndex,
    },
    /// Time passed; see [`Residency::wake_at`](super::Residency::wake_at).
    Tick,
}

/// What the task has to do, in order.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Action {
    /// Start the instance on this card: there is room for its whole limit.
    Placed {
        /// Which.
        instance: InstanceKey,
        /// Where.
        card: CardIndex,
    },
    /// Do not start it. Its key is forgotten.
    Refused {
        /// Which.
        instance: InstanceKey,
        /// Why.
        reason: Refusal,
        /// There would be room in place of the model's own instances that serve.
        recreate_fits: bool,
        /// Idle instances that make no room.
        retained: Retained,
    },
    /// This one is idle and has to go: its place is needed. It counts as there until [`Event::Gone`].
    Displace {
        /// Which.
        instance: InstanceKey,
        /// For this one.
        by: InstanceKey,
    },
    /// Its memory is on the card: send it requests until it is told to yield.
    Grant {
        /// Which.
        instance: InstanceKey,
        /// From the moment its turn was decided until now: others' eviction and its own restoring.
        swap: Duration,
    },
    /// Send it no more requests, and say [`Event::Yielded`] when nothing is in flight.
    Yield {
        /// Which.
        instance: InstanceKey,
    },
    /// Send its worker this order; answered by [`Event::Moved`] with the number. Never two at a time to one instance.
    Command {
        /// Which.
        instance: InstanceKey,
        /// Counts up over all instances.
        number: u64,
        /// What to do.
        command: Command,
    },
    /// Kill the instance; [`Event::Gone`] follows. Said once.
    End {
        /// Which.
        instance: InstanceKey,
        /// Why.
        reason: EndCause,
    },
}

/// Idle instances that are not displaced, by the reason why not.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Retained {
    /// Their models keep them for their `min`.
    pub kept: usize,
    /// They had a request too short a while ago.
    pub recent: usize,
}

/// Why an instance cannot be placed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Refusal {
    /// This node has no GPU for models.
    NoCard,
    /// All cards are lost.
    CardLost,
    /// Its limit is above every card's budget: hopeless until a configuration changes.
    TooBig {
        /// The largest budget.
        budget: u64,
    },
    /// What instances hold that cannot be moved leaves too little, on every card, for it or for those beside it.
    Pinned {
        /// The most a card could give.
        free: u64,
    },
    /// The sum of the limits would be beyond `overcommit`, on every card.
    Committed {
        /// The most a card has left.
        free: u64,
    },
    /// Evicted instances could need more than the host's budget.
    HostBudget {
        /// What is left of it.
        free: u64,
    },
}

/// Why an instance has to end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EndCause {
    /// Its processes have more on the card than its limit and the margin: it allocates past the shim.
    BeyondLimit {
        /// By NVML.
        seen: u64,
        /// The most that was allowed.
        allowed: u64,
    },
    /// It says that it left the card, and NVML says that it did not.
    StillOnCard {
        /// By NVML.
        seen: u64,
        /// The most that was allowed.
        allowed: u64,
    },
    /// An order was not answered within `evict-timeout`.
    Silent,
    /// It did not leave the card, though it was told so twice.
    DidNotLeave {
        /// The first `CUresult` other than success; 0 for none.
        error: u32,
    },
    /// It is idle and holds memory that cannot be moved, which another one needs.
    InTheWay,
    /// It was started under another configuration; now its limit is above the card's budget.
    TooBig {
        /// The card's.
        budget: u64,
    },
    /// Its card is lost, or not one of the settings'.
    CardLost,
}

/// One card, as people want to see it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CardView {
    /// See [`CardSettings::budget`].
    pub budget: u64,
    /// The most that the sum of the limits may be.
    pub commit_limit: u64,
    /// The sum of the limits.
    pub committed: u64,
    /// What instances say they have on the card.
    pub resident: u64,
    /// What NVML said last is used, by anybody.
    pub used: u64,
    /// Whether it is lost.
    pub lost: bool,
    /// Those on it, the last used first.
    pub instances: Vec<InstanceView>,
}

/// One instance, as people want to see it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct InstanceView {
    /// Which.
    pub instance: InstanceKey,
    /// See [`Event::Place`].
    pub limit: u64,
    /// What it says it has allocated, on the card or not.
    pub allocated: u64,
    /// Of it, what it says is on the card.
    pub resident: u64,
    /// Where its memory is, or goes.
    pub location: MemoryLocation,
    /// Since when it has nothing in flight; none while it has.
    pub idle_since: Option<Moment>,
}

/// Where an instance's memory is, or goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MemoryLocation {
    /// All of it on the card.
    Resident,
    /// Some or all of it in host memory.
    Evicted,
    /// A request, or its start, waits for room on the card.
    Waiting,
    /// On its way to the card.
    Restoring,
    /// On its way to the host.
    Evicting,
}
