//! Durations of requests, counted by length: quantiles of the last minute. Pure but for the counters, which are atomic.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// Number of lengths that are told apart, from 100 µs to five minutes.
const BUCKETS: usize = 66;
/// Shortest length that is told apart.
const SHORTEST: Duration = Duration::from_micros(100);
/// Buckets per doubling of the length: a quantile is off by an eighth at most.
const PER_DOUBLING: f64 = 3.0;
/// Counts of a window, of which the oldest is about a minute old.
const WINDOW: usize = 7;

/// Number of requests by their duration, since the model is known.
#[derive(Debug)]
pub struct LatencyCounts([AtomicU64; BUCKETS]);

impl Default for LatencyCounts {
    fn default() -> Self {
        Self([const { AtomicU64::new(0) }; BUCKETS])
    }
}

impl LatencyCounts {
    /// Counts a request.
    pub fn observe(&self, time: Duration) {
        if let Some(count) = self.0.get(bucket(time)) {
            count.fetch_add(1, Ordering::Relaxed);
        }
    }

    fn read(&self) -> [u64; BUCKETS] {
        std::array::from_fn(|at| self.0.get(at).map_or(0, |count| count.load(Ordering::Relaxed)))
    }
}

/// Median and high quantiles of durations.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Quantiles {
    /// Half of the requests took less.
    pub p50: Duration,
    /// 95 of 100.
    pub p95: Duration,
    /// 99 of 100.
    pub p99: Duration,
}

/// Counts at the beginnings of the last periods.
#[derive(Debug)]
pub struct LatencyWindow(VecDeque<[u64; BUCKETS]>);

impl Default for LatencyWindow {
    /// The window of a new model, whose first period began with no request.
    fn default() -> Self {
        Self([[0; BUCKETS]].into())
    }
}

impl LatencyWindow {
    /// Begins a new period, to be called every ten seconds.
    pub fn advance(&mut self, counts: &LatencyCounts) {
        if self.0.len() == WINDOW {
            self.0.pop_front();
        }
        self.0.push_back(counts.read());
    }

    /// Quantiles of the requests since the oldest period; `None` without any.
    #[must_use]
    pub fn quantiles(&self, counts: &LatencyCounts) -> Option<Quantiles> {
        let oldest = self.0.front()?;
        let mut now = counts.read();
        now.iter_mut().zip(oldest).for_each(|(now, then)| *now = now.saturating_sub(*then));
        let all = now.iter().sum::<u64>();
        let quantile = |hundredths| quantile(&now, all, hundredths);
        (all > 0).then(|| Quantiles { p50: quantile(50), p95: quantile(95), p99: quantile(99) })
    }
}

fn bucket(time: Duration) -> usize {
    let doublings = (time.as_secs_f64() / SHORTEST.as_secs_f64()).max(1.0).log2();
    ((doublings * PER_DOUBLING) as usize).min(BUCKETS - 1)
}

/// Lower bound of a bucket.
fn bound(bucket: usize) -> Duration {
    SHORTEST.mul_f64((bucket as f64 / PER_DOUBLING).exp2())
}

/// Middle of the bucket that holds the request of this rank.
fn quantile(counts: &[u64; BUCKETS], all: u64, hundredths: u64) -> Duration {
    let rank = (all.saturating_mul(hundredths)).div_ceil(100).max(1);
    let mut before = 0;
    let found = counts.iter().position(|count| {
        before += count;
        before >= rank
    });
    let found = found.unwrap_or(BUCKETS - 1);
    (bound(found) + bound(found + 1)) / 2
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_are_near_the_true_ones() {
        let (counts, window) = (LatencyCounts::default(), LatencyWindow::default());
        assert_eq!(window.quantiles(&counts), None);
        for millisecond in 1..=1000 {
            counts.observe(Duration::from_millis(millisecond));
        }
        let Quantiles { p50, p95, p99 } = window.quantiles(&counts).unwrap();
        for (found, truth) in [(p50, 0.5), (p95, 0.95), (p99, 0.99)] {
            let off = (found.as_secs_f64() / truth - 1.0).abs();
            assert!(off < 0.13, "{found:?} for {truth} s");
        }
    }

    #[test]
    fn requests_older_than_the_window_do_not_count() {
        let (counts, mut window) = (LatencyCounts::default(), LatencyWindow::default());
        counts.observe(Duration::from_secs(9));
        for _ in 1..WINDOW {
            window.advance(&counts);
            assert!(window.quantiles(&counts).is_some());
        }
        window.advance(&counts);
        assert_eq!(window.quantiles(&counts), None);
    }

    #[test]
    fn every_duration_has_a_bucket() {
        for (time, expected) in [(Duration::ZERO, 0), (SHORTEST, 0), (SHORTEST * 2, 3), (Duration::MAX, BUCKETS - 1)] {
            assert_eq!(bucket(time), expected, "{time:?}");
        }
        assert!(bound(BUCKETS - 1) > Duration::from_secs(300));
    }
}
