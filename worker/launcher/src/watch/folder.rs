//! Models folder: opened as a directory, and paths in it as they are shown.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

/// Characters of a path that are shown when it is not a name.
const SHOWN: usize = 200;

pub(super) fn open(folder: &Path) -> io::Result<File> {
    OpenOptions::new().read(true).custom_flags(libc::O_DIRECTORY).open(folder)
}

/// The name of the model in `path`, relative to the folder, as it is shown when it cannot be a name.
pub(super) fn shown(path: &Path) -> String {
    path.to_string_lossy().chars().take(SHOWN).collect()
}
