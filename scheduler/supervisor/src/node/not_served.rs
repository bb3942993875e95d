//! Directories of the models folder that are no models, with the reason. A model that cannot be served says so itself.

use omni_control_api::NotServed as NotServedView;
use omni_node_protocol::launcher::MODELS_FOLDER;
use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Largest number of directories that are kept.
const DIRECTORIES: usize = 1000;

/// Directories that are not served, by their path below the models folder.
#[derive(Debug, Default)]
pub struct NotServed(Mutex<BTreeMap<String, String>>);

impl NotServed {
    /// All of them, sorted.
    #[must_use]
    pub fn all(&self) -> Vec<NotServedView> {
        let view = |(directory, reason): (&String, &String)| NotServedView {
            directory: directory.clone(),
            reason: reason.clone(),
        };
        self.reasons().iter().map(view).collect()
    }

    /// Returns whether the models folder itself is missing, which the launcher reports as the directory `.`.
    #[must_use]
    pub fn has_no_folder(&self) -> bool {
        self.reasons().contains_key(MODELS_FOLDER)
    }

    pub(super) fn insert(&self, directory: String, reason: String) {
        let mut reasons = self.reasons();
        if reasons.len() < DIRECTORIES || reasons.contains_key(&directory) {
            reasons.insert(directory, reason);
        }
    }

    pub(super) fn remove(&self, directory: &str) {
        self.reasons().remove(directory);
    }

    pub(super) fn clear(&self) {
        self.reasons().clear();
    }

    /// Each change to the map is one step.
    fn reasons(&self) -> MutexGuard<'_, BTreeMap<String, String>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
