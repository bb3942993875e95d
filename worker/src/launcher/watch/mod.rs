//! The watcher: a thread that sees what authors do in the models folder, takes snapshots, and tells the main loop.
//!
//! inotify says where something happened, never what: the directory is then looked at. Lost events, new directories and
//! races all end in the same way, with another look; a directory that has not changed costs a listing of its files.
//!
//! On a node of a single model nothing is watched: its directory is looked at for each scheduler ([`single`]).

mod debounce;
mod missing;
mod scan;
mod single;

use super::event::{Event, Events, ModelState};
use debounce::Debounce;
use missing::Missing;
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::inotify::{AddWatchFlags, InitFlags, Inotify, InotifyEvent, WatchDescriptor};
use omni_config::Models;
use omni_ipc::launcher::FromLauncher;
use omni_ipc::packet::MAX_PACKET;
use omni_snapshot::{Snapshot, SnapshotError, Store};
use scan::{Found, scan};
use single::Single;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fs::File;
use std::os::fd::AsFd;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::time::{Duration, Instant};

/// After this long without events a directory counts as written.
const QUIET: Duration = Duration::from_millis(200);
/// After this long it is looked at all the same.
const PATIENCE: Duration = Duration::from_secs(2);
/// How long to wait after trouble of the node's own.
const TROUBLE: Duration = Duration::from_secs(5);
/// How long to wait for a models folder that went away.
const MISSING: Duration = Duration::from_secs(1);
/// Directories that are watched, those of all models together.
const WATCHES: usize = 65_536;

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
        })
    }

    /// Watches until the main loop is gone.
    fn run(mut self) {
        let mut debounce = Debounce::new(QUIET, PATIENCE);
        if !self.look(&mut debounce) || !self.events.tell(Event::Scanned) {
            return;
        }
        loop {
            let wait = debounce.due().map(|due| due.saturating_duration_since(Instant::now()));
            if wait.is_some_and(|wait| wait.is_zero()) {
                debounce.done();
                if !self.look(&mut debounce) {
                    return;
                }
                continue;
            }
            // Rounded up by a millisecond, the unit of poll.
            let timeout = wait.map_or(PollTimeout::NONE, |wait| {
                PollTimeout::try_from(wait + Duration::from_millis(1)).unwrap_or(PollTimeout::MAX)
            });
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
        let found = scan(&path, &mut |dir| self.watch(dir));
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
            self.events.tell(Event::Model { name, state: ModelState::Gone })
        })
    }

    fn take(&mut self, folder: &File, name: &str, found: &Found, debounce: &mut Debounce) -> bool {
        let known = self.models.get(name).and_then(Option::as_ref);
        let taken = match found {
            Found::Model => self.store.take(folder, Path::new(name), known).map_err(Refusal::Snapshot),
            Found::Misnamed(error) => Err(Refusal::Name(*error)),
            Found::Link => Err(Refusal::Link),
        };
        let again = match &taken {
            Err(Refusal::Snapshot(SnapshotError::Changing { .. })) => Some(PATIENCE),
            // A full disk, most likely: no change of the directory will tell when there is room.
            Err(Refusal::Snapshot(SnapshotError::Store { .. })) => Some(TROUBLE),
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
            Err(refusal) => (None, ModelState::Refused { message: omni_log::chain(&refusal) }),
        };
        self.models.insert(name.to_owned(), snapshot);
        self.events.tell(Event::Model { name: name.to_owned(), state })
    }

    /// Watches a directory, given relative to the folder. Adding a watch twice is nothing.
    fn watch(&mut self, dir: &Path) {
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
            | AddWatchFlags::IN_DONT_FOLLOW;
        if self.watched.len() >= WATCHES {
            tracing::warn!(dir = %dir.display(), "not watched: the models folder has more than {WATCHES} directories");
            return;
        }
        match self.inotify.add_watch(&self.folder.join(dir), what) {
            Ok(watch) => drop(self.watched.insert(watch, dir.to_owned())),
            Err(Errno::ENOENT | Errno::ENOTDIR) => {} // gone again: its parent's watch tells
            Err(errno) => {
                tracing::warn!(dir = %dir.display(), %errno, "not watched (fs.inotify.max_user_watches bounds the number)");
            }
        }
    }
}

/// Why a directory is not served.
#[derive(Debug, thiserror::Error)]
enum Refusal {
    #[error(transparent)]
    Snapshot(SnapshotError),
    #[error("the directory's path cannot be a model's name: {0}")]
    Name(omni_config::NameError),
    #[error("the model's directory is a symbolic link: put the directory itself here, by renaming it into place")]
    Link,
    #[error("there is no `model.py` in it: `--model` names the directory of one model, `--models` a folder of many")]
    NoModel,
    #[error("cannot open the folder that it is in")]
    Above(#[source] std::io::Error),
}

fn open(folder: &Path) -> std::io::Result<File> {
    std::fs::OpenOptions::new().read(true).custom_flags(libc::O_DIRECTORY).open(folder)
}

/// A manifest of control characters grows sixfold on the wire: such a one is refused here, by name.
fn sendable(name: &str, snapshot: &Snapshot) -> ModelState {
    let Snapshot { digest, manifest, .. } = snapshot.clone();
    let message = FromLauncher::Model { name: name.to_owned(), snapshot: digest.clone(), manifest: manifest.clone() };
    match serde_json::to_vec(&message) {
        Ok(bytes) if bytes.len() <= MAX_PACKET => ModelState::Taken { snapshot: digest, manifest },
        Ok(_) | Err(_) => {
            ModelState::Refused { message: "`omni.toml` is not plain text: remove its control characters".into() }
        }
    }
}

/// Characters of a path that are shown when it is not a name.
const SHOWN: usize = 200;

/// The name of the model in `path`, relative to the folder, as it is shown when it cannot be a name.
fn shown(path: &Path) -> String {
    path.to_string_lossy().chars().take(SHOWN).collect()
}
