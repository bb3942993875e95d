//! Time of day.

use std::time::{SystemTime, UNIX_EPOCH};

/// Milliseconds since the Unix epoch, for display and for persisted state. No timeout depends on it.
pub(crate) fn unix_ms() -> u64 {
    let since_epoch = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since_epoch.as_millis()).unwrap_or(u64::MAX)
}
