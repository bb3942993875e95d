//! How many requests the holder of a token may make: at a time, and per second.
//!
//! A bucket that holds the requests of one second (one at least) and fills up again evenly. What always holds: a request
//! that is refused costs nothing.

use super::Moment;
use std::time::Duration;

/// What is allowed.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Limits {
    /// Requests at a time.
    pub in_flight: Option<u32>,
    /// Time for each request on average.
    pub interval: Option<Duration>,
}

/// What is used of it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Quota {
    in_flight: u32,
    /// When the bucket is full again.
    full: Moment,
}

/// Too much.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Over {
    /// As many requests as allowed are under way.
    InFlight,
    /// The bucket is empty.
    Rate {
        /// Until there is one in it.
        retry_after: Duration,
    },
}

impl Limits {
    /// Of a token's file.
    #[must_use]
    pub fn new(in_flight: Option<u32>, requests_per_second: Option<f64>) -> Self {
        Self { in_flight, interval: requests_per_second.map(|rate| Duration::from_secs_f64(1.0 / rate)) }
    }
}

impl Quota {
    /// Takes a request.
    ///
    /// # Errors
    /// [`Over`]
    pub fn admit(&mut self, limits: &Limits, now: Moment) -> Result<(), Over> {
        if limits.in_flight.is_some_and(|most| self.in_flight >= most) {
            return Err(Over::InFlight);
        }
        if let Some(interval) = limits.interval {
            let full = self.full.max(now) + interval;
            let bucket = interval.max(Duration::from_secs(1));
            let early = full.saturating_sub(now + bucket);
            if !early.is_zero() {
                return Err(Over::Rate { retry_after: early });
            }
            self.full = full;
        }
        self.in_flight += 1;
        Ok(())
    }

    /// Takes a request that was admitted before this began: it is one of those at a time, even of one too many, and costs
    /// nothing.
    pub fn take_over(&mut self) {
        self.in_flight = self.in_flight.saturating_add(1);
    }

    /// A request that was taken is over.
    pub fn done(&mut self) {
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
    fn a_second_s_worth_at_once_then_evenly() {
        let (limits, mut quota) = (Limits::new(None, Some(4.0)), Quota::default());
        for _ in 0..4 {
            quota.admit(&limits, ms(0)).unwrap();
        }
        assert_eq!(quota.admit(&limits, ms(0)), Err(Over::Rate { retry_after: ms(250) }));
        assert_eq!(quota.admit(&limits, ms(100)), Err(Over::Rate { retry_after: ms(150) }));
        quota.admit(&limits, ms(250)).unwrap();
        quota.admit(&limits, ms(250)).unwrap_err();
        (0..4).for_each(|_| quota.admit(&limits, ms(9000)).unwrap());
        quota.admit(&limits, ms(9000)).unwrap_err();
    }

    #[test]
    fn a_rate_below_one_lets_one_through() {
        let (limits, mut quota) = (Limits::new(None, Some(0.1)), Quota::default());
        quota.admit(&limits, ms(0)).unwrap();
        assert_eq!(quota.admit(&limits, ms(4000)), Err(Over::Rate { retry_after: ms(6000) }));
        quota.admit(&limits, ms(10_000)).unwrap();
    }

    #[test]
    fn so_many_at_a_time() {
        let (limits, mut quota) = (Limits::new(Some(2), None), Quota::default());
        (0..2).for_each(|_| quota.admit(&limits, ms(0)).unwrap());
        assert_eq!(quota.admit(&limits, ms(9)), Err(Over::InFlight));
        quota.done();
        quota.admit(&limits, ms(9)).unwrap();
        quota.take_over();
        quota.done();
        assert_eq!(quota.admit(&limits, ms(9)), Err(Over::InFlight), "there was one too many");
        assert_eq!(Quota::default().admit(&Limits::default(), ms(0)), Ok(()), "no limits");
    }

    #[test]
    fn what_was_admitted_before_costs_nothing() {
        let (limits, mut quota) = (Limits::new(None, Some(2.0)), Quota::default());
        (0..9).for_each(|_| quota.take_over());
        (0..2).for_each(|_| quota.admit(&limits, ms(0)).unwrap());
        quota.admit(&limits, ms(0)).unwrap_err();
    }

    proptest! {
        /// In any window no more than its length allows, and one second's worth.
        #[test]
        fn never_more_than_the_rate(gaps in prop::collection::vec(0_u64..400, 1..200), rate in 1_u32..20) {
            let (limits, mut quota, mut now, mut taken) = (Limits::new(None, Some(rate.into())), Quota::default(), 0, 0_u64);
            for gap in gaps {
                now += gap;
                taken += u64::from(quota.admit(&limits, ms(now)).is_ok());
                prop_assert!(taken * 1000 <= u64::from(rate) * (now + 1000) + 1000);
            }
        }
    }
}
