//! Control thread and moves: the shim in front of the simulated driver, with this test as the worker.
//!
//! Each test starts clients: this same program under `LD_PRELOAD`, which takes commands line by line ([`client`]).
//! Moved memory is read from the simulated card. Needs `cargo build -p omni-cuda -p omni-cuda-sim` to have been run:
//! both are loaded, not linked.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a failed step of a test is a failed test")]

mod calls;
mod client;
mod connection;
#[path = "../memory/instance.rs"]
#[allow(dead_code, reason = "shared with tests that use more of it")]
mod instance;
mod moves;
mod node;
mod races;

/// Entry point of a client: see [`client`].
#[test]
#[ignore = "started by the other tests"]
fn client() {
    client::run();
}
