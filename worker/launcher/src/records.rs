//! Records by which a later launcher finds the workers of an earlier one.

use super::running::Running;
use nix::unistd::Pid;
use omni_node_protocol::id::SnapshotDigest;
use omni_process::pidfd;
use omni_weights::Digest;
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
    /// Set of fetched weights that it has mounted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) weights: Option<Digest>,
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

#[cfg(test)]
mod tests {
    use super::*;

    /// An instance with a record that cannot be read is ended.
    #[test]
    fn records_with_and_without_weights_are_read() {
        let worker = RecordedWorker::of(Pid::this()).unwrap();
        let digest = |digit: &str| digit.repeat(64);
        let (snapshot, set) = (SnapshotDigest::parse(&digest("a")).unwrap(), Digest::parse(&digest("5")).unwrap());
        let record = InstanceRecord { worker, uid: 7, model: "m".to_owned(), snapshot, weights: Some(set) };
        let mut text = serde_json::to_value(&record).unwrap();
        assert_eq!(serde_json::from_value::<InstanceRecord>(text.clone()).unwrap(), record);
        text.as_object_mut().unwrap().remove("weights");
        assert_eq!(serde_json::from_value::<InstanceRecord>(text).unwrap(), InstanceRecord { weights: None, ..record });
    }
}
