//! Models of a node. One actor owns each model, over all its versions and instances; [`Node`] is the set of them, fed by
//! the launcher's reports, and what a predecessor left and a successor gets.
//!
//! HTTP, the control API and the life of the daemon are built on the handles [`Node`] and [`Model`](model::Model), and
//! decide nothing about instances.
#![forbid(unsafe_code)]

pub mod clock;
mod engine_metrics;
pub mod latency;
pub mod metrics;
pub mod model;
pub mod node;

pub use node::Node;
