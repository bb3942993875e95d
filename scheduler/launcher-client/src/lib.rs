//! The scheduler's end of the launcher's socket: a handle for models and the node, and one task that keeps the
//! connection.
//!
//! The launcher may start later than the scheduler and may be restarted at any time; running models are not affected.
//! Requests wait in a bounded outbox; while that is full or the launcher is not connected, they are refused at once.
//! Replies go to the models as [`ModelEvent`]s, everything else to the node as [`LauncherEvent`]s.
#![forbid(unsafe_code)]

mod configuration;
mod connection;
mod error;
mod events;
mod handle;
mod metrics;
mod quit;
mod routes;

pub use error::LauncherError;
pub use events::{LauncherEvent, ModelEvent};
pub use handle::{EnvironmentRequest, LauncherHandle};
pub use metrics::PreparationMetrics;
pub use routes::NodeFiles;

/// Handle whose messages a test receives.
#[cfg(any(test, feature = "testing"))]
pub mod testing {
    pub use crate::handle::testing::launcher;
}

#[cfg(test)]
mod tests;
