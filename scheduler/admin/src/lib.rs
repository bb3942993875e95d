//! Administration of a node: the admin listener (health, metrics, capacity, the node's page), and the control API on its socket.
#![forbid(unsafe_code)]

mod capacity;
pub mod control;
pub mod control_socket;
mod jobs_metrics;
mod metrics;
pub mod monitoring;
mod openapi;
mod page;
mod resource_use;
mod traces_metrics;
mod usage_metrics;

pub use metrics::Metrics;
pub use page::Page;
