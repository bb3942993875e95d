//! Throttles: limits on instances that take a shared resource without end, so that the others do not feel it.
//!
//! Each has a thread of the launcher that looks four times a second, and a pure policy of its own.

pub(crate) mod disks;
pub(crate) mod processors;
