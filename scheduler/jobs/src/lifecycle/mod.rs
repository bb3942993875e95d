//! Life of a batch and of an item: states, transitions, what is due when. Pure.
//!
//! ```text
//!                 rejected
//! Validating ──────────────────────────────────────────────► Failed
//!   │   │         cancel, window over: nothing has run
//!   │   └──────────────────────────────────────────────────► Cancelled, Expired
//!   │ accepted
//!   ▼      cancel, window over         drained, or the grace is over
//! Running ──────────────────► Stopping ──────────┐
//!   │ the last item has its result               ▼
//!   └────────────────────────────────────────► Writing ────► Completed, Expired, Cancelled
//!                                                    written
//! ```
//!
//! - *Validating*: the input file is read; a restart begins again.
//! - *Running*: items are claimed, and results are taken.
//! - *Stopping*: nothing is claimed; results of what is in flight are taken.
//! - *Writing*: no result is taken; output and error file are written; a restart begins again.

#[cfg(test)]
mod tests;

use crate::time::UnixMillis;
use std::time::Duration;

/// Longest wait for the items in flight of a batch that was cancelled or has expired.
pub(crate) const GRACE: Duration = Duration::from_secs(600);
/// Instances that may die with an item before it gets an error: the first with others beside it, the next while it runs
/// alone.
pub const MAX_DEATHS: u32 = 3;
/// Attempts of an item that may end with the scheduler's process before it gets an error. More than deaths of an
/// instance, since every item in flight is lost with the scheduler, whatever ended it.
pub const MAX_LOST: u32 = 20;

/// State of a batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Phase {
    /// The input file is read.
    Validating,
    /// Items run.
    Running,
    /// Items in flight come to their end.
    Stopping(Cut),
    /// Output and error file are written.
    Writing(Ending),
    /// The input file was refused.
    Failed,
    /// Nothing changes any more.
    Ended(Ending),
}

/// Reason for which a batch stops before all items have a result.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Cut {
    /// The window is over.
    Expired,
    /// A client cancelled it.
    Cancelled,
}

/// End of a batch whose input was accepted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Ending {
    /// Every item has a result.
    Completed,
    /// Some may have none.
    Cut(Cut),
}

/// State in the words of the OpenAI API.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Status {
    /// `validating`
    Validating,
    /// `failed`
    Failed,
    /// `in_progress`
    InProgress,
    /// `finalizing`
    Finalizing,
    /// `completed`
    Completed,
    /// `expired`
    Expired,
    /// `cancelling`
    Cancelling,
    /// `cancelled`
    Cancelled,
}

impl Status {
    /// All states.
    pub const ALL: [Self; 8] = [
        Self::Validating,
        Self::Failed,
        Self::InProgress,
        Self::Finalizing,
        Self::Completed,
        Self::Expired,
        Self::Cancelling,
        Self::Cancelled,
    ];

    /// Name in the API.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Validating => "validating",
            Self::Failed => "failed",
            Self::InProgress => "in_progress",
            Self::Finalizing => "finalizing",
            Self::Completed => "completed",
            Self::Expired => "expired",
            Self::Cancelling => "cancelling",
            Self::Cancelled => "cancelled",
        }
    }
}

/// Something that may change the state of a batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Event {
    /// The input file is good.
    Accepted,
    /// The input file has faults.
    Rejected,
    /// A client cancels.
    Cancel,
    /// The window is over.
    WindowOver,
    /// Every item has a result.
    AllDone,
    /// Nothing is in flight any more, or the grace is over.
    Drained,
    /// Output and error file are on the disk.
    Written,
}

impl Phase {
    const ALL: [(Self, &'static str); 11] = [
        (Self::Validating, "validating"),
        (Self::Running, "running"),
        (Self::Stopping(Cut::Expired), "stopping_expired"),
        (Self::Stopping(Cut::Cancelled), "stopping_cancelled"),
        (Self::Writing(Ending::Completed), "writing_completed"),
        (Self::Writing(Ending::Cut(Cut::Expired)), "writing_expired"),
        (Self::Writing(Ending::Cut(Cut::Cancelled)), "writing_cancelled"),
        (Self::Failed, "failed"),
        (Self::Ended(Ending::Completed), "completed"),
        (Self::Ended(Ending::Cut(Cut::Expired)), "expired"),
        (Self::Ended(Ending::Cut(Cut::Cancelled)), "cancelled"),
    ];

    /// Name in the database.
    pub(crate) fn name(self) -> &'static str {
        Self::ALL.iter().find(|(phase, _)| *phase == self).map_or("", |(_, name)| name)
    }

    pub(crate) fn from_name(name: &str) -> Option<Self> {
        Self::ALL.iter().find(|(_, known)| *known == name).map(|(phase, _)| *phase)
    }

    /// State after an event; `None` if it changes nothing in this one.
    #[must_use]
    pub fn after(self, event: Event) -> Option<Self> {
        Some(match (self, event) {
            (Self::Validating, Event::Accepted) => Self::Running,
            (Self::Validating, Event::Rejected) => Self::Failed,
            (Self::Validating, Event::Cancel) => Self::Ended(Ending::Cut(Cut::Cancelled)),
            (Self::Validating, Event::WindowOver) => Self::Ended(Ending::Cut(Cut::Expired)),
            (Self::Running, Event::AllDone) => Self::Writing(Ending::Completed),
            (Self::Running, Event::Cancel) => Self::Stopping(Cut::Cancelled),
            (Self::Running, Event::WindowOver) => Self::Stopping(Cut::Expired),
            // The last result came in time, or in the grace: nothing was cut off.
            (Self::Stopping(_), Event::AllDone) => Self::Writing(Ending::Completed),
            (Self::Stopping(cut), Event::Drained) => Self::Writing(Ending::Cut(cut)),
            (Self::Writing(ending), Event::Written) => Self::Ended(ending),
            _ => return None,
        })
    }

    /// State in the words of the OpenAI API.
    #[must_use]
    pub fn status(self) -> Status {
        match self {
            Self::Validating => Status::Validating,
            Self::Running => Status::InProgress,
            Self::Stopping(Cut::Cancelled) | Self::Writing(Ending::Cut(Cut::Cancelled)) => Status::Cancelling,
            Self::Stopping(Cut::Expired) | Self::Writing(_) => Status::Finalizing,
            Self::Failed => Status::Failed,
            Self::Ended(Ending::Completed) => Status::Completed,
            Self::Ended(Ending::Cut(Cut::Expired)) => Status::Expired,
            Self::Ended(Ending::Cut(Cut::Cancelled)) => Status::Cancelled,
        }
    }

    /// Returns true if items may be claimed.
    #[must_use]
    pub fn hands_out(self) -> bool {
        self == Self::Running
    }

    /// Returns true if results are taken.
    #[must_use]
    pub fn takes_results(self) -> bool {
        matches!(self, Self::Running | Self::Stopping(_))
    }

    /// Returns true if nothing changes any more.
    #[must_use]
    pub fn is_over(self) -> bool {
        matches!(self, Self::Failed | Self::Ended(_))
    }
}

/// Facts about a batch on which it depends what is due.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Facts {
    pub(crate) phase: Phase,
    pub(crate) expires: UnixMillis,
    /// Time of the cancellation or of the end of the window.
    pub(crate) stopped: Option<UnixMillis>,
    pub(crate) in_flight: u64,
}

/// Next step of a batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Due {
    /// Read the input file.
    Validate,
    /// Apply an event.
    Apply(Event),
    /// Write output and error file.
    Write,
    /// Wait, until this time if nothing else happens.
    Wait(UnixMillis),
    /// Nothing, ever.
    Nothing,
}

/// Step that is due.
pub(crate) fn due(facts: &Facts, now: UnixMillis) -> Due {
    match facts.phase {
        Phase::Validating | Phase::Running if facts.expires <= now => Due::Apply(Event::WindowOver),
        Phase::Validating => Due::Validate,
        Phase::Running => Due::Wait(facts.expires),
        Phase::Stopping(_) => {
            let until = facts.stopped.unwrap_or_default().after(GRACE);
            if facts.in_flight == 0 || until <= now { Due::Apply(Event::Drained) } else { Due::Wait(until) }
        }
        Phase::Writing(_) => Due::Write,
        Phase::Failed | Phase::Ended(_) => Due::Nothing,
    }
}

/// End of an attempt without a result.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Interruption {
    /// The instance died with the item in flight.
    InstanceDied,
    /// The item made way for others, or could not be sent: no fault of its own.
    Preempted,
    /// The scheduler's process ended.
    Lost,
}

/// Attempts of an item that ended without a result.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Tally {
    pub(crate) deaths: u32,
    pub(crate) lost: u32,
}

/// Error of an item that has no response.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ItemError {
    pub(crate) code: &'static str,
    pub(crate) message: &'static str,
}

pub(crate) const INSTANCE_DIED: ItemError =
    ItemError { code: "instance_died", message: "The model's instance died each time it worked on this request." };
pub(crate) const INTERRUPTED: ItemError =
    ItemError { code: "interrupted", message: "The node ended each time it worked on this request." };
pub(crate) const EXPIRED: ItemError = ItemError {
    code: "batch_expired",
    message: "This request could not be executed before the completion window expired.",
};
pub(crate) const CANCELLED: ItemError =
    ItemError { code: "batch_cancelled", message: "The batch was cancelled before this request was executed." };

impl Tally {
    /// Counts an interruption; returns the error if the item has had its attempts.
    pub(crate) fn count(&mut self, interruption: Interruption) -> Option<ItemError> {
        match interruption {
            Interruption::Preempted => return None,
            Interruption::InstanceDied => self.deaths = self.deaths.saturating_add(1),
            Interruption::Lost => self.lost = self.lost.saturating_add(1),
        }
        match self {
            Self { deaths: MAX_DEATHS.., .. } => Some(INSTANCE_DIED),
            Self { lost: MAX_LOST.., .. } => Some(INTERRUPTED),
            Self { .. } => None,
        }
    }
}
