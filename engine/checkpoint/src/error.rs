//! Errors of opening and reading a checkpoint.

use std::io;
use std::path::{Path, PathBuf};

/// Error of a checkpoint. Its text is a sentence that names the file, and the tensor where one is to blame.
#[derive(Debug, thiserror::Error)]
pub enum CheckpointError {
    /// File or directory that the system does not give.
    #[error("{}: cannot be read: {error}.", path.display())]
    Io {
        /// File or directory.
        path: PathBuf,
        /// Reason by the system.
        error: io::Error,
    },
    /// File or directory that is broken or not supported as a whole.
    #[error("{}: {reason}.", file.display())]
    File {
        /// File or directory.
        file: PathBuf,
        /// Reason, the end of a sentence.
        reason: String,
    },
    /// Tensor that is broken, not supported, or not there.
    #[error("{}: tensor {tensor:?}: {reason}.", file.display())]
    Tensor {
        /// File that holds the tensor, or should.
        file: PathBuf,
        /// Name of the tensor.
        tensor: String,
        /// Reason, the end of a sentence.
        reason: String,
    },
}

impl From<omni_gguf::Defect> for Defect {
    fn from(omni_gguf::Defect(reason): omni_gguf::Defect) -> Self {
        Self::file(reason)
    }
}

/// Error of a file's contents, found where the file's name is not known.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Defect {
    tensor: Option<String>,
    reason: String,
}

impl Defect {
    /// Defect of the whole file.
    pub(crate) fn file(reason: impl Into<String>) -> Self {
        Self { tensor: None, reason: reason.into() }
    }

    /// Defect of a tensor.
    pub(crate) fn tensor(name: &str, reason: impl Into<String>) -> Self {
        Self { tensor: Some(name.to_owned()), reason: reason.into() }
    }

    /// Error with the name of the file.
    pub(crate) fn in_file(self, path: &Path) -> CheckpointError {
        let file = path.to_owned();
        match self.tensor {
            Some(tensor) => CheckpointError::Tensor { file, tensor, reason: self.reason },
            None => CheckpointError::File { file, reason: self.reason },
        }
    }
}
