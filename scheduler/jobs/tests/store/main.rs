//! The store as its callers see it: stories of batches, killed processes, lost power, bounded memory.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a failed step of a test is a failed test")]

mod bounds;
mod ends;
mod files;
mod killed;
mod memory;
mod properties;
mod stories;
mod support;
