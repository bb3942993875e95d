//! Simulated time.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// Time since the start. Clones share it.
#[derive(Debug, Clone, Default)]
pub struct Clock {
    nanos: Arc<AtomicU64>,
}

impl Clock {
    /// Time since the start.
    #[must_use]
    pub fn now(&self) -> Duration {
        Duration::from_nanos(self.nanos.load(Ordering::Relaxed))
    }

    /// Lets time pass.
    pub fn advance(&self, by: Duration) {
        self.nanos.fetch_add(u64::try_from(by.as_nanos()).unwrap_or(u64::MAX), Ordering::Relaxed);
    }
}

/// Time of a step, as a sum.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Cost {
    /// Reading the weights, once.
    pub step: Duration,
    /// Computing one token.
    pub token: Duration,
    /// Attention of one token to a thousand positions.
    pub thousand_positions: Duration,
}

impl Cost {
    /// Time of a step of so many tokens, which attend to so many positions together. A token that goes through half of
    /// the layers counts half.
    #[must_use]
    pub fn of(&self, tokens: f64, positions: f64) -> Duration {
        self.step + self.token.mul_f64(tokens) + self.thousand_positions.mul_f64(positions / 1000.0)
    }
}
