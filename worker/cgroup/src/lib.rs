//! Control groups of instances.

use serde::{Deserialize, Serialize};
use std::path::PathBuf;

/// Directories of one control group, whatever the layout of the host.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "version", rename_all = "kebab-case")]
pub enum CgroupPaths {
    /// One directory in the unified tree.
    V2 {
        /// For example `/sys/fs/cgroup/omni/<id>/model`.
        dir: PathBuf,
    },
    /// One directory per controller, and one in the hybrid layout's controller-less v2 tree when that is mounted
    /// (it gives `CLONE_INTO_CGROUP` and `cgroup.kill`, but no limits).
    V1 {
        /// For example `/sys/fs/cgroup/memory/omni/<id>/model`.
        memory: PathBuf,
        /// The same below `pids`.
        pids: PathBuf,
        /// The same below `cpu`.
        cpu: PathBuf,
        /// The same below `cpuacct`; may be the same hierarchy as `cpu`.
        cpuacct: PathBuf,
        /// The same below `unified`.
        unified: Option<PathBuf>,
    },
}
