//! What the node decides: pure functions over plain values. No clock, no I/O, no runtime; `now` is an argument.

pub mod backoff;
pub mod dispatch;
pub mod lifecycle;
pub mod residency;

/// A moment, as time since the scheduler started.
pub type Moment = std::time::Duration;
