//! Watcher of a folder of models: looks at changed directories, copies and reports new content.

mod coverage;
mod results;

use super::debounce::Debounce;
use super::folder::open;
use super::jobs::{Ended, Jobs, Key, Outcome, Pace};
use super::missing::Missing;
use super::place::Place;
use super::protocol::{FromWatcher, Reporter, ToWatcher};
use super::refusal::Refusal;
use super::scan::{Found, Scan, Unit, names, scan};
use super::unit::{Changed, State};
use super::watches::{PLACE, WATCHES, Watches};
use super::{MISSING, PATIENCE, QUIET, TROUBLE, WatchError};
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::eventfd::EventFd;
use nix::sys::inotify::{AddWatchFlags, InotifyEvent};
use omni_snapshot::{Copier, Snapshot};
use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsString;
use std::fs::File;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::Receiver;
use std::time::{Duration, Instant};

/// How often jobs are looked after.
const TURN: Duration = Duration::from_millis(500);

/// Watcher of a folder of models. Its functions that return `bool` return `false` when the launcher is gone.
pub(super) struct Watcher {
    folder: PathBuf,
    copier: Arc<Copier>,
    out: Reporter,
    told: Receiver<ToWatcher>,
    watches: Arc<Watches>,
    jobs: Jobs,
    /// The folder at the last look.
    root: Option<Arc<File>>,
    units: BTreeMap<Unit, State>,
    models: BTreeMap<String, Option<Snapshot>>,
    /// Models that were reported as not answering.
    silent: BTreeSet<String>,
    missing: Missing,
    /// The loss of the folder itself was reported.
    lost: bool,
    changed: Changed,
    /// Every model was reported once.
    scanned: bool,
    /// Watched folder.
    place: Option<Place>,
    /// Time of the last check that the watched folder is still the models folder.
    asked: Instant,
    /// Models that were refused for having too much: nothing in them is watched.
    crowded: BTreeSet<String>,
    /// When to look at everything, for what is not watched.
    slow: Option<Instant>,
    /// Missing watches were reported.
    warned: bool,
}

impl Watcher {
    pub(super) fn new(
        folder: &Path,
        copier: Arc<Copier>,
        out: Reporter,
        told: Receiver<ToWatcher>,
    ) -> Result<Self, WatchError> {
        Ok(Self {
            folder: folder.to_owned(),
            copier,
            out,
            told,
            watches: Arc::new(Watches::new().map_err(WatchError::Inotify)?),
            jobs: Jobs::new().map_err(WatchError::Inotify)?,
            root: None,
            units: BTreeMap::new(),
            models: BTreeMap::new(),
            silent: BTreeSet::new(),
            missing: Missing::default(),
            lost: false,
            changed: Changed::All,
            scanned: false,
            place: Place::of(folder),
            asked: Instant::now(),
            crowded: BTreeSet::new(),
            slow: None,
            warned: false,
        })
    }

    /// Event descriptor, written by every source of input.
    pub(super) fn bell(&self) -> Arc<EventFd> {
        self.jobs.bell()
    }

    /// Watches until the launcher is gone.
    pub(super) fn run(mut self) {
        let mut debounce = Debounce::new(QUIET, PATIENCE);
        if !self.look(&mut debounce) {
            return;
        }
        loop {
            self.check_place(&mut debounce);
            if !self.collect(&mut debounce) {
                return;
            }
            let wait = debounce.due().map(|due| due.saturating_duration_since(Instant::now()));
            if wait.is_some_and(|wait| wait.is_zero()) {
                debounce.done();
                if !self.look(&mut debounce) {
                    return;
                }
                continue;
            }
            let most = if self.jobs.is_idle() { PLACE } else { TURN };
            // Rounded up by a millisecond, the unit of poll.
            let wait = wait.unwrap_or(most).min(most) + Duration::from_millis(1);
            let timeout = PollTimeout::try_from(wait).unwrap_or(PollTimeout::MAX);
            let polled = poll(
                &mut [self.watches.as_fd(), self.jobs.as_fd()].map(|fd| PollFd::new(fd, PollFlags::POLLIN)),
                timeout,
            );
            match polled {
                Ok(_) | Err(Errno::EINTR) => self.receive(&mut debounce),
                Err(errno) => {
                    tracing::error!(%errno, "the models folder is not watched any more");
                    return;
                }
            }
        }
    }

    fn receive(&mut self, debounce: &mut Debounce) {
        loop {
            let events = match self.watches.read() {
                Err(Errno::EAGAIN | Errno::EINTR) => return,
                Err(errno) => {
                    tracing::error!(%errno, "cannot read the events of the models folder");
                    self.changed = Changed::All;
                    return debounce.changed(Instant::now());
                }
                Ok(events) => events,
            };
            for event in events {
                self.note(&event, debounce);
            }
        }
    }

    fn note(&mut self, event: &InotifyEvent, debounce: &mut Debounce) {
        // A name with two dots in front may be what links lead through.
        let hidden = event.name.as_ref().is_some_and(|name| {
            let name = std::os::unix::ffi::OsStrExt::as_bytes(name.as_os_str());
            omni_snapshot::digest::is_ignored(name) && !name.starts_with(b"..")
        });
        if event.mask.contains(AddWatchFlags::IN_Q_OVERFLOW) {
            self.changed = Changed::All;
            return debounce.changed(Instant::now());
        }
        if event.mask.contains(AddWatchFlags::IN_IGNORED) {
            return self.watches.forget(event.wd);
        }
        if hidden {
            return;
        }
        let Some(dir) = self.watches.dir(event.wd) else { return };
        let path = event.name.as_ref().map_or_else(|| dir.clone(), |name| dir.join(name));
        self.changed.add(path, WATCHES);
        // A renamed directory was finished before; its files are not written one by one.
        let moved = AddWatchFlags::IN_MOVED_FROM | AddWatchFlags::IN_MOVED_TO;
        if event.mask.intersects(moved) && event.mask.contains(AddWatchFlags::IN_ISDIR) {
            debounce.published(Instant::now());
        } else {
            debounce.changed(Instant::now());
        }
    }

    /// Has everything that changed looked at.
    fn look(&mut self, debounce: &mut Debounce) -> bool {
        if self.slow.take_if(|slow| *slow <= Instant::now()).is_some() {
            self.changed = Changed::All;
        }
        let found = open(&self.folder).and_then(|folder| {
            self.watches.add(folder.as_fd(), Path::new(""));
            Ok((names(&folder)?, Arc::new(folder)))
        });
        let (names, root) = match found {
            Ok(found) => found,
            Err(error) => {
                tracing::error!(folder = %self.folder.display(), %error, "the models folder is gone: no model can be served");
                self.changed = Changed::All;
                debounce.later(Instant::now() + MISSING);
                self.units.clear();
                self.jobs.drop(|_| true);
                return self.is_lost(Some(&error)) && self.forget(|_| true);
            }
        };
        if !self.is_lost(None) {
            return false;
        }
        self.root = Some(root);
        let changed = std::mem::take(&mut self.changed);
        let units = self.units_now(names);
        self.units.retain(|unit, _| units.contains(unit));
        self.jobs.drop(|key| matches!(key, Key::Look(path) if !units.iter().any(|unit| unit.path == *path)));
        for unit in units {
            let state = self.units.entry(unit.clone()).or_default();
            state.changed.add_of(&unit.path, &changed, WATCHES);
            let is_new = state.scan.is_none() && !self.jobs.has(&Key::Look(unit.path.clone()));
            if is_new || changed.is_of(&unit.path) {
                self.ask_look(unit);
            }
        }
        self.miss(debounce)
    }

    /// The names in the folder, and what is mounted below them as far as it is known.
    fn units_now(&self, names: BTreeSet<OsString>) -> BTreeSet<Unit> {
        let mut waiting: Vec<_> = names.into_iter().map(|name| Unit { path: name.into(), model: None }).collect();
        let mut units = BTreeSet::new();
        while let Some(unit) = waiting.pop() {
            let mounts = self.units.get(&unit).and_then(|state| state.scan.as_ref()).map(|scan| &scan.mounts);
            waiting.extend(mounts.into_iter().flatten().filter(|mount| !units.contains(*mount)).cloned());
            units.insert(unit);
        }
        units
    }

    fn ask_look(&mut self, unit: Unit) {
        let Some(root) = self.root.clone() else { return };
        let (key, watches, crowded) = (Key::Look(unit.path.clone()), Arc::clone(&self.watches), self.crowded.clone());
        let look = move |pace: &Pace| Outcome::Looked(scan(&*root, &unit, &crowded, &watches.looker(pace)));
        self.jobs.ask(key, look, Instant::now());
    }

    fn ask_take(&mut self, name: &str) {
        let Some(root) = self.root.clone() else { return };
        let known = self.models.get(name).cloned().flatten().map(|snapshot| snapshot.fingerprint);
        let (copier, path) = (Arc::clone(&self.copier), PathBuf::from(name));
        let take = move |pace: &Pace| Outcome::Taken(copier.copy(&*root, &path, known.as_ref(), pace));
        self.jobs.ask(Key::Take(name.to_owned()), take, Instant::now());
    }

    /// Tells what has become of jobs, and what the launcher has said.
    fn collect(&mut self, debounce: &mut Debounce) -> bool {
        for told in self.told.try_iter() {
            if let ToWatcher::Again { name } = told {
                self.models.insert(name.clone(), None);
                self.changed.add(name.into(), WATCHES);
                debounce.later(Instant::now() + TROUBLE);
            }
        }
        for key in self.jobs.lost() {
            let path = match key {
                Key::Look(path) => path,
                Key::Take(name) => name.into(),
            };
            self.changed.add(path, WATCHES);
            debounce.later(Instant::now() + TROUBLE);
        }
        for ended in self.jobs.ended(Instant::now()) {
            if !self.ended(ended, debounce) {
                return false;
            }
        }
        for name in self.jobs.long_copies(Instant::now()) {
            if !self.is_copied(name) {
                return false;
            }
        }
        for (key, waits) in self.jobs.turn(Instant::now()) {
            if !self.is_silent(&key, waits) {
                return false;
            }
        }
        if !self.scanned && self.units.values().all(|state| state.scan.is_some()) && self.jobs.is_settled() {
            self.scanned = true;
            return self.out.send(&FromWatcher::Scanned);
        }
        true
    }

    fn ended(&mut self, ended: Ended, debounce: &mut Debounce) -> bool {
        let Ended { key, outcome, again, given_up } = ended;
        match (key, outcome) {
            (Key::Take(name), Outcome::Taken(taken)) if given_up || !self.is_there(&name) => {
                self.discard(taken.ok().flatten().as_ref(), &name);
                true
            }
            (Key::Take(name), Outcome::Taken(taken)) => {
                let goes_on = self.taken(&name, taken, debounce);
                if again {
                    self.ask_take(&name);
                }
                goes_on
            }
            (Key::Look(path), Outcome::Looked(scan)) if !given_up => self.looked(&path, scan, again, debounce),
            _ => true,
        }
    }

    /// Has taken what is new or changed in a unit.
    fn looked(&mut self, path: &Path, scan: Scan, again: bool, debounce: &mut Debounce) -> bool {
        let Some(unit) = self.units.keys().find(|unit| unit.path == path).cloned() else { return true };
        if scan.mounts.iter().any(|mount| !self.units.contains_key(mount)) {
            debounce.later(Instant::now());
        }
        let found = scan.found.clone();
        let state = self.units.entry(unit.clone()).or_default();
        state.scan = Some(scan);
        let changed = std::mem::take(&mut state.changed);
        self.look_again_at_all(debounce);
        for (name, found) in &found {
            let is_new = !(self.models.contains_key(name) || self.jobs.has(&Key::Take(name.clone())));
            let affected = is_new || changed.is_of(Path::new(name)) || self.silent.contains(name);
            if affected && !self.take(name, found) {
                return false;
            }
        }
        if again {
            self.ask_look(unit);
        }
        self.miss(debounce)
    }

    /// Tests that a model is where it was, as far as it is known.
    fn is_there(&self, name: &str) -> bool {
        self.units.iter().any(|(unit, state)| match &state.scan {
            Some(scan) => scan.found.contains_key(name),
            None => Path::new(name).starts_with(&unit.path),
        })
    }

    /// Tells which models are gone.
    fn miss(&mut self, debounce: &mut Debounce) -> bool {
        let missing: Vec<_> = self.models.keys().filter(|name| !self.is_there(name)).cloned().collect();
        let is_gone = |key: &Key| matches!(key, Key::Take(name) if !self.is_there(name));
        let unwanted: Vec<_> = self.jobs.keys().filter(|key| is_gone(key)).cloned().collect();
        self.jobs.drop(|key| unwanted.contains(key));
        let (gone, again) = self.missing.look(missing.iter(), Instant::now());
        if let Some(again) = again {
            debounce.later(again);
        }
        self.forget(|name| gone.contains(name))
    }

    /// Tells that models are gone.
    fn forget(&mut self, gone: impl Fn(&str) -> bool) -> bool {
        let names: Vec<String> = self.models.keys().filter(|name| gone(name)).cloned().collect();
        self.jobs.drop(|key| matches!(key, Key::Take(name) if gone(name)));
        names.into_iter().all(|name| {
            self.models.remove(&name);
            self.crowded.remove(&name);
            self.silent.remove(&name);
            self.out.send(&FromWatcher::Gone { name })
        })
    }

    /// Has a model copied, or says why it cannot be one.
    fn take(&mut self, name: &str, found: &Found) -> bool {
        let Some(refusal) = Refusal::of(found) else {
            self.ask_take(name);
            return true;
        };
        self.silent.remove(name);
        self.models.insert(name.to_owned(), None);
        self.out.send(&FromWatcher::of(name.to_owned(), refusal.state()))
    }
}
