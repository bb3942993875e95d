//! Files in memory: pages are read when they are used, and copied nowhere.

#![allow(unsafe_code, reason = "a mapping of a file is memory that others could change")]

use crate::error::CheckpointError;
use memmap2::Mmap;
use std::fs::File;
use std::path::{Path, PathBuf};

/// File that is mapped for reading.
#[derive(Debug)]
pub(crate) struct MappedFile {
    path: PathBuf,
    bytes: Mmap,
}

impl MappedFile {
    /// Maps a file. Pipes and devices are refused before they are opened: opening one may wait or have an effect.
    pub(crate) fn open(path: PathBuf) -> Result<Self, CheckpointError> {
        let failed = |error| CheckpointError::Io { path: path.clone(), error };
        if !std::fs::metadata(&path).map_err(failed)?.is_file() {
            return Err(CheckpointError::File { file: path, reason: "is not a regular file".to_owned() });
        }
        let file = File::open(&path).map_err(failed)?;
        // SAFETY: The mapping is private and only read. Files of a checkpoint are expected not to change while it is
        // open: a version's directory is written once, under another name, and never again. Were one written to all the
        // same, weights would change, which no check relies on (they are plain numbers, and metadata is checked again
        // when it is read); were one cut, the process would end by SIGBUS.
        let bytes = unsafe { Mmap::map(&file) }.map_err(failed)?;
        Ok(Self { path, bytes })
    }

    /// Path of the file.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Contents.
    pub(crate) fn bytes(&self) -> &[u8] {
        &self.bytes
    }
}
