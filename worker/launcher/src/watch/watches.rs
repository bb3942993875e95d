//! inotify watches of the models folder.

use super::jobs::Pace;
use super::scan::Looker;
use nix::errno::Errno;
use nix::sys::inotify::{AddWatchFlags, InitFlags, Inotify, InotifyEvent, WatchDescriptor};
use omni_snapshot::Progress;
use std::collections::HashMap;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// Directories that are watched, those of all models together.
pub(super) const WATCHES: usize = 65_536;
/// How often it is asked whether the models folder is still the one that is watched.
pub(super) const PLACE: Duration = Duration::from_secs(2);

/// The watches of one folder, which threads add to. No lock is held while the kernel looks at a directory.
pub(super) struct Watches {
    inotify: Inotify,
    dirs: Mutex<HashMap<WatchDescriptor, PathBuf>>,
}

impl Watches {
    pub(super) fn new() -> Result<Self, Errno> {
        let inotify = Inotify::init(InitFlags::IN_CLOEXEC | InitFlags::IN_NONBLOCK)?;
        Ok(Self { inotify, dirs: Mutex::default() })
    }

    pub(super) fn read(&self) -> Result<Vec<InotifyEvent>, Errno> {
        self.inotify.read_events()
    }

    /// The directory of a watch.
    pub(super) fn dir(&self, of: WatchDescriptor) -> Option<PathBuf> {
        self.dirs().get(&of).cloned()
    }

    pub(super) fn forget(&self, watch: WatchDescriptor) {
        self.dirs().remove(&watch);
    }

    /// Watches an open directory, given relative to the folder, too; whether it is watched, or gone. Adding a watch twice is
    /// nothing. Whoever reads the directory after that misses nothing: events of before are not needed.
    pub(super) fn add(&self, dir: BorrowedFd<'_>, path: &Path) -> bool {
        let what = AddWatchFlags::IN_ATTRIB
            | AddWatchFlags::IN_CLOSE_WRITE
            | AddWatchFlags::IN_CREATE
            | AddWatchFlags::IN_DELETE
            | AddWatchFlags::IN_DELETE_SELF
            | AddWatchFlags::IN_MODIFY
            | AddWatchFlags::IN_MOVED_FROM
            | AddWatchFlags::IN_MOVED_TO
            | AddWatchFlags::IN_MOVE_SELF
            | AddWatchFlags::IN_ONLYDIR;
        if self.dirs().len() >= WATCHES {
            return false;
        }
        match self.inotify.add_watch(format!("/proc/self/fd/{}", dir.as_raw_fd()).as_str(), what) {
            Ok(watch) => drop(self.dirs().insert(watch, path.to_owned())),
            Err(Errno::ENOENT | Errno::ENOTDIR) => {} // gone again: its parent's watch tells
            Err(_) => return false,
        }
        true
    }

    /// Ends the watches of these directories.
    pub(super) fn remove(&self, fits: impl Fn(&Path) -> bool) {
        let removed: Vec<_> = self.dirs().extract_if(|_, dir| fits(dir)).collect();
        for (watch, _) in removed {
            let _ = self.inotify.rm_watch(watch); // it may be gone by itself
        }
    }

    /// For a look at this pace.
    pub(super) fn looker<'a>(&'a self, pace: &'a Pace) -> impl Looker + 'a {
        Paced { watches: self, pace }
    }

    /// Each change to the table is one step.
    fn dirs(&self) -> MutexGuard<'_, HashMap<WatchDescriptor, PathBuf>> {
        self.dirs.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl AsFd for Watches {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.inotify.as_fd()
    }
}

struct Paced<'a> {
    watches: &'a Watches,
    pace: &'a Pace,
}

impl Looker for Paced<'_> {
    fn watch(&self, dir: BorrowedFd<'_>, path: &Path) -> bool {
        self.watches.add(dir, path)
    }

    fn step(&self) -> bool {
        self.pace.step().is_ok()
    }
}
