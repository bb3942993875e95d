//! Files that show a control group's memory and processors in the formats of `/proc` and `/sys`, served over FUSE: of
//! one group, or, where several share a mount, of the reader's own ([`Groups`]).
//!
//! Used by `omni-worker` only: it makes the mount, attaches each [`File`] over its place inside the model's mount
//! namespace, and serves them from outside of that namespace and of the model's limits.
//!
//! ```no_run
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! use omni_meminfo_fs::{CgroupV2, Groups, Processors, Shown, View, prepare};
//!
//! let group = "/sys/fs/cgroup/model".as_ref();
//! let memory = CgroupV2::open(group, None)?;
//! let processors = Processors::open_v2(group, Shown::by_limit(1500)?, 1_800_000_000)?;
//! let (mount, connection) = prepare()?;
//! let server = connection.serve(Groups::new(View::new(memory, processors)))?;
//! mount.attach(c"/mnt")?; // in the model's mount namespace, and from there file by file
//! drop(mount); // here: or the file system outlives the model
//! server.join()?; // returns when the model's namespace is gone
//! # Ok(())
//! # }
//! ```
//!
//! Invariants:
//! - an open file shows one moment: its text is made at `open`, and reads only slice it;
//! - a reader never waits for a dead server: [`Server`] aborts the connection when it is dropped, and the kernel does
//!   so when the process that serves dies;
//! - a model's use of the server is bounded: at most [`OPEN_FILES_MAX`] snapshots of about 1 KiB, and the long text of
//!   `cpuinfo` once.
//!
//! Lines of each file, and what they guarantee: `docs/semantics-meminfo.md`.

mod cgroup;
mod filesystem;
mod groups;
mod mount;
mod processors;
mod render;
mod sample;
mod server;
mod snapshots;
mod view;

pub use cgroup::{CgroupV1, CgroupV2};
pub use groups::{Groups, name_in};
pub use mount::{Connection, DetachedMount, PrepareError, prepare};
pub use processors::{Processors, Shown};
pub use render::meminfo;
pub use sample::{MemorySample, MemorySource, SampleError};
pub use server::{JoinError, ServeError, Server};
pub use snapshots::OPEN_FILES_MAX;
pub use view::{File, View};
