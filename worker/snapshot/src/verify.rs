//! Whether a snapshot that is in the store is what its name says: compared with a fresh copy of the same content.
//!
//! A file that is the same inode in both needs no look at its content. One that is not, of a store of an earlier release or
//! after its content was made anew, is read.

use crate::tree::{Entry, Kind};
use nix::fcntl::OFlag;
use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::Path;

/// Whether the directory `old` has what the whole copy `new` of `entries` has, and nothing else.
pub(crate) fn is_whole(old: &Path, new: &Path, entries: &[Entry]) -> io::Result<bool> {
    for Entry { path, kind } in entries {
        let (old, new) = (old.join(path), new.join(path));
        let found = match fs::symlink_metadata(&old) {
            Err(error) if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) => {
                return Ok(false);
            }
            found => found?,
        };
        let same = match kind {
            Kind::Directory => found.is_dir(),
            Kind::Link { target } => found.is_symlink() && fs::read_link(&old)? == *target,
            Kind::File(_) => {
                let good = fs::symlink_metadata(&new)?;
                let looks = found.is_file() && found.len() == good.len() && found.mode() == good.mode();
                looks && (found.ino() == good.ino() || same_content(&old, &new)?)
            }
        };
        if !same {
            return Ok(false);
        }
    }
    Ok(count(old)? == entries.len())
}

/// Whether two files of one size have the same bytes. One that cannot be read has not.
fn same_content(old: &Path, new: &Path) -> io::Result<bool> {
    let size = fs::symlink_metadata(new)?.len();
    let open = |path| OpenOptions::new().read(true).custom_flags(OFlag::O_NOFOLLOW.bits()).open(path);
    let hash = |file: &File| crate::file::hash_content(file, size);
    let Ok(old) = open(old).and_then(|old| hash(&old)) else { return Ok(false) };
    Ok(old == hash(&open(new)?)?)
}

fn count(dir: &Path) -> io::Result<usize> {
    let (mut waiting, mut count) = (vec![dir.to_owned()], 0);
    while let Some(dir) = waiting.pop() {
        for entry in fs::read_dir(&dir)? {
            let entry = entry?;
            count += 1;
            if entry.file_type()?.is_dir() {
                waiting.push(entry.path());
            }
        }
    }
    Ok(count)
}
