//! Paths of a model's files inside its sandbox.

/// The model's snapshot.
pub(super) const MODEL: &str = "/model";
/// The native engine.
pub(super) const NATIVE: &str = "/omni/omni-engine";
/// The model's cache directory, which outlasts its instances.
pub(super) const CACHE: &str = "/cache";
