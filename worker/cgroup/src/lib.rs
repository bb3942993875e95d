//! Control groups of instances: creation, limits read back, out-of-memory events, kill, use.
//!
//! The launcher makes and removes groups through a [`Driver`]; a worker opens its model's [`Group`] to join, kill and
//! measure it, and an [`OomWatch`] to tell an out-of-memory kill from every other end.
//!
//! Invariants:
//! - A group that [`Driver::create`] returned has every limit: each one was read back from a file whose file system was
//!   checked. After a failure nothing of it is left.
//! - Nothing outside the driver's parent group is ever changed, but for enabling controllers on the way down to it, in
//!   a container for room that this needs, and on v1 for the write speed of a device that is a model's alone.
//! - Every wait has an end.
//!
//! `cgroups-rs` writes the limits. It drops errors of single files and takes any directory for a cgroup, so this crate
//! makes the directories, checks them and reads back; and it has no kill, no v2 events and no descriptors to spawn
//! into.

mod bus;
mod cgroupfs;
mod claim;
mod cpu_set;
mod cpu_share;
mod disk_share;
mod driver;
mod drivers;
mod error;
mod file;
mod group;
mod hierarchy;
mod limits;
mod members;
mod mounts;
mod name;
mod oom;
mod own_root;
mod paths;
mod place;
mod placeholder;
mod stats;
mod systemd;
mod units;

pub use cgroupfs::Cgroupfs;
pub use claim::Claim;
pub use cpu_set::CpuSet;
pub use cpu_share::CpuShare;
pub use disk_share::DiskShare;
pub use driver::Driver;
pub use drivers::{Drivers, Wanted};
pub use error::Error;
pub use group::Group;
pub use limits::Limits;
pub use name::{GroupName, Part};
pub use oom::OomWatch;
pub use paths::CgroupPaths;
pub use stats::{Stats, Usage};
