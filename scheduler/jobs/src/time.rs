//! Points in time. Pure.

use std::time::Duration;

/// Milliseconds since the Unix epoch. The store never asks what time it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct UnixMillis(pub u64);

impl UnixMillis {
    /// Later time.
    #[must_use]
    pub fn after(self, span: Duration) -> Self {
        Self(self.0.saturating_add(u64::try_from(span.as_millis()).unwrap_or(u64::MAX)))
    }

    /// Time from an earlier one to this one; zero if that one is later.
    #[must_use]
    pub fn since(self, earlier: Self) -> Duration {
        Duration::from_millis(self.0.saturating_sub(earlier.0))
    }

    /// Whole seconds, the form of the OpenAI API.
    #[must_use]
    pub fn seconds(self) -> u64 {
        self.0 / 1000
    }
}
