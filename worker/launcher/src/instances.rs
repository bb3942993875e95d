//! The instances of this node: which live, and the traces by which a later launcher finds them.

use super::start::Running;
use super::uids::UidSlots;
use nix::unistd::Pid;
use omni_dir::Dir;
use omni_node_protocol::exit::ExitCause;
use omni_node_protocol::id::{InstanceId, SnapshotDigest};
use omni_process::pidfd;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsString;
use std::io::{self, ErrorKind, Read};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;
use std::sync::Arc;

/// An instance, from the request to the last of its traces.
#[derive(Debug)]
pub(super) struct Instance {
    pub(super) model: String,
    pub(super) snapshot: SnapshotDigest,
    uid: u32,
    pub(super) phase: Phase,
}

/// Where an instance is in its life.
#[derive(Debug)]
pub(super) enum Phase {
    /// A thread starts it; `kill` when it shall end as soon as it is there.
    Starting { kill: bool },
    /// The worker lives.
    Running(Running),
    /// A thread removes its traces.
    Ending,
}

/// All instances, and the user ids that they have.
pub(super) struct Instances {
    living: BTreeMap<InstanceId, Instance>,
    /// Zygotes have theirs from here too.
    pub(super) uids: UidSlots,
}

impl Instances {
    /// None yet.
    pub(super) fn new(uids: UidSlots) -> Self {
        Self { living: BTreeMap::new(), uids }
    }

    /// A new instance, with its zygote's user id or one of its own; `None` when there is none, or the instance exists.
    pub(super) fn begin(
        &mut self,
        id: &InstanceId,
        model: String,
        snapshot: SnapshotDigest,
        zygote: Option<u32>,
    ) -> Option<u32> {
        if self.living.contains_key(id) {
            return None;
        }
        let uid = match zygote {
            Some(uid) => {
                self.uids.share(uid);
                uid
            }
            None => self.uids.take()?,
        };
        self.living.insert(id.clone(), Instance { model, snapshot, uid, phase: Phase::Starting { kill: false } });
        Some(uid)
    }

    /// An instance of an earlier launcher.
    pub(super) fn adopt(&mut self, id: InstanceId, record: InstanceRecord, running: Running) {
        self.uids.share(record.uid);
        let InstanceRecord { model, snapshot, uid, .. } = record;
        self.living.insert(id, Instance { model, snapshot, uid, phase: Phase::Running(running) });
    }

    /// Nothing of it is left: its user id may be given to another.
    pub(super) fn end(&mut self, id: &InstanceId) {
        if let Some(instance) = self.living.remove(id) {
            self.uids.give_back(instance.uid);
        }
    }

    pub(super) fn get_mut(&mut self, id: &InstanceId) -> Option<&mut Instance> {
        self.living.get_mut(id)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.living.is_empty()
    }

    /// How many are being started.
    pub(super) fn starting(&self) -> usize {
        self.living.values().filter(|instance| matches!(instance.phase, Phase::Starting { .. })).count()
    }

    /// For poll: workers whose end is to be seen.
    pub(super) fn running(&self) -> impl Iterator<Item = (&InstanceId, BorrowedFd<'_>)> {
        self.living.iter().filter_map(|(id, instance)| match &instance.phase {
            Phase::Running(running) => Some((id, running.pidfd.as_fd())),
            Phase::Starting { .. } | Phase::Ending => None,
        })
    }

    /// Models that have instances, in any phase.
    pub(super) fn models(&self) -> impl Iterator<Item = &str> {
        self.living.values().map(|instance| instance.model.as_str())
    }

    /// Contents that they run.
    pub(super) fn snapshots(&self) -> impl Iterator<Item = &SnapshotDigest> {
        self.living.values().map(|instance| &instance.snapshot)
    }
}

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

/// Folder `<runtime-dir>/instances`, or that of the zygotes: sockets, exit files and records, named by instance. Only
/// root can write it, or exchange it: a record that another user could have written would name processes to kill.
#[derive(Debug, Clone)]
pub(super) struct Traces {
    dir: Arc<Dir>,
}

impl Traces {
    /// Opens the folder, makes it when it is missing.
    pub(super) fn open(runtime_dir: &Dir, name: &str, mode: u32) -> io::Result<Self> {
        let dir = runtime_dir.subdirectory(name, mode)?.of_root()?;
        dir.belong_to(0, None, mode)?;
        Ok(Self { dir: Arc::new(dir) })
    }

    /// The folder, for sockets that are bound here.
    pub(super) fn dir(&self) -> &Dir {
        &self.dir
    }

    pub(super) fn socket(&self, id: &InstanceId) -> PathBuf {
        self.dir.path().join(socket_name(id))
    }

    /// Tests that the socket of an instance is there.
    pub(super) fn has_socket(&self, id: &InstanceId) -> bool {
        self.dir.has(&socket_name(id))
    }

    pub(super) fn exit_file(&self, id: &InstanceId) -> PathBuf {
        self.dir.path().join(exit_name(id))
    }

    /// Where the worker of a model with a GPU listens for its shims.
    pub(super) fn gpu_socket(&self, id: &InstanceId) -> PathBuf {
        self.dir.path().join(format!("{id}.gpu"))
    }

    /// Records a worker that has just been started, complete or not at all.
    pub(super) fn record(&self, id: &InstanceId, record: &impl Serialize) -> io::Result<()> {
        self.dir.replace(&record_name(id), &serde_json::to_vec(record)?, 0o600)
    }

    /// The record of an instance, when it is one that root wrote.
    pub(super) fn read<R: DeserializeOwned>(&self, id: &InstanceId) -> Option<R> {
        self.json(&record_name(id))
    }

    /// Every instance that left a trace.
    pub(super) fn list(&self) -> io::Result<BTreeSet<InstanceId>> {
        let names = self.dir.names()?.into_iter().filter_map(|name| name.into_string().ok());
        Ok(names.filter_map(|name| InstanceId::parse(name.split('.').next()?).ok()).collect())
    }

    /// How the worker said that its instance ended; `WorkerLost` when it said nothing.
    pub(super) fn exit_cause(&self, id: &InstanceId) -> ExitCause {
        self.json(&exit_name(id)).unwrap_or(ExitCause::WorkerLost)
    }

    /// Removes every file of an instance.
    pub(super) fn remove(&self, id: &InstanceId) -> io::Result<()> {
        let names = self.dir.names()?;
        let own = |name: &&OsString| name.to_string_lossy().split('.').next() == Some(id.as_str());
        names.iter().filter(own).try_for_each(|name| self.dir.remove(name))
    }

    /// A bounded file of root as JSON.
    fn json<T: DeserializeOwned>(&self, name: &str) -> Option<T> {
        let file = self.dir.read(name).ok()?;
        let found = file.metadata().ok()?;
        let mut text = String::new();
        let trusted = found.uid() == 0 && found.mode() & 0o022 == 0;
        trusted.then(|| file.take(64 * 1024).read_to_string(&mut text).ok())??;
        serde_json::from_str(&text).ok()
    }
}

/// The name of an instance's socket.
pub(super) fn socket_name(id: &InstanceId) -> String {
    format!("{id}.sock")
}

fn exit_name(id: &InstanceId) -> String {
    format!("{id}.exit")
}

fn record_name(id: &InstanceId) -> String {
    format!("{id}.json")
}
