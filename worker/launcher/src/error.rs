//! Errors that keep the launcher from working, and its exit code for each.

use super::watch::WatchError;
use super::{keeper, runtime_dir};
use nix::errno::Errno;
use omni_config::node::MISCONFIGURED;
use omni_dir::way::Changeable;
use omni_snapshot::SnapshotError;
use std::io;
use std::path::{Path, PathBuf};

/// The launcher cannot work.
#[derive(Debug, thiserror::Error)]
pub enum LauncherError {
    /// The folder is locked by another launcher.
    #[error(
        "another launcher has {}: stop it, or give this node a --runtime-dir, --state-dir and --cache-dir of its own",
        folder.display()
    )]
    AlreadyRunning {
        /// Folder that it has locked.
        folder: PathBuf,
    },
    /// A folder or file cannot be used.
    #[error("cannot {action} {}", path.display())]
    Io {
        /// A verb.
        action: &'static str,
        /// Path of the folder or file.
        path: PathBuf,
        /// The kernel's answer.
        #[source]
        source: io::Error,
    },
    /// The path of a socket would be too long for the kernel.
    #[error("the runtime folder {} has a path that is too long for a socket in it: at most {} bytes", path.display(), runtime_dir::SOCKET_DIR_MAX)]
    LongPath {
        /// The folder.
        path: PathBuf,
    },
    /// The models folder cannot be watched.
    #[error(transparent)]
    Watch(#[from] WatchError),
    /// The store of snapshots cannot be used.
    #[error("cannot open the store of snapshots")]
    Store(#[from] SnapshotError),
    /// Root would write where another user can exchange what is there.
    #[error("cannot use {} for {what}", found.path.display())]
    Changeable {
        /// Flag of the folder.
        what: &'static str,
        /// The folder on the way.
        #[source]
        found: Changeable,
    },
    /// There are no usable control groups.
    #[error("cannot use control groups")]
    Cgroup(#[from] omni_cgroup::Error),
    /// The kernel refuses something basic.
    #[error("cannot {action}")]
    Kernel {
        /// A verb.
        action: &'static str,
        /// The kernel's answer.
        #[source]
        source: Errno,
    },
}

impl LauncherError {
    /// The exit code: whether starting again can help.
    #[must_use]
    pub fn exit_code(&self) -> u8 {
        match self {
            Self::AlreadyRunning { .. } | Self::Cgroup(omni_cgroup::Error::Claimed { .. }) => keeper::ALREADY_RUNNING,
            Self::Watch(WatchError::Folder { .. })
            | Self::LongPath { .. }
            | Self::Changeable { .. }
            | Self::Cgroup(_) => MISCONFIGURED,
            Self::Io { .. }
            | Self::Watch(WatchError::Inotify(_) | WatchError::Store(_))
            | Self::Store(_)
            | Self::Kernel { .. } => 1,
        }
    }
}

pub(super) fn at(action: &'static str, path: &Path) -> impl FnOnce(io::Error) -> LauncherError {
    move |source| LauncherError::Io { action, path: path.to_owned(), source }
}

pub(super) fn kernel(action: &'static str) -> impl FnOnce(Errno) -> LauncherError {
    move |source| LauncherError::Kernel { action, source }
}
