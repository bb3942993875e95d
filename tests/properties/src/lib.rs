//! Properties of foreign bytes, each as a function of bytes that panics when it is violated.
//!
//! Called by the fuzz targets in `fuzz/`, which make the bytes up, and by `tests/kept.rs`, which goes through all that
//! was worth keeping: a flaw that the fuzzer found stays found. Invariant: a function depends on its bytes alone, and
//! leaves nothing behind.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a property that is broken is a panic")]

pub mod answer;
pub mod chat_template;
mod checkpoint;
pub mod gguf;
pub mod gpu_account;
pub mod gpu_control;
pub mod http;
pub mod manifest;
mod memory;
pub mod messages;
mod model;
pub mod model_config;
pub mod node;
mod refusal;
pub mod request_bodies;
pub mod requirements;
pub mod safetensors;
mod scheduler;
mod sentence;
pub mod tokenizer;
pub mod tool_calls;

/// A property of bytes.
pub type Property = fn(&[u8]);

/// All of them, by the name of their fuzz target.
pub const ALL: [(&str, Property); 15] = [
    ("answer", answer::holds),
    ("chat_template", chat_template::holds),
    ("gguf", gguf::holds),
    ("gpu_account", gpu_account::holds),
    ("gpu_control", gpu_control::holds),
    ("http", http::holds),
    ("manifest", manifest::holds),
    ("messages", messages::holds),
    ("model_config", model_config::holds),
    ("node", node::holds),
    ("request_bodies", request_bodies::holds),
    ("requirements", requirements::holds),
    ("safetensors", safetensors::holds),
    ("tokenizer", tokenizer::holds),
    ("tool_calls", tool_calls::holds),
];
