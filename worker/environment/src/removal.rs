//! Removes trees that foreign code has written. They may be of any depth, so nothing here recurses and no path is resolved:
//! what lies deeper is moved up to the top first, with three descriptors at a time.

use nix::dir::Dir;
use nix::errno::Errno;
use nix::fcntl::{OFlag, open, openat, renameat};
use nix::sys::stat::Mode;
use nix::unistd::{UnlinkatFlags, unlinkat};
use std::ffi::{CStr, CString};
use std::fs;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;

const DIRECTORY: OFlag = OFlag::O_DIRECTORY.union(OFlag::O_CLOEXEC);
const NO_LINK: OFlag = DIRECTORY.union(OFlag::O_NOFOLLOW);

/// Removes `path` and everything below it, through no link; nothing there is well. Nobody may write to it any more.
pub(super) fn remove_tree(path: &Path) -> io::Result<()> {
    let (Some(parent), Some(name)) = (path.parent(), path.file_name()) else {
        return Err(io::ErrorKind::InvalidInput.into());
    };
    let parent = match open(parent, DIRECTORY, Mode::empty()) {
        Err(Errno::ENOENT) => return Ok(()),
        opened => opened?,
    };
    let top = match openat(&parent, name, NO_LINK, Mode::empty()) {
        Err(Errno::ENOENT) => return Ok(()),
        Err(Errno::ENOTDIR | Errno::ELOOP) => return Ok(unlinkat(&parent, name, UnlinkatFlags::NoRemoveDir)?),
        opened => opened?,
    };
    let mut free = 0;
    while !pass(&top, &mut free)? {}
    Ok(unlinkat(&parent, name, UnlinkatFlags::RemoveDir)?)
}

/// Beginning of the names of directories that are moved aside and wait for their removal.
pub(super) const ASIDE: &str = ".gone-";

/// Takes paths out of the way at once, and removes them in a thread of its own: foreign code has written what lies there,
/// and its removal may take its time. What is not there is done with.
pub(super) fn discard(paths: &[PathBuf]) {
    static NUMBER: AtomicU64 = AtomicU64::new(0);
    let aside = |path: &PathBuf| {
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let aside = path.with_file_name(format!("{ASIDE}{}-{number}", std::process::id()));
        match fs::rename(path, &aside) {
            Ok(()) => Some(aside),
            Err(error) if error.kind() == io::ErrorKind::NotFound => None,
            Err(error) => {
                tracing::warn!(path = %path.display(), %error, "the leftovers of a build stay");
                None
            }
        }
    };
    let all: Vec<PathBuf> = paths.iter().filter_map(aside).collect();
    let remove = move || {
        for path in all {
            if let Err(error) = remove_tree(&path) {
                tracing::warn!(path = %path.display(), %error, "the leftovers of a build stay");
            }
        }
    };
    if let Err(error) = thread::Builder::new().name("discard".into()).spawn(remove) {
        tracing::warn!(%error, "the leftovers of a build stay until the launcher starts again");
    }
}

/// Takes one level away from all that is in `top`; whether there was nothing.
fn pass(top: &OwnedFd, free: &mut u64) -> Result<bool, Errno> {
    let mut is_empty = true;
    for name in names(top, c".")? {
        is_empty = false;
        let name = name?;
        if is_directory_left(top, &name)? {
            let child = openat(top, name.as_c_str(), NO_LINK, Mode::empty())?;
            for deeper in names(&child, c".")? {
                let deeper = deeper?;
                if is_directory_left(&child, &deeper)? {
                    move_up(&child, &deeper, top, free)?;
                }
            }
            match unlinkat(top, name.as_c_str(), UnlinkatFlags::RemoveDir) {
                // A listing of what changes meanwhile may leave something out: the next pass finds it.
                Ok(()) | Err(Errno::ENOTEMPTY | Errno::EEXIST) => {}
                Err(errno) => return Err(errno),
            }
        }
    }
    Ok(is_empty)
}

/// Removes what is no directory; whether it is one.
fn is_directory_left(dir: impl AsFd, name: &CStr) -> Result<bool, Errno> {
    match unlinkat(dir, name, UnlinkatFlags::NoRemoveDir) {
        Ok(()) | Err(Errno::ENOENT) => Ok(false),
        Err(Errno::EISDIR) => Ok(true),
        Err(errno) => Err(errno),
    }
}

/// Moves a directory to a name in `top` that nothing has. An empty directory of that name is replaced, which is as good.
fn move_up(from: &OwnedFd, name: &CStr, top: &OwnedFd, free: &mut u64) -> Result<(), Errno> {
    loop {
        let to = free.to_string();
        *free += 1;
        match renameat(from, name, top, to.as_str()) {
            Err(Errno::ENOTEMPTY | Errno::EEXIST | Errno::ENOTDIR) => {}
            moved => return moved,
        }
    }
}

/// The names in a directory, but for the two that each has.
fn names(dir: &OwnedFd, at: &CStr) -> Result<impl Iterator<Item = Result<CString, Errno>>, Errno> {
    let entries = Dir::openat(dir, at, NO_LINK, Mode::empty())?.into_iter();
    let is_own = |name: &CStr| !matches!(name.to_bytes(), b"." | b"..");
    Ok(entries
        .map(|entry| entry.map(|entry| entry.file_name().to_owned()))
        .filter(move |name| name.as_ref().map_or(true, |name| is_own(name))))
}

#[cfg(test)]
mod tests {
    use super::*;
    use nix::sys::stat::mkdirat;
    use std::os::unix::fs::symlink;

    /// Far more levels than a stack has room for, and a path that no system call takes.
    fn nest(dir: &Path, levels: usize) {
        let mut here = open(dir, DIRECTORY, Mode::empty()).unwrap();
        for _ in 0..levels {
            mkdirat(&here, "d", Mode::S_IRWXU).unwrap();
            here = openat(&here, "d", NO_LINK, Mode::empty()).unwrap();
        }
    }

    #[test]
    fn a_tree_of_any_depth_goes_on_a_small_stack_and_links_lead_nowhere() {
        let outer = tempfile::tempdir().unwrap();
        let (kept, tree) = (outer.path().join("kept"), outer.path().join("tree"));
        fs::create_dir(&kept).unwrap();
        fs::write(kept.join("file"), "x").unwrap();
        // Names that its own moves would take, of every kind.
        for path in ["0/file", "1", "wide/a/b", "wide/c/d", "wide/e", "3/0/1/2"] {
            fs::create_dir_all(tree.join(path)).unwrap();
        }
        fs::write(tree.join("2"), "x").unwrap();
        symlink(&kept, tree.join("4")).unwrap();
        symlink(&kept, tree.join("wide/a/link")).unwrap();
        nest(&tree.join("wide/a"), 6_000);
        let small = thread::Builder::new().stack_size(128 << 10);
        let removal = tree.clone();
        small.spawn(move || remove_tree(&removal)).unwrap().join().unwrap().unwrap();
        assert!(!tree.exists() && kept.join("file").exists());
        remove_tree(&tree).unwrap();
        remove_tree(&tree.join("deeper")).unwrap();
        symlink(&kept, &tree).unwrap();
        remove_tree(&tree).unwrap();
        assert!(tree.symlink_metadata().is_err() && kept.join("file").exists());
    }
}
