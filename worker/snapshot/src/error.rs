//! Reasons for which no snapshot can be taken. Shown to the model's author, who can mend most of them.

use nix::errno::Errno;
use omni_node_protocol::launcher::MAX_MANIFEST;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// A directory of which nothing could be read for this long does not answer.
pub const SILENT: Duration = Duration::from_secs(10);

/// No snapshot was taken; nothing is left of it. Paths are relative to the model's directory.
#[derive(Debug, thiserror::Error)]
pub enum SnapshotError {
    /// The model's directory itself cannot be opened.
    #[error("the model's directory cannot be opened (it must be a directory, not a link to one)")]
    Open(#[source] Errno),
    /// Something that is no file.
    #[error("`{}` is {found}; a model has files, directories and links only: remove it", path.display())]
    Special {
        /// Where.
        path: PathBuf,
        /// "a FIFO", "a socket", ...
        found: &'static str,
    },
    /// Second name of a file of another owner.
    #[error("`{}` is a hard link to a file of another owner: put a copy there instead", path.display())]
    ForeignFile {
        /// Where.
        path: PathBuf,
    },
    /// A file or directory that the owner of a directory around it may be unable to read.
    #[error(
        "`{}` belongs to another user than the directory that it is in, and not everybody may read it: give it to that \
         directory's owner, or let others read it",
        path.display()
    )]
    PrivateFile {
        /// Where.
        path: PathBuf,
    },
    /// A link that starts at the root of the file system.
    #[error(
        "`{}` is an absolute link, to `{}`; the model runs from a copy: use a relative link, or put the file there",
        path.display(), target.display()
    )]
    AbsoluteLink {
        /// The link.
        path: PathBuf,
        /// Target of the link.
        target: PathBuf,
    },
    /// A link that leads out of the model's directory.
    #[error(
        "`{}` links to `{}`, outside the model's directory; the model runs from a copy: put the file there instead",
        path.display(), target.display()
    )]
    OutsideLink {
        /// The link.
        path: PathBuf,
        /// Target of the link.
        target: PathBuf,
    },
    /// A link to nothing, or in a circle.
    #[error("`{}` links to `{}`, which is not there: remove or repair the link", path.display(), target.display())]
    BrokenLink {
        /// The link.
        path: PathBuf,
        /// Target of the link.
        target: PathBuf,
    },
    /// A link to something that is not copied.
    #[error(
        "`{}` links to `{}`, which is not part of the copy (names with a leading dot, `__pycache__` and `*.pyc` are left \
         out): link to something else, or put the file there",
        path.display(), target.display()
    )]
    IgnoredTarget {
        /// The link.
        path: PathBuf,
        /// Target of the link.
        target: PathBuf,
    },
    /// Over [`crate::Limits::files`].
    #[error(
        "the directory has more than {limit} files, directories and links (`files` in [snapshots] of the node's \
         configuration): keep data in an archive, or in the model's cache directory"
    )]
    TooMany {
        /// The bound.
        limit: u32,
    },
    /// Over [`crate::Limits::bytes`].
    #[error(
        "with `{}` ({}) the directory has more than {} (`bytes` in [snapshots] of the node's configuration): keep large \
         data in the model's cache directory or in a package",
        path.display(), iec(*size), iec(*limit)
    )]
    TooLarge {
        /// The file that crossed the bound.
        path: PathBuf,
        /// Apparent size, in bytes.
        size: u64,
        /// The bound, in bytes.
        limit: u64,
    },
    /// The disk of the store has too little room: the node's trouble, not the author's.
    #[error(
        "the copy needs {} and the disk of {} has {} for it (a twentieth, or 4 GiB, is left to the node): make room there",
        iec(*need), dir.display(), iec(*have)
    )]
    NoRoom {
        /// In bytes, without what is there already.
        need: u64,
        /// In bytes.
        have: u64,
        /// The store.
        dir: PathBuf,
    },
    /// Directories in directories in directories.
    #[error("`{}` is more than {limit} directories deep: flatten it", path.display())]
    TooDeep {
        /// The directory.
        path: PathBuf,
        /// The bound.
        limit: usize,
    },
    /// `omni.toml` is larger than it can sensibly be.
    #[error("`omni.toml` has more than {MAX_MANIFEST} bytes: shorten it")]
    ManifestTooLarge,
    /// `omni.toml` is no text, or no file.
    #[error("`omni.toml` must be a file of UTF-8 text")]
    ManifestNotText,
    /// A process writes faster than the copy.
    #[error("`{}` changes while it is being copied: publish finished directories by renaming them into place", path.display())]
    Changing {
        /// Changed path, as far as it is known.
        path: PathBuf,
    },
    /// The kernel waits for a file system: a slow one and a dead one look the same.
    #[error(
        "the directory does not answer: nothing of it could be read for {} s, as when what is mounted there is dead; mend or \
         unmount it, and it is looked at again",
        SILENT.as_secs()
    )]
    Silent,
    /// The copy is not needed any more.
    #[error("the copy is not needed any more")]
    Unwanted,
    /// A system call on the model's directory failed.
    #[error("cannot {action} `{}`", path.display())]
    Source {
        /// A verb.
        action: &'static str,
        /// Where.
        path: PathBuf,
        /// The kernel's answer.
        #[source]
        source: Errno,
    },
    /// A system call on the store failed: the node's trouble, not the author's.
    #[error("cannot {action} {} in the store of snapshots", path.display())]
    Store {
        /// A verb.
        action: &'static str,
        /// The absolute path.
        path: PathBuf,
        /// The kernel's answer.
        #[source]
        source: io::Error,
    },
}

impl SnapshotError {
    /// Tests that the directory is merely being written: another attempt after a pause can succeed.
    #[must_use]
    pub fn is_changing(&self) -> bool {
        matches!(self, Self::Changing { .. })
    }

    /// Tests that the trouble is the node's: no change of the directory will show when it has passed.
    #[must_use]
    pub fn is_of_the_node(&self) -> bool {
        matches!(self, Self::Store { .. } | Self::NoRoom { .. })
    }

    pub(crate) fn source_at(action: &'static str, path: &Path) -> impl FnOnce(Errno) -> Self {
        move |errno| match errno {
            // An entry that was listed a moment ago is gone, or has another type now.
            Errno::ENOENT | Errno::ENOTDIR | Errno::ELOOP | Errno::ENXIO => Self::Changing { path: path.to_owned() },
            source => Self::Source { action, path: path.to_owned(), source },
        }
    }

    pub(crate) fn store_at(action: &'static str, path: &Path) -> impl FnOnce(io::Error) -> Self {
        move |source| Self::Store { action, path: path.to_owned(), source }
    }
}

/// A size for people: one decimal and the largest unit that fits.
fn iec(bytes: u64) -> String {
    const UNITS: [&str; 4] = ["KiB", "MiB", "GiB", "TiB"];
    let mut tenths = u128::from(bytes) * 10;
    let mut unit = "B";
    for larger in UNITS {
        if tenths < 10 * 1024 {
            break;
        }
        tenths /= 1024;
        unit = larger;
    }
    format!("{}.{} {unit}", tenths / 10, tenths % 10)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_readable() {
        let table =
            [(0, "0.0 B"), (1023, "1023.0 B"), (1536, "1.5 KiB"), (10 << 30, "10.0 GiB"), (u64::MAX, "16777215.9 TiB")];
        for (bytes, text) in table {
            assert_eq!(iec(bytes), text);
        }
    }
}
