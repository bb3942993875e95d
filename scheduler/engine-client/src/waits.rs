//! Waits of requests for their instances: for its start, and for its GPU memory.

use std::time::{Duration, Instant};

/// A period of time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Period {
    /// Beginning.
    pub from: Instant,
    /// End.
    pub until: Instant,
}

/// Start of an instance, as far as this scheduler has waited for it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct StartTimes {
    /// From the request for the environment of its version to the environment.
    pub environment: Option<Period>,
    /// From the request for the instance to its readiness.
    pub instance: Option<Period>,
}

/// An instance's wait for its GPU memory to be on the card.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Swap {
    /// First request that waited.
    pub from: Instant,
    /// The grant.
    pub until: Instant,
}

impl Swap {
    /// Part of the wait that a request submitted at `submitted` spent waiting.
    #[must_use]
    pub fn overlap_since(&self, submitted: Instant) -> Duration {
        self.until.saturating_duration_since(self.from.max(submitted))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_waits_for_the_rest_of_a_swap_that_is_under_way() {
        let from = Instant::now();
        let at = |seconds| from + Duration::from_secs(seconds);
        let swap = Swap { from, until: at(5) };
        for (submitted, waited) in [(from, 5), (at(2), 3), (at(5), 0), (at(9), 0)] {
            assert_eq!(swap.overlap_since(submitted), Duration::from_secs(waited));
        }
        assert_eq!(Swap { from: at(2), until: at(5) }.overlap_since(from), Duration::from_secs(3));
    }
}
