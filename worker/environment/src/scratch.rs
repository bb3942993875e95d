//! Directories that a build from source may write beside its environment: a package cache, and a copy of the model's
//! directory.

use super::plan::Plan;
use super::removal::{discard, remove_tree};
use super::tree;
use omni_node_protocol::id::EnvironmentKey;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

/// Beginning of the names of these folders, below the cache directory.
pub(super) const SCRATCH: &str = "build-";

pub(super) struct Scratch(pub(super) PathBuf);

impl Scratch {
    pub(super) fn at(cache_dir: &Path, key: &EnvironmentKey) -> Self {
        Self(cache_dir.join(format!("{SCRATCH}{key}")))
    }

    /// Makes the folder for this user, with the packages that an attempt which timed out has built.
    pub(super) fn make(cache_dir: &Path, plan: &Plan, uid: u32) -> io::Result<Self> {
        let scratch = Self::at(cache_dir, &plan.key);
        // Foreign code has written it: not needed, so any error is ignored.
        let kept = scratch.cache().is_dir()
            && remove_tree(&scratch.model()).and_then(|()| Ok(tree::hand_over(&scratch.0, uid)?)).is_ok();
        if !kept {
            discard(std::slice::from_ref(&scratch.0));
            remove_tree(&scratch.0)?;
            fs::create_dir(&scratch.0)?;
            fs::create_dir(scratch.cache())?;
        }
        tree::copy(&plan.snapshot, &scratch.model())?;
        tree::hand_over(&scratch.0, uid)?;
        Ok(scratch)
    }

    pub(super) fn cache(&self) -> PathBuf {
        self.0.join("uv")
    }

    pub(super) fn model(&self) -> PathBuf {
        self.0.join("model")
    }

    pub(super) fn remove(self) -> io::Result<()> {
        remove_tree(&self.0)
    }
}
