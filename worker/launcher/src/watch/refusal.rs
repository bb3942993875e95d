//! Reasons for which a directory is not served, worded for the author and the scheduler.

use super::jobs::MOST;
use super::scan::Found;
use crate::event::ModelState;
use omni_config::NotAModel;
use omni_engine_protocol::packet::MAX_PACKET;
use omni_node_protocol::launcher::FromLauncher;
use omni_snapshot::{Snapshot, SnapshotError};

/// Why a directory is not served.
#[derive(Debug, thiserror::Error)]
pub(super) enum Refusal {
    #[error(transparent)]
    Snapshot(SnapshotError),
    #[error(transparent)]
    Place(NotAModel),
    #[error("the directory cannot be read: {0}")]
    Unreadable(String),
    #[error("there are more than 2,048 directories in it that are no models: what comes after them is not looked at")]
    Many,
    #[error(
        "there is no `model.py` in it, and no `omni.toml`: `--model` names the directory of one model, `--models` a folder of many"
    )]
    NoModel,
    #[error("cannot open the folder that it is in")]
    Above(#[source] std::io::Error),
    #[error("it is not looked at yet: {MOST} others do not answer or take long, and nothing more is begun beside them")]
    Behind,
    #[error("`omni.toml` is not plain text: remove its control characters")]
    Unsendable,
}

impl Refusal {
    /// Reason that is known before a snapshot is tried.
    pub(super) fn of(found: &Found) -> Option<Self> {
        Some(match found {
            Found::Model => return None,
            Found::Misnamed(error) => Self::Place(NotAModel::Name(*error)),
            Found::Link => Self::Place(NotAModel::Link),
            Found::Inside(outer) => Self::Place(NotAModel::Inside(outer.clone())),
            Found::Deep => Self::Place(NotAModel::Deep),
            Found::Unreadable(error) => Self::Unreadable(error.clone()),
            Found::Many => Self::Many,
            Found::Silent => Self::Snapshot(SnapshotError::Silent),
        })
    }

    /// Report: a directory whose name and place are a model's is a model that is not served.
    pub(super) fn state(&self) -> ModelState {
        let message = omni_log::chain(self);
        match self {
            Self::Snapshot(_) | Self::Place(NotAModel::Link) | Self::NoModel | Self::Above(_) | Self::Unsendable => {
                ModelState::Refused { message }
            }
            Self::Place(_) | Self::Unreadable(_) | Self::Many | Self::Behind => ModelState::NoModel { message },
        }
    }
}

/// A manifest of control characters grows sixfold on the wire: such a one is refused here, by name.
pub(super) fn sendable(name: &str, snapshot: &Snapshot) -> Result<(), Refusal> {
    let Snapshot { digest, manifest, .. } = snapshot.clone();
    let message = FromLauncher::Model { name: name.to_owned(), snapshot: digest, manifest };
    match serde_json::to_vec(&message) {
        Ok(bytes) if bytes.len() <= MAX_PACKET => Ok(()),
        Ok(_) | Err(_) => Err(Refusal::Unsendable),
    }
}
