//! Behaviours of the batcher with a backend whose tokens depend on the content of every block, and whose clock is
//! simulated. Numbers of tests are those of the list of behaviours.
#![allow(clippy::expect_used, clippy::panic, reason = "a test stops at the first surprise")]

mod choices;
mod drafts;
mod endings;
mod engine;
mod prefixes;
mod pressure;
mod schedules;
mod times;
