//! Daemon of a node: HTTP, routing, lifecycle of models, metrics, control API. Unprivileged: what needs root is done by the launcher and
//! the workers, which get commands over Unix sockets.

mod allocator;
mod announcement;
pub mod args;
pub mod exposure;
pub mod serve;
mod service;
mod single;
pub mod startup;
pub mod traces;
pub mod usage;
