//! One file that shows a control group's memory in the format of `/proc/meminfo`, served over FUSE: that of one group,
//! or, where several share a mount, that of the reader's own ([`Groups`]).
//!
//! Called by `omni-worker` only: it makes the mount, attaches it over `/proc/meminfo` inside the model's mount
//! namespace, and serves it from outside of that namespace and of the model's memory limit.
//!
//! ```no_run
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! use omni_meminfo_fs::{CgroupV2, prepare};
//!
//! let source = CgroupV2::open("/sys/fs/cgroup/model".as_ref(), None)?;
//! let (mount, connection) = prepare()?;
//! let server = connection.serve(source)?;
//! mount.attach(c"/proc/meminfo")?; // in the model's mount namespace
//! drop(mount); // here: or the file system outlives the model
//! server.join()?; // returns when the model's namespace is gone
//! # Ok(())
//! # }
//! ```
//!
//! What always holds:
//! - an open file shows one moment: its text is made at `open`, and reads only slice it;
//! - a reader never waits for a dead server: [`Server`] aborts the connection when it is dropped, and the kernel does
//!   so when the process that serves dies;
//! - what a model can make this side hold is bounded: at most [`OPEN_FILES_MAX`] snapshots of about 1 KiB.
//!
//! The lines and what each promises: `docs/semantics-meminfo.md`.

mod cgroup;
mod filesystem;
mod groups;
mod mount;
mod render;
mod sample;
mod server;
mod snapshots;

pub use cgroup::{CgroupV1, CgroupV2};
pub use groups::{Groups, name_in};
pub use mount::{Connection, DetachedMount, PrepareError, prepare};
pub use render::render;
pub use sample::{MemorySample, MemorySource, SampleError};
pub use server::{JoinError, ServeError, Server};
pub use snapshots::OPEN_FILES_MAX;
