//! State of models that outlives a scheduler: holds, pins, counts of deaths, and the versions that were ready.
//!
//! The scheduler opens the [`StateStore`] before it starts any model. A model's actor begins with its [`PersistedState`]
//! and puts a new one whenever that changes; the control API waits for [`StateStore::persisted`] before it answers a
//! command.
//!
//! Invariants:
//! - one file for each model below `<state-dir>/scheduler`: a corrupt file costs one model its state and the others
//!   nothing, and a change writes a few hundred bytes, not the state of a thousand models;
//! - a file is whole: the old or the new one, wherever the writer was killed (written beside, flushed, renamed);
//! - callers never wait for the disk; on a full disk the old file stays, and is replaced once there is room.

#![forbid(unsafe_code)]

mod file;
mod removed;
mod writer;

pub use removed::{age_removed, expired};

use omni_config::name::ModelName;
use omni_node_protocol::id::SnapshotDigest;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::{Path, PathBuf};
use writer::Writer;

/// Longest history of versions.
pub const HISTORY: usize = 10;
/// Characters of a reason that is kept.
pub const REASON: usize = 2000;

/// State of one model. The default is that of a model that was never seen.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct PersistedState {
    /// Stopped with `omnictl stop`.
    #[serde(default)]
    pub held: bool,
    /// Number of instances that died.
    #[serde(default)]
    pub deaths: u64,
    /// Version that a rollback chose.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pinned: Option<Pin>,
    /// Versions that were ready once, the newest first, at most [`HISTORY`].
    #[serde(default)]
    pub history: Vec<Version>,
    /// Version whose environment or weights could not be had at the last attempt.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unprepared: Option<Unprepared>,
    /// Time that schedulers have run since the model's directory was removed; `None` while it exists.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub removed_for_ms: Option<u64>,
}

/// Rollback, in force until the directory's content changes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Pin {
    /// Version to serve.
    pub to: SnapshotDigest,
    /// Content of the directory when it was rolled back.
    pub from: SnapshotDigest,
}

/// Version that cannot be prepared, and why.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Unprepared {
    /// Digest of its snapshot.
    pub snapshot: SnapshotDigest,
    /// Reason, at most [`REASON`] characters.
    pub message: String,
}

impl Unprepared {
    /// Records the reason for a version; a long one is cut.
    #[must_use]
    pub fn new(snapshot: SnapshotDigest, message: &str) -> Self {
        let message = match message.char_indices().nth(REASON) {
            Some((end, _)) => format!("{} …", message.get(..end).unwrap_or_default()),
            None => message.to_owned(),
        };
        Self { snapshot, message }
    }
}

/// Version that was ready at least once.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Version {
    /// Digest of its snapshot.
    pub snapshot: SnapshotDigest,
    /// Text of its `omni.toml`, if it has one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub manifest: Option<String>,
    /// Milliseconds since the Unix epoch.
    pub first_ready_unix_ms: u64,
}

impl PersistedState {
    /// Moves a version that became ready to the front of the history. The oldest is dropped beyond [`HISTORY`], but never
    /// the pinned one.
    pub fn record_ready(&mut self, version: Version) {
        let known = self.history.iter().position(|known| known.snapshot == version.snapshot);
        let version = known.map_or(version, |known| self.history.remove(known));
        self.history.insert(0, version);
        while self.history.len() > HISTORY {
            let pinned = self.pinned.as_ref().map(|pin| &pin.to);
            let Some(oldest) = self.history.iter().rposition(|version| Some(&version.snapshot) != pinned) else {
                return;
            };
            self.history.remove(oldest);
        }
    }

    /// State to keep for a while after the model's directory was removed: its history; `None` if that is empty.
    #[must_use]
    pub fn after_removal(self) -> Option<Self> {
        let removed_for_ms = self.removed_for_ms.or(Some(0));
        (!self.history.is_empty()).then_some(Self { history: self.history, removed_for_ms, ..Self::default() })
    }

    /// Returns true if this version was ready at least once.
    #[must_use]
    pub fn was_ready(&self, snapshot: &SnapshotDigest) -> bool {
        self.history.iter().any(|version| version.snapshot == *snapshot)
    }

    /// Snapshots that have to be kept for the history and the pin.
    #[must_use]
    pub fn snapshots(&self) -> BTreeSet<SnapshotDigest> {
        let history = self.history.iter().map(|version| &version.snapshot);
        history.chain(self.pinned.iter().map(|pin| &pin.to)).cloned().collect()
    }
}

/// State of all models.
#[derive(Debug)]
pub struct StateStore {
    writer: Writer,
}

/// The state folder cannot be used.
#[derive(Debug, thiserror::Error)]
#[error("cannot {action} {}: the state of models needs a folder that belongs to the node's user", path.display())]
pub struct StateError {
    action: &'static str,
    path: PathBuf,
    source: io::Error,
}

impl StateStore {
    /// Reads all files and starts the writer thread. A missing folder is created; files that cannot be read are set aside
    /// and logged.
    ///
    /// # Errors
    /// The folder cannot be created or listed, or no thread can be started.
    pub fn open(dir: &Path) -> Result<(Self, BTreeMap<ModelName, PersistedState>), StateError> {
        let failed = |action| {
            let path = dir.to_owned();
            move |source| StateError { action, path, source }
        };
        std::fs::create_dir_all(dir).map_err(failed("make"))?;
        let states = file::read_all(dir).map_err(failed("list"))?;
        let writer = Writer::start(dir).map_err(failed("start a thread for"))?;
        Ok((Self { writer }, states))
    }

    /// Queues a model's state for writing; `None` removes its file. Returns at once; of several puts only the last is
    /// written.
    pub fn put(&self, model: &ModelName, state: Option<PersistedState>) {
        self.writer.put(model, state);
    }

    /// Waits, within a bound, until every write queued so far was tried.
    pub async fn flush(&self) {
        self.writer.flush().await;
    }

    /// Waits as [`StateStore::flush`] does and checks that one model's state is on the disk.
    ///
    /// # Errors
    /// The reason why it is not.
    pub async fn persisted(&self, model: &ModelName) -> Result<(), String> {
        self.writer.persisted(model).await
    }

    /// Returns true if some state could not be written, so that the next scheduler would not have it.
    #[must_use]
    pub fn has_failed_writes(&self) -> bool {
        self.writer.has_failed_writes()
    }

    /// Writes what is queued and ignores later puts: the files belong to the next scheduler from here on.
    pub async fn close(&self) {
        self.writer.close().await;
    }
}

#[cfg(test)]
mod tests;
