//! Plan, place and result of a build. No decision is made here.

use super::Failure;
use super::interpreter::Interpreter;
use super::queue::{Kind, Place};
use omni_node_protocol::id::EnvironmentKey;
use std::path::PathBuf;
use std::sync::atomic::AtomicBool;
use std::time::Instant;

/// An environment to be built.
#[derive(Debug, Clone)]
pub struct Plan {
    /// Digest of all inputs, and the name of the result.
    pub key: EnvironmentKey,
    /// The model that asked first, for messages.
    pub model: String,
    /// Snapshot with `requirements.txt`.
    pub(super) snapshot: PathBuf,
    pub(super) interpreter: Interpreter,
    /// Texts of the files; `None` when nothing is required.
    pub(super) requirements: Option<String>,
    pub(super) overrides: Option<String>,
    /// The requirements refer to files of the model.
    pub(super) own_files: bool,
    /// Only files are installed that the requirements have a hash of.
    pub(super) require_hashes: bool,
}

/// How a build ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Ended {
    /// The environment is there.
    Built,
    /// A package has no wheel: another place is needed.
    NeedsSource,
    /// Ended at `build-timeout`; in words.
    TimedOut(String),
    /// Ended by the launcher: no model waits for it any more.
    Cancelled,
    /// Failed; why.
    Failed(Failure),
}

impl From<Failure> for Ended {
    fn from(failure: Failure) -> Self {
        Self::Failed(failure)
    }
}

impl Plan {
    /// The place that a build begins in. What refers to files of the model may build them: that is foreign code at once.
    pub fn kind(&self) -> Kind {
        if self.own_files { Kind::Source } else { Kind::Wheels }
    }

    /// Nothing is to be installed: it is made in no time, and needs no place.
    pub fn is_bare(&self) -> bool {
        self.requirements.is_none()
    }
}

/// An attempt at an environment: its place, its deadline, and whether a model waits for it still.
#[derive(Clone, Copy)]
pub(crate) struct Attempt<'a> {
    /// `None` for a bare one.
    pub(crate) place: Option<Place>,
    pub(crate) cancelled: &'a AtomicBool,
    pub(super) deadline: Instant,
}
