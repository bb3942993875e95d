//! Turns of downloads: which of those that run make way for those that wait. Pure.
//!
//! A download goes on where it was, but for one that has neither a digest nor a validator: that one begins anew. So turns get
//! longer each time, and it is complete in the end.

use omni_weights::Digest;
use std::time::Duration;

/// First turn; it doubles.
const FIRST: Duration = Duration::from_mins(30);
/// Longest turn.
const LONGEST: Duration = Duration::from_hours(4);

/// A download that runs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Running {
    pub(super) key: Digest,
    /// Time since it began.
    pub(super) time: Duration,
    /// Turns before this one.
    pub(super) turns: u32,
    /// True for one that is being ended, and leaves its place.
    pub(super) is_ending: bool,
}

impl Running {
    /// Time until its turn is over.
    fn left(&self) -> Duration {
        let turn = FIRST.saturating_mul(2_u32.saturating_pow(self.turns)).min(LONGEST);
        turn.saturating_sub(self.time)
    }
}

/// Downloads that make way now, those that run for the longest time first: no more than there are orders that `wait` and will
/// not get another place.
pub(super) fn over(running: &[Running], wait: usize) -> Vec<Digest> {
    let ending = running.iter().filter(|running| running.is_ending).count();
    let mut over: Vec<_> = running.iter().filter(|running| !running.is_ending && running.left().is_zero()).collect();
    over.sort_by_key(|running| std::cmp::Reverse(running.time));
    over.into_iter().take(wait.saturating_sub(ending)).map(|running| running.key.clone()).collect()
}

/// Time until the next turn is over that matters; `None` if nothing waits.
pub(super) fn next_end(running: &[Running], wait: usize) -> Option<Duration> {
    let left = running.iter().filter(|running| !running.is_ending).map(Running::left);
    left.filter(|left| wait > 0 && !left.is_zero()).min()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use sha2::{Digest as _, Sha256};

    fn running(name: &str, minutes: u64, turns: u32, is_ending: bool) -> Running {
        let key = Digest::of(Sha256::new_with_prefix(name));
        Running { key, time: Duration::from_mins(minutes), turns, is_ending }
    }

    #[test]
    fn turns_double_up_to_the_longest() {
        for (turns, minutes) in [(0, 30), (1, 60), (2, 120), (3, 240), (4, 240), (u32::MAX, 240)] {
            assert_eq!(running("a", 0, turns, false).left(), Duration::from_mins(minutes), "{turns}");
        }
    }

    /// Downloads that run, number of orders that wait, those that make way, minutes until the next turn is over.
    type Case<'a> = (&'a [Running], usize, &'a [Running], Option<u64>);

    #[test]
    fn as_many_make_way_as_wait() {
        let (long, short) = (|is_ending| running("long", 50, 0, is_ending), || running("short", 31, 0, false));
        let (new, second) = (|| running("new", 29, 0, false), || running("second", 59, 1, false));
        let table: &[Case<'_>] = &[
            (&[long(false), short()], 0, &[], None),
            (&[short(), long(false)], 1, &[long(false)], None),
            (&[short(), long(false)], 3, &[long(false), short()], None),
            (&[long(true), short()], 1, &[], None),
            (&[long(true), short()], 2, &[short()], None),
            (&[long(false), new()], 1, &[long(false)], Some(1)),
            (&[second(), new()], 5, &[], Some(1)),
        ];
        for (running, wait, expected, minutes) in table {
            let expected: Vec<_> = expected.iter().map(|running| running.key.clone()).collect();
            assert_eq!(over(running, *wait), expected, "{running:?} {wait}");
            assert_eq!(next_end(running, *wait), minutes.map(Duration::from_mins), "{running:?} {wait}");
        }
    }

    proptest! {
        #[test]
        fn none_makes_way_before_its_turn_is_over_or_for_nobody(
            times in prop::collection::vec((0_u64..600, 0_u32..6, any::<bool>()), 0..4),
            wait in 0_usize..5,
        ) {
            let each = |(number, (minutes, turns, is_ending)): (usize, (u64, u32, bool))| {
                running(&number.to_string(), minutes, turns, is_ending)
            };
            let all: Vec<_> = times.into_iter().enumerate().map(each).collect();
            let keys = over(&all, wait);
            let ending = all.iter().filter(|running| running.is_ending).count();
            prop_assert!(keys.is_empty() || keys.len() + ending <= wait);
            for running in all.iter().filter(|running| keys.contains(&running.key)) {
                prop_assert!(running.left().is_zero() && !running.is_ending);
            }
        }
    }
}
