//! Watched part of the models folder: kept on the folder that its path leads to, and completed by looks where there are
//! too few watches.

use super::Watcher;
use crate::watch::debounce::Debounce;
use crate::watch::place::Place;
use crate::watch::unit::Changed;
use crate::watch::watches::{PLACE, WATCHES, Watches};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

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
