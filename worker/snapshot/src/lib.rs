//! Snapshots: root-owned, read-only copies of model directories, named by their content.
//!
//! The launcher takes them; `omnictl deploy` copies by the same rules before it publishes. Authors write the models
//! folder while the node reads it, so nothing runs from there: an instance sees a copy, taken by descriptor and never
//! through a link that leads out.
//!
//! Invariants:
//! - A snapshot that was [copied](Copier::copy) is complete and consistent: the directory did not change while it was
//!   copied, and it has regular files, directories and inside links only, within its bounds.
//! - Equal directories have equal digests ([`digest`] defines them); a digest in the store never changes.
//! - Equal files of all snapshots are one file on the disk ([`Store`] has their contents in `.files`), and a large file
//!   that has not changed is not read again.
//! - A refused directory is refused before its content is read, with the path inside the directory and what to do.

pub mod beneath;
mod content;
mod copier;
mod copy;
pub mod digest;
mod error;
mod file;
mod lasting;
mod layout;
mod links;
mod progress;
mod room;
mod snapshot;
mod sources;
mod status;
mod store;
mod tree;
mod verify;

pub use copier::{Copier, Fresh};
pub use copy::{check_directory, copy_directory};
pub use error::{SILENT, SnapshotError};
pub use lasting::flush;
pub use links::is_followed;
pub use progress::Progress;
pub use snapshot::Snapshot;
pub use store::Store;
pub use tree::{Fingerprint, Limits};
