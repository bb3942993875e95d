//! Directories of the models folder that have a `model.py` and are not served, with the reason.

use super::Node;
use crate::model::Message;
use crate::model::content::Unservable;
use omni_config::Foreign;
use omni_config::name::ModelName;
use omni_control_api::NotServed as Shown;
use omni_log::Kind;
use omni_node_protocol::launcher::MODELS_FOLDER;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Directories that are shown.
const SHOWN: usize = 1000;

/// Those that are no models, by their place or name; a model that cannot be served says so itself.
#[derive(Debug, Default)]
pub struct NotServed(Mutex<BTreeMap<String, String>>);

impl NotServed {
    /// All of them, sorted.
    #[must_use]
    pub fn all(&self) -> Vec<Shown> {
        let shown =
            |(directory, reason): (&String, &String)| Shown { directory: directory.clone(), reason: reason.clone() };
        self.table().iter().map(shown).collect()
    }

    /// Whether the models folder itself is not there, which the launcher says of its directory `.`.
    #[must_use]
    pub fn has_no_folder(&self) -> bool {
        self.table().contains_key(MODELS_FOLDER)
    }

    pub(super) fn forget(&self, directory: &str) {
        self.table().remove(directory);
    }

    pub(super) fn clear(&self) {
        self.table().clear();
    }

    fn tell(&self, directory: String, reason: String) {
        let mut table = self.table();
        if table.len() < SHOWN || table.contains_key(&directory) {
            table.insert(directory, reason);
        }
    }

    /// Each change to the table is one step.
    fn table(&self) -> MutexGuard<'_, BTreeMap<String, String>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A directory that is not served: a model without content, or no model at all.
pub(super) async fn refused(
    node: &Arc<Node>,
    told: &mut BTreeSet<ModelName>,
    directory: String,
    message: String,
    no_model: bool,
) {
    match ModelName::try_from(directory.clone()) {
        Ok(name) if !no_model => {
            node.not_served.forget(&directory);
            tracing::warn!(message_id = Kind::ModelRefused.id(), model = %name, "directory refused: {}", Foreign(&message));
            let unservable = Unservable { snapshot: None, message };
            let _ = node.add(&name).send(Message::Content(Err(unservable))).await;
            told.insert(name);
        }
        name => {
            // Quoted, as anybody may have named it.
            tracing::warn!(directory = ?directory, "not served: {}", Foreign(&message));
            node.not_served.tell(directory, message);
            if let Ok(name) = name
                && told.remove(&name)
            {
                super::remove(node, &name).await;
            }
        }
    }
}
