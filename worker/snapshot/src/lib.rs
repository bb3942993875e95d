//! Snapshots: root-owned, read-only copies of model directories, named by their content.
//!
//! Called by the launcher only. Authors write the models folder while the node reads it, so nothing runs from there: an
//! instance sees a copy, taken by descriptor and never through a link that leads out. What always holds:
//! - A snapshot that [`Store::take`] returned is complete and consistent: the directory did not change while it was
//!   copied, and it has regular files, directories and inside links only, within its bounds.
//! - Equal directories have equal digests ([`digest`] says how they are made); a digest in the store never changes.
//! - What is refused is refused before its content is read, with the path inside the directory and what to do.

mod copy;
pub mod digest;
mod error;
mod store;
mod tree;

pub use error::SnapshotError;
pub use store::{Snapshot, Store};
pub use tree::{Fingerprint, Limits};
