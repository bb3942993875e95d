//! Messages between the watcher and its launcher: lines of JSON on the watcher's output and input.
//!
//! Both are one program of one build, so there are no versions.

use crate::event::ModelState;
use omni_node_protocol::id::SnapshotDigest;
use serde::{Deserialize, Serialize};
use std::io::{self, Stdout, Write};

/// From the watcher.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub(super) enum FromWatcher {
    /// A copy was made, named so in the store's directory; without a name, the snapshot is there already.
    Taken { name: String, copy: Option<String>, snapshot: SnapshotDigest, manifest: Option<String> },
    /// A directory cannot be served.
    Refused { name: String, message: String, no_model: bool },
    /// The directory is gone.
    Gone { name: String },
    /// All was said once.
    Scanned,
}

/// To the watcher.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub(super) enum ToWatcher {
    /// A single model's directory is to be looked at.
    Look,
    /// The copy of this model could not be used, or its snapshot is gone: it is to be copied anew.
    Again { name: String },
}

impl FromWatcher {
    /// A state without a snapshot.
    pub(super) fn of(name: String, state: ModelState) -> Self {
        match state {
            ModelState::Refused { message } => Self::Refused { name, message, no_model: false },
            ModelState::NoModel { message } => Self::Refused { name, message, no_model: true },
            ModelState::Taken { snapshot, manifest } => Self::Taken { name, copy: None, snapshot, manifest },
            ModelState::Gone => Self::Gone { name },
        }
    }
}

/// The watcher's end.
#[derive(Debug)]
pub(super) struct Reporter(Stdout);

impl Reporter {
    pub(super) fn new() -> Self {
        Self(io::stdout())
    }

    /// Tells the launcher. `false` when there is none any more.
    pub(super) fn send(&self, said: &FromWatcher) -> bool {
        let Ok(mut line) = serde_json::to_vec(said) else { return false };
        line.push(b'\n');
        let mut out = self.0.lock();
        out.write_all(&line).and_then(|()| out.flush()).is_ok()
    }
}
