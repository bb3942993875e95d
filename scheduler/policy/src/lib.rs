//! What the node decides: pure functions over plain values. No clock, no I/O, no runtime; `now` is an argument.

#![forbid(unsafe_code)]

pub mod backoff;
pub mod capacity;
pub mod dispatch;
pub mod fleet;
pub mod intake;
pub mod liveness;
pub mod residency;
pub mod scaling;
pub mod single;

/// A moment, as time since the scheduler started.
pub type Moment = std::time::Duration;

/// A moment or a duration in nanoseconds, which is cheaper to reckon with; it fits for centuries.
fn nanos(time: Moment) -> u64 {
    time.as_nanos() as u64
}

/// One content of a model's directory, numbered by the model's task as contents are first seen; unique for its life.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Generation(pub u32);

/// An instance of a model, numbered as they are started or found; unique for the life of the model's task.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct InstanceNumber(pub u32);
