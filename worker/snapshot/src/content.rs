//! Files of all snapshots, each content once: `<store>/.files/<sha256>-f`, and `-x` for executable ones.
//!
//! A snapshot has hard links to them, so that a new version takes room for its changes only.
//!
//! Invariants: each file here is whole, root's and never written again; its modification time is made of its content
//! ([`stamp`]), so that a file that was written to is recognised by its status, and so is one of another content by
//! comparing times. A damaged one is replaced by the next copy of its content and never linked to; one that no snapshot
//! has is removed.

use crate::SnapshotError;
use crate::copy::{Put, create, store};
use crate::digest::hex;
use crate::file::{copy_content, hash_content, open_listed, source_failed};
use crate::progress::{Progress, Source};
use crate::sources::{LARGE, Sources};
use crate::status::kind_of;
use crate::tree::{Entry, FileEntry, TICK};
use nix::dir::Dir;
use nix::errno::Errno;
use nix::fcntl::{AtFlags, OFlag, open, renameat};
use nix::sys::stat::{FileStat, Mode, SFlag, fstatat, futimens};
use nix::sys::time::TimeSpec;
use nix::unistd::{UnlinkatFlags, linkat, unlinkat};
use std::collections::{BTreeMap, BTreeSet};
use std::ffi::{OsStr, OsString};
use std::fs;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::SystemTime;

/// A name in `.files`, or beside a file in a copy, while it is made.
const FRESH: &str = ".fresh-";

#[derive(Debug)]
pub(crate) struct Contents {
    dir: OwnedFd,
    next: AtomicU64,
    /// Sizes that large files here have, or had.
    sizes: Mutex<BTreeSet<u64>>,
}

impl Contents {
    /// Opens the folder, makes it when it is missing, and removes what no snapshot has.
    pub(crate) fn cleaned(path: &Path) -> io::Result<Self> {
        fs::create_dir_all(path)?;
        let contents = Self::open(path)?;
        for (name, _) in contents.names()? {
            if contents.stat(&name)?.st_nlink < 2 || name.as_bytes().starts_with(FRESH.as_bytes()) {
                unlinkat(&contents.dir, name.as_os_str(), UnlinkatFlags::NoRemoveDir)?;
            }
        }
        Ok(contents)
    }

    /// Opens the folder, which another process may have open, too.
    pub(crate) fn open(path: &Path) -> io::Result<Self> {
        let dir = open(path, OFlag::O_RDONLY | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC, Mode::empty())?;
        let contents = Self { dir, next: AtomicU64::new(0), sizes: Mutex::default() };
        for (name, _) in contents.names()? {
            match contents.stat(&name) {
                Ok(stat) => contents.remember_size(u64::try_from(stat.st_size).unwrap_or_default()),
                Err(Errno::ENOENT) => {} // removed meanwhile
                Err(errno) => return Err(errno.into()),
            }
        }
        Ok(contents)
    }

    /// Tests that a file of this size may be here.
    pub(crate) fn may_have(&self, size: u64) -> bool {
        size < LARGE || self.sizes().contains(&size)
    }

    /// Links `name` in the directory `to` to the file with this content. `false` when there is none that is whole.
    fn link(&self, of: &Wanted, to: BorrowedFd<'_>, name: &OsStr) -> Result<bool, Errno> {
        let here = of.name();
        match self.stat(&here) {
            Ok(stat) if of.is(&stat) => {}
            Ok(_) | Err(Errno::ENOENT) => return Ok(false),
            Err(errno) => return Err(errno),
        }
        match linkat(&self.dir, here.as_os_str(), to, name, AtFlags::empty()) {
            Ok(()) => Ok(true),
            // As many links as a file can have, or swept a moment ago: a file of its own then.
            Err(Errno::EMLINK | Errno::ENOENT) => Ok(false),
            Err(errno) => Err(errno),
        }
    }

    /// Has a copy that was just made here too, or the copy as a link to what was here already.
    fn keep(&self, of: &Wanted, dir: BorrowedFd<'_>, name: &OsStr) -> Result<(), Errno> {
        let here = of.name();
        let fresh: OsString =
            format!("{FRESH}{}-{}", std::process::id(), self.next.fetch_add(1, Ordering::Relaxed)).into();
        match linkat(dir, name, &self.dir, here.as_os_str(), AtFlags::empty()) {
            // Another copy of it was faster, or what is here is damaged or has all its links.
            Err(Errno::EEXIST) if self.link(of, dir, &fresh)? => renameat(dir, fresh.as_os_str(), dir, name)?,
            Err(Errno::EEXIST) => {
                linkat(dir, name, &self.dir, fresh.as_os_str(), AtFlags::empty())?;
                renameat(&self.dir, fresh.as_os_str(), &self.dir, here.as_os_str())?;
            }
            made => made?,
        }
        self.remember_size(of.size);
        Ok(())
    }

    /// Removes those of these inodes that no snapshot has any more.
    pub(crate) fn sweep(&self, inodes: &BTreeSet<u64>) -> Result<(), Errno> {
        if inodes.is_empty() {
            return Ok(());
        }
        for (name, inode) in self.names()? {
            if inodes.contains(&inode) && self.stat(&name).is_ok_and(|stat| stat.st_nlink < 2) {
                match unlinkat(&self.dir, name.as_os_str(), UnlinkatFlags::NoRemoveDir) {
                    Ok(()) | Err(Errno::ENOENT) => {} // another process may have swept it
                    Err(errno) => return Err(errno),
                }
            }
        }
        Ok(())
    }

    /// Removes those of these inodes, as they were read, that have not the content of their name. Snapshots keep theirs.
    pub(crate) fn distrust(&self, files: &BTreeMap<u64, [u8; 32]>) -> Result<(), Errno> {
        for (name, inode) in self.names()? {
            if files.get(&inode).is_some_and(|sha256| !name.as_bytes().starts_with(hex(sha256).as_bytes())) {
                unlinkat(&self.dir, name.as_os_str(), UnlinkatFlags::NoRemoveDir)?;
            }
        }
        Ok(())
    }

    fn names(&self) -> Result<Vec<(OsString, u64)>, Errno> {
        let mut names = Vec::new();
        for entry in Dir::openat(&self.dir, ".", OFlag::O_RDONLY | OFlag::O_CLOEXEC, Mode::empty())?.iter() {
            let entry = entry?;
            let name = entry.file_name().to_bytes();
            if name != b"." && name != b".." {
                names.push((OsStr::from_bytes(name).to_owned(), entry.ino()));
            }
        }
        Ok(names)
    }

    fn stat(&self, name: &OsStr) -> Result<FileStat, Errno> {
        fstatat(&self.dir, name, AtFlags::AT_SYMLINK_NOFOLLOW)
    }

    fn remember_size(&self, size: u64) {
        if size >= LARGE {
            self.sizes().insert(size);
        }
    }

    /// Each change to the set is one step.
    fn sizes(&self) -> MutexGuard<'_, BTreeSet<u64>> {
        self.sizes.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A content with the right to execute it.
pub(crate) struct Wanted {
    pub(crate) sha256: [u8; 32],
    pub(crate) executable: bool,
    pub(crate) size: u64,
}

impl Wanted {
    fn name(&self) -> OsString {
        format!("{}-{}", hex(&self.sha256), if self.executable { 'x' } else { 'f' }).into()
    }

    /// Tests that a file's status is still that of this content's file when it was made.
    pub(crate) fn is(&self, stat: &FileStat) -> bool {
        let mode: u32 = if self.executable { 0o755 } else { 0o644 };
        kind_of(stat) == SFlag::S_IFREG
            && stat.st_mode & 0o7777 == mode
            && u64::try_from(stat.st_size) == Ok(self.size)
            && stat.st_mtime == stamp(&self.sha256)
    }
}

/// The modification time of a content, in seconds: between 2001 and 2018, another one for another content. Compilers' caches
/// know a changed source by its size and time, so it must not be one for all.
fn stamp(sha256: &[u8; 32]) -> i64 {
    let [a, b, c, d, ..] = *sha256;
    1_000_000_000 + i64::from(u32::from_le_bytes([a, b, c, d]) >> 3)
}

/// Puts the files of one model into its snapshot.
pub(crate) struct Shared<'a> {
    pub(crate) contents: &'a Contents,
    pub(crate) sources: &'a mut Sources,
}

impl Put for Shared<'_> {
    fn put(
        &mut self,
        source: Source<'_>,
        entry: &Entry,
        file: &FileEntry,
        to: BorrowedFd<'_>,
        name: &OsStr,
    ) -> Result<[u8; 32], SnapshotError> {
        let (path, size, executable) = (&entry.path, file.identity.size, file.executable);
        if let Some(sha256) = self.sources.known(&file.identity) {
            let linked = self.contents.link(&Wanted { sha256, executable, size }, to, name);
            if linked.map_err(store("link", path))? {
                return Ok(sha256);
            }
        }
        if size >= LARGE && file.identity.settles_within(TICK + TICK / 2, SystemTime::now()) {
            thread::sleep(TICK + TICK / 2); // or else it would be read once more with the next edit
        }
        let from = open_listed(source, entry, file)?;
        let opened = SystemTime::now();
        let sha256 = if self.contents.may_have(size) {
            let found = hash_content(&from, size, source.progress, |error| match error.kind() {
                io::ErrorKind::UnexpectedEof => SnapshotError::Changing { path: path.to_owned() },
                _ => source_failed(&error, path),
            })?;
            let linked = self.contents.link(&Wanted { sha256: found, executable, size }, to, name);
            linked.map_err(store("link", path))?.then_some(found)
        } else {
            None
        };
        let sha256 = match sha256 {
            Some(sha256) => sha256,
            None => self.copy(&from, path, file, (to, name), source.progress)?,
        };
        if file.identity.is_settled(opened) {
            self.sources.learn(file.identity, sha256);
        }
        Ok(sha256)
    }
}

impl Shared<'_> {
    fn copy(
        &self,
        from: &fs::File,
        path: &Path,
        file: &FileEntry,
        (to, name): (BorrowedFd<'_>, &OsStr),
        progress: &dyn Progress,
    ) -> Result<[u8; 32], SnapshotError> {
        let (size, executable) = (file.identity.size, file.executable);
        let copy = create(to, name, executable).map_err(store("make", path))?;
        copy_content(from, &copy, size, path, progress)?;
        // The copy is hashed, not the source: the author's file may have another content by now.
        let sha256 = hash_content(&copy, size, progress, |error| SnapshotError::store_at("read", path)(error))?;
        let time = TimeSpec::new(stamp(&sha256), 0);
        futimens(copy.as_fd(), &TimeSpec::UTIME_OMIT, &time).map_err(store("stamp", path))?;
        self.contents.keep(&Wanted { sha256, executable, size }, to, name).map_err(store("keep", path))?;
        Ok(sha256)
    }
}
