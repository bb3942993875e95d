//! The shim beside the driver alone: a program gets the same answers, call by call, and the account has exactly what
//! the program holds.
//!
//! Each test starts clients: this same program, with a scenario from its environment ([`client`]), once under the shim
//! and once without. Needs `cargo build -p omni-cuda -p omni-cuda-sim` to have been run: both are loaded, not linked.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a failed step of a test is a failed test")]

mod calls;
mod client;
#[path = "../memory/instance.rs"]
#[allow(dead_code, reason = "shared with tests that use more of it")]
mod instance;
mod random;
mod sequences;
mod steps;
mod surroundings;
mod table;
mod world;

/// Entry point of a client: see [`client`].
#[test]
#[ignore = "started by the other tests"]
fn client() {
    client::run();
}
