//! Retention of snapshots: which ones models may come back to, and which are unused.
//!
//! The scheduler lists the ones to keep, since the history of models is its own; until a new scheduler has sent the
//! whole list, the list of the one before holds and nothing is removed.

use super::Node;
use omni_config::ModelName;
use omni_log::chain;
use omni_node_protocol::id::SnapshotDigest;
use omni_snapshot::Store;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Condvar, Mutex, PoisonError};

/// Snapshots that can be kept, counted for each model: more than a node has.
const MOST: usize = 65_536;

/// Snapshots that the scheduler has asked to keep.
#[derive(Default)]
pub(super) struct Kept {
    models: BTreeMap<String, BTreeSet<SnapshotDigest>>,
    /// Sum over all models.
    count: usize,
    /// All of it was said.
    complete: bool,
}

impl Kept {
    /// A scheduler has come that says it all anew.
    pub(super) fn begin(&mut self) {
        *self = Self::default();
    }

    /// Keeps these, and nothing else, for a model. Says whether there was room.
    fn set(&mut self, model: &str, snapshots: BTreeSet<SnapshotDigest>) -> bool {
        let before = self.models.get(model).map_or(0, BTreeSet::len);
        let count = self.count - before + snapshots.len();
        if count > MOST {
            return false;
        }
        self.count = count;
        if snapshots.is_empty() {
            self.models.remove(model);
        } else {
            self.models.insert(model.to_owned(), snapshots);
        }
        true
    }

    fn snapshots(&self) -> Option<impl Iterator<Item = &SnapshotDigest>> {
        self.complete.then(|| self.models.values().flatten())
    }
}

/// Snapshots that wait to be written out to the disk, for a thread of its own: bounded by those that there are.
#[derive(Clone, Default)]
pub(crate) struct Unflushed(Arc<(Mutex<BTreeSet<SnapshotDigest>>, Condvar)>);

impl Unflushed {
    fn add(&self, snapshots: impl Iterator<Item = SnapshotDigest>) {
        let (waiting, bell) = &*self.0;
        waiting.lock().unwrap_or_else(PoisonError::into_inner).extend(snapshots);
        bell.notify_one();
    }

    fn next(&self) -> Option<SnapshotDigest> {
        let (waiting, bell) = &*self.0;
        let waiting = waiting.lock().unwrap_or_else(PoisonError::into_inner);
        let mut waiting =
            bell.wait_while(waiting, |waiting| waiting.is_empty()).unwrap_or_else(PoisonError::into_inner);
        waiting.pop_first()
    }

    /// Writes out what is added, until the launcher ends.
    pub(crate) fn run(&self, store: &Store) {
        while let Some(snapshot) = self.next() {
            if let Err(error) = store.make_lasting(&snapshot) {
                tracing::warn!(%snapshot, error = chain(&error), "this version cannot be come back to after a reboot");
            }
        }
    }
}

impl Node {
    /// Keeps those of the snapshots that are there: what a scheduler makes up takes no memory here.
    pub(super) fn keep(&mut self, model: &str, mut snapshots: BTreeSet<SnapshotDigest>) {
        snapshots.retain(|snapshot| self.store.find(snapshot).is_some());
        let unflushed: Vec<_> = snapshots.iter().filter(|snapshot| !self.store.is_lasting(snapshot)).cloned().collect();
        if model.parse::<ModelName>().is_ok() && self.state.kept.set(model, snapshots) {
            self.unflushed.add(unflushed.into_iter());
        } else {
            tracing::warn!(model, "the scheduler asks to keep snapshots of what is no model, or too many");
        }
        self.sweep_snapshots();
    }

    pub(super) fn kept_all(&mut self) {
        self.state.kept.complete = true;
        self.sweep_snapshots();
    }

    /// Removes snapshots that neither a model, its history, an instance nor an environment to be built needs.
    pub(super) fn sweep_snapshots(&self) {
        let (Some(current), Some(kept)) = (self.state.catalog.snapshots(), self.state.kept.snapshots()) else { return };
        let running = self.instances.snapshots().chain(self.zygotes.snapshots());
        let keep = current.chain(kept).chain(running).chain(self.builds.snapshots());
        match self.store.retain(&keep.cloned().collect()) {
            Ok(removed) => removed.iter().for_each(|snapshot| tracing::debug!(%snapshot, "snapshot removed")),
            Err(error) => tracing::warn!(error = chain(&error), "old snapshots are left"),
        }
    }
}
