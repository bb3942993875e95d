//! Copies a listed directory beneath a descriptor, and hashes what it copies.

use crate::SnapshotError;
use crate::beneath::open_beneath;
use crate::digest::{Content, TreeHasher};
use crate::file::{copy_content, hash_content, open_listed};
use crate::progress::{Progress, Source};
use crate::tree::{Entry, FileEntry, Kind, Limits, Listing, list};
use nix::errno::Errno;
use nix::fcntl::{OFlag, openat};
use nix::sys::stat::{Mode, fchmod, mkdirat};
use nix::unistd::symlinkat;
use omni_node_protocol::id::SnapshotDigest;
use std::ffi::OsStr;
use std::fs::File;
use std::io::{self, ErrorKind};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};

/// Copies the directory `from` into the empty directory `to`, as a snapshot has it: the same files are left out, refused
/// and bounded, modes are 0755 and 0644. Nothing is written but beneath the descriptor `to`, wherever its name leads
/// meanwhile. Returns the digest that its snapshot will have.
///
/// # Errors
/// See [`SnapshotError`]; what was copied until then is left.
pub fn copy_directory(from: impl AsFd, to: impl AsFd, limits: Limits) -> Result<SnapshotDigest, SnapshotError> {
    let source = Source { root: from.as_fd(), progress: &() };
    let listing = list(source, limits)?;
    copy_listed(source, &listing, to.as_fd(), limits, &mut Plain)
}

/// Looks through a directory as before a copy, and reads no file.
///
/// # Errors
/// See [`SnapshotError`]: what refuses a copy for good.
pub fn check_directory(dir: impl AsFd, limits: Limits, progress: &dyn Progress) -> Result<(), SnapshotError> {
    list(Source { root: dir.as_fd(), progress }, limits).map(drop)
}

/// How a file gets into the copy.
pub(crate) trait Put {
    /// Makes `name` in the directory `to`, with the content of the listed `file`; returns the content's SHA-256.
    fn put(
        &mut self,
        source: Source<'_>,
        entry: &Entry,
        file: &FileEntry,
        to: BorrowedFd<'_>,
        name: &OsStr,
    ) -> Result<[u8; 32], SnapshotError>;
}

/// A copy for itself, which shares nothing.
struct Plain;

impl Put for Plain {
    fn put(
        &mut self,
        source: Source<'_>,
        entry: &Entry,
        file: &FileEntry,
        to: BorrowedFd<'_>,
        name: &OsStr,
    ) -> Result<[u8; 32], SnapshotError> {
        let (path, size, progress) = (&entry.path, file.identity.size, source.progress);
        let from = open_listed(source, entry, file)?;
        let copy = create(to, name, file.executable).map_err(store("make", path))?;
        copy_content(&from, &copy, size, path, progress)?;
        hash_content(&copy, size, progress, |error| SnapshotError::store_at("read", path)(error))
    }
}

/// Copies a listed directory, unless it changed since or while it was copied.
pub(crate) fn copy_listed(
    source: Source<'_>,
    listing: &Listing,
    to: BorrowedFd<'_>,
    limits: Limits,
    put: &mut dyn Put,
) -> Result<SnapshotDigest, SnapshotError> {
    let hasher = copy(source, &listing.entries, to, put)?;
    if !listing.fingerprint.same(&list(source, limits)?.fingerprint) {
        return Err(SnapshotError::Changing { path: PathBuf::from(".") });
    }
    let bad = |bad| SnapshotError::store_at("name", Path::new("."))(io::Error::new(ErrorKind::InvalidData, bad));
    hasher.finish().map_err(bad)
}

/// Copies `entries` of the directory `source` into the empty directory `to`; returns the hasher that has seen them all.
fn copy(
    source: Source<'_>,
    entries: &[Entry],
    to: BorrowedFd<'_>,
    put: &mut dyn Put,
) -> Result<TreeHasher, SnapshotError> {
    let mut hasher = TreeHasher::default();
    let mut parents = Parents { to, last: None };
    for entry in entries {
        let Entry { path, kind, .. } = entry;
        let parent = parents.of(path).map_err(store("open", path))?;
        let name = path.file_name().unwrap_or_default();
        match kind {
            Kind::Directory => {
                make_directory(parent, name).map_err(store("make", path))?;
                hasher.entry(path, Content::Directory);
            }
            Kind::File(file) => {
                let sha256 = put.put(source, entry, file, parent, name)?;
                hasher.entry(path, Content::File { executable: file.executable, sha256 });
            }
            Kind::Link { target } => {
                symlinkat(target, parent, name).map_err(store("make", path))?;
                hasher.entry(path, Content::Link { target });
            }
        }
    }
    Ok(hasher)
}

/// Opens the directories of a copy, each once for all that is beside one another in it.
struct Parents<'a> {
    to: BorrowedFd<'a>,
    last: Option<(PathBuf, OwnedFd)>,
}

impl Parents<'_> {
    fn of(&mut self, path: &Path) -> Result<BorrowedFd<'_>, Errno> {
        let dir = path.parent().unwrap_or(Path::new(""));
        let last = match self.last.take() {
            Some(last) if last.0 == dir => last,
            _ => (dir.to_owned(), open_beneath(self.to, dir, OFlag::O_RDONLY | OFlag::O_DIRECTORY)?),
        };
        Ok(self.last.insert(last).1.as_fd())
    }
}

fn make_directory(parent: BorrowedFd<'_>, name: &OsStr) -> Result<(), Errno> {
    let mode = Mode::from_bits_truncate(0o755);
    mkdirat(parent, name, mode)?;
    let dir = open_beneath(parent, Path::new(name), OFlag::O_RDONLY | OFlag::O_DIRECTORY)?;
    fchmod(dir, mode) // whatever the umask is
}

/// Creates a file that was not there.
pub(crate) fn create(dir: BorrowedFd<'_>, name: &OsStr, executable: bool) -> Result<File, Errno> {
    let mode = Mode::from_bits_truncate(if executable { 0o755 } else { 0o644 });
    let flags = OFlag::O_RDWR | OFlag::O_CREAT | OFlag::O_EXCL | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
    let file = openat(dir, name, flags, mode)?;
    fchmod(&file, mode)?; // whatever the umask is
    Ok(file.into())
}

pub(crate) fn store(action: &'static str, path: &Path) -> impl FnOnce(Errno) -> SnapshotError {
    let path = path.to_owned();
    move |errno| SnapshotError::store_at(action, &path)(errno.into())
}
