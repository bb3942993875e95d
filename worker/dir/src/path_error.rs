//! Failures of steps on paths.

use std::io;
use std::path::{Path, PathBuf};

/// Failure of a step on a path.
#[derive(Debug, thiserror::Error)]
#[error("cannot {step} {}", path.display())]
pub struct PathError {
    /// The step, as a verb.
    pub step: &'static str,
    /// The path.
    pub path: PathBuf,
    /// Cause.
    pub source: io::Error,
}

impl PathError {
    /// Makes an error of the cause of a failed `step`, for `map_err`.
    pub fn at(step: &'static str, path: &Path) -> impl FnOnce(io::Error) -> Self {
        let path = path.to_owned();
        move |source| Self { step, path, source }
    }
}
