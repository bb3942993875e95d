//! Snapshots of model directories.
