//! Clients that return after the end of a batch: how many of them, and how soon.
//!
//! ```text
//!   end of the batch       last return
//!    │◀────── spread ──────────▶│    │                              │
//!    ├────────────── window ─────────┼────────── comparison ────────┤
//!      returns and random arrivals        random arrivals alone
//! ```
//!
//! Requests at random times arrive in the window, too. So the arrivals in a second period of the same length are subtracted: as many
//! would have come in the window in any case, and nothing is gained by a wait for them.

use crate::{Moment, nanos};
use std::time::Duration;

/// Longest time in which the client of a single request returns. Measured: 0.1 to 0.6 ms on the same machine.
const WINDOW: Duration = Duration::from_millis(1);
/// Further time for each request of the batch: its answers are written one after the other. Measured: 30 µs, and more on a
/// machine that is busy otherwise.
const WINDOW_EACH: Duration = Duration::from_micros(60);
/// Weight of the newest batch in the share: 1 in so many.
const SHARE_SAMPLES: f64 = 4.0;
/// Weight of a batch whose clients returned sooner in the spread: 1 in so many. A later return counts at once, as a request that
/// is left behind costs a whole batch.
const SPREAD_SAMPLES: f64 = 8.0;

/// Time after the end of a batch of this size in which its clients may return.
#[must_use]
pub fn window(requests: usize) -> Duration {
    WINDOW + WINDOW_EACH * u32::try_from(requests).unwrap_or(u32::MAX)
}

/// Arrivals since the end of a batch.
#[derive(Debug, Clone, Copy)]
pub(super) struct Arrivals {
    /// End of the batch.
    pub(super) from: Moment,
    /// Requests of the batch.
    batch: usize,
    /// Requests that have arrived in the window, at most as many.
    pub(super) returned: usize,
    /// Requests that have arrived in the comparison.
    compared: usize,
    /// Moment of the last arrival in the window.
    last: Moment,
}

impl Arrivals {
    pub(super) fn new(batch: usize, from: Moment) -> Self {
        Self { from, batch, returned: 0, compared: 0, last: from }
    }

    /// Notes an arrival.
    pub(super) fn add(&mut self, now: Moment) {
        if now >= self.window_end() {
            self.compared += 1;
        } else if self.returned < self.batch {
            self.returned += 1;
            self.last = now;
        }
    }

    /// End of the window.
    pub(super) fn window_end(&self) -> Moment {
        self.from + window(self.batch)
    }

    /// End of the comparison.
    pub(super) fn end(&self) -> Moment {
        self.window_end() + window(self.batch)
    }
}

/// Averages over the last batches.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Returns {
    /// Share of the clients of a batch that return.
    share: f64,
    /// Part of the window in which they do.
    spread: f64,
}

impl Returns {
    /// Adds the arrivals after a batch.
    pub(super) fn add(&mut self, arrivals: &Arrivals) {
        let share = (arrivals.returned as f64 - arrivals.compared as f64) / arrivals.batch.max(1) as f64;
        self.share += (share.max(-1.0) - self.share) / SHARE_SAMPLES;
        if arrivals.returned > 0 {
            let last = arrivals.last.saturating_sub(arrivals.from);
            let spread = nanos(last) as f64 / nanos(window(arrivals.batch)) as f64;
            self.spread = spread.max(self.spread + (spread - self.spread) / SPREAD_SAMPLES);
        }
    }

    /// Number of requests that are still expected in the window.
    pub(super) fn expected(&self, arrivals: &Arrivals) -> usize {
        let all = (arrivals.batch as f64 * self.share.max(0.0)).round() as usize;
        all.saturating_sub(arrivals.returned)
    }

    /// Moment at which the last of them is expected: if that is over, the end of the window.
    pub(super) fn last(&self, arrivals: &Arrivals, now: Moment) -> Moment {
        let last = arrivals.from + window(arrivals.batch).mul_f64(self.spread);
        if now < last { last } else { arrivals.window_end() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn micros(time: u64) -> Moment {
        Duration::from_micros(time)
    }

    /// Arrivals so many microseconds after a batch.
    fn arrivals(batch: usize, after: impl IntoIterator<Item = u64>) -> Arrivals {
        let end = micros(777);
        let mut arrivals = Arrivals::new(batch, end);
        after.into_iter().for_each(|time| arrivals.add(end + micros(time)));
        arrivals
    }

    #[test]
    fn the_window_grows_with_the_batch_as_its_answers_are_written_one_after_the_other() {
        let time = |requests| u64::try_from(window(requests).as_micros()).unwrap();
        assert_eq!([time(0), time(1), time(10), time(64)], [1000, 1060, 1600, 4840]);
        assert!(window(usize::MAX) > window(1_000_000));
    }

    #[test]
    fn clients_that_return_are_expected_and_random_arrivals_are_not() {
        // The window of 10 requests is 1.6 ms long, and the comparison as long.
        for (name, after, expected) in [
            ("nobody", &[][..], 0),
            ("all return", &[100, 200, 300, 400, 500, 600, 700, 800, 900, 1000], 10),
            ("half of them", &[100, 200, 300, 400, 500], 5),
            ("as many at random", &[300, 600, 900, 1200, 1500, 1800, 2100, 2400, 2700, 3000], 0),
            ("returns and random arrivals", &[50, 100, 200, 300, 400, 500, 800, 1700, 2500], 5),
            ("fewer than at random", &[700, 1700, 2500, 3000], 0),
        ] {
            let mut returns = Returns::default();
            for _ in 0..20 {
                returns.add(&arrivals(10, after.iter().copied()));
            }
            assert_eq!(returns.expected(&arrivals(10, [])), expected, "{name}");
            assert_eq!(returns.expected(&arrivals(10, [1, 2])), expected.saturating_sub(2), "{name}, two are back");
        }
    }

    #[test]
    fn a_later_return_counts_at_once_and_a_sooner_one_slowly() {
        let mut returns = Returns::default();
        let spread = |returns: &Returns| {
            let arrivals = arrivals(10, []);
            returns.last(&arrivals, arrivals.from).saturating_sub(arrivals.from)
        };
        returns.add(&arrivals(10, [400]));
        assert_eq!(spread(&returns), micros(400));
        returns.add(&arrivals(10, [100, 800]));
        assert_eq!(spread(&returns), micros(800));
        returns.add(&arrivals(10, []));
        assert_eq!(spread(&returns), micros(800), "nobody returned: nothing is known about the time");
        returns.add(&arrivals(10, [400]));
        assert_eq!(spread(&returns), micros(750));
        let late = arrivals(10, []);
        assert_eq!(returns.last(&late, late.from + micros(750)), late.window_end(), "the last one is late");
    }
}
