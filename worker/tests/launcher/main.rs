//! `omni-launcher` for real, as root: driven over its socket as a scheduler would, with the sandbox, control groups, uv and
//! the package index behind it.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a failed step fails the test")]

mod dead_mount;
mod environments;
mod gpu;
mod gpu_driver;
mod instances;
mod models;
mod node;
mod watcher;
mod zygotes;
