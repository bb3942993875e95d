//! Files beneath a descriptor: with any renames and links meanwhile, nothing outside is reached.

use nix::dir::{Dir, Type};
use nix::errno::Errno;
use nix::fcntl::{OFlag, OpenHow, ResolveFlag, openat2};
use nix::sys::stat::Mode;
use nix::unistd::{UnlinkatFlags, unlinkat};
use omni_dir::retry;
use std::ffi::{OsStr, OsString};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// Opens `path` below `root`, through no link.
///
/// # Errors
/// The kernel's answer: `EXDEV` and `ELOOP` for what leads out or is a link.
pub fn open_beneath(root: impl AsFd, path: &Path, flags: OFlag) -> Result<OwnedFd, Errno> {
    open_resolved(root.as_fd(), path, flags, ResolveFlag::empty())
}

/// Opens `path` below `root`, through no link and within the file system of `root`: a mount below is not touched.
///
/// # Errors
/// The kernel's answer: `EXDEV` for what is mounted or leads out.
pub fn open_within(root: impl AsFd, path: &Path, flags: OFlag) -> Result<OwnedFd, Errno> {
    open_resolved(root.as_fd(), path, flags, ResolveFlag::RESOLVE_NO_XDEV)
}

fn open_resolved(root: BorrowedFd<'_>, path: &Path, flags: OFlag, more: ResolveFlag) -> Result<OwnedFd, Errno> {
    let resolve = ResolveFlag::RESOLVE_BENEATH | ResolveFlag::RESOLVE_NO_MAGICLINKS | ResolveFlag::RESOLVE_NO_SYMLINKS;
    let how = OpenHow::new().flags(flags | OFlag::O_CLOEXEC | OFlag::O_NOFOLLOW).resolve(resolve | more);
    retry(|| openat2(root, if path.as_os_str().is_empty() { Path::new(".") } else { path }, how))
}

/// Names in a directory, each with whether it is a directory.
///
/// # Errors
/// The kernel's answer.
pub fn names(dir: impl AsFd) -> Result<Vec<(OsString, bool)>, Errno> {
    let mut names = Vec::new();
    for entry in Dir::openat(dir, ".", OFlag::O_RDONLY | OFlag::O_CLOEXEC, Mode::empty())?.iter() {
        let entry = entry?;
        let name = entry.file_name().to_bytes();
        if name != b"." && name != b".." {
            names.push((OsStr::from_bytes(name).to_owned(), entry.file_type() == Some(Type::Directory)));
        }
    }
    Ok(names)
}

/// Directories within directories that are removed: more than a snapshot has.
const DEPTH: u32 = 256;

/// Removes `name` in `dir`, and all that is beneath it; a link goes itself, not what it leads to.
///
/// # Errors
/// The kernel's answer, `ELOOP` for what is too deep; what was removed until then is gone.
pub fn remove(dir: impl AsFd, name: &OsStr) -> Result<(), Errno> {
    remove_within(dir.as_fd(), name, DEPTH)
}

fn remove_within(dir: BorrowedFd<'_>, name: &OsStr, levels: u32) -> Result<(), Errno> {
    match unlinkat(dir, name, UnlinkatFlags::NoRemoveDir) {
        Err(Errno::EISDIR | Errno::EPERM) => {}
        done => return done,
    }
    let levels = levels.checked_sub(1).ok_or(Errno::ELOOP)?;
    let below = open_beneath(dir, Path::new(name), OFlag::O_RDONLY | OFlag::O_DIRECTORY)?;
    for (name, _) in names(&below)? {
        remove_within(below.as_fd(), &name, levels)?;
    }
    unlinkat(dir, name, UnlinkatFlags::RemoveDir)
}
