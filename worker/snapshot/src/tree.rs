//! Lists a model's directory: what is in it, whether it may be copied, and a cheap fingerprint of its state.
//!
//! Nothing is read but directories and links. Every path is opened anew from the directory's descriptor with
//! `openat2(RESOLVE_BENEATH | RESOLVE_NO_SYMLINKS)`, so that no exchange of a directory for a link leads out.

use crate::SnapshotError;
use crate::beneath::{open_beneath, retry};
use crate::digest::{is_below_ignored, is_ignored};
use nix::dir::Dir;
use nix::errno::Errno;
use nix::fcntl::{AtFlags, OFlag, OpenHow, ResolveFlag, openat2, readlinkat};
use nix::libc;
use nix::sys::stat::{FileStat, SFlag, fstat, fstatat};
use sha2::{Digest, Sha256};
use std::ffi::{CString, OsStr};
use std::os::fd::{BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

/// Directories within directories.
const DEPTH: usize = 32;
/// A change within this time before a listing may be followed by another that leaves the same times: the kernel's clock
/// for files ticks every 1 to 10 ms.
const TICK: Duration = Duration::from_millis(20);

/// The same for a file system that keeps whole seconds, or every other one.
const SECONDS: Duration = Duration::from_secs(3);

/// Bounds of a snapshot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Files, directories and links.
    pub files: u32,
    /// Apparent sizes of all files together, in bytes.
    pub bytes: u64,
}

/// The state of a directory as far as `stat` shows it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fingerprint {
    sha256: [u8; 32],
    /// Nothing had changed for a tick: a later change shows.
    settled: bool,
}

impl Fingerprint {
    /// Whether nothing has changed since this one was taken.
    pub(crate) fn still_is(&self, now: &Self) -> bool {
        self.settled && self.same(now)
    }

    /// Whether both show the same state.
    pub(crate) fn same(&self, other: &Self) -> bool {
        self.sha256 == other.sha256
    }
}

pub(crate) struct Entry {
    /// Relative to the model's directory.
    pub(crate) path: PathBuf,
    pub(crate) kind: Kind,
}

pub(crate) enum Kind {
    Directory,
    File(FileEntry),
    Link { target: PathBuf },
}

/// A regular file as it was listed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct FileEntry {
    pub(crate) executable: bool,
    /// What it takes on a disk, in bytes: less than its size where it has holes.
    pub(crate) allocated: u64,
    pub(crate) identity: Identity,
}

/// What tells one state of one file from every other: an author can set `mtime`, but nobody sets `ctime`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct Identity {
    pub(crate) device: u64,
    pub(crate) inode: u64,
    pub(crate) size: u64,
    pub(crate) mtime: (i64, i64),
    pub(crate) ctime: (i64, i64),
}

impl Identity {
    pub(crate) fn of(stat: &FileStat) -> Self {
        Self {
            device: stat.st_dev,
            inode: stat.st_ino,
            size: u64::try_from(stat.st_size).unwrap_or(u64::MAX),
            mtime: (stat.st_mtime, stat.st_mtime_nsec),
            ctime: (stat.st_ctime, stat.st_ctime_nsec),
        }
    }

    /// Whether every change after `now` gives the file another identity: its last one is so old that the next has a later
    /// time. A file system whose times have no fractions, or whose clock is ahead, must be waited for longer.
    pub(crate) fn is_settled(&self, now: SystemTime) -> bool {
        let tick = if self.ctime.1 == 0 { SECONDS } else { TICK };
        moment(self.ctime).checked_add(tick).is_some_and(|then| then < now)
    }
}

pub(crate) struct Listing {
    /// In the order of their paths' bytes: a directory comes before what is in it.
    pub(crate) entries: Vec<Entry>,
    pub(crate) fingerprint: Fingerprint,
}

/// Lists the directory `root`.
pub(crate) fn list(root: BorrowedFd<'_>, limits: Limits) -> Result<Listing, SnapshotError> {
    let begun = SystemTime::now();
    let mut walk = Walk { root, limits, bytes: 0, begun, settled: true, found: Vec::new() };
    let mut waiting = vec![(PathBuf::new(), None)];
    while let Some((dir, author)) = waiting.pop() {
        walk.directory(&dir, author, &mut waiting)?;
    }
    let Walk { mut found, settled, .. } = walk;
    found.sort_unstable_by(|(a, _), (b, _)| a.path.as_os_str().as_bytes().cmp(b.path.as_os_str().as_bytes()));
    let mut state = Sha256::new();
    for (entry, seen) in &found {
        let path = entry.path.as_os_str().as_bytes();
        state.update((path.len() as u64).to_le_bytes());
        state.update(path);
        state.update(seen);
    }
    let fingerprint = Fingerprint { sha256: state.finalize().into(), settled };
    Ok(Listing { entries: found.into_iter().map(|(entry, _)| entry).collect(), fingerprint })
}

/// What of a file's status tells its state.
type Seen = [u8; 8 * 8];

struct Walk<'a> {
    root: BorrowedFd<'a>,
    limits: Limits,
    bytes: u64,
    begun: SystemTime,
    settled: bool,
    found: Vec<(Entry, Seen)>,
}

impl Walk<'_> {
    /// `author` is the first owner on the way here who is not root.
    fn directory(&mut self, dir: &Path, author: Option<u32>, waiting: &mut Waiting) -> Result<(), SnapshotError> {
        let shown = if dir.as_os_str().is_empty() { Path::new(".") } else { dir };
        let failed = |errno| SnapshotError::source_at("list", shown)(errno);
        let fd = open_beneath(self.root, dir, OFlag::O_RDONLY | OFlag::O_DIRECTORY).map_err(failed)?;
        let owner = fstat(&fd).map_err(failed)?.st_uid;
        let writers = Writers { owner, author: author.or((owner != 0).then_some(owner)) };
        let names = fd.try_clone().map_err(|_| Errno::EMFILE).and_then(Dir::from_fd).map_err(failed)?;
        for name in names {
            let name = name.map_err(failed)?.file_name().to_owned();
            if !is_ignored(name.to_bytes()) {
                self.entry(&fd, writers, dir, &name, waiting)?;
            }
        }
        Ok(())
    }

    fn entry(
        &mut self,
        dir: &OwnedFd,
        writers: Writers,
        below: &Path,
        name: &CString,
        waiting: &mut Waiting,
    ) -> Result<(), SnapshotError> {
        let path = below.join(OsStr::from_bytes(name.to_bytes()));
        if self.found.len() >= self.limits.files as usize {
            return Err(SnapshotError::TooMany { limit: self.limits.files });
        }
        let stat = fstatat(dir, name.as_c_str(), AtFlags::AT_SYMLINK_NOFOLLOW)
            .map_err(SnapshotError::source_at("look at", &path))?;
        let kind = match SFlag::from_bits_truncate(stat.st_mode) & SFlag::S_IFMT {
            SFlag::S_IFREG if writers.may_have_linked(&stat) => return Err(SnapshotError::ForeignFile { path }),
            SFlag::S_IFREG if writers.may_have_moved(&stat, 0o004) => return Err(SnapshotError::PrivateFile { path }),
            SFlag::S_IFREG => self.file(&path, &stat)?,
            SFlag::S_IFDIR if writers.may_have_moved(&stat, 0o001) => return Err(SnapshotError::PrivateFile { path }),
            SFlag::S_IFDIR => {
                if path.components().count() > DEPTH {
                    return Err(SnapshotError::TooDeep { path, limit: DEPTH });
                }
                waiting.push((path.clone(), writers.author));
                Kind::Directory
            }
            SFlag::S_IFLNK => Kind::Link { target: self.link(dir, name, &path)? },
            other => return Err(SnapshotError::Special { path, found: special(other) }),
        };
        let seen = match kind {
            // Its times change with files that are left out; what is copied of it is its name alone.
            Kind::Directory => [0; size_of::<Seen>()],
            Kind::File(_) | Kind::Link { .. } => {
                self.settled &= Identity::of(&stat).is_settled(self.begun);
                seen(&stat)
            }
        };
        self.found.push((Entry { path, kind }, seen));
        Ok(())
    }

    fn file(&mut self, path: &Path, stat: &FileStat) -> Result<Kind, SnapshotError> {
        let size = u64::try_from(stat.st_size).unwrap_or(u64::MAX);
        self.bytes = self.bytes.saturating_add(size);
        if self.bytes > self.limits.bytes {
            return Err(SnapshotError::TooLarge { path: path.to_owned(), size, limit: self.limits.bytes });
        }
        let allocated = u64::try_from(stat.st_blocks).unwrap_or_default().saturating_mul(512).min(size);
        Ok(Kind::File(FileEntry { executable: stat.st_mode & 0o111 != 0, allocated, identity: Identity::of(stat) }))
    }

    fn link(&self, dir: &OwnedFd, name: &CString, path: &Path) -> Result<PathBuf, SnapshotError> {
        let target: PathBuf =
            readlinkat(dir, name.as_c_str()).map_err(SnapshotError::source_at("read the link", path))?.into();
        let path = path.to_owned();
        if target.is_absolute() {
            return Err(SnapshotError::AbsoluteLink { path, target });
        }
        if is_below_ignored(&target) {
            return Err(SnapshotError::IgnoredTarget { path, target });
        }
        // This one call follows links: it asks the kernel where the link leads, and never leaves the directory.
        let how = OpenHow::new()
            .flags(OFlag::O_PATH | OFlag::O_CLOEXEC)
            .resolve(ResolveFlag::RESOLVE_BENEATH | ResolveFlag::RESOLVE_NO_MAGICLINKS);
        match retry(|| openat2(self.root, &path, how)) {
            Ok(_) => Ok(target),
            Err(Errno::EXDEV) => Err(SnapshotError::OutsideLink { path, target }),
            Err(Errno::ENOENT | Errno::ELOOP | Errno::ENOTDIR) => Err(SnapshotError::BrokenLink { path, target }),
            Err(source) => Err(SnapshotError::Source { action: "follow", path, source }),
        }
    }
}

/// Directories to be listed, each with who owns those around it.
type Waiting = Vec<(PathBuf, Option<u32>)>;

/// Who can have put a file where it is. Root is none of them: what root can read, root can copy.
#[derive(Clone, Copy)]
struct Writers {
    /// Of the directory with the file.
    owner: u32,
    /// Of the outermost directory that is not root's: who can rename what is in it, a directory of root too.
    author: Option<u32>,
}

impl Writers {
    /// Whether the file has another name and another owner than its directory has: who can write to the directory may have
    /// linked a file there that only its owner, and root, can read (`fs.protected_hardlinks` is off by default in the
    /// kernel).
    fn may_have_linked(self, file: &FileStat) -> bool {
        file.st_nlink > 1 && self.owner != 0 && self.owner != file.st_uid
    }

    /// Whether what is here is not for everybody, who have no `right` to it, and may have been moved here by one who cannot
    /// read it: a name is moved with no right to the file. The copy is for everybody.
    fn may_have_moved(self, found: &FileStat, right: u32) -> bool {
        let others = |writer: u32| writer != 0 && writer != found.st_uid;
        found.st_mode & right == 0 && (others(self.owner) || self.author.is_some_and(others))
    }
}

fn special(kind: SFlag) -> &'static str {
    match kind {
        SFlag::S_IFIFO => "a FIFO",
        SFlag::S_IFSOCK => "a socket",
        SFlag::S_IFCHR | SFlag::S_IFBLK => "a device",
        _ => "of a kind that cannot be copied",
    }
}

fn moment((seconds, nanos): (i64, i64)) -> SystemTime {
    let since = Duration::new(u64::try_from(seconds).unwrap_or_default(), u32::try_from(nanos).unwrap_or_default());
    SystemTime::UNIX_EPOCH.checked_add(since).unwrap_or(SystemTime::UNIX_EPOCH)
}

fn seen(stat: &libc::stat) -> Seen {
    let parts = [
        stat.st_dev,
        stat.st_ino,
        u64::from(stat.st_mode),
        stat.st_size.cast_unsigned(),
        stat.st_mtime.cast_unsigned(),
        stat.st_mtime_nsec.cast_unsigned(),
        stat.st_ctime.cast_unsigned(),
        stat.st_ctime_nsec.cast_unsigned(),
    ];
    let mut bytes = [0; size_of::<Seen>()];
    for (to, part) in bytes.chunks_exact_mut(8).zip(parts) {
        to.copy_from_slice(&part.to_le_bytes());
    }
    bytes
}
