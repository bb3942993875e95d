//! inotify watches of the models folder, and looks in their place where there are too few.

use super::debounce::Debounce;
use super::jobs::Pace;
use super::place::Place;
use super::scan::Looker;
use super::unit::Changed;
use super::watcher::Watcher;
use nix::errno::Errno;
use nix::sys::inotify::{AddWatchFlags, InitFlags, Inotify, InotifyEvent, WatchDescriptor};
use omni_snapshot::Progress;
use std::collections::HashMap;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Directories that are watched, those of all models together.
pub(super) const WATCHES: usize = 65_536;
/// How often it is asked whether the models folder is still the one that is watched.
pub(super) const PLACE: Duration = Duration::from_secs(2);
/// How often everything is looked at while not all is watched.
const SLOW: Duration = Duration::from_secs(8);

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
    fn remove(&self, fits: impl Fn(&Path) -> bool) {
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

impl Watcher {
    /// Begins anew when the folder's path leads to another one: nothing of the old one is of interest any more.
    pub(super) fn check_place(&mut self, debounce: &mut Debounce) {
        if self.asked.elapsed() < PLACE {
            return;
        }
        self.asked = Instant::now();
        let place = Place::of(&self.folder);
        if place == self.place {
            return;
        }
        match Watches::new() {
            Ok(watches) => self.watches = Arc::new(watches),
            Err(errno) => return tracing::error!(%errno, "cannot watch the models folder anew"),
        }
        tracing::info!(folder = %self.folder.display(), "the models folder is another one now, or has other file systems in it");
        self.place = place;
        self.jobs.give_up_silent();
        self.crowded.clear();
        self.changed = Changed::All;
        debounce.changed(Instant::now());
    }

    /// Has everything looked at from time to time while not all is watched, and says so once.
    pub(super) fn look_again_at_all(&mut self, debounce: &mut Debounce) {
        let scans = || self.units.values().filter_map(|state| state.scan.as_ref());
        let (partly, unwatched) = (scans().any(|scan| scan.partly), scans().map(|scan| scan.unwatched).sum::<usize>());
        if unwatched > 0 && !self.warned {
            let hint = format!("fs.inotify.max_user_watches bounds what is watched, and so do {WATCHES} directories");
            tracing::warn!(unwatched, every = ?SLOW, "some directories are not watched, but looked at: {hint}");
        }
        self.warned = unwatched > 0;
        if partly || unwatched > 0 {
            let slow = *self.slow.get_or_insert_with(|| Instant::now() + SLOW);
            debounce.later(slow);
        } else {
            self.slow = None;
        }
    }

    /// Keeps no watches in a model that was refused for having too much, and looks into it again when it is taken.
    pub(super) fn crowd(&mut self, name: &str, is_crowded: bool, debounce: &mut Debounce) {
        if !is_crowded {
            if self.crowded.remove(name) {
                self.changed = Changed::All; // what is in it is watched from the next look on
                debounce.changed(Instant::now());
            }
            return;
        }
        if self.crowded.insert(name.to_owned()) {
            self.watches.remove(|dir| dir.starts_with(name) && dir != Path::new(name));
            self.slow.get_or_insert_with(|| Instant::now() + SLOW);
            debounce.later(Instant::now() + SLOW);
        }
    }
}
