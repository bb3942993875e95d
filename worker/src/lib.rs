//! The privileged side of a node. Two programs share this library: `omni-launcher` (one per node) and `omni-worker`
//! (one per instance). Only this crate clones, mounts and executes; nothing in it reads from the network.

pub mod launcher;
mod pidfd;
pub mod process;
pub mod sandbox;
pub mod spec;
