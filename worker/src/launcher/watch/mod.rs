//! The watcher: a thread that sees what authors do in the models folder, takes snapshots, and tells the main loop.
//!
//! inotify says where something happened, never what: the directory is then looked at. Lost events, new directories and
//! races all end in the same way, with another look; a directory that has not changed costs a listing of its files.
//!
//! On a node of a single model nothing is watched: its directory is looked at for each scheduler ([`single`]).

mod debounce;
mod missing;
mod place;
mod refusal;
mod scan;
mod single;
mod watches;

use super::event::{Event, Events, ModelState};
use debounce::Debounce;
use missing::Missing;
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::inotify::{AddWatchFlags, InitFlags, Inotify, InotifyEvent, WatchDescriptor};
use omni_config::Models;
use omni_snapshot::{Snapshot, SnapshotError, Store};
use place::Place;
use refusal::{Refusal, open, sendable, shown};
use scan::{Found, Scan, scan};
use single::Single;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fs::File;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::time::{Duration, Instant};
use watches::{PLACE, WATCHES};

/// After this long without events a directory counts as written.
const QUIET: Duration = Duration::from_millis(200);
/// After this long it is looked at all the same.
const PATIENCE: Duration = Duration::from_secs(2);
/// How long to wait after trouble of the node's own.
const TROUBLE: Duration = Duration::from_secs(5);
/// How long to wait for a models folder that went away.
const MISSING: Duration = Duration::from_secs(1);

/// The models folder cannot be watched.
#[derive(Debug, thiserror::Error)]
pub enum WatchError {
    /// It is not there, or not a directory.
    #[error("cannot open the models folder {}: make it, or name another with --models", path.display())]
    Folder {
        /// The folder.
        path: PathBuf,
        /// The kernel's answer.
        #[source]
        source: std::io::Error,
    },
    /// inotify is not to be had.
    #[error("cannot watch the models folder (fs.inotify.max_user_instances bounds the number of watchers)")]
    Inotify(#[source] Errno),
}

/// What the thread does.
pub(super) enum Watch {
    /// Watches a folder of models.
    Folder(Watcher),
    /// Looks at a single one when it is asked to.
    Single(Single, Receiver<()>),
}

impl Watch {
    /// With the main loop's end. Checks that a folder is there; nothing is read yet.
    pub(super) fn new(models: &Models, store: Arc<Store>, events: Events) -> Result<(Self, Looks), WatchError> {
        match models {
            Models::Folder(folder) => Ok((Self::Folder(Watcher::new(folder, store, events)?), Looks(None))),
            Models::Single(model) => {
                let (looks, asked) = sync_channel(1);
                Ok((Self::Single(Single::new(model.clone(), store, events), asked), Looks(Some(looks))))
            }
        }
    }

    /// Runs until the main loop is gone.
    pub(super) fn run(self) {
        match self {
            Self::Folder(watcher) => watcher.run(),
            Self::Single(single, asked) => single.run(&asked),
        }
    }
}

/// The main loop's end: it says when a scheduler has come that does not know yet what there is.
pub(super) struct Looks(Option<SyncSender<()>>);

impl Looks {
    /// Has a single model's directory looked at anew; whether all there is will be told again.
    pub(super) fn again(&self) -> bool {
        let Some(looks) = &self.0 else { return false };
        let _ = looks.try_send(()); // one that has not begun is as good as two
        true
    }
}

/// See the module.
pub(super) struct Watcher {
    folder: PathBuf,
    store: Arc<Store>,
    events: Events,
    inotify: Inotify,
    watched: HashMap<WatchDescriptor, PathBuf>,
    models: BTreeMap<String, Option<Snapshot>>,
    missing: Missing,
    changed: Changed,
    /// What is watched.
    place: Option<Place>,
    /// When it was last asked whether that is still the models folder.
    asked: Instant,
    /// Models that were refused for having too much: nothing in them is watched.
    crowded: BTreeSet<String>,
    /// When to look at everything, for what is not watched.
    slow: Option<Instant>,
    /// It was said that not all is watched.
    warned: bool,
}

/// What must be looked at.
#[derive(Debug, PartialEq, Eq)]
enum Changed {
    All,
    Below(BTreeSet<PathBuf>),
}

impl Watcher {
    /// Checks that the folder is there; nothing is read yet.
    fn new(folder: &Path, store: Arc<Store>, events: Events) -> Result<Self, WatchError> {
        open(folder).map_err(|source| WatchError::Folder { path: folder.to_owned(), source })?;
        let inotify = Inotify::init(InitFlags::IN_CLOEXEC | InitFlags::IN_NONBLOCK).map_err(WatchError::Inotify)?;
        Ok(Self {
            folder: folder.to_owned(),
            store,
            events,
            inotify,
            watched: HashMap::new(),
            models: BTreeMap::new(),
            missing: Missing::default(),
            changed: Changed::All,
            place: Place::of(folder),
            asked: Instant::now(),
            crowded: BTreeSet::new(),
            slow: None,
            warned: false,
        })
    }

    /// Watches until the main loop is gone.
    fn run(mut self) {
        let mut debounce = Debounce::new(QUIET, PATIENCE);
        if !self.look(&mut debounce) || !self.events.tell(Event::Scanned) {
            return;
        }
        loop {
            self.check_place(&mut debounce);
            let wait = debounce.due().map(|due| due.saturating_duration_since(Instant::now()));
            if wait.is_some_and(|wait| wait.is_zero()) {
                debounce.done();
                if !self.look(&mut debounce) {
                    return;
                }
                continue;
            }
            // Rounded up by a millisecond, the unit of poll.
            let wait = wait.unwrap_or(PLACE).min(PLACE) + Duration::from_millis(1);
            let timeout = PollTimeout::try_from(wait).unwrap_or(PollTimeout::MAX);
            match poll(&mut [PollFd::new(self.inotify.as_fd(), PollFlags::POLLIN)], timeout) {
                Ok(_) | Err(Errno::EINTR) => self.hear(&mut debounce),
                Err(errno) => {
                    tracing::error!(%errno, "the models folder is not watched any more");
                    return;
                }
            }
        }
    }

    fn hear(&mut self, debounce: &mut Debounce) {
        loop {
            let events = match self.inotify.read_events() {
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
        let hidden = event.name.as_ref().is_some_and(|name| {
            omni_snapshot::digest::is_ignored(std::os::unix::ffi::OsStrExt::as_bytes(name.as_os_str()))
        });
        if event.mask.contains(AddWatchFlags::IN_Q_OVERFLOW) {
            self.changed = Changed::All;
            return debounce.changed(Instant::now());
        }
        if event.mask.contains(AddWatchFlags::IN_IGNORED) {
            self.watched.remove(&event.wd);
            return;
        }
        if hidden {
            return;
        }
        let Some(dir) = self.watched.get(&event.wd) else { return };
        let path = event.name.as_ref().map_or_else(|| dir.clone(), |name| dir.join(name));
        if let Changed::Below(paths) = &mut self.changed {
            paths.insert(path);
            if paths.len() > WATCHES {
                self.changed = Changed::All;
            }
        }
        // A renamed directory was finished before; its files are not written one by one.
        let moved = AddWatchFlags::IN_MOVED_FROM | AddWatchFlags::IN_MOVED_TO;
        if event.mask.intersects(moved) && event.mask.contains(AddWatchFlags::IN_ISDIR) {
            debounce.published(Instant::now());
        } else {
            debounce.changed(Instant::now());
        }
    }

    /// Looks at everything that changed. `false` when the main loop is gone.
    fn look(&mut self, debounce: &mut Debounce) -> bool {
        if self.slow.take_if(|slow| *slow <= Instant::now()).is_some() {
            self.changed = Changed::All;
        }
        let changed = std::mem::replace(&mut self.changed, Changed::Below(BTreeSet::new()));
        let folder = match open(&self.folder) {
            Ok(folder) => folder,
            Err(error) => {
                tracing::error!(folder = %self.folder.display(), %error, "the models folder is gone: no model can be served");
                self.changed = Changed::All;
                debounce.later(Instant::now() + MISSING);
                return self.forget(|_| true);
            }
        };
        let path = self.folder.clone();
        let mut unwatched = 0;
        let crowded = self.crowded.clone();
        let Scan { found, partly } = scan(&path, &crowded, &mut |dir| unwatched += usize::from(!self.watch(dir)));
        self.look_again_at_all(partly, unwatched, debounce);
        let missing = self.models.keys().filter(|name| !found.contains_key(*name));
        let (gone, again) = self.missing.look(missing, Instant::now());
        if let Some(again) = again {
            debounce.later(again);
        }
        if !self.forget(|name| gone.contains(name)) {
            return false;
        }
        for (name, found) in &found {
            let affected = match &changed {
                Changed::All => true,
                Changed::Below(paths) => {
                    !self.models.contains_key(name)
                        || paths.iter().any(|path| path.starts_with(name) || Path::new(name).starts_with(path))
                }
            };
            if affected && !self.take(&folder, name, found, debounce) {
                return false;
            }
        }
        true
    }

    /// Tells that models are gone. `false` when the main loop is.
    fn forget(&mut self, gone: impl Fn(&str) -> bool) -> bool {
        let names: Vec<String> = self.models.keys().filter(|name| gone(name)).cloned().collect();
        names.into_iter().all(|name| {
            self.models.remove(&name);
            self.crowded.remove(&name);
            self.events.tell(Event::Model { name, state: ModelState::Gone })
        })
    }

    fn take(&mut self, folder: &File, name: &str, found: &Found, debounce: &mut Debounce) -> bool {
        let known = self.models.get(name).and_then(Option::as_ref);
        let taken = match Refusal::of(found) {
            None => self.store.take(folder, Path::new(name), known).map_err(Refusal::Snapshot),
            Some(refusal) => Err(refusal),
        };
        let is_crowded = matches!(taken, Err(Refusal::Snapshot(SnapshotError::TooMany { .. })));
        let again = match &taken {
            Err(Refusal::Snapshot(SnapshotError::Changing { .. })) => Some(PATIENCE),
            // A full disk, most likely: no change of the directory will tell when there is room.
            Err(Refusal::Snapshot(error)) if error.is_of_the_node() => Some(TROUBLE),
            Ok(_) | Err(_) => None,
        };
        if let Some(again) = again {
            if let Changed::Below(paths) = &mut self.changed {
                paths.insert(PathBuf::from(name));
            }
            debounce.later(Instant::now() + again);
        }
        if known.is_some() && matches!(taken, Err(Refusal::Snapshot(SnapshotError::Changing { .. }))) {
            return true; // what is known goes on until the new content stands still
        }
        let (snapshot, state) = match taken {
            Ok(snapshot) => {
                let state = sendable(name, &snapshot);
                if let ModelState::Refused { .. } = state {
                    self.store.release(&snapshot.digest); // else the main loop does, once it knows of it
                }
                (Some(snapshot), state)
            }
            Err(refusal) => (None, refusal.state()),
        };
        self.crowd(name, is_crowded, debounce);
        self.models.insert(name.to_owned(), snapshot);
        self.events.tell(Event::Model { name: name.to_owned(), state })
    }
}
