//! Shared parts of end-to-end tests: a node of their own, a plain HTTP client, and the check that nothing is left
//! behind.
//!
//! Tests know the node only from outside: its programs, its listeners, `omnictl`, and the kernel's own lists of
//! processes, mounts and control groups. They run as root and start real sandboxes.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a failed step of a test is a failed test")]

pub mod browser;
mod builder;
pub mod clients;
mod disk;
pub mod fault;
pub mod gpu;
mod http;
pub mod index;
mod launcher;
mod leftovers;
mod load;
mod models;
pub mod neighbour;
mod node;
pub mod noise;
mod pattern;
pub mod probe;
pub mod process;
mod program;
mod receiver;
mod resources;
mod setup;
mod wait;

pub use builder::NodeBuilder;
pub use disk::Disk;
pub use http::{Answer, Client, Stream};
pub use load::under_load;
pub use models::SERIAL;
pub use node::{Node, Output};
pub use pattern::{crc32, pattern};
pub use program::{program, python};
pub use receiver::Receiver;
pub use resources::Resources;
pub use wait::{PATIENCE, SetOnDrop, chance, is_soak, rounds, wait_for};
