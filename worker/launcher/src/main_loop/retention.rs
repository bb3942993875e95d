//! Retention of snapshots: which ones models may come back to, and which are unused.
//!
//! The scheduler lists the ones to keep, since the history of models is its own; until a new scheduler has sent the
//! whole list, the list of the one before holds and nothing is removed.

use super::Launcher;
use crate::node_files::{NodeFile, open_node_files};
use nix::fcntl::{OFlag, open};
use nix::sys::stat::Mode;
use omni_config::ModelName;
use omni_log::chain;
use omni_node_protocol::id::SnapshotDigest;
use omni_node_protocol::launcher::FromLauncher;
use omni_snapshot::Store;
use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread;

/// Snapshots that can be kept, counted for each model: more than a node has.
const MOST: usize = 65_536;

/// Snapshots that the scheduler has asked to keep.
#[derive(Default)]
struct Kept {
    models: BTreeMap<String, BTreeSet<SnapshotDigest>>,
    /// Sum over all models.
    count: usize,
    /// Whole list of the connected scheduler received.
    complete: bool,
}

impl Kept {
    /// A scheduler has come that says it all anew.
    fn begin(&mut self) {
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

/// Store of snapshots, with those that must stay.
pub(crate) struct Snapshots {
    store: Arc<Store>,
    kept: Kept,
    unflushed: Unflushed,
}

/// Snapshots that wait to be written out to the disk, for a thread of its own: bounded by those that there are.
#[derive(Clone, Default)]
struct Unflushed(Arc<(Mutex<BTreeSet<SnapshotDigest>>, Condvar)>);

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
    fn run(&self, store: &Store) {
        while let Some(snapshot) = self.next() {
            if let Err(error) = store.make_lasting(&snapshot) {
                tracing::warn!(%snapshot, error = chain(&error), "this version cannot be come back to after a reboot");
            }
        }
    }
}

impl Snapshots {
    /// Over a store, with a thread that writes kept snapshots out to the disk.
    pub(crate) fn new(store: Arc<Store>) -> io::Result<Self> {
        let unflushed = Unflushed::default();
        let (flushing, flushed) = (unflushed.clone(), Arc::clone(&store));
        thread::Builder::new().name("flush".to_owned()).spawn(move || flushing.run(&flushed))?;
        Ok(Self { store, kept: Kept::default(), unflushed })
    }

    pub(super) fn store(&self) -> &Arc<Store> {
        &self.store
    }

    /// Begins a new list: a scheduler has connected, and sends it all anew.
    pub(super) fn begin(&mut self) {
        self.kept.begin();
    }

    /// Marks a snapshot as known to the catalog, which keeps it from now on.
    pub(super) fn release(&self, snapshot: &SnapshotDigest) {
        self.store.release(snapshot);
    }

    /// Keeps those of the snapshots that are there: a made-up list takes no memory here.
    fn keep(&mut self, model: &str, mut snapshots: BTreeSet<SnapshotDigest>) {
        snapshots.retain(|snapshot| self.store.find(snapshot).is_some());
        let unflushed: Vec<_> = snapshots.iter().filter(|snapshot| !self.store.is_lasting(snapshot)).cloned().collect();
        if model.parse::<ModelName>().is_ok() && self.kept.set(model, snapshots) {
            self.unflushed.add(unflushed.into_iter());
        } else {
            tracing::warn!(model, "the scheduler asks to keep snapshots under a name that is no model's, or too many");
        }
    }

    /// Opens the files of a snapshot that the node itself reads, as far as they are there.
    fn open_files(&self, snapshot: &SnapshotDigest) -> Vec<NodeFile> {
        let Some(path) = self.store.find(snapshot) else { return Vec::new() };
        let root = open(&path, OFlag::O_PATH | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC, Mode::empty());
        root.map(open_node_files).unwrap_or_default()
    }

    /// Removes snapshots that are neither kept nor in use; none before the list of kept ones is complete.
    fn sweep<'a>(&'a self, in_use: impl Iterator<Item = &'a SnapshotDigest>) {
        let Some(kept) = self.kept.snapshots() else { return };
        match self.store.retain(&in_use.chain(kept).cloned().collect()) {
            Ok(removed) => removed.iter().for_each(|snapshot| tracing::debug!(%snapshot, "snapshot removed")),
            Err(error) => tracing::warn!(error = chain(&error), "old snapshots are left"),
        }
    }
}

impl Launcher {
    pub(super) fn keep(&mut self, model: &str, snapshots: BTreeSet<SnapshotDigest>) {
        self.snapshots.keep(model, snapshots);
        self.sweep_snapshots();
    }

    /// Sends the files of a snapshot that the node itself reads.
    pub(super) fn open_files(&mut self, snapshot: SnapshotDigest) {
        let (names, files) = self.snapshots.open_files(&snapshot).into_iter().unzip();
        self.scheduler.send_with(FromLauncher::Files { snapshot, names }, files);
    }

    /// Handles the end of the list of kept snapshots.
    pub(super) fn keep_complete(&mut self) {
        self.snapshots.kept.complete = true;
        self.sweep_snapshots();
    }

    /// Removes snapshots that neither a model, its history, an instance nor an environment to be built needs.
    pub(super) fn sweep_snapshots(&self) {
        let Some(current) = self.models.catalog.snapshots() else { return };
        let running = self.instances.snapshots().chain(self.zygotes.snapshots());
        self.snapshots.sweep(current.chain(running).chain(self.preparation.builds.snapshots()));
    }
}
