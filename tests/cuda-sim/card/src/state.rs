//! State of a card: a snapshot for tests.

/// A snapshot of a card, taken under its lock. Bytes everywhere.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct State {
    /// The living processes that use the card.
    pub processes: Vec<Process>,
    /// Counters since the card was made.
    pub counters: Counters,
    /// The last [`crate::MOVES`] moves, in order.
    pub moves: Vec<Move>,
    /// Number of moves so far.
    pub moved: u64,
}

impl State {
    /// Memory that is not movable, over all processes.
    #[must_use]
    pub fn device(&self) -> u64 {
        self.processes.iter().map(|process| process.device).sum()
    }

    /// Managed memory that is on the card, over all processes.
    #[must_use]
    pub fn resident(&self) -> u64 {
        self.processes.iter().map(|process| process.resident).sum()
    }

    /// Used memory of the card.
    #[must_use]
    pub fn used(&self) -> u64 {
        self.device() + self.resident()
    }
}

/// Memory of one process on a card.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Process {
    /// Process id in its own pid namespace.
    pub pid: u32,
    /// Field 22 of `/proc/<pid>/stat`, clock ticks since boot.
    pub start_time: u64,
    /// Memory that is not movable.
    pub device: u64,
    /// Managed memory, resident on this card or not, that was allocated with this card current.
    pub managed: u64,
    /// Managed memory that is on the card.
    pub resident: u64,
}

/// Bytes since the card was made, and calls.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counters {
    /// Moved to the device by prefetches.
    pub prefetch_to_device: u64,
    /// Moved to the host by prefetches.
    pub prefetch_to_host: u64,
    /// Moved to the device because the device used it.
    pub fault_to_device: u64,
    /// Moved to the host because a call used it there.
    pub fault_to_host: u64,
    /// Moved to the host by the driver, to make room.
    pub evicted: u64,
    /// Given up without a move: the program said that it does not need the contents.
    pub discarded: u64,
    /// Came into being on the card: nothing was there to move.
    pub populated: u64,
    /// Calls that prefetch; a batch is one call.
    pub prefetch_calls: u64,
}

/// Move of memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Move {
    /// Owner of the memory: see [`Process::pid`].
    pub pid: u32,
    /// See [`Process::start_time`].
    pub start_time: u64,
    /// Address of its beginning; 0 when another process evicted it, which does not know.
    pub address: u64,
    /// Bytes moved.
    pub bytes: u64,
    /// Direction.
    pub direction: Direction,
    /// Why.
    pub cause: Cause,
}

/// Direction of a move.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Direction {
    /// From the host, or from nowhere, to the card.
    ToDevice,
    /// From the card to the host.
    ToHost,
}

/// Why memory moves.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Cause {
    /// The program asked for it.
    Prefetch,
    /// A use where it was not resident.
    Fault,
    /// The driver made room for something else.
    Eviction,
    /// First use: no bytes crossed the link.
    Populate,
    /// Contents were dropped: no bytes crossed the link.
    Discard,
}

impl Direction {
    /// Name in JSON.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::ToDevice => "to-device",
            Self::ToHost => "to-host",
        }
    }

    pub(crate) fn code(self) -> u64 {
        match self {
            Self::ToDevice => 0,
            Self::ToHost => 1,
        }
    }

    pub(crate) fn from_code(code: u64) -> Self {
        if code == 0 { Self::ToDevice } else { Self::ToHost }
    }
}

impl Cause {
    const ALL: [Self; 5] = [Self::Prefetch, Self::Fault, Self::Eviction, Self::Populate, Self::Discard];

    /// Name in JSON.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Prefetch => "prefetch",
            Self::Fault => "fault",
            Self::Eviction => "eviction",
            Self::Populate => "populate",
            Self::Discard => "discard",
        }
    }

    pub(crate) fn code(self) -> u64 {
        Self::ALL.iter().position(|cause| *cause == self).map_or(0, |at| at as u64)
    }

    pub(crate) fn from_code(code: u64) -> Self {
        usize::try_from(code).ok().and_then(|at| Self::ALL.get(at).copied()).unwrap_or(Self::Prefetch)
    }
}
