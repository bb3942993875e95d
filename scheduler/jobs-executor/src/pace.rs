//! Bound on how often a message that repeats is logged.

use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Message of which one in a time is logged.
#[derive(Debug)]
pub(crate) struct Pace {
    time: Duration,
    last: Mutex<Option<Instant>>,
}

impl Pace {
    pub(crate) const fn new(time: Duration) -> Self {
        Self { time, last: Mutex::new(None) }
    }

    /// Returns whether the message is to be logged now.
    pub(crate) fn is_due(&self, now: Instant) -> bool {
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        let is_due = last.is_none_or(|last| now.saturating_duration_since(last) >= self.time);
        if is_due {
            *last = Some(now);
        }
        is_due
    }
}

#[test]
fn a_message_is_due_once_in_its_time() {
    let (now, second) = (Instant::now(), Duration::from_secs(1));
    let pace = Pace::new(second * 60);
    assert!(pace.is_due(now) && !pace.is_due(now + second) && !pace.is_due(now + second * 59));
    assert!(pace.is_due(now + second * 60) && !pace.is_due(now + second * 61));
}
