//! Weights that a node fetches: what the launcher asks of the downloader, what that reports, and the cache of what it
//! fetched.
//!
//! The downloader (`omni-weights`, in `downloader/`) is a program of its own: without privileges, in a sandbox, with the
//! host's network. The launcher has none; it names the source, and takes the files over when the downloader has ended.
//!
//! | module | content |
//! | --- | --- |
//! | `order` | the source, its digests and the rules of the node, for the downloader |
//! | `report` | lines of the downloader, and its list of fetched files |
//! | `digest` | SHA-256 as text, which is a file's name in the cache |
//! | `cache` | files by content, sets of files, which set a model's content uses |
//! | `eviction` | which sets go when there is no room |
//!
//! Invariants: a file of the cache is root's, read-only and never changes; equal contents are one file; a set with a record is
//! complete; no set that an instance uses is removed.
#![forbid(unsafe_code)]

mod cache;
mod digest;
mod eviction;
mod order;
mod report;

pub use cache::{Cache, CacheError, Work, on_disk};
pub use digest::{BadDigest, Digest};
pub use eviction::{Shortage, StoredSet};
pub use order::{FILES, ORDER, Order, SECRET, WORK};
pub use report::{FETCHED, Fetched, FetchedFile, MOST_FILES, Report, nested};
