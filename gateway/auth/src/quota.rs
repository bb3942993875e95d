//! Quota of a token: requests in flight, and requests per second as a token bucket. Pure.
//!
//! The bucket holds the requests of one second, at least one, and refills evenly. Invariant: a refused request costs nothing.

use std::time::Duration;

/// A moment, as time since the process started.
type Moment = Duration;

/// Limits of a token.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct QuotaLimits {
    /// Requests in flight.
    pub(crate) in_flight: Option<u32>,
    /// Average time between requests.
    pub(crate) interval: Option<Duration>,
}

/// Use of the limits so far.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Quota {
    in_flight: u32,
    /// When the bucket is full again.
    full_at: Moment,
}

/// Refusal of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum QuotaExceeded {
    /// As many requests in flight as allowed.
    InFlight,
    /// Empty bucket.
    Rate {
        /// Time until the next request is admitted.
        retry_after: Duration,
    },
}

impl QuotaLimits {
    pub(crate) fn new(in_flight: Option<u32>, requests_per_second: Option<f64>) -> Self {
        Self { in_flight, interval: requests_per_second.map(|rate| Duration::from_secs_f64(1.0 / rate)) }
    }
}

impl Quota {
    /// Admits a request, or refuses it at no cost.
    pub(crate) fn admit(&mut self, limits: &QuotaLimits, now: Moment) -> Result<(), QuotaExceeded> {
        if limits.in_flight.is_some_and(|most| self.in_flight >= most) {
            return Err(QuotaExceeded::InFlight);
        }
        if let Some(interval) = limits.interval {
            let full = self.full_at.max(now) + interval;
            let bucket = interval.max(Duration::from_secs(1));
            let early = full.saturating_sub(now + bucket);
            if !early.is_zero() {
                return Err(QuotaExceeded::Rate { retry_after: early });
            }
            self.full_at = full;
        }
        self.in_flight += 1;
        Ok(())
    }

    /// Counts a request that the previous process has admitted: it is in flight, even beyond the limit, and takes nothing from the
    /// bucket.
    pub(crate) fn admit_forwarded(&mut self) {
        self.in_flight = self.in_flight.saturating_add(1);
    }

    /// Ends a request that was admitted.
    pub(crate) fn release(&mut self) {
        self.in_flight = self.in_flight.saturating_sub(1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const fn ms(time: u64) -> Duration {
        Duration::from_millis(time)
    }

    #[test]
    fn a_burst_is_one_second_of_requests_then_evenly() {
        let (limits, mut quota) = (QuotaLimits::new(None, Some(4.0)), Quota::default());
        for _ in 0..4 {
            quota.admit(&limits, ms(0)).unwrap();
        }
        assert_eq!(quota.admit(&limits, ms(0)), Err(QuotaExceeded::Rate { retry_after: ms(250) }));
        assert_eq!(quota.admit(&limits, ms(100)), Err(QuotaExceeded::Rate { retry_after: ms(150) }));
        quota.admit(&limits, ms(250)).unwrap();
        quota.admit(&limits, ms(250)).unwrap_err();
        (0..4).for_each(|_| quota.admit(&limits, ms(9000)).unwrap());
        quota.admit(&limits, ms(9000)).unwrap_err();
    }

    #[test]
    fn a_rate_below_one_admits_one_request() {
        let (limits, mut quota) = (QuotaLimits::new(None, Some(0.1)), Quota::default());
        quota.admit(&limits, ms(0)).unwrap();
        assert_eq!(quota.admit(&limits, ms(4000)), Err(QuotaExceeded::Rate { retry_after: ms(6000) }));
        quota.admit(&limits, ms(10_000)).unwrap();
    }

    #[test]
    fn requests_in_flight_are_bounded() {
        let (limits, mut quota) = (QuotaLimits::new(Some(2), None), Quota::default());
        (0..2).for_each(|_| quota.admit(&limits, ms(0)).unwrap());
        assert_eq!(quota.admit(&limits, ms(9)), Err(QuotaExceeded::InFlight));
        quota.release();
        quota.admit(&limits, ms(9)).unwrap();
        quota.admit_forwarded();
        quota.release();
        assert_eq!(quota.admit(&limits, ms(9)), Err(QuotaExceeded::InFlight), "one above the limit was in flight");
        assert_eq!(Quota::default().admit(&QuotaLimits::default(), ms(0)), Ok(()), "no limits");
    }

    #[test]
    fn a_forwarded_request_takes_nothing_from_the_bucket() {
        let (limits, mut quota) = (QuotaLimits::new(None, Some(2.0)), Quota::default());
        (0..9).for_each(|_| quota.admit_forwarded());
        (0..2).for_each(|_| quota.admit(&limits, ms(0)).unwrap());
        quota.admit(&limits, ms(0)).unwrap_err();
    }

    proptest! {
        /// No window admits more than its length allows plus the requests of one second.
        #[test]
        fn the_rate_is_never_exceeded(gaps in prop::collection::vec(0_u64..400, 1..200), rate in 1_u32..20) {
            let (limits, mut quota, mut now, mut taken) = (QuotaLimits::new(None, Some(rate.into())), Quota::default(), 0, 0_u64);
            for gap in gaps {
                now += gap;
                taken += u64::from(quota.admit(&limits, ms(now)).is_ok());
                prop_assert!(taken * 1000 <= u64::from(rate) * (now + 1000) + 1000);
            }
        }
    }
}
