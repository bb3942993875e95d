//! Answer to `GET /capacity`, for the routing layer.

use schemars::JsonSchema;
use serde::Serialize;

#[derive(Debug, Serialize, Hash, JsonSchema)]
pub(crate) struct Capacity {
    /// Time since when no request is in flight or queued; absent while one is.
    pub(crate) idle_since_unix_ms: Option<u64>,
    pub(crate) draining: bool,
    pub(crate) models: Vec<ModelCapacity>,
}

#[derive(Debug, Serialize, Hash, JsonSchema)]
pub(crate) struct ModelCapacity {
    pub(crate) name: String,
    pub(crate) state: &'static str,
    pub(crate) version: Option<String>,
    pub(crate) free_slots: u64,
    pub(crate) queued: u64,
    pub(crate) queue_limit: u64,
    /// A ready instance has its GPU memory on the card, so that a request is served at once.
    pub(crate) resident: bool,
    pub(crate) estimated_wait_ms: Option<u64>,
}
