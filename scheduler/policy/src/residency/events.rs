//! Input and output of the residency policy: settings, events, actions, commands, views.
//!
//! All sizes are in bytes. Data from an instance (usage, moved bytes) may be false: it is clamped to what the instance
//! may have, and costs at worst the instance itself.

use crate::Moment;
use crate::capacity::Reclaimable;
use std::time::Duration;

/// How an instance's shim backs allocations.
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

/// Settings from the node's configuration, with defaults filled in.
#[derive(Debug, Clone, PartialEq)]
pub struct Settings {
    /// Cards that models may use.
    pub cards: Vec<CardSettings>,
    /// Largest ratio of the sum of the limits on a card to its budget; at least 1.
    pub overcommit: f64,
    /// Host memory that evicted instances of all cards may need.
    pub host_budget: u64,
    /// Shortest time that a busy instance stays granted while another waits.
    pub quantum: Duration,
    /// Deadline for the answer to a command; the instance is ended then.
    pub evict_timeout: Duration,
    /// Memory the driver needs for one process of an instance beside its allocations: context, kernels, tables.
    pub process_margin: u64,
}

/// Settings of one card.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CardSettings {
    /// Memory of the card.
    pub total: u64,
    /// Memory that instances may have on it at a time; not above `total`.
    pub budget: u64,
}

/// Something that happened. An event for an unknown instance is ignored, except `Place` and `Adopted`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Event {
    /// A place for a new instance is requested. Answered once, by [`Action::Placed`] when there is room for the whole
    /// limit (it may take the time of other grants, or until idle instances have gone for it) or by
    /// [`Action::Refused`]; [`Event::Gone`] withdraws it.
    Place {
        /// A new key.
        instance: InstanceKey,
        /// Memory of the card as the model sees it; above 0.
        limit: u64,
        /// Mode of its memory.
        mode: GpuMode,
        /// Instances that could make room.
        others: Reclaimable<InstanceKey>,
    },
    /// Time has passed for one of [`Residency::pending_placements`](super::Residency::pending_placements), and other
    /// instances may be idle now.
    RetryPlacement {
        /// The instance.
        instance: InstanceKey,
        /// Instances that could make room now.
        others: Reclaimable<InstanceKey>,
    },
    /// An instance of an earlier scheduler is here. It is not granted: requests for it begin with [`Event::Wanted`],
    /// and so does what it still does for that scheduler.
    Adopted {
        /// A new key.
        instance: InstanceKey,
        /// Card it is on; `None` if that is not in the settings (any more).
        card: Option<CardIndex>,
        /// Limit it was started with.
        limit: u64,
        /// Mode it was started with.
        mode: GpuMode,
        /// The engine is ready; an instance that is still starting keeps its whole limit until [`Event::Ready`].
        ready: bool,
    },
    /// A placed instance has finished its `setup`. It is granted from here on, without an action.
    Ready {
        /// The instance.
        instance: InstanceKey,
    },
    /// A request waits for a ready instance that is not granted.
    Wanted {
        /// The instance.
        instance: InstanceKey,
    },
    /// A granted instance has something in flight now.
    Busy {
        /// The instance.
        instance: InstanceKey,
    },
    /// A granted instance has nothing in flight any more.
    Idle {
        /// The instance.
        instance: InstanceKey,
    },
    /// No request waits any more. Ignored once the instance is granted: it is idle then.
    Unwanted {
        /// The instance.
        instance: InstanceKey,
    },
    /// Answer to [`Action::Yield`]: nothing is in flight, and nothing is sent until the instance is granted again.
    /// Requests that wait for it are reported by [`Event::Wanted`], before or after this.
    Yielded {
        /// The instance.
        instance: InstanceKey,
    },
    /// The instance's accounting was sampled, between commands.
    UsageSampled {
        /// The instance.
        instance: InstanceKey,
        /// Sampled usage.
        usage: Usage,
    },
    /// A command has finished.
    Reported {
        /// The instance.
        instance: InstanceKey,
        /// Result of the command.
        report: Report,
    },
    /// All processes of the instance are gone, or it never started.
    Gone {
        /// The instance.
        instance: InstanceKey,
    },
    /// NVML measured the memory of the instance's processes on the card, contexts included, after the last event.
    Measured {
        /// The instance.
        instance: InstanceKey,
        /// Sum over its processes.
        bytes: u64,
        /// Number of its processes that NVML lists.
        processes: u32,
    },
    /// NVML measured the memory used on the card, by any process.
    CardMeasured {
        /// The card.
        card: CardIndex,
        /// Used memory.
        bytes: u64,
    },
    /// The card does not answer any more (fell off the bus, an uncorrectable error). It stays lost until a restart.
    CardLost {
        /// The card.
        card: CardIndex,
    },
    /// Time passed; see [`Residency::wake_at`](super::Residency::wake_at).
    Tick,
}

/// Steps for the GPU task to carry out, in order.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Action {
    /// Start the instance on this card: there is room for its whole limit.
    Placed {
        /// The instance.
        instance: InstanceKey,
        /// Card it is placed on.
        card: CardIndex,
    },
    /// Do not start it. Its key is forgotten.
    Refused {
        /// The instance.
        instance: InstanceKey,
        /// Reason.
        reason: Refusal,
        /// The instance would fit if the model's own serving instances went first.
        recreate_fits: bool,
        /// Idle instances that make no room.
        retained: Retained,
    },
    /// Stop this idle instance: its place is needed. Its memory counts until [`Event::Gone`].
    Displace {
        /// The instance.
        instance: InstanceKey,
        /// Instance that gets the place.
        by: InstanceKey,
    },
    /// Send requests to the instance until it has to yield: its memory is on the card.
    Grant {
        /// The instance.
        instance: InstanceKey,
        /// Time from its admission until now: eviction of others and its own restore.
        swap: Duration,
    },
    /// Send it no more requests, and report [`Event::Yielded`] when nothing is in flight.
    Yield {
        /// The instance.
        instance: InstanceKey,
    },
    /// Sends this command to the worker; answered by [`Event::Reported`] with the same number. Invariant: an instance has at
    /// most one command at a time.
    Command {
        /// The instance.
        instance: InstanceKey,
        /// Counts up over all instances.
        number: u64,
        /// The command.
        command: Command,
    },
    /// Kill the instance; [`Event::Gone`] follows. Emitted once.
    End {
        /// The instance.
        instance: InstanceKey,
        /// Reason.
        reason: EndCause,
    },
}

/// Idle instances that are not displaced, by the reason why not.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Retained {
    /// Number of instances kept for the `min` of their models.
    pub kept: usize,
    /// Number of instances that had a request too short a time ago.
    pub recent: usize,
}

/// Why an instance cannot be placed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Refusal {
    /// The node has no GPU for models.
    NoCard,
    /// All cards are lost.
    CardLost,
    /// The limit is above every card's budget: permanent until a configuration changes.
    TooBig {
        /// The largest budget.
        budget: u64,
    },
    /// Unmovable memory leaves too little, on every card, for it or for the instances beside it.
    Pinned {
        /// Most that a card could give.
        free: u64,
    },
    /// The sum of the limits would be beyond `overcommit`, on every card.
    Committed {
        /// Most that a card has left.
        free: u64,
    },
    /// Evicted instances could need more than the host's budget.
    HostBudget {
        /// Rest of the host's budget.
        free: u64,
    },
}

/// Why an instance has to end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EndCause {
    /// The processes have more on the card than limit and margin: memory is allocated past the shim.
    BeyondLimit {
        /// Measured by NVML.
        seen: u64,
        /// Most that is allowed.
        allowed: u64,
    },
    /// The instance reported that it left the card, and NVML measures that it did not.
    StillOnCard {
        /// Measured by NVML.
        seen: u64,
        /// Most that is allowed.
        allowed: u64,
    },
    /// A command was not answered within `evict_timeout`.
    Silent,
    /// Two evictions were not carried out.
    DidNotLeave {
        /// The first `CUresult` other than success; 0 for none.
        error: u32,
    },
    /// The instance is idle and holds unmovable memory that another one needs.
    InTheWay,
    /// Started under another configuration: its limit is above the card's budget now.
    TooBig {
        /// Budget of the card.
        budget: u64,
    },
    /// The card is lost, or not in the settings.
    CardLost,
}

/// View of one card for operators.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CardView {
    /// See [`CardSettings::budget`].
    pub budget: u64,
    /// Largest sum of the limits.
    pub commit_limit: u64,
    /// Sum of the limits.
    pub committed: u64,
    /// Memory that instances report to have on the card.
    pub resident: u64,
    /// Memory used by any process, as last measured by NVML.
    pub used: u64,
    /// The card is lost.
    pub lost: bool,
    /// Instances on it, last used first.
    pub instances: Vec<InstanceView>,
}

/// View of one instance for operators.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct InstanceView {
    /// The instance.
    pub instance: InstanceKey,
    /// See [`Event::Place`].
    pub limit: u64,
    /// Memory it reports to have allocated, on the card or not.
    pub allocated: u64,
    /// Part of `allocated` that it reports on the card.
    pub resident: u64,
    /// Location of its memory.
    pub location: MemoryLocation,
    /// Start of its idle time; `None` while it has requests.
    pub idle_since: Option<Moment>,
}

/// Location of an instance's memory, or where it is moving.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MemoryLocation {
    /// On the card.
    Resident,
    /// Partly or all in host memory.
    Evicted,
    /// Waiting for room on the card, for a request or its start.
    Waiting,
    /// Moving to the card.
    Restoring,
    /// Moving to the host.
    Evicting,
}
