//! The links in the runtime directory to what the scheduler has in its own folder there. Any cleaner of `/run` may take them
//! away; they are made again at once.

use nix::sys::inotify::{AddWatchFlags, InitFlags, Inotify};
use omni_dir::{Dir, runtime};
use std::io;
use std::os::fd::{AsFd, BorrowedFd};

/// The runtime directory, with a watch for removed entries.
pub(super) struct Links {
    dir: Dir,
    removed: Inotify,
}

impl Links {
    /// Makes the links, and watches the directory for their removal.
    pub(super) fn watch(dir: Dir) -> io::Result<Self> {
        let removed = Inotify::init(InitFlags::IN_CLOEXEC | InitFlags::IN_NONBLOCK)?;
        removed.add_watch(
            dir.path(),
            AddWatchFlags::IN_DELETE
                | AddWatchFlags::IN_MOVED_FROM
                | AddWatchFlags::IN_CREATE
                | AddWatchFlags::IN_MOVED_TO,
        )?;
        runtime::link(&dir)?;
        Ok(Self { dir, removed })
    }

    /// For poll: something has changed.
    pub(super) fn changes(&self) -> BorrowedFd<'_> {
        self.removed.as_fd()
    }

    /// Makes again what is missing.
    pub(super) fn mend(&self) {
        let _ = self.removed.read_events(); // what has changed is seen by looking
        if let Err(error) = runtime::link(&self.dir) {
            tracing::error!(%error, "the links to the scheduler's files in the runtime directory cannot be made again");
        }
    }

    /// Removes the links and the launcher's socket: the next launcher would replace them, and cannot before the lock is
    /// free.
    pub(super) fn remove(&self) {
        let _ = runtime::unlink(&self.dir);
        let _ = self.dir.remove(super::connection::NAME);
    }
}
