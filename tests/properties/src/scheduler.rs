//! Surroundings of the scheduler's parts: a runtime, and the content of a model.

use omni_config::{ModelName, NodeConfig};
use omni_node_protocol::id::SnapshotDigest;
use omni_supervisor::model::content::Content;
use std::sync::Arc;
use tokio::runtime::{Builder, Runtime};

thread_local! {
    /// Runtime of this thread: its tasks run while something is waited for.
    pub(crate) static RUNTIME: Runtime = Builder::new_current_thread().enable_all().build().expect("a runtime");
}

/// A model with this manifest.
pub(crate) fn content(manifest: &str) -> Arc<Content> {
    let name: ModelName = "m".parse().expect("a name");
    let snapshot = SnapshotDigest::parse(&"0".repeat(64)).expect("a digest");
    Arc::new(Content::parse(&name, snapshot, Some(manifest.to_owned()), &NodeConfig::default()).expect("a manifest"))
}
