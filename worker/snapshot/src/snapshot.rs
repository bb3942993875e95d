//! Snapshot of one model: its digest, its manifest and the state of the directory that it was taken of.

use crate::tree::Fingerprint;
use omni_node_protocol::id::SnapshotDigest;

/// A model's directory as it was at one moment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Snapshot {
    /// Digest of the content, and the name in the store.
    pub digest: SnapshotDigest,
    /// The text of its `omni.toml`, when it has one.
    pub manifest: Option<String>,
    /// The state in which the directory was, for the next [copy](crate::Copier::copy).
    pub fingerprint: Fingerprint,
}
