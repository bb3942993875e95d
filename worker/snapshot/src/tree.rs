//! Lists a model's directory: what is in it, whether it may be copied, and a cheap fingerprint of its state.
//!
//! Nothing is read but directories and links. Every path is opened anew from the directory's descriptor with
//! `openat2(RESOLVE_BENEATH | RESOLVE_NO_SYMLINKS)`, so that no exchange of a directory for a link leads out. Some links are
//! listed as what they lead to ([`links`](crate::links)).

use crate::SnapshotError;
use crate::beneath::open_beneath;
use crate::digest::{is_below_ignored, is_ignored};
use crate::links::{follow, is_followed};
use crate::progress::Source;
use crate::status::{Seen, Writers, kind_of, seen};
use nix::dir::Dir;
use nix::errno::Errno;
use nix::fcntl::{AtFlags, OFlag, OpenHow, ResolveFlag, openat2, readlinkat};
use nix::sys::stat::{FileStat, SFlag, fstat, fstatat};
use omni_dir::retry;
use sha2::{Digest, Sha256};
use std::ffi::{CString, OsStr};
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

/// Directories within directories.
const DEPTH: usize = 32;
/// A change within this time before a listing may be followed by another that leaves the same times: the kernel's clock
/// for files ticks every 1 to 10 ms.
pub(crate) const TICK: Duration = Duration::from_millis(20);

/// Tick of a file system that keeps whole seconds, or every other one.
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
    /// Tests that nothing has changed since this one was taken.
    pub(crate) fn still_is(&self, now: &Self) -> bool {
        self.settled && self.same(now)
    }

    /// Tests that both show the same state.
    pub(crate) fn same(&self, other: &Self) -> bool {
        self.sha256 == other.sha256
    }
}

pub(crate) struct Entry {
    /// Relative to the model's directory.
    pub(crate) path: PathBuf,
    /// Real path of the entry when a link leads there: relative to the model's directory, through no link.
    pub(crate) led: Option<PathBuf>,
    pub(crate) kind: Kind,
}

impl Entry {
    /// Where its content is.
    pub(crate) fn place(&self) -> &Path {
        self.led.as_deref().unwrap_or(&self.path)
    }
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
    /// Room on the disk, in bytes: less than its size where it has holes.
    pub(crate) allocated: u64,
    pub(crate) identity: Identity,
}

/// Identity of one state of one file: an author can set `mtime`, but `ctime` cannot be set.
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

    /// Tests that every change after `now` gives the file another identity: its last one is so old that the next has a
    /// later time. A file system whose times have no fractions, or whose clock is ahead, must be waited for longer.
    pub(crate) fn is_settled(&self, now: SystemTime) -> bool {
        let tick = if self.ctime.1 == 0 { SECONDS } else { TICK };
        moment(self.ctime).checked_add(tick).is_some_and(|then| then < now)
    }

    /// Tests that it is not settled now, and will be after this time.
    pub(crate) fn settles_within(&self, time: Duration, now: SystemTime) -> bool {
        !self.is_settled(now) && now.checked_add(time).is_some_and(|then| self.is_settled(then))
    }
}

pub(crate) struct Listing {
    /// In the order of their paths' bytes: a directory comes before what is in it.
    pub(crate) entries: Vec<Entry>,
    pub(crate) fingerprint: Fingerprint,
}

/// Lists a model's directory.
pub(crate) fn list(source: Source<'_>, limits: Limits) -> Result<Listing, SnapshotError> {
    let begun = SystemTime::now();
    let mut walk = Walk { source, limits, bytes: 0, begun, settled: true, found: Vec::new() };
    let mut waiting = vec![Waiting::default()];
    while let Some(dir) = waiting.pop() {
        walk.directory(&dir, &mut waiting)?;
    }
    let Walk { mut found, settled, .. } = walk;
    found.sort_unstable_by(|(a, _), (b, _)| a.path.as_os_str().as_bytes().cmp(b.path.as_os_str().as_bytes()));
    let mut state = Sha256::new();
    for (entry, seen) in &found {
        let path = entry.path.as_os_str().as_bytes();
        state.update((path.len() as u64).to_le_bytes());
        state.update(path);
        seen.iter().for_each(|part| state.update(part.to_le_bytes()));
    }
    let fingerprint = Fingerprint { sha256: state.finalize().into(), settled };
    Ok(Listing { entries: found.into_iter().map(|(entry, _)| entry).collect(), fingerprint })
}

struct Walk<'a> {
    source: Source<'a>,
    limits: Limits,
    bytes: u64,
    begun: SystemTime,
    settled: bool,
    found: Vec<(Entry, Seen)>,
}

/// A directory to be listed.
#[derive(Default)]
struct Waiting {
    path: PathBuf,
    /// Real path of the directory when a link leads there: every link in the directory is followed, too.
    led: Option<PathBuf>,
    /// Users that can write to the directories around it.
    writers: Writers,
}

impl Walk<'_> {
    fn directory(&mut self, dir: &Waiting, waiting: &mut Vec<Waiting>) -> Result<(), SnapshotError> {
        self.source.progress.step()?;
        let place = dir.led.as_deref().unwrap_or(&dir.path);
        let shown = if dir.path.as_os_str().is_empty() { Path::new(".") } else { &dir.path };
        let failed = |errno| SnapshotError::source_at("list", shown)(errno);
        let fd = open_beneath(self.source.root, place, OFlag::O_RDONLY | OFlag::O_DIRECTORY).map_err(failed)?;
        let writers = dir.writers.below(fstat(&fd).map_err(failed)?.st_uid);
        let names = fd.try_clone().map_err(|_| Errno::EMFILE).and_then(Dir::from_fd).map_err(failed)?;
        for name in names {
            let name = name.map_err(failed)?.file_name().to_owned();
            if !is_ignored(name.to_bytes()) {
                self.source.progress.step()?;
                self.entry(&fd, writers, dir, &name, waiting)?;
            }
        }
        Ok(())
    }

    fn entry(
        &mut self,
        dir: &OwnedFd,
        mut writers: Writers,
        below: &Waiting,
        name: &CString,
        waiting: &mut Vec<Waiting>,
    ) -> Result<(), SnapshotError> {
        let last = OsStr::from_bytes(name.to_bytes());
        let path = below.path.join(last);
        let mut led = below.led.as_ref().map(|dir| dir.join(last));
        if self.found.len() >= self.limits.files as usize {
            return Err(SnapshotError::TooMany { limit: self.limits.files });
        }
        let mut stat = fstatat(dir, name.as_c_str(), AtFlags::AT_SYMLINK_NOFOLLOW)
            .map_err(SnapshotError::source_at("look at", &path))?;
        let mut way = None;
        if kind_of(&stat) == SFlag::S_IFLNK {
            let target = read_link(dir, name, &path)?;
            if led.is_some() || is_followed(&target) {
                let found = follow(self.source.root, led.as_deref().unwrap_or(&path), &path)?;
                self.settled &= found.links.iter().all(|link| Identity::of(link).is_settled(self.begun));
                way = Some(found.seen());
                (stat, writers, led) = (found.stat, found.writers, Some(found.path));
            } else {
                self.link(&path, &target)?;
                self.settled &= Identity::of(&stat).is_settled(self.begun);
                self.found.push((Entry { path, led: None, kind: Kind::Link { target } }, seen(&stat)));
                return Ok(());
            }
        }
        let kind = match kind_of(&stat) {
            SFlag::S_IFREG if writers.may_have_linked(&stat) => return Err(SnapshotError::ForeignFile { path }),
            SFlag::S_IFREG if writers.may_have_moved(&stat, 0o004) => return Err(SnapshotError::PrivateFile { path }),
            SFlag::S_IFREG => self.file(&path, &stat)?,
            SFlag::S_IFDIR if writers.may_have_moved(&stat, 0o001) => return Err(SnapshotError::PrivateFile { path }),
            SFlag::S_IFDIR => {
                if path.components().count() > DEPTH {
                    return Err(SnapshotError::TooDeep { path, limit: DEPTH });
                }
                waiting.push(Waiting { path: path.clone(), led: led.clone(), writers });
                Kind::Directory
            }
            other => return Err(SnapshotError::Special { path, found: special(other) }),
        };
        let seen = match kind {
            // Times of a directory change with files that are left out; only its name is copied.
            Kind::Directory => way.unwrap_or_default(),
            Kind::File(_) | Kind::Link { .. } => {
                self.settled &= Identity::of(&stat).is_settled(self.begun);
                way.unwrap_or_else(|| seen(&stat))
            }
        };
        self.found.push((Entry { path, led, kind }, seen));
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

    /// Checks a link that stays one.
    fn link(&self, path: &Path, target: &Path) -> Result<(), SnapshotError> {
        let (path, target) = (path.to_owned(), target.to_owned());
        if target.is_absolute() {
            return Err(SnapshotError::AbsoluteLink { path, target });
        }
        if is_below_ignored(&target) {
            return Err(SnapshotError::IgnoredTarget { path, target });
        }
        // Only this call follows links: it asks the kernel where the link leads, and never leaves the directory.
        let how = OpenHow::new()
            .flags(OFlag::O_PATH | OFlag::O_CLOEXEC)
            .resolve(ResolveFlag::RESOLVE_BENEATH | ResolveFlag::RESOLVE_NO_MAGICLINKS);
        match retry(|| openat2(self.source.root, &path, how)) {
            Ok(_) => Ok(()),
            Err(Errno::EXDEV) => Err(SnapshotError::OutsideLink { path, target }),
            Err(Errno::ENOENT | Errno::ELOOP | Errno::ENOTDIR) => Err(SnapshotError::BrokenLink { path, target }),
            Err(source) => Err(SnapshotError::Source { action: "follow", path, source }),
        }
    }
}

fn read_link(dir: &OwnedFd, name: &CString, path: &Path) -> Result<PathBuf, SnapshotError> {
    Ok(readlinkat(dir, name.as_c_str()).map_err(SnapshotError::source_at("read the link", path))?.into())
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
