//! Whether somebody who has to answer still does: the scheduler's own tasks, an instance's worker, its engine.
//!
//! Who said nothing for a time is asked, and then has the same time to answer. So silence is found within twice that
//! time, and who speaks anyway is never asked. Called by [`crate::watchdog`] and by the models' tasks.

use super::Moment;
use std::time::Duration;

/// Who comes later than this to look was held up himself, and the answer may have been held up with him.
const LATE: Duration = Duration::from_secs(1);

/// What to do about somebody.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Look {
    /// Nothing now.
    Fine,
    /// He is to be asked.
    Ask,
    /// He was asked and has not answered.
    Silent,
}

/// What is known of somebody.
#[derive(Debug, Clone, Copy)]
pub struct Liveness {
    every: Duration,
    since: Moment,
    asked: bool,
}

impl Liveness {
    /// Somebody who lives at this moment.
    #[must_use]
    pub fn new(every: Duration, now: Moment) -> Self {
        Self { every, since: now, asked: false }
    }

    /// A sign of life.
    pub fn heard(&mut self, now: Moment) {
        (self.since, self.asked) = (now, false);
    }

    /// Whether an answer is awaited.
    #[must_use]
    pub fn is_asked(&self) -> bool {
        self.asked
    }

    /// When to [`Liveness::look`] next.
    #[must_use]
    pub fn due(&self) -> Moment {
        self.since.saturating_add(self.every)
    }

    /// What follows from the time.
    pub fn look(&mut self, now: Moment) -> Look {
        let due = self.due();
        if now < due {
            return Look::Fine;
        }
        if self.asked && now <= due + LATE {
            return Look::Silent;
        }
        self.since = now;
        if std::mem::replace(&mut self.asked, true) { Look::Fine } else { Look::Ask }
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
    fn who_says_nothing_is_asked_and_then_silent() {
        let mut liveness = Liveness::new(EVERY, at(5));
        assert_eq!((liveness.look(at(14)), liveness.due()), (Look::Fine, at(15)));
        assert_eq!((liveness.look(at(15)), liveness.is_asked()), (Look::Ask, true));
        assert_eq!((liveness.look(at(24)), liveness.due()), (Look::Fine, at(25)));
        assert_eq!(liveness.look(at(25)), Look::Silent);
        assert_eq!(liveness.look(at(25)), Look::Silent, "until somebody does something about it");
    }

    #[test]
    fn who_speaks_is_not_asked() {
        let mut liveness = Liveness::new(EVERY, at(0));
        liveness.heard(at(9));
        assert_eq!(liveness.look(at(18)), Look::Fine);
        assert_eq!(liveness.look(at(19)), Look::Ask);
        liveness.heard(at(28));
        assert_eq!((liveness.look(at(37)), liveness.is_asked()), (Look::Fine, false));
    }

    /// A scheduler that was stopped for an hour must not end everything that it finds silent when it goes on.
    #[test]
    fn who_looks_late_waits_once_more() {
        let mut liveness = Liveness::new(EVERY, at(0));
        assert_eq!(liveness.look(at(10)), Look::Ask);
        assert_eq!((liveness.look(at(3600)), liveness.is_asked()), (Look::Fine, true));
        assert_eq!(liveness.look(at(3609)), Look::Fine);
        assert_eq!(liveness.look(at(3610)), Look::Silent);
    }
}
