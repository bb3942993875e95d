//! Liveness of a peer that has to answer: a task of the scheduler, an instance's worker, its engine.
//!
//! ```text
//!   Alive ──silent for `every`──▶ probed ──silent for `every`──▶ Unresponsive
//!     ▲                              │
//!     └──────────any message─────────┘
//! ```
//!
//! Silence is thus found within twice the interval, and a peer that sends messages anyway is never probed. Used by the
//! scheduler's watchdog and by the models' actors.

use super::Moment;
use std::time::Duration;

/// Lateness of the check itself from which another interval is granted: the whole process was stalled, and the answer
/// with it.
const LATE: Duration = Duration::from_secs(1);

/// Result of a check.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Check {
    /// Nothing to do now.
    Alive,
    /// The peer has to be probed.
    Probe,
    /// The peer was probed and has not answered.
    Unresponsive,
}

/// Liveness of one peer.
#[derive(Debug, Clone, Copy)]
pub struct Liveness {
    every: Duration,
    since: Moment,
    asked: bool,
}

impl Liveness {
    /// Peer that is alive now.
    #[must_use]
    pub fn new(every: Duration, now: Moment) -> Self {
        Self { every, since: now, asked: false }
    }

    /// Records a message of the peer.
    pub fn heard(&mut self, now: Moment) {
        (self.since, self.asked) = (now, false);
    }

    /// Returns whether a probe is unanswered.
    #[must_use]
    pub fn is_asked(&self) -> bool {
        self.asked
    }

    /// Time of the next [`Liveness::check`].
    #[must_use]
    pub fn due(&self) -> Moment {
        self.since.saturating_add(self.every)
    }

    /// Checks the time since the last message.
    pub fn check(&mut self, now: Moment) -> Check {
        let due = self.due();
        if now < due {
            return Check::Alive;
        }
        if self.asked && now <= due + LATE {
            return Check::Unresponsive;
        }
        self.since = now;
        if std::mem::replace(&mut self.asked, true) { Check::Alive } else { Check::Probe }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const EVERY: Duration = Duration::from_secs(10);

    fn at(seconds: u64) -> Moment {
        Duration::from_secs(seconds)
    }

    #[test]
    fn a_silent_peer_is_probed_then_unresponsive() {
        let mut liveness = Liveness::new(EVERY, at(5));
        assert_eq!((liveness.check(at(14)), liveness.due()), (Check::Alive, at(15)));
        assert_eq!((liveness.check(at(15)), liveness.is_asked()), (Check::Probe, true));
        assert_eq!((liveness.check(at(24)), liveness.due()), (Check::Alive, at(25)));
        assert_eq!(liveness.check(at(25)), Check::Unresponsive);
        assert_eq!(liveness.check(at(25)), Check::Unresponsive, "until somebody does something about it");
    }

    #[test]
    fn a_responding_peer_is_not_probed() {
        let mut liveness = Liveness::new(EVERY, at(0));
        liveness.heard(at(9));
        assert_eq!(liveness.check(at(18)), Check::Alive);
        assert_eq!(liveness.check(at(19)), Check::Probe);
        liveness.heard(at(28));
        assert_eq!((liveness.check(at(37)), liveness.is_asked()), (Check::Alive, false));
    }

    /// A scheduler that was stopped for an hour must not end everything that it finds silent when it goes on.
    #[test]
    fn a_late_check_waits_once_more() {
        let mut liveness = Liveness::new(EVERY, at(0));
        assert_eq!(liveness.check(at(10)), Check::Probe);
        assert_eq!((liveness.check(at(3600)), liveness.is_asked()), (Check::Alive, true));
        assert_eq!(liveness.check(at(3609)), Check::Alive);
        assert_eq!(liveness.check(at(3610)), Check::Unresponsive);
    }
}
