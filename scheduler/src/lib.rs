//! The daemon of a node: HTTP in, routing, lifecycle, metrics, control API.
pub mod policy;
