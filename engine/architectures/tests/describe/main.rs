//! Descriptions of well-known models, and what is refused.

#![allow(missing_docs, clippy::expect_used, clippy::panic, reason = "a test's helpers end it")]

mod config;
mod files;
mod gguf;
mod mutations;
mod real;
mod sources;
mod summary;
