//! The directory of a node's only model: looked at when a scheduler comes, once for each, and never in between.
//!
//! So what an author does there changes nothing until the service is started or reloaded. The scheduler holds to what it was
//! told first: a launcher that is started again, or a connection that is made again, brings no new content either.

use super::refusal::{Refusal, open, sendable};
use super::{PATIENCE, TROUBLE};
use crate::launcher::event::{Event, Events, ModelState};
use omni_config::{Foreign, SingleModel};
use omni_log::chain;
use omni_snapshot::{Snapshot, SnapshotError, Store};
use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc::Receiver;
use std::thread;

/// See the module.
pub(in crate::launcher) struct Single {
    model: SingleModel,
    store: Arc<Store>,
    events: Events,
    known: Option<Snapshot>,
}

impl Single {
    pub(super) const fn new(model: SingleModel, store: Arc<Store>, events: Events) -> Self {
        Self { model, store, events, known: None }
    }

    /// Looks whenever it is asked to, until the main loop is gone.
    pub(super) fn run(mut self, asked: &Receiver<()>) {
        while asked.recv().is_ok() {
            let (name, state) = (self.model.name.as_str().to_owned(), self.look());
            if !self.events.tell(Event::Model { name, state }) || !self.events.tell(Event::Scanned) {
                return;
            }
        }
    }

    /// What is there. A directory that is being written, and trouble of the node's own, are waited for: they say nothing of
    /// the model.
    fn look(&mut self) -> ModelState {
        loop {
            let again = match self.take() {
                Ok(state) => return state,
                Err(refusal @ Refusal::Snapshot(SnapshotError::Changing { .. })) => (refusal, PATIENCE),
                Err(refusal @ Refusal::Snapshot(SnapshotError::Store { .. } | SnapshotError::NoRoom { .. })) => {
                    (refusal, TROUBLE)
                }
                Err(refusal) => return ModelState::Refused { message: chain(&refusal) },
            };
            let (refusal, pause) = again;
            tracing::warn!(model = %self.model.name, error = Foreign(&chain(&refusal)).to_string(), ?pause, "no snapshot yet: looking again");
            thread::sleep(pause);
        }
    }

    fn take(&mut self) -> Result<ModelState, Refusal> {
        let dir = &self.model.dir;
        let folder = open(dir.parent().unwrap_or(dir)).map_err(Refusal::Above)?;
        if dir.is_dir() && dir.join("model.py").symlink_metadata().is_err() {
            return Err(Refusal::NoModel); // before all of what it is instead is copied
        }
        let name = Path::new(self.model.name.as_str());
        let snapshot = self.store.take(&folder, name, self.known.as_ref()).map_err(Refusal::Snapshot)?;
        let state = sendable(self.model.name.as_str(), &snapshot);
        if let ModelState::Refused { .. } = state {
            self.store.release(&snapshot.digest); // else the main loop does, once it knows of it
        }
        self.known = Some(snapshot);
        Ok(state)
    }
}
