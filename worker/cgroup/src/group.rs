//! A group in use: what the worker holds of its model's group.

use crate::{CgroupPaths, Error};
use crate::{members, place};
use nix::errno::Errno;
use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::time::Duration;

/// An existing group, with the descriptors that joining takes opened beforehand.
#[derive(Debug)]
pub struct Group {
    paths: CgroupPaths,
    procs: Vec<File>,
    dir: Option<File>,
}

impl Group {
    /// Opens the files of a group that a driver has made.
    ///
    /// # Errors
    /// [`Error::Io`] when one of them is missing.
    pub fn open(paths: &CgroupPaths) -> Result<Self, Error> {
        let procs = |dir: &Path| {
            let file = dir.join("cgroup.procs");
            OpenOptions::new().write(true).open(&file).map_err(Error::io("open", &file))
        };
        let dir = match paths {
            CgroupPaths::V2 { dir } => {
                let flags = nix::libc::O_DIRECTORY | nix::libc::O_CLOEXEC;
                Some(OpenOptions::new().read(true).custom_flags(flags).open(dir).map_err(Error::io("open", dir))?)
            }
            CgroupPaths::V1 { .. } => None,
        };
        Ok(Self { paths: paths.clone(), procs: paths.dirs().into_iter().map(procs).collect::<Result<_, _>>()?, dir })
    }

    /// Where it is.
    #[must_use]
    pub fn paths(&self) -> &CgroupPaths {
        &self.paths
    }

    /// The directory for `CLONE_INTO_CGROUP`; `None` on v1, where the child joins by [`Group::join_self`] instead.
    #[must_use]
    pub fn v2_dir_fd(&self) -> Option<BorrowedFd<'_>> {
        self.dir.as_ref().map(AsFd::as_fd)
    }

    /// Moves the calling process into the group, in every hierarchy. One write for each, nothing allocated: a cloned
    /// child may call it before it executes anything else.
    ///
    /// # Errors
    /// The kernel's answer; the process may then be in some of the hierarchies and must end.
    pub fn join_self(&self) -> io::Result<()> {
        self.procs.iter().try_for_each(|mut procs| procs.write_all(b"0"))
    }

    /// Moves a process of somebody else into the group, in every hierarchy. What it has allocated stays charged where it
    /// was.
    ///
    /// # Errors
    /// The kernel's answer; the process may then be in some of the hierarchies and must end.
    pub fn take(&self, pid: i32) -> io::Result<()> {
        let text = pid.to_string();
        self.procs.iter().try_for_each(|mut procs| procs.write_all(text.as_bytes()))
    }

    /// As [`Group::take`], for a process that may end at any time, so that its number may become another's: `ended` is
    /// asked around every write. Whoever has the number after the end is put back before this returns.
    ///
    /// # Errors
    /// The kernel's answer, or `ESRCH` when it has ended; as with [`Group::take`] otherwise.
    pub fn take_unless(&self, pid: i32, ended: impl Fn() -> bool) -> io::Result<()> {
        let text = pid.to_string();
        let gone = || io::Error::from(Errno::ESRCH);
        let ours = place::read(pid)?;
        for (dir, mut procs) in self.paths.dirs().into_iter().zip(&self.procs) {
            if ended() {
                return Err(gone());
            }
            // Of a successor, when there is one already.
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

    /// Its processes, as this process's namespace numbers them.
    ///
    /// # Errors
    /// [`Error::Io`] when they cannot be read; a group that is gone has none.
    pub fn processes(&self) -> Result<Vec<i32>, Error> {
        members::read_procs(self.paths.memory())
    }

    /// Whether no process is left in it. A zombie counts as gone.
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
