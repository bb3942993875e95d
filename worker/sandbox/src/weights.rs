//! The folder of a model's weights: opened beneath one that the operator lists, wherever links in it lead.
//!
//! Called by [`super::root`] and, with the model's user, by [`super::child`]: a file system that does not answer holds up
//! their process alone, which is killed when its start has taken too long. A launcher that checks a folder before that
//! does so in another process, which it kills as well.

use super::mount::{Mount, READ_ONLY};
use super::step::{Step, StepError};
use crate::spec::Weights;
use nix::errno::Errno;
use nix::fcntl::{OFlag, OpenHow, ResolveFlag, openat2};
use nix::sys::stat::{Mode, fstat};
use nix::unistd::{AccessFlags, access, geteuid};
use omni_dir::retry;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

/// Where a model finds its weights.
pub const WEIGHTS: &str = "/weights";

/// The reason for which there is no start, for the operator and the author.
#[derive(Debug, thiserror::Error)]
enum Unusable {
    #[error("there is no such folder on this node: make it, or correct `source` in [weights] of omni.toml")]
    Missing,
    #[error("it is not a folder: correct `source` in [weights] of omni.toml")]
    NoFolder,
    #[error("a link in it leads out of {}, the folder that the node's configuration lists", .0.display())]
    LeadsOut(PathBuf),
    #[error("the model's user may not search it: it needs `chmod o+x`, and what is in it `chmod -R o+rX`")]
    Closed,
    #[error("its file system does not work")]
    Other(#[source] Errno),
}

/// The folder as a mount, read-only, attached nowhere.
pub(super) fn mount(weights: &Weights) -> Result<Mount, StepError> {
    let dir = opened(weights)?;
    Mount::copy_of(dir, c".", READ_ONLY).step(|| format!("mount the folder of the model's weights at {WEIGHTS}"))
}

/// Checks whether an instance could have its weights in the folder, before there is one. A model's user owns nothing on the
/// node, so the rights of all others are its own; only root can tell, since it may open every folder.
///
/// # Errors
/// The reason for which there would be no start.
pub fn check(weights: &Weights) -> Result<(), StepError> {
    let dir = opened(weights)?;
    let mode = fstat(&dir).map_err(Unusable::Other).step(|| step(weights))?.st_mode;
    let is_closed = geteuid().is_root() && !Mode::from_bits_truncate(mode).contains(Mode::S_IXOTH);
    if is_closed { Err(Unusable::Closed).step(|| step(weights)) } else { Ok(()) }
}

/// Opens the folder, as a place to open files beneath.
///
/// # Errors
/// As of [`check`].
pub fn opened(weights: &Weights) -> Result<OwnedFd, StepError> {
    let unusable = |errno| match errno {
        Errno::ENOENT => Unusable::Missing,
        Errno::ENOTDIR => Unusable::NoFolder,
        Errno::EXDEV => Unusable::LeadsOut(weights.folder.clone()),
        errno => Unusable::Other(errno),
    };
    open(&weights.folder, &weights.below).map_err(unusable).step(|| step(weights))
}

/// Checks that this process, which has the model's user by now, can reach the content of the folder.
pub(super) fn check_reach(weights: &Weights) -> Result<(), StepError> {
    let unusable = |errno| if errno == Errno::EACCES { Unusable::Closed } else { Unusable::Other(errno) };
    access(WEIGHTS, AccessFlags::X_OK).map_err(unusable).step(|| step(weights))
}

fn step(weights: &Weights) -> String {
    format!("open the folder of the model's weights, {}", weights.path().display())
}

/// Opens the directory `below` in `folder`. Links are followed as long as they stay in the folder.
fn open(folder: &Path, below: &Path) -> Result<OwnedFd, Errno> {
    let flags = OFlag::O_PATH | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC;
    let folder = nix::fcntl::open(folder, flags, Mode::empty())?;
    let below = if below.as_os_str().is_empty() { Path::new(".") } else { below };
    let resolve = ResolveFlag::RESOLVE_BENEATH | ResolveFlag::RESOLVE_NO_MAGICLINKS;
    let how = OpenHow::new().flags(flags).resolve(resolve);
    retry(|| openat2(&folder, below, how))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::os::unix::fs::symlink;

    #[test]
    fn links_stay_in_the_listed_folder() {
        let dir = tempfile::tempdir().unwrap();
        let folder = dir.path().join("weights");
        fs::create_dir_all(folder.join("llama/8b")).unwrap();
        fs::create_dir(dir.path().join("secret")).unwrap();
        fs::write(folder.join("file"), "").unwrap();
        symlink("llama", folder.join("current")).unwrap();
        symlink("../secret", folder.join("up")).unwrap();
        symlink("/", folder.join("root")).unwrap();
        for good in ["", "llama", "llama/8b", "current", "current/8b"] {
            open(&folder, Path::new(good)).unwrap();
        }
        let bad = [
            ("up", Errno::EXDEV),
            ("root", Errno::EXDEV),
            ("root/etc", Errno::EXDEV),
            ("../secret", Errno::EXDEV),
            ("current/../../secret", Errno::EXDEV),
            ("file", Errno::ENOTDIR),
            ("absent", Errno::ENOENT),
        ];
        for (below, errno) in bad {
            assert_eq!(open(&folder, Path::new(below)).err(), Some(errno), "{below}");
        }
    }
}
