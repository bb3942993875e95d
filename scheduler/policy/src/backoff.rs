//! Pause before a model whose instance died is started again.
//!
//! The first restart is immediate; every further death doubles the pause, up to a minute. An instance that stayed ready
//! for [`FORGIVEN_AFTER`] clears the tally: a model that dies once a day is restarted at once, every day.

use super::Moment;
use std::time::Duration;

/// Pause after the second death in a row.
pub const FIRST_PAUSE: Duration = Duration::from_millis(500);
/// Longest pause.
pub const LONGEST_PAUSE: Duration = Duration::from_secs(60);
/// Time ready after which earlier deaths are forgotten.
pub const FORGIVEN_AFTER: Duration = Duration::from_secs(60);

/// Number of deaths of a model's instances, in a row and in total.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct FailureTally {
    in_a_row: u32,
    total: u64,
}

impl FailureTally {
    /// Counts a death. `ready_since`: when the instance became ready, if it did; `jitter`: in `0.0..1.0`. Returns the
    /// pause, zero for the first death in a row.
    pub fn record_failure(&mut self, ready_since: Option<Moment>, now: Moment, jitter: f64) -> Duration {
        if ready_since.is_some_and(|since| now.saturating_sub(since) >= FORGIVEN_AFTER) {
            self.in_a_row = 0;
        }
        self.in_a_row = self.in_a_row.saturating_add(1);
        self.total += 1;
        pause(self.in_a_row, jitter)
    }

    /// Starts a new row: new content or a command.
    pub fn reset(&mut self) {
        self.in_a_row = 0;
    }

    /// Deaths since the model was first seen.
    #[must_use]
    pub fn total(&self) -> u64 {
        self.total
    }
}

/// Pause between half and all of the doubled one, so that models that died together do not start together.
fn pause(deaths_in_a_row: u32, jitter: f64) -> Duration {
    if deaths_in_a_row <= 1 {
        return Duration::ZERO;
    }
    let doublings = (deaths_in_a_row - 2).min(16);
    let full = FIRST_PAUSE.saturating_mul(1 << doublings).min(LONGEST_PAUSE);
    full.mul_f64(0.5 + jitter.clamp(0.0, 1.0) / 2.0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn the_first_restart_is_at_once_then_pauses_double() {
        let mut tally = FailureTally::default();
        let pauses: Vec<_> = (0..10).map(|_| tally.record_failure(None, Duration::ZERO, 1.0).as_millis()).collect();
        assert_eq!(pauses, [0, 500, 1000, 2000, 4000, 8000, 16000, 32000, 60000, 60000]);
        assert_eq!(tally.total(), 10);
    }

    #[test]
    fn a_minute_of_service_clears_the_tally() {
        let mut tally = FailureTally::default();
        tally.record_failure(None, Duration::ZERO, 1.0);
        assert!(tally.record_failure(Some(Duration::from_secs(10)), Duration::from_secs(69), 1.0) > Duration::ZERO);
        assert_eq!(tally.record_failure(Some(Duration::from_secs(100)), Duration::from_secs(160), 1.0), Duration::ZERO);
    }

    proptest! {
        #[test]
        fn a_pause_is_bounded_on_both_sides(deaths in 2_u32.., jitter in 0.0..1.0) {
            let pause = pause(deaths, jitter);
            prop_assert!(pause >= FIRST_PAUSE / 2 && pause <= LONGEST_PAUSE);
        }
    }
}
