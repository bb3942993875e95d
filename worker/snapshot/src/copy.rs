//! Copies a listed directory, and hashes what it copies.

use crate::SnapshotError;
use crate::digest::{Content, TreeHasher};
use crate::tree::{Entry, Kind, Limits, Listing, list, open_beneath};
use nix::fcntl::OFlag;
use nix::sys::stat::{SFlag, fstat};
use omni_ipc::id::SnapshotDigest;
use sha2::{Digest, Sha256};
use std::fs::{self, File, OpenOptions, Permissions};
use std::io::{self, ErrorKind, Read, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};

/// Copies the directory `from` into the empty directory `to`, as a snapshot has it: the same files are left out, refused
/// and bounded, modes are 0755 and 0644. Returns the digest that its snapshot will have.
///
/// # Errors
/// See [`SnapshotError`]; what was copied until then is left.
pub fn copy_directory(from: impl AsFd, to: &Path, limits: Limits) -> Result<SnapshotDigest, SnapshotError> {
    let listing = list(from.as_fd(), limits)?;
    copy_listed(from.as_fd(), &listing, to, limits)
}

/// Copies a listed directory, unless it changed since or while it was copied.
pub(crate) fn copy_listed(
    root: BorrowedFd<'_>,
    listing: &Listing,
    to: &Path,
    limits: Limits,
) -> Result<SnapshotDigest, SnapshotError> {
    let hasher = copy(root, &listing.entries, to)?;
    if !listing.fingerprint.same(&list(root, limits)?.fingerprint) {
        return Err(SnapshotError::Changing { path: PathBuf::from(".") });
    }
    let bad = |bad| SnapshotError::store_at("name", to)(io::Error::new(ErrorKind::InvalidData, bad));
    hasher.finish().map_err(bad)
}

/// Copies `entries` of the directory `root` into the empty directory `to`; returns the hasher that has seen them all.
fn copy(root: BorrowedFd<'_>, entries: &[Entry], to: &Path) -> Result<TreeHasher, SnapshotError> {
    let mut hasher = TreeHasher::default();
    let mut buffer = vec![0; 128 * 1024];
    for Entry { path, kind } in entries {
        let target = to.join(path);
        match kind {
            Kind::Directory => {
                fs::create_dir(&target)
                    .and_then(|()| fs::set_permissions(&target, Permissions::from_mode(0o755)))
                    .map_err(SnapshotError::store_at("make", &target))?;
                hasher.entry(path, Content::Directory);
            }
            Kind::File { executable, size, inode } => {
                let from = open(root, path, *size, *inode)?;
                let sha256 = copy_file(from, *size, path, &target, *executable, &mut buffer)?;
                hasher.entry(path, Content::File { executable: *executable, sha256 });
            }
            Kind::Link { target: leads_to } => {
                symlink(leads_to, &target).map_err(SnapshotError::store_at("make", &target))?;
                hasher.entry(path, Content::Link { target: leads_to });
            }
        }
    }
    Ok(hasher)
}

/// Opens what was listed as a regular file of `size` bytes, and no other: a directory on its way could have been exchanged
/// for another, which the second listing does not show once it is back. Should it be a FIFO by now, `O_NONBLOCK` does not
/// wait for it.
fn open(root: BorrowedFd<'_>, path: &Path, size: u64, inode: u64) -> Result<File, SnapshotError> {
    let failed = SnapshotError::source_at("open", path);
    let fd = open_beneath(root, path, OFlag::O_RDONLY | OFlag::O_NONBLOCK | OFlag::O_NOCTTY).map_err(failed)?;
    let stat = fstat(&fd).map_err(SnapshotError::source_at("look at", path))?;
    let regular = SFlag::from_bits_truncate(stat.st_mode) & SFlag::S_IFMT == SFlag::S_IFREG;
    if regular && u64::try_from(stat.st_size) == Ok(size) && stat.st_ino == inode {
        Ok(fd.into())
    } else {
        Err(SnapshotError::Changing { path: path.to_owned() })
    }
}

/// Copies exactly `size` bytes, so that a file that grows is not followed; that it grew is noticed by the second listing.
fn copy_file(
    from: File,
    size: u64,
    path: &Path,
    target: &Path,
    executable: bool,
    buffer: &mut [u8],
) -> Result<[u8; 32], SnapshotError> {
    let mode = if executable { 0o755 } else { 0o644 };
    let mut to = OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(mode)
        .open(target)
        .and_then(|file| file.set_permissions(Permissions::from_mode(mode)).map(|()| file))
        .map_err(SnapshotError::store_at("make", target))?;
    let mut from = from.take(size);
    let mut hasher = Sha256::new();
    let mut copied = 0;
    loop {
        let chunk = match from.read(buffer) {
            Ok(0) => break,
            Ok(read) => buffer.get(..read).unwrap_or_default(),
            Err(error) if error.kind() == ErrorKind::Interrupted => continue,
            Err(error) => {
                let errno = nix::errno::Errno::from_raw(error.raw_os_error().unwrap_or_default());
                return Err(SnapshotError::source_at("read", path)(errno));
            }
        };
        hasher.update(chunk);
        to.write_all(chunk).map_err(SnapshotError::store_at("write", target))?;
        copied += chunk.len() as u64;
    }
    if copied == size { Ok(hasher.finalize().into()) } else { Err(SnapshotError::Changing { path: path.to_owned() }) }
}
