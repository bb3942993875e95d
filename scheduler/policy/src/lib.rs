//! Decisions of the scheduler as pure functions over plain values: no clock, no I/O, no runtime; `now` is an argument.
//!
//! Callers convert the types of protocols and APIs at the edge; this crate depends on `std` alone.

#![forbid(unsafe_code)]

pub mod backoff;
pub mod batching;
pub mod capacity;
pub mod deadlines;
pub mod dispatch;
pub mod fleet;
pub mod intake;
pub mod liveness;
pub mod residency;
pub mod scaling;
pub mod single;
pub mod versions;

/// Point in time, as the time since the scheduler started.
pub type Moment = std::time::Duration;

/// Time in nanoseconds, which is cheaper to compute with; sufficient for centuries.
fn nanos(time: Moment) -> u64 {
    time.as_nanos() as u64
}

/// Content of a model's directory, numbered by the model's actor in the order of discovery; unique for its life.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Generation(pub u32);

/// Instance of a model, numbered in the order of starts and adoptions; unique for the life of the model's actor.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct InstanceNumber(pub u32);
