//! Deadlines of one instance beside those of the fleet: handlers that ignore their cancellation, data connections that
//! break, starts that take too long.

use crate::Moment;
use std::time::Duration;

/// Time for a worker to report the end of its engine after the data connection broke. Usually it takes a millisecond; on
/// an overloaded machine a regular end must not look like a broken engine.
pub const CONNECTION_GRACE: Duration = Duration::from_secs(2);

/// Deadlines of an instance.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Deadlines {
    /// End of the grace of a cancelled handler.
    cancel_grace: Option<Moment>,
    /// End of the grace of an engine whose data connection is broken.
    connection_grace: Option<Moment>,
}

/// Deadline that has passed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Expired {
    /// A handler ran on after its cancellation: its slot is written off.
    CancelGrace,
    /// The engine closed its data connection and did not end.
    ConnectionGrace,
}

impl Deadlines {
    /// Sets the grace of the handler that was cancelled first, at `since`; `None`: no cancelled handler runs.
    pub fn on_cancellation(&mut self, since: Option<Moment>, grace: Duration) {
        self.cancel_grace = since.map(|since| since + grace);
    }

    /// Starts the grace of an engine whose data connection broke; the first break counts.
    pub fn on_disconnect(&mut self, now: Moment) {
        self.connection_grace.get_or_insert(now + CONNECTION_GRACE);
    }

    /// Ends the grace of handlers: their engine is killed.
    pub fn on_kill(&mut self) {
        self.cancel_grace = None;
    }

    /// Earliest deadline.
    #[must_use]
    pub fn next(&self) -> Option<Moment> {
        [self.cancel_grace, self.connection_grace].into_iter().flatten().min()
    }

    /// The deadline that has passed by `now`, if any. One of a connection is reported once; one of a handler until
    /// [`Deadlines::on_cancellation`] sets the next.
    pub fn expire(&mut self, now: Moment) -> Option<Expired> {
        let is_over = |at: &mut Moment| *at <= now;
        if self.cancel_grace.as_mut().is_some_and(is_over) {
            return Some(Expired::CancelGrace);
        }
        self.connection_grace.take_if(is_over).map(|_| Expired::ConnectionGrace)
    }
}

/// Progress of a start.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StartProgress {
    /// Waiting for a share of the node's capacity.
    Reserving,
    /// Waiting for a place on a card.
    Placing,
    /// Given to the launcher.
    Launched,
}

/// Reason why a start took too long.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Overdue {
    /// The engine was not ready in time.
    NotReady,
    /// The node's capacity had no room for it in time.
    NoCapacity,
    /// No card had room for it in time.
    NoCard,
}

/// Judges a start that has time `until` then. `None` while it has.
#[must_use]
pub fn overdue(progress: StartProgress, until: Moment, now: Moment) -> Option<Overdue> {
    (until <= now).then_some(match progress {
        StartProgress::Reserving => Overdue::NoCapacity,
        StartProgress::Placing => Overdue::NoCard,
        StartProgress::Launched => Overdue::NotReady,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn at(seconds: u64) -> Moment {
        Moment::from_secs(seconds)
    }

    #[test]
    fn a_cancelled_handler_has_its_grace_from_its_cancellation() {
        let mut deadlines = Deadlines::default();
        assert_eq!((deadlines.next(), deadlines.expire(at(100))), (None, None));
        deadlines.on_cancellation(Some(at(10)), Duration::from_secs(5));
        assert_eq!((deadlines.next(), deadlines.expire(at(14))), (Some(at(15)), None));
        assert_eq!(deadlines.expire(at(15)), Some(Expired::CancelGrace));
        assert_eq!(deadlines.expire(at(16)), Some(Expired::CancelGrace), "until the next one is set");
        deadlines.on_cancellation(None, Duration::from_secs(5));
        assert_eq!((deadlines.next(), deadlines.expire(at(100))), (None, None), "it ended");
    }

    #[test]
    fn a_broken_connection_expires_once_and_from_its_first_break() {
        let mut deadlines = Deadlines::default();
        deadlines.on_disconnect(at(1));
        deadlines.on_disconnect(at(2));
        assert_eq!(deadlines.next(), Some(at(1) + CONNECTION_GRACE));
        assert_eq!(deadlines.expire(at(2)), None);
        assert_eq!(deadlines.expire(at(3)), Some(Expired::ConnectionGrace));
        assert_eq!((deadlines.next(), deadlines.expire(at(9))), (None, None));
    }

    #[test]
    fn handlers_of_a_killed_engine_have_no_deadline() {
        let mut deadlines = Deadlines::default();
        deadlines.on_cancellation(Some(at(10)), Duration::from_secs(5));
        deadlines.on_kill();
        assert_eq!((deadlines.next(), deadlines.expire(at(100))), (None, None));
    }

    #[test]
    fn a_handler_is_written_off_before_its_connection_is_judged() {
        let mut deadlines = Deadlines::default();
        deadlines.on_disconnect(at(1));
        deadlines.on_cancellation(Some(at(1)), Duration::from_secs(1));
        assert_eq!(deadlines.expire(at(9)), Some(Expired::CancelGrace));
        deadlines.on_cancellation(None, Duration::from_secs(1));
        assert_eq!(deadlines.expire(at(9)), Some(Expired::ConnectionGrace));
    }

    #[test]
    fn a_start_that_is_overdue_says_what_it_waited_for() {
        for (progress, expected) in [
            (StartProgress::Reserving, Overdue::NoCapacity),
            (StartProgress::Placing, Overdue::NoCard),
            (StartProgress::Launched, Overdue::NotReady),
        ] {
            assert_eq!(overdue(progress, at(10), at(9)), None);
            assert_eq!(overdue(progress, at(10), at(10)), Some(expected));
        }
    }
}
