//! How long a model that died waits before it is started again, and one without a place on a GPU before it asks again.
//!
//! The first restart is at once; every further death doubles the pause up to a minute. An instance that stayed ready
//! for [`FORGIVEN_AFTER`] clears the tally: what dies once a day is restarted at once, every day.

use super::Moment;
use std::time::Duration;

/// The pause after the second death in a row.
pub const FIRST_PAUSE: Duration = Duration::from_millis(500);
/// The longest pause.
pub const LONGEST_PAUSE: Duration = Duration::from_secs(60);
/// Ready for this long: earlier deaths are forgotten.
pub const FORGIVEN_AFTER: Duration = Duration::from_secs(60);

/// The pause of a model that was refused a place on a GPU once.
pub const FIRST_WITHOUT_PLACE: Duration = Duration::from_secs(2);
/// The longest pause between two tries to get a place.
pub const LONGEST_WITHOUT_PLACE: Duration = Duration::from_secs(30);

/// Deaths of a model's instances, in a row and in all.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Tally {
    in_a_row: u32,
    total: u64,
}

impl Tally {
    /// Counts a death. `ready_since` is when the instance became ready, if it did; `jitter` is in `0.0..1.0`.
    /// Returns how long to wait: zero for the first death in a row.
    pub fn death(&mut self, ready_since: Option<Moment>, now: Moment, jitter: f64) -> Duration {
        if ready_since.is_some_and(|since| now.saturating_sub(since) >= FORGIVEN_AFTER) {
            self.in_a_row = 0;
        }
        self.in_a_row = self.in_a_row.saturating_add(1);
        self.total += 1;
        pause(self.in_a_row, jitter)
    }

    /// New content or a person's word: the past does not count.
    pub fn forgive(&mut self) {
        self.in_a_row = 0;
    }

    /// Deaths since the model was first seen.
    #[must_use]
    pub fn total(&self) -> u64 {
        self.total
    }
}

/// How long a model that was refused a place on a GPU so often in a row waits before it asks for one of itself.
#[must_use]
pub fn without_place(refusals_in_a_row: u32, jitter: f64) -> Duration {
    doubled(FIRST_WITHOUT_PLACE, refusals_in_a_row.saturating_sub(1), LONGEST_WITHOUT_PLACE, jitter)
}

fn pause(deaths_in_a_row: u32, jitter: f64) -> Duration {
    match deaths_in_a_row.checked_sub(2) {
        Some(doublings) => doubled(FIRST_PAUSE, doublings, LONGEST_PAUSE, jitter),
        None => Duration::ZERO,
    }
}

/// Between half and all of the doubled pause, so that models that died together do not start together.
fn doubled(first: Duration, doublings: u32, longest: Duration, jitter: f64) -> Duration {
    let full = first.saturating_mul(1 << doublings.min(16)).min(longest);
    full.mul_f64(0.5 + jitter.clamp(0.0, 1.0) / 2.0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn the_first_restart_is_at_once_then_pauses_double() {
        let mut tally = Tally::default();
        let pauses: Vec<_> = (0..10).map(|_| tally.death(None, Duration::ZERO, 1.0).as_millis()).collect();
        assert_eq!(pauses, [0, 500, 1000, 2000, 4000, 8000, 16000, 32000, 60000, 60000]);
        assert_eq!(tally.total(), 10);
    }

    #[test]
    fn a_minute_of_service_clears_the_tally() {
        let mut tally = Tally::default();
        tally.death(None, Duration::ZERO, 1.0);
        assert!(tally.death(Some(Duration::from_secs(10)), Duration::from_secs(69), 1.0) > Duration::ZERO);
        assert_eq!(tally.death(Some(Duration::from_secs(100)), Duration::from_secs(160), 1.0), Duration::ZERO);
    }

    #[test]
    fn a_model_without_a_place_asks_more_and_more_seldom() {
        let pauses: Vec<_> = (1..8).map(|refusals| without_place(refusals, 1.0).as_secs()).collect();
        assert_eq!(pauses, [2, 4, 8, 16, 30, 30, 30]);
        assert_eq!((without_place(u32::MAX, 0.0).as_secs(), without_place(0, 0.0).as_secs()), (15, 1));
    }

    proptest! {
        #[test]
        fn a_pause_is_bounded_on_both_sides(deaths in 2_u32.., jitter in 0.0..1.0) {
            let pause = pause(deaths, jitter);
            prop_assert!(pause >= FIRST_PAUSE / 2 && pause <= LONGEST_PAUSE);
        }
    }
}
