//! Links that are copied as what they lead to: those through names with two leading dots, as Kubernetes mounts a `ConfigMap`.
//!
//! There every file is a link into `..data`, itself a link to a directory with the time in its name, and an update exchanges
//! `..data` alone. Such names are no part of a copy, so what lies there takes the link's place. The way is walked step by step
//! beneath the model's directory; each link on it counts in the listing's fingerprint, so that one that is exchanged
//! meanwhile shows.

use crate::SnapshotError;
use crate::beneath::open_beneath;
use crate::status::{Seen, Writers, kind_of, seen};
use nix::errno::Errno;
use nix::fcntl::{AtFlags, OFlag, readlinkat};
use nix::sys::stat::{FileStat, SFlag, fstat, fstatat};
use sha2::{Digest, Sha256};
use std::ffi::{OsStr, OsString};
use std::os::fd::BorrowedFd;
use std::os::unix::ffi::OsStrExt;
use std::path::{Component, Path, PathBuf};

/// Links on one way.
const HOPS: usize = 16;

/// Where a link leads.
pub(crate) struct Led {
    /// Relative to the model's directory, through no link.
    pub(crate) path: PathBuf,
    pub(crate) stat: FileStat,
    pub(crate) writers: Writers,
    /// The links on the way.
    pub(crate) links: Vec<FileStat>,
}

impl Led {
    /// Status that distinguishes this path to this file from every other.
    pub(crate) fn seen(&self) -> Seen {
        let mut hasher = Sha256::new_with_prefix(self.path.as_os_str().as_bytes());
        hasher.update(b"\0");
        // A directory's times change with files that are left out.
        let itself = (kind_of(&self.stat) != SFlag::S_IFDIR).then_some(&self.stat);
        for part in self.links.iter().chain(itself).flat_map(seen) {
            hasher.update(part.to_le_bytes());
        }
        let mut bytes = Seen::default();
        for (to, from) in bytes.iter_mut().zip(hasher.finalize().chunks_exact(8)) {
            *to = from.try_into().map(u64::from_le_bytes).unwrap_or_default();
        }
        bytes
    }
}

/// Tests that a link to `target` is copied as its target.
#[must_use]
pub fn is_followed(target: &Path) -> bool {
    target.components().any(|part| match part {
        Component::Normal(name) => name.as_bytes().starts_with(b".."),
        Component::Prefix(_) | Component::RootDir | Component::CurDir | Component::ParentDir => false,
    })
}

/// Finds what the link `link` leads to, whose own directory is reached through no link; `shown` is the link for its author.
pub(crate) fn follow(root: BorrowedFd<'_>, link: &Path, shown: &Path) -> Result<Led, SnapshotError> {
    let wrong = |target: &Path| (shown.to_owned(), target.to_owned());
    let failed = |errno| SnapshotError::source_at("follow", shown)(errno);
    let (mut links, mut path, mut waiting) = (Vec::new(), PathBuf::new(), Vec::new());
    let mut target = PathBuf::new();
    push(&mut waiting, link);
    while let Some(part) = waiting.pop() {
        if part == ".." {
            if !path.pop() {
                let (path, target) = wrong(&target);
                return Err(SnapshotError::OutsideLink { path, target });
            }
            continue;
        }
        let dir = open_beneath(root, &path, OFlag::O_PATH | OFlag::O_DIRECTORY).map_err(failed)?;
        let stat = match fstatat(&dir, part.as_os_str(), AtFlags::AT_SYMLINK_NOFOLLOW) {
            Err(Errno::ENOENT | Errno::ENOTDIR) => {
                let (path, target) = wrong(&target);
                return Err(SnapshotError::BrokenLink { path, target });
            }
            found => found.map_err(failed)?,
        };
        if kind_of(&stat) != SFlag::S_IFLNK {
            path.push(part);
            continue;
        }
        let next: PathBuf = readlinkat(&dir, part.as_os_str()).map_err(failed)?.into();
        if next.is_absolute() {
            let (path, target) = wrong(&next);
            return Err(SnapshotError::AbsoluteLink { path, target });
        }
        if links.is_empty() {
            target.clone_from(&next); // what its author has written
        }
        links.push(stat);
        if links.len() > HOPS {
            let (path, target) = wrong(&target);
            return Err(SnapshotError::BrokenLink { path, target });
        }
        push(&mut waiting, &next);
    }
    let (stat, writers) = found(root, &path, shown)?;
    Ok(Led { path, stat, writers, links })
}

/// Finds the entry at a path without links, and the users who can have put it there.
fn found(root: BorrowedFd<'_>, path: &Path, shown: &Path) -> Result<(FileStat, Writers), SnapshotError> {
    let failed = |errno| SnapshotError::source_at("follow", shown)(errno);
    let mut above: Vec<&Path> = path.ancestors().skip(1).collect();
    above.reverse(); // the model's directory first
    let mut writers = Writers::default();
    for dir in above {
        let stat =
            fstat(open_beneath(root, dir, OFlag::O_PATH | OFlag::O_DIRECTORY).map_err(failed)?).map_err(failed)?;
        if !dir.as_os_str().is_empty() && writers.may_have_moved(&stat, 0o001) {
            return Err(SnapshotError::PrivateFile { path: shown.to_owned() });
        }
        writers = writers.below(stat.st_uid);
    }
    let stat = fstat(open_beneath(root, path, OFlag::O_PATH).map_err(failed)?).map_err(failed)?;
    Ok((stat, writers))
}

fn push(waiting: &mut Vec<OsString>, path: &Path) {
    let parts = path.components().rev().filter(|part| *part != Component::CurDir);
    waiting.extend(parts.map(|part| OsStr::to_owned(part.as_os_str())));
}
