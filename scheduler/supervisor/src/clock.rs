//! Time of day, and the clock of the policies.

use omni_policy::Moment;
use std::time::{Instant, SystemTime, UNIX_EPOCH};

/// Milliseconds since the Unix epoch, for display and for persisted state. No timeout depends on it.
#[must_use]
pub fn unix_ms() -> u64 {
    let since_epoch = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since_epoch.as_millis()).unwrap_or(u64::MAX)
}

/// Clock of the policies: moments are times since the scheduler started.
#[derive(Debug, Clone, Copy)]
pub struct Clock {
    started: Instant,
}

impl Clock {
    /// The clock of a scheduler that has started then.
    #[must_use]
    pub fn since(started: Instant) -> Self {
        Self { started }
    }

    /// The moment that is now.
    #[must_use]
    pub fn now(&self) -> Moment {
        self.started.elapsed()
    }

    /// The moment of a time of this process; the first one for a time before the start.
    #[must_use]
    pub fn moment(&self, at: Instant) -> Moment {
        at.saturating_duration_since(self.started)
    }

    /// A moment as the runtime's timers and other processes' times are compared with.
    #[must_use]
    pub fn instant(&self, moment: Moment) -> Instant {
        self.started + moment
    }
}
