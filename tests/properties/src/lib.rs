//! Properties of foreign bytes, each as a function of bytes that panics when it is violated.
//!
//! Called by the fuzz targets in `fuzz/`, which make the bytes up, and by `tests/kept.rs`, which goes through all that
//! was worth keeping: a flaw that the fuzzer found stays found. Invariant: a function depends on its bytes alone, and
//! leaves nothing behind.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a property that is broken is a panic")]

pub mod answer;
pub mod chat_template;
pub mod gpu_account;
pub mod gpu_control;
pub mod http;
pub mod manifest;
pub mod messages;
pub mod node;
mod refusal;
pub mod request_bodies;
pub mod requirements;
mod scheduler;
pub mod tool_calls;

/// A property of bytes.
pub type Property = fn(&[u8]);

/// All of them, by the name of their fuzz target.
pub const ALL: [(&str, Property); 11] = [
    ("answer", answer::holds),
    ("chat_template", chat_template::holds),
    ("gpu_account", gpu_account::holds),
    ("gpu_control", gpu_control::holds),
    ("http", http::holds),
    ("manifest", manifest::holds),
    ("messages", messages::holds),
    ("node", node::holds),
    ("request_bodies", request_bodies::holds),
    ("requirements", requirements::holds),
    ("tool_calls", tool_calls::holds),
];
