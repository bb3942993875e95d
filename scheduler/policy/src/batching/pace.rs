//! Time of a batch by its size: `fixed + each × requests`, fitted to the last batches.

use crate::Moment;
use std::time::Duration;

/// Weight of the newest batch in the averages: 1 in so many.
const SAMPLES: f64 = 16.0;
/// Least variance of sizes from which the two parts of the time can be told apart.
const LEAST_VARIANCE: f64 = 0.05;
/// Share of the time that counts as fixed while all batches have the same size.
const ASSUMED_FIXED: f64 = 0.5;

/// Exponentially weighted averages of sizes and times, and of their products. Times in seconds.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Pace {
    batches: u32,
    size: f64,
    time: f64,
    variance: f64,
    covariance: f64,
}

impl Pace {
    /// Adds a batch.
    pub(super) fn add(&mut self, requests: usize, took: Duration) {
        self.batches = self.batches.saturating_add(1);
        let weight = 1.0 / f64::from(self.batches).min(SAMPLES);
        let (size, time) = (requests as f64 - self.size, took.as_secs_f64() - self.time);
        self.size += weight * size;
        self.time += weight * time;
        self.variance = (1.0 - weight) * (self.variance + weight * size * size);
        self.covariance = (1.0 - weight) * (self.covariance + weight * size * time);
    }

    /// Part of a batch's time that does not depend on its size.
    pub(super) fn fixed(&self) -> Moment {
        Duration::from_secs_f64(self.parts().0)
    }

    /// Time that a batch of this size takes.
    pub(super) fn time(&self, requests: usize) -> Duration {
        let (fixed, each) = self.parts();
        Duration::from_secs_f64(fixed + each * requests as f64)
    }

    /// Fixed time and time for each request, in seconds; neither is negative.
    fn parts(&self) -> (f64, f64) {
        let each = if self.variance < LEAST_VARIANCE {
            self.time * (1.0 - ASSUMED_FIXED) / self.size.max(1.0)
        } else {
            (self.covariance / self.variance).clamp(0.0, self.time / self.size.max(1.0))
        };
        ((self.time - each * self.size).max(0.0), each)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_two_parts_of_the_time_are_told_apart() {
        let mut pace = Pace::default();
        for requests in [1, 4, 16, 3, 9, 12, 2, 30] {
            pace.add(requests, Duration::from_micros(5000 + 200 * requests as u64));
        }
        assert!(pace.fixed().abs_diff(Duration::from_millis(5)) < Duration::from_micros(10), "{pace:?}");
        assert!(pace.time(64).abs_diff(Duration::from_micros(17_800)) < Duration::from_micros(100), "{pace:?}");
    }

    #[test]
    fn times_are_never_negative() {
        let mut pace = Pace::default();
        assert_eq!((pace.fixed(), pace.time(8)), (Duration::ZERO, Duration::ZERO));
        for (requests, millis) in [(1, 30), (30, 1), (15, 2), (2, 25)] {
            pace.add(requests, Duration::from_millis(millis));
        }
        assert!(pace.time(100) < Duration::from_millis(30), "{pace:?}");
    }
}
