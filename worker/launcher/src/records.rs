//! Records by which a later launcher finds the workers of an earlier one.

use super::running::Running;
use nix::unistd::Pid;
use omni_node_protocol::id::SnapshotDigest;
use omni_process::pidfd;
use serde::{Deserialize, Serialize};
use std::io::{self, ErrorKind};

/// `<runtime-dir>/instances/<id>.json`. Control groups are not in it: their names follow from the id.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct InstanceRecord {
    #[serde(flatten)]
    pub(super) worker: RecordedWorker,
    pub(super) uid: u32,
    pub(super) model: String,
    pub(super) snapshot: SnapshotDigest,
}

/// A worker's process as a record names it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct RecordedWorker {
    worker_pid: i32,
    /// With the id the name of one process and no other.
    started_ticks: u64,
}

impl RecordedWorker {
    /// The name of a process that is there now.
    pub(super) fn of(pid: Pid) -> io::Result<Self> {
        let started_ticks = pidfd::started_ticks(pid).ok_or(ErrorKind::NotFound)?;
        Ok(Self { worker_pid: pid.as_raw(), started_ticks })
    }

    /// The worker, when it is still the process that was recorded.
    pub(super) fn find(&self) -> Option<Running> {
        let pid = Pid::from_raw(self.worker_pid);
        let pidfd = pidfd::open(pid).ok()?;
        // After the descriptor is open: the number cannot come to mean another process any more.
        (pidfd::started_ticks(pid) == Some(self.started_ticks)).then_some(Running { pid, pidfd })
    }
}
