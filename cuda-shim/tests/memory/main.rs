//! The shim in front of the simulated driver: limit, accounting and reports, in real processes under `LD_PRELOAD`.
//!
//! Each test starts clients: this same program, with a scenario from its environment ([`client`]). Their memory is read
//! from outside, as the worker reads it, from the accounting file, and compared with the simulated card's. Needs `cargo
//! build -p omni-cuda -p omni-cuda-sim` to have been run: both are loaded, not linked.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a failed step of a test is a failed test")]

mod alike;
mod answers;
mod calls;
mod client;
mod deaths;
mod entries;
mod graphs;
mod imports;
mod instance;
mod kinds;
mod processes;
mod races;
mod settings;
mod streams;

/// Entry point of a client: see [`client`].
#[test]
#[ignore = "started by the other tests"]
fn client() {
    client::run();
}
