//! What the scheduler must know after its end: what a person asked for, and which versions of a model were good.
//!
//! The scheduler opens the [`StateStore`] before any model is known; the model's task gets its [`Lasting`] when
//! it begins and puts the new one whenever that changes; the control API waits for [`StateStore::kept`] before it
//! answers a person's word. What always holds:
//! - one file for each model below `<state-dir>/scheduler`: a spoiled one costs its model what it remembered and the
//!   others nothing, and a change writes a few hundred bytes, not what a thousand models remember;
//! - a file is whole: the old or the new one, wherever the writer was killed (written beside, flushed, renamed);
//! - a task never waits for the disk; when the disk is full the old file stays, and is replaced once there is room.

mod file;
mod removed;
mod writer;

pub use removed::{age, expired};

use omni_config::name::ModelName;
use omni_node_protocol::id::SnapshotDigest;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::{Path, PathBuf};
use writer::Writer;

/// Versions that a history holds.
pub const HISTORY: usize = 10;

/// What lasts of a model. The default is that of a model that was never seen.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Lasting {
    /// Stopped by hand.
    #[serde(default)]
    pub held: bool,
    /// Deaths of instances.
    #[serde(default)]
    pub deaths: u64,
    /// What a rollback chose.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pinned: Option<Pin>,
    /// Versions that were ready once, the newest first, at most [`HISTORY`].
    #[serde(default)]
    pub history: Vec<Version>,
    /// Its directory was removed, and schedulers have run for so many milliseconds since.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub removed_for_ms: Option<u64>,
}

/// A rollback, until the directory holds something else than what it was rolled back from.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Pin {
    /// What is to serve.
    pub to: SnapshotDigest,
    /// The directory's content at that time.
    pub from: SnapshotDigest,
}

/// A version that was ready once.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Version {
    /// Its content.
    pub snapshot: SnapshotDigest,
    /// The text of its `omni.toml`, when it has one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub manifest: Option<String>,
    /// When, in milliseconds since the Unix epoch.
    pub first_ready_unix_ms: u64,
}

impl Lasting {
    /// A version was ready: it is the newest of the history from now on. The oldest goes for it, but never the pinned
    /// one.
    pub fn was_ready(&mut self, version: Version) {
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

    /// What lasts for a while of a model whose directory is gone: the versions to come back to; nothing if there are none.
    #[must_use]
    pub fn removed(self) -> Option<Self> {
        let removed_for_ms = self.removed_for_ms.or(Some(0));
        (!self.history.is_empty()).then_some(Self { history: self.history, removed_for_ms, ..Self::default() })
    }

    /// Whether this version was ready once.
    #[must_use]
    pub fn is_proven(&self, snapshot: &SnapshotDigest) -> bool {
        self.history.iter().any(|version| version.snapshot == *snapshot)
    }

    /// The snapshots that it needs.
    #[must_use]
    pub fn snapshots(&self) -> BTreeSet<SnapshotDigest> {
        let history = self.history.iter().map(|version| &version.snapshot);
        history.chain(self.pinned.iter().map(|pin| &pin.to)).cloned().collect()
    }
}

/// What lasts of all models.
#[derive(Debug)]
pub struct StateStore {
    writer: Writer,
}

/// The folder of the state cannot be used.
#[derive(Debug, thiserror::Error)]
#[error("cannot {action} {}: what models remember needs a folder that belongs to the node's user", path.display())]
pub struct StateError {
    action: &'static str,
    path: PathBuf,
    source: io::Error,
}

impl StateStore {
    /// Reads what lasts, and starts the thread that writes. The folder is made when it is missing; files that cannot be
    /// read are set aside, and the log says which.
    ///
    /// # Errors
    /// The folder cannot be made or listed, or there is no thread to be had.
    pub fn open(dir: &Path) -> Result<(Self, BTreeMap<ModelName, Lasting>), StateError> {
        let failed = |action| {
            let path = dir.to_owned();
            move |source| StateError { action, path, source }
        };
        std::fs::create_dir_all(dir).map_err(failed("make"))?;
        let lasting = file::read_all(dir).map_err(failed("list"))?;
        let writer = Writer::start(dir).map_err(failed("start a thread for"))?;
        Ok((Self { writer }, lasting))
    }

    /// What is to last from now on; `None` for a model that is gone. Returns at once: it is written soon, and of several
    /// only the last.
    pub fn put(&self, model: &ModelName, lasting: Option<Lasting>) {
        self.writer.put(model, lasting);
    }

    /// Waits until all that was put so far is on the disk, or cannot be written; not longer than a moment.
    pub async fn settled(&self) {
        self.writer.settled().await;
    }

    /// The same; what counts is what was put of one model.
    ///
    /// # Errors
    /// Why that is not on the disk.
    pub async fn kept(&self, model: &ModelName) -> Result<(), String> {
        self.writer.kept(model).await
    }

    /// Whether the disk has refused some of it, so that the next scheduler would not know it.
    #[must_use]
    pub fn is_refused(&self) -> bool {
        self.writer.is_refused()
    }

    /// The files are another scheduler's from here on: what was put is written, and nothing more is.
    pub async fn close(&self) {
        self.writer.close().await;
    }
}

#[cfg(test)]
mod tests;
