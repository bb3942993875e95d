//! Graphs: nodes that are done when the graph is launched, in an order that their dependencies allow.
//!
//! Copies, fills and functions of the host are done for real, kernels and events do nothing. Memory nodes take their
//! bytes of the card at a launch, out of what the device keeps for its graphs: that grows as it must, and shrinks by
//! `cuDeviceGraphMemTrim` only, as documented. Addresses stay the same from launch to launch.

pub(crate) mod add;
pub(crate) mod ask;
pub(crate) mod launch;
mod memory;
mod table;

pub(crate) use memory::{SYMBOLS, free};
pub(crate) use table::captured;
