//! Detection of the kernel's out-of-memory killer, for the worker.
//!
//! The descriptor only signals that something may have changed: v1 does so when memory is short, before anything is
//! killed, and once more when the group is removed. The kernel's own counter, compared before and after, decides.

use crate::{CgroupPaths, Error};
use nix::errno::Errno;
use nix::sys::eventfd::{EfdFlags, EventFd};
use nix::sys::inotify::{AddWatchFlags, InitFlags, Inotify};
use std::fs::{self, File};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::os::unix::fs::FileExt;
use std::path::PathBuf;

/// Watch of one group.
#[derive(Debug)]
pub struct OomWatch {
    signal: Signal,
    counters: File,
    path: PathBuf,
}

#[derive(Debug)]
enum Signal {
    /// The kernel marks `memory.events` as modified.
    Inotify(Inotify),
    /// v1 adds to it, as requested in `cgroup.event_control`.
    Eventfd(EventFd),
}

impl OomWatch {
    /// Begins to watch; take the first [`OomWatch::count`] before the group has processes.
    ///
    /// # Errors
    /// [`Error::Io`] when the group is gone or the kernel has no such events.
    pub fn new(paths: &CgroupPaths) -> Result<Self, Error> {
        let name = match paths {
            CgroupPaths::V2 { .. } => "memory.events",
            CgroupPaths::V1 { .. } => "memory.oom_control",
        };
        let path = paths.memory().join(name);
        let counters = File::open(&path).map_err(Error::io("open", &path))?;
        let signal = match paths {
            CgroupPaths::V2 { .. } => {
                let inotify =
                    Inotify::init(InitFlags::IN_CLOEXEC | InitFlags::IN_NONBLOCK).map_err(Error::io("watch", &path))?;
                inotify.add_watch(&path, AddWatchFlags::IN_MODIFY).map_err(Error::io("watch", &path))?;
                Signal::Inotify(inotify)
            }
            CgroupPaths::V1 { memory, .. } => {
                let eventfd = EventFd::from_flags(EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK)
                    .map_err(Error::io("watch", &path))?;
                let control = memory.join("cgroup.event_control");
                let request = format!("{} {}", eventfd.as_fd().as_raw_fd(), counters.as_raw_fd());
                fs::write(&control, request).map_err(Error::io("write", &control))?;
                Signal::Eventfd(eventfd)
            }
        };
        Ok(Self { signal, counters, path })
    }

    /// Makes the descriptor quiet until the next event.
    pub fn clear(&self) {
        // Nothing to read is the wanted state; a failure of another kind shows at the next poll.
        match &self.signal {
            Signal::Inotify(inotify) => while inotify.read_events().is_ok_and(|events| !events.is_empty()) {},
            Signal::Eventfd(eventfd) => drop(eventfd.read()),
        }
    }

    /// Number of kills in the group for want of memory. Compare two readings: on v2 one victim can count twice, so a
    /// difference means "was out of memory" and not a number of processes.
    ///
    /// # Errors
    /// [`Error::Io`] once the group is removed; [`Error::Content`] on a kernel without this counter (before 4.13).
    pub fn count(&self) -> Result<u64, Error> {
        let mut buffer = [0; 512];
        let length = loop {
            match self.counters.read_at(&mut buffer, 0).map_err(|error| (error.raw_os_error(), error)) {
                Ok(length) => break length,
                Err((Some(code), _)) if code == Errno::EINTR as i32 => {}
                Err((_, error)) => return Err(Error::io("read", &self.path)(error)),
            }
        };
        let text = String::from_utf8_lossy(&buffer[..length]);
        oom_kills(&text)
            .ok_or_else(|| Error::Content { file: self.path.clone(), content: text.chars().take(80).collect() })
    }
}

impl AsFd for OomWatch {
    /// Readable when [`OomWatch::count`] may have changed.
    fn as_fd(&self) -> BorrowedFd<'_> {
        match &self.signal {
            Signal::Inotify(inotify) => inotify.as_fd(),
            Signal::Eventfd(eventfd) => eventfd.as_fd(),
        }
    }
}

/// Parses the counter, which has one name in v1's `memory.oom_control` and v2's `memory.events`.
fn oom_kills(text: &str) -> Option<u64> {
    text.lines().find_map(|line| line.strip_prefix("oom_kill ")?.parse().ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counters() {
        let table = [
            ("oom_kill_disable 0\nunder_oom 0\noom_kill 3\n", Some(3)),
            ("low 0\nhigh 0\nmax 12\noom 1\noom_kill 2\noom_group_kill 1\n", Some(2)),
            ("oom_kill_disable 0\nunder_oom 0\n", None),
            ("oom_kill x\n", None),
            ("", None),
        ];
        for (text, expected) in table {
            assert_eq!(oom_kills(text), expected, "{text}");
        }
    }
}
