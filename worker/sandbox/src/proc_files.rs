//! Files that show a control group as a machine, and the view of the group that they are served from.

use omni_cgroup::CgroupPaths;
use omni_meminfo_fs::{CgroupV1, CgroupV2, Processors, SampleError, Shown, View};
use std::os::fd::BorrowedFd;
use std::time::{SystemTime, UNIX_EPOCH};

/// Files that show a control group as a machine, and what is not a file of that.
#[derive(Debug, Clone, Copy)]
pub struct ProcFiles<'a> {
    /// The mount with the files, attached nowhere. Somebody must serve it from the clone on: the new process looks into it.
    pub mount: BorrowedFd<'a>,
    /// The processors whose directories appear in `/sys`.
    pub processors: &'a [u32],
}

/// A control group as its processes see it, with this much memory and these processors.
///
/// # Errors
/// When a file of the group cannot be read.
pub fn cgroup_view(group: &CgroupPaths, memory: u64, processors: Shown) -> Result<View, SampleError> {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
    Ok(match group {
        CgroupPaths::V1 { memory: dir, cpuacct, .. } => {
            View::new(CgroupV1::open(dir, Some(memory))?, Processors::open_v1(cpuacct, processors, now)?)
        }
        CgroupPaths::V2 { dir } => {
            View::new(CgroupV2::open(dir, Some(memory))?, Processors::open_v2(dir, processors, now)?)
        }
    })
}
