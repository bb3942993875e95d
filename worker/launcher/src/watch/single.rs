//! Directory of a node's only model: looked at when a scheduler connects, once for each, and never in between.
//!
//! So an author's change takes no effect until the service is started or reloaded. The scheduler keeps to the first
//! report: a launcher that is started again, or a connection that is made again, brings no new content either.

use super::folder::open;
use super::protocol::{FromWatcher, Reporter, ToWatcher};
use super::refusal::{Refusal, sendable};
use super::{PATIENCE, TROUBLE};
use crate::event::ModelState;
use omni_config::{Foreign, MODEL_FILES, SingleModel};
use omni_log::chain;
use omni_snapshot::{Copier, Fresh, Snapshot, SnapshotError};
use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc::Receiver;
use std::thread;

/// Watcher of a node's only model.
pub(super) struct Single {
    model: SingleModel,
    copier: Arc<Copier>,
    out: Reporter,
    known: Option<Snapshot>,
}

impl Single {
    pub(super) const fn new(model: SingleModel, copier: Arc<Copier>, out: Reporter) -> Self {
        Self { model, copier, out, known: None }
    }

    /// Looks at each request, until the launcher is gone.
    pub(super) fn run(mut self, told: &Receiver<ToWatcher>) {
        while let Ok(told) = told.recv() {
            if matches!(told, ToWatcher::Again { .. }) {
                self.known = None; // and what is known by now is not there
            }
            let said = self.look();
            if !self.out.send(&said) || !self.out.send(&FromWatcher::Scanned) {
                return;
            }
        }
    }

    /// Takes a look. A directory that is being written, and trouble of the node's own, are waited for: they are no
    /// statement about the model.
    fn look(&mut self) -> FromWatcher {
        loop {
            let again = match self.take() {
                Ok(said) => return said,
                Err(refusal @ Refusal::Snapshot(SnapshotError::Changing { .. })) => (refusal, PATIENCE),
                Err(refusal @ Refusal::Snapshot(SnapshotError::Store { .. } | SnapshotError::NoRoom { .. })) => {
                    (refusal, TROUBLE)
                }
                Err(refusal) => {
                    let state = ModelState::Refused { message: chain(&refusal) };
                    return FromWatcher::of(self.model.name.as_str().to_owned(), state);
                }
            };
            let (refusal, pause) = again;
            tracing::warn!(model = %self.model.name, error = Foreign(&chain(&refusal)).to_string(), ?pause, "no snapshot yet: looking again");
            thread::sleep(pause);
        }
    }

    fn take(&mut self) -> Result<FromWatcher, Refusal> {
        let (dir, name) = (&self.model.dir, self.model.name.as_str());
        let folder = open(dir.parent().unwrap_or(dir)).map_err(Refusal::Above)?;
        if dir.is_dir() && MODEL_FILES.iter().all(|name| dir.join(name).symlink_metadata().is_err()) {
            return Err(Refusal::NoModel); // before all of what it is instead is copied
        }
        let fingerprint = self.known.as_ref().map(|known| &known.fingerprint);
        let fresh = self.copier.copy(&folder, Path::new(name), fingerprint, &()).map_err(Refusal::Snapshot)?;
        let (copy, snapshot) = match (fresh, self.known.take()) {
            (Some(Fresh { name: copy, snapshot }), _) => (Some(copy), snapshot),
            (None, Some(known)) => (None, known),
            (None, None) => return Err(Refusal::Snapshot(SnapshotError::Unwanted)), // it was copied, knowing nothing
        };
        if let Err(refusal) = sendable(name, &snapshot) {
            let _ = copy.map(|copy| self.copier.discard(&copy)); // what is left goes when the store is next opened
            return Err(refusal);
        }
        let Snapshot { digest, manifest, .. } = snapshot.clone();
        self.known = Some(snapshot);
        Ok(FromWatcher::Taken { name: name.to_owned(), copy, snapshot: digest, manifest })
    }
}
