//! Errors of control groups. The launcher turns them into the reason of a failed start.

use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// A control group could not be made, measured or removed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The host has no tree of control groups that can hold a model.
    #[error(
        "no usable control groups: {missing}; mount the unified tree (`mount -t cgroup2 cgroup2 /sys/fs/cgroup`) on a \
         kernel that has not given these controllers to version 1, or mount the version 1 controllers memory, pids, cpu \
         and cpuacct (Debian: `apt-get install cgroupfs-mount`)"
    )]
    NoHierarchy {
        /// Controllers or mounts that were not found.
        missing: String,
    },
    /// A name cannot become a group below the parent.
    #[error("`{name}` is not {expected}")]
    BadName {
        /// The name, cut to 80 characters.
        name: String,
        /// Form that it should have.
        expected: &'static str,
    },
    /// A limit that makes no sense, before the kernel was asked.
    #[error("a limit of {value} for {what} is below the least possible, {least}")]
    BadLimit {
        /// Resource and its unit.
        what: &'static str,
        /// Requested limit.
        value: u64,
        /// Least limit that works.
        least: u64,
    },
    /// A directory that should be a control group is an ordinary one: limits written there limit nothing.
    #[error("{} is not on a {} file system; limits there would have no effect", dir.display(), if *unified { "cgroup2" } else { "cgroup v1" })]
    NotACgroup {
        /// Directory.
        dir: PathBuf,
        /// Expected in the unified tree.
        unified: bool,
    },
    /// A controller is not passed down to a group of the unified tree.
    #[error(
        "controllers {missing} are not available below {}; its parent must list them in cgroup.subtree_control, which \
         the kernel allows only while the parent itself holds no process", dir.display()
    )]
    ControllersMissing {
        /// Directory whose children lack them.
        dir: PathBuf,
        /// Names of the controllers.
        missing: String,
        /// The kernel's refusal to enable them.
        #[source]
        source: Option<io::Error>,
    },
    /// The parent is another node's, or above or below one.
    #[error(
        "another launcher has the control group `{parent}`, one above or one below: stop it, or set `cgroup-parent` in \
         [node] of this node's configuration to one of its own"
    )]
    Claimed {
        /// Parent, relative to the root of the hierarchy.
        parent: String,
    },
    /// The group is there already: left over by a crash, or in use.
    #[error("control group {} exists already", dir.display())]
    Exists {
        /// Directory.
        dir: PathBuf,
    },
    /// The kernel holds another value than the one set, or none.
    #[error("limit {} was not applied: wanted {wanted}, found {found}", file.display())]
    LimitNotApplied {
        /// File of the limit.
        file: PathBuf,
        /// Value that was set.
        wanted: String,
        /// Value read back, or the reason why none could be read.
        found: String,
    },
    /// `cgroups-rs` reported a limit that the kernel refused.
    #[error("cannot set the limits of control group {name}")]
    Apply {
        /// Group, relative to the root of the hierarchy.
        name: String,
        /// The library's report.
        #[source]
        source: cgroups_rs::fs::error::Error,
    },
    /// A path that is not a group of this driver; nothing was touched.
    #[error("{} is not a group below {}", dir.display(), parent.display())]
    Outside {
        /// Directory.
        dir: PathBuf,
        /// The driver's parent group in the same hierarchy.
        parent: PathBuf,
    },
    /// Processes were still there after the time that a kill takes.
    #[error("control group {} still has processes after {waited:?}", dir.display())]
    Busy {
        /// Directory.
        dir: PathBuf,
        /// Time that was waited.
        waited: Duration,
    },
    /// Groups by systemd are wanted, where it cannot make them.
    #[error(
        "systemd cannot make control groups here: {why}; set `cgroup-driver` in [node] of the node's configuration to \
         \"auto\" or \"cgroupfs\""
    )]
    NoSystemd {
        /// Missing condition.
        why: String,
    },
    /// systemd refused.
    #[error("systemd refuses {action} of {unit}")]
    Systemd {
        /// Method that was called.
        action: &'static str,
        /// Unit.
        unit: String,
        /// systemd's error.
        #[source]
        source: Box<zbus::Error>,
    },
    /// The bus does not accept this client.
    #[error("the system bus cannot be reached for {unit}: systemctl status dbus.socket dbus")]
    NoBus {
        /// Unit.
        unit: String,
        /// Cause.
        #[source]
        source: Box<zbus::Error>,
    },
    /// A job of systemd failed.
    #[error("the job of systemd for {unit} ended as `{result}`: journalctl -u {unit}")]
    Job {
        /// Unit.
        unit: String,
        /// Result as systemd names it.
        result: String,
    },
    /// The bus or systemd did not answer.
    #[error("the system bus or systemd did not answer within {waited:?} for {unit}: systemctl status dbus")]
    BusSilent {
        /// Unit.
        unit: String,
        /// Time that was waited.
        waited: Duration,
    },
    /// The bus went away while systemd worked.
    #[error("the connection to the system bus ended while {unit} was waited for")]
    BusLost {
        /// Unit.
        unit: String,
    },
    /// The content of one of the kernel's files was not of its documented form.
    #[error("unexpected content in {}: {content}", file.display())]
    Content {
        /// File.
        file: PathBuf,
        /// Beginning of the content.
        content: String,
    },
    /// A system call failed.
    #[error("cannot {action} {}", path.display())]
    Io {
        /// Attempted action, as a verb.
        action: &'static str,
        /// Path of the file.
        path: PathBuf,
        /// The kernel's error.
        #[source]
        source: io::Error,
    },
}

impl Error {
    /// Error for a text that is not of the file's form.
    pub(crate) fn content(file: &Path, text: &str) -> Self {
        Self::Content { file: file.to_owned(), content: text.chars().take(80).collect() }
    }

    /// Error of a system call on a path, for `map_err`.
    pub(crate) fn io<E: Into<io::Error>>(action: &'static str, path: &Path) -> impl FnOnce(E) -> Self {
        move |source| Self::Io { action, path: path.to_owned(), source: source.into() }
    }
}
