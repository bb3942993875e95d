//! Checks of a snapshot in the store against its name: by comparing it with a fresh copy of the same content, or by
//! reading it.
//!
//! A file that is the same inode in both needs no look at its content. One that is not, of a store of an earlier
//! release or after its content was made anew, is read.

use crate::SnapshotError;
use crate::beneath::open_beneath;
use crate::digest::{Content, TreeHasher};
use crate::file::hash_content;
use crate::progress::Source;
use crate::tree::{Entry, Fingerprint, Kind, Limits, list};
use nix::errno::Errno;
use nix::fcntl::OFlag;
use omni_node_protocol::id::SnapshotDigest;
use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

/// A snapshot as it was read.
pub(crate) struct Read {
    pub(crate) digest: SnapshotDigest,
    pub(crate) fingerprint: Fingerprint,
    /// Digests of its files, by inode.
    pub(crate) files: BTreeMap<u64, [u8; 32]>,
}

/// Reads a snapshot; `None` when its state is the one that is known.
pub(crate) fn read(dir: &Path, limits: Limits, known: Option<&Fingerprint>) -> Result<Option<Read>, SnapshotError> {
    let root = File::open(dir).map_err(SnapshotError::store_at("open", dir))?;
    let source = Source { root: root.as_fd(), progress: &() };
    let listing = list(source, limits)?;
    if known.is_some_and(|known| known.still_is(&listing.fingerprint)) {
        return Ok(None);
    }
    let (mut hasher, mut files) = (TreeHasher::default(), BTreeMap::new());
    for entry in listing.entries {
        let content = match &entry.kind {
            Kind::Directory => Content::Directory,
            Kind::Link { target } => Content::Link { target },
            Kind::File(file) => {
                let failed = |error| SnapshotError::store_at("read", &entry.path)(error);
                let sha256 = hash_content(&open(root.as_fd(), &entry)?, file.identity.size, &(), failed)?;
                files.insert(file.identity.inode, sha256);
                Content::File { executable: file.executable, sha256 }
            }
        };
        hasher.entry(&entry.path, content);
    }
    let bad = |bad| SnapshotError::store_at("name", dir)(io::Error::new(io::ErrorKind::InvalidData, bad));
    Ok(Some(Read { digest: hasher.finish().map_err(bad)?, fingerprint: listing.fingerprint, files }))
}

/// Opens a file of a snapshot, in whatever state it is by now: a copy of the same content that is made or removed at
/// this moment adds or removes a name of the same inode, which changes its times and none of its bytes.
fn open(root: BorrowedFd<'_>, entry: &Entry) -> Result<File, SnapshotError> {
    let failed = |errno: Errno| SnapshotError::store_at("open", &entry.path)(errno.into());
    open_beneath(root, entry.place(), OFlag::O_RDONLY | OFlag::O_NONBLOCK).map(File::from).map_err(failed)
}

/// Tests that the directory `old` has the content of the whole copy `new`, and nothing else.
pub(crate) fn is_whole(old: &Path, new: &Path) -> io::Result<bool> {
    let entries = below(new)?;
    for path in &entries {
        let (old, new) = (old.join(path), new.join(path));
        let found = match fs::symlink_metadata(&old) {
            Err(error) if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) => {
                return Ok(false);
            }
            found => found?,
        };
        let good = fs::symlink_metadata(&new)?;
        let same = if good.is_dir() {
            found.is_dir()
        } else if good.is_symlink() {
            found.is_symlink() && fs::read_link(&old)? == fs::read_link(&new)?
        } else {
            let looks = found.is_file() && found.len() == good.len() && found.mode() == good.mode();
            looks && (found.ino() == good.ino() || same_content(&old, &new)?)
        };
        if !same {
            return Ok(false);
        }
    }
    Ok(below(old)?.len() == entries.len())
}

/// Tests that two files of one size have the same bytes. A file that cannot be read is different.
fn same_content(old: &Path, new: &Path) -> io::Result<bool> {
    let size = fs::symlink_metadata(new)?.len();
    let open = |path| OpenOptions::new().read(true).custom_flags(OFlag::O_NOFOLLOW.bits()).open(path);
    let hash = |file: File| hash_content(&file, size, &(), |error| SnapshotError::store_at("read", new)(error));
    let Ok(Ok(old)) = open(old).map(hash) else { return Ok(false) };
    Ok(old == hash(open(new)?).map_err(io::Error::other)?)
}

/// All paths below a directory, relative to it.
fn below(dir: &Path) -> io::Result<Vec<PathBuf>> {
    let (mut waiting, mut found) = (vec![PathBuf::new()], Vec::new());
    while let Some(below) = waiting.pop() {
        for entry in fs::read_dir(dir.join(&below))? {
            let entry = entry?;
            let path = below.join(entry.file_name());
            if entry.file_type()?.is_dir() {
                waiting.push(path.clone());
            }
            found.push(path);
        }
    }
    Ok(found)
}
