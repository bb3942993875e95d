//! Existing group, as the worker uses its model's.

use crate::{CgroupPaths, Error};
use crate::{members, place};
use nix::errno::Errno;
use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::time::Duration;

/// Existing group, with the descriptors for joining opened beforehand.
#[derive(Debug)]
pub struct Group {
    paths: CgroupPaths,
    /// `cgroup.procs` in every hierarchy: moves whole processes.
    procs: Vec<File>,
    /// `tasks` in every hierarchy of version 1: moves single threads.
    tasks: Vec<File>,
    unified: Option<File>,
}

impl Group {
    /// Opens the files of a group that a driver has made.
    ///
    /// # Errors
    /// [`Error::Io`] when one of them is missing.
    pub fn open(paths: &CgroupPaths) -> Result<Self, Error> {
        let open = |dir: &Path, name: &str| {
            let file = dir.join(name);
            OpenOptions::new().write(true).open(&file).map_err(Error::io("open", &file))
        };
        let directory = |dir: &Path| {
            let flags = nix::libc::O_DIRECTORY | nix::libc::O_CLOEXEC;
            OpenOptions::new().read(true).custom_flags(flags).open(dir).map_err(Error::io("open", dir))
        };
        let (all, unified) = (paths.dirs(), paths.unified());
        let version1 = all.iter().filter(|dir| Some(**dir) != unified);
        Ok(Self {
            procs: all.iter().map(|dir| open(dir, "cgroup.procs")).collect::<Result<_, _>>()?,
            tasks: version1.map(|dir| open(dir, "tasks")).collect::<Result<_, _>>()?,
            unified: unified.map(directory).transpose()?,
            paths: paths.clone(),
        })
    }

    /// Directories of the group.
    #[must_use]
    pub fn paths(&self) -> &CgroupPaths {
        &self.paths
    }

    /// Directory in the unified tree, for `CLONE_INTO_CGROUP`; `None` where that is not mounted.
    #[must_use]
    pub fn unified(&self) -> Option<BorrowedFd<'_>> {
        self.unified.as_ref().map(AsFd::as_fd)
    }

    /// Moves the calling thread into the group in every hierarchy of version 1. A process that has no other thread, and
    /// was cloned into [`Group::unified`], is all in it then. One write for each, nothing allocated: a cloned child may
    /// call it before it does anything else.
    ///
    /// Not by `cgroup.procs`: moving a process excludes every fork and exit of the machine, for which the kernel waits
    /// out a grace period, of 4 to 15 ms; a thread that moves itself need not (`cgroup_procs_write_start` of the
    /// kernel).
    ///
    /// # Errors
    /// The kernel's error; the process may then be in some of the hierarchies and must end.
    pub fn join_self(&self) -> io::Result<()> {
        self.tasks.iter().try_for_each(|mut tasks| tasks.write_all(b"0"))
    }

    /// Moves another process into the group, in every hierarchy. Memory that it has allocated stays charged where it
    /// was.
    ///
    /// # Errors
    /// The kernel's error; the process may then be in some of the hierarchies and must end.
    pub fn take(&self, pid: i32) -> io::Result<()> {
        let text = pid.to_string();
        self.procs.iter().try_for_each(|mut procs| procs.write_all(text.as_bytes()))
    }

    /// As [`Group::take`], for a process that may end at any time, so that its number may become another's: `ended` is
    /// checked around every write. A process that got the number afterwards is put back before this returns.
    ///
    /// # Errors
    /// The kernel's error, or `ESRCH` when it has ended; as with [`Group::take`] otherwise.
    pub fn take_unless(&self, pid: i32, ended: impl Fn() -> bool) -> io::Result<()> {
        let text = pid.to_string();
        let gone = || io::Error::from(Errno::ESRCH);
        let ours = place::read(pid)?;
        for (dir, mut procs) in self.paths.dirs().into_iter().zip(&self.procs) {
            if ended() {
                return Err(gone());
            }
            // Groups of a successor, when there is one already.
            let before = place::read(pid)?;
            let written = procs.write_all(text.as_bytes());
            if ended() {
                // Writes before this one were answered while it lived, so no successor has moved by them.
                place::give_back(pid, dir, &ours, &before)?;
                return Err(gone());
            }
            written?;
        }
        Ok(())
    }

    /// Sends SIGKILL to every process of the group, also to those that it forks meanwhile.
    ///
    /// # Errors
    /// [`Error::Io`] when the kernel refuses; a group that is gone is success.
    pub fn kill(&self) -> Result<(), Error> {
        members::kill(&self.paths.dirs())
    }

    /// Processes of the group, as this process's namespace numbers them.
    ///
    /// # Errors
    /// [`Error::Io`] when they cannot be read; a group that is gone has none.
    pub fn processes(&self) -> Result<Vec<i32>, Error> {
        members::read_procs(self.paths.memory())
    }

    /// No process is left in it. A zombie counts as gone.
    ///
    /// # Errors
    /// [`Error::Io`] when that cannot be read; a group that is gone is empty.
    pub fn is_empty(&self) -> Result<bool, Error> {
        members::is_empty(&self.paths.dirs())
    }

    /// Waits until no process is left.
    ///
    /// # Errors
    /// [`Error::Busy`] when one is, after `limit`: then something holds it in the kernel, such as a FUSE read.
    pub fn wait_empty(&self, limit: Duration) -> Result<(), Error> {
        members::wait_empty(&self.paths.dirs(), limit)
    }
}
