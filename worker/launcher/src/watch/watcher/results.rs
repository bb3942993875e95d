//! Reports of the watcher on a copy that was made or failed, and on directories that do not answer.

use super::Watcher;
use crate::event::ModelState;
use crate::watch::debounce::Debounce;
use crate::watch::folder::shown;
use crate::watch::jobs::Key;
use crate::watch::protocol::FromWatcher;
use crate::watch::refusal::{Refusal, sendable};
use crate::watch::watches::WATCHES;
use crate::watch::{PATIENCE, TROUBLE};
use omni_log::chain;
use omni_node_protocol::launcher::MODELS_FOLDER;
use omni_snapshot::{Fresh, Snapshot, SnapshotError};
use std::time::{Duration, Instant};

impl Watcher {
    pub(super) fn taken(
        &mut self,
        name: &str,
        taken: Result<Option<Fresh>, SnapshotError>,
        debounce: &mut Debounce,
    ) -> bool {
        let known = self.models.get(name).cloned().flatten();
        let pause = match &taken {
            Err(SnapshotError::Changing { .. }) => Some(PATIENCE),
            // A full disk, most likely: no change of the directory will show when there is room.
            Err(error) if error.is_of_the_node() => Some(TROUBLE),
            Ok(None) if known.is_none() => Some(Duration::ZERO), // what was known does not count any more
            Ok(_) | Err(_) => None,
        };
        if let Some(pause) = pause {
            self.changed.add(name.into(), WATCHES);
            debounce.later(Instant::now() + pause);
        }
        let is_crowded = matches!(taken, Err(SnapshotError::TooMany { .. }));
        let (snapshot, said) = match (taken, known) {
            (Ok(None), None) | (Err(SnapshotError::Unwanted), _) => return true,
            // The known content stays until the new one stands still.
            (Err(SnapshotError::Changing { .. }), Some(_)) => return true,
            (Ok(None), Some(known)) => {
                let state = ModelState::Taken { snapshot: known.digest.clone(), manifest: known.manifest.clone() };
                (Some(known), FromWatcher::of(name.to_owned(), state))
            }
            (Ok(Some(fresh)), _) => match sendable(name, &fresh.snapshot) {
                Ok(()) => {
                    let Fresh { name: copy, snapshot: Snapshot { digest, manifest, .. } } = &fresh;
                    let (copy, snapshot) = (Some(copy.clone()), digest.clone());
                    let said = FromWatcher::Taken { name: name.to_owned(), copy, snapshot, manifest: manifest.clone() };
                    (Some(fresh.snapshot), said)
                }
                Err(refusal) => {
                    self.discard(Some(&fresh), name);
                    (None, FromWatcher::of(name.to_owned(), refusal.state()))
                }
            },
            (Err(error), _) => (None, FromWatcher::of(name.to_owned(), Refusal::Snapshot(error).state())),
        };
        self.crowd(name, is_crowded, debounce);
        self.silent.remove(name);
        self.models.insert(name.to_owned(), snapshot);
        self.out.send(&said)
    }

    /// Says that the folder itself is gone, or is there again, where that has changed.
    pub(super) fn is_lost(&mut self, error: Option<&std::io::Error>) -> bool {
        let name = MODELS_FOLDER.to_owned();
        match (std::mem::replace(&mut self.lost, error.is_some()), error) {
            (false, Some(error)) => {
                let message = format!("the models folder is gone, and no model can be served: {error}");
                self.out.send(&FromWatcher::Refused { name, message, no_model: true })
            }
            (true, None) => self.out.send(&FromWatcher::Gone { name }),
            (false, None) | (true, Some(_)) => true,
        }
    }

    /// Says of a model that is new, and takes long to copy, that it is there.
    pub(super) fn is_copied(&mut self, name: String) -> bool {
        if self.models.contains_key(&name) {
            return true; // what was said of it holds until the copy is made
        }
        self.models.insert(name.clone(), None);
        let message = "its files are being copied: it is served once that is done".to_owned();
        self.out.send(&FromWatcher::Refused { name, message, no_model: false })
    }

    pub(super) fn discard(&self, copy: Option<&Fresh>, model: &str) {
        if let Some(Err(error)) = copy.map(|copy| self.copier.discard(&copy.name)) {
            tracing::warn!(?model, error = chain(&error), "a copy that is not needed is left");
        }
    }

    /// Says that something does not answer. What is served goes on.
    pub(super) fn is_silent(&mut self, key: &Key, waits: bool) -> bool {
        let refusal = if waits { Refusal::Behind } else { Refusal::Snapshot(SnapshotError::Silent) };
        let names = match key {
            Key::Take(name) => vec![name.clone()],
            Key::Look(path) => {
                let state = self.units.iter_mut().find(|(unit, _)| unit.path == *path).map(|(_, state)| state);
                state.map(|state| state.silent(shown(path))).unwrap_or_default()
            }
        };
        names.into_iter().all(|name| {
            let is_model = matches!(key, Key::Take(_)) || self.models.get(&name).is_some_and(Option::is_some);
            let message = chain(&refusal);
            self.silent.insert(name.clone());
            self.models.entry(name.clone()).or_insert(None);
            self.out.send(&FromWatcher::Refused { name, message, no_model: !is_model })
        })
    }
}
