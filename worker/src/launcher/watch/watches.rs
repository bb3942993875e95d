//! What the kernel watches of the models folder, and what is looked at instead.

use super::place::Place;
use super::{Changed, Debounce, Watcher};
use nix::errno::Errno;
use nix::sys::inotify::{AddWatchFlags, InitFlags, Inotify};
use std::path::Path;
use std::time::{Duration, Instant};

/// Directories that are watched, those of all models together.
pub(super) const WATCHES: usize = 65_536;
/// How often it is asked whether the models folder is still the one that is watched.
pub(super) const PLACE: Duration = Duration::from_secs(2);
/// How often everything is looked at while not all is watched.
const SLOW: Duration = Duration::from_secs(8);

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
        match Inotify::init(InitFlags::IN_CLOEXEC | InitFlags::IN_NONBLOCK) {
            Ok(inotify) => self.inotify = inotify,
            Err(errno) => return tracing::error!(%errno, "cannot watch the models folder anew"),
        }
        tracing::info!(folder = %self.folder.display(), "the models folder is another one now, or has other file systems in it");
        self.place = place;
        self.watched.clear();
        self.crowded.clear();
        self.changed = Changed::All;
        debounce.changed(Instant::now());
    }

    /// Has everything looked at from time to time while not all is watched, and says so once.
    pub(super) fn look_again_at_all(&mut self, partly: bool, unwatched: usize, debounce: &mut Debounce) {
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
            let inside = |dir: &Path| dir.starts_with(name) && dir != Path::new(name);
            for (watch, _) in self.watched.extract_if(|_, dir| inside(dir)) {
                let _ = self.inotify.rm_watch(watch); // it may be gone by itself
            }
            self.slow.get_or_insert_with(|| Instant::now() + SLOW);
            debounce.later(Instant::now() + SLOW);
        }
    }

    /// Watches a directory, given relative to the folder; whether it is watched, or gone. Adding a watch twice is nothing.
    pub(super) fn watch(&mut self, dir: &Path) -> bool {
        let what = AddWatchFlags::IN_ATTRIB
            | AddWatchFlags::IN_CLOSE_WRITE
            | AddWatchFlags::IN_CREATE
            | AddWatchFlags::IN_DELETE
            | AddWatchFlags::IN_DELETE_SELF
            | AddWatchFlags::IN_MODIFY
            | AddWatchFlags::IN_MOVED_FROM
            | AddWatchFlags::IN_MOVED_TO
            | AddWatchFlags::IN_MOVE_SELF
            | AddWatchFlags::IN_ONLYDIR
            | if dir.as_os_str().is_empty() { AddWatchFlags::empty() } else { AddWatchFlags::IN_DONT_FOLLOW };
        let path = self.folder.join(dir);
        if self.watched.len() >= WATCHES {
            return false;
        }
        match self.inotify.add_watch(&path, what) {
            Ok(watch) => drop(self.watched.insert(watch, dir.to_owned())),
            Err(Errno::ENOENT | Errno::ENOTDIR) => {} // gone again: its parent's watch tells
            Err(_) => return false,
        }
        true
    }
}
