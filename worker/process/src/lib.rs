//! Processes by descriptor, and programs that run from sealed memory. Shared by the privileged programs of a node.

pub mod pidfd;
mod sealed;

pub use sealed::SealedProgram;
