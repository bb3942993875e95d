//! Layout of the runtime directory: root's, with one folder in it for the files of the scheduler.
//!
//! ```text
//! <runtime-dir>/             root's, not writable for others
//!   launcher.lock            the launcher's
//!   launcher.sock            bound by the launcher, of the scheduler's user
//!   instances/ zygotes/      records and sockets of workers
//!   control/                 the scheduler's user's
//!     control.sock node.json scheduler.lock
//!   control.sock, node.json  links of root's to those
//! ```
//!
//! A scheduler that was taken over may put anything into `control/`; root opens, binds and writes nothing there.

use crate::{Dir, way};
use std::fs::DirBuilder;
use std::io::{self, ErrorKind};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

/// The folder of the scheduler's user.
pub const CONTROL: &str = "control";
/// Entries of that folder which have a link in the runtime directory.
pub const LINKED: [&str; 2] = [CONTROL_SOCKET, NODE_FILE];
/// Socket of the control API.
pub const CONTROL_SOCKET: &str = "control.sock";
/// Announcement of the process that serves.
pub const NODE_FILE: &str = "node.json";
/// Lock that the serving scheduler has.
pub const LOCK_FILE: &str = "scheduler.lock";

/// The folder of the scheduler's user in this runtime directory.
#[must_use]
pub fn control(runtime_dir: &Path) -> PathBuf {
    runtime_dir.join(CONTROL)
}

/// Makes the directory and what is in it for the scheduler's user, for root. One that belongs to that user, as a release
/// before this layout made it, becomes root's.
///
/// # Errors
/// The kernel's; a link in the place of a folder is refused, and so is a parent in which that user could exchange it.
pub fn make(path: &Path, uid: u32, gid: Option<u32>) -> io::Result<Dir> {
    DirBuilder::new().recursive(true).mode(0o755).create(path)?;
    let path = std::fs::canonicalize(path)?;
    let parent = path.parent().unwrap_or(&path);
    if let Some(found) = way::changeable(parent, uid, gid.unwrap_or(uid))?.filter(|found| found.by_user) {
        return Err(io::Error::new(ErrorKind::PermissionDenied, found));
    }
    let dir = Dir::open(&path)?;
    dir.belong_to(0, None, 0o755)?;
    let control = dir.subdirectory(CONTROL, 0o755)?;
    if control.owner()? != uid {
        control.belong_to(uid, gid, 0o755)?;
    }
    link(&dir)?;
    Ok(dir)
}

/// Makes the links that are missing.
///
/// # Errors
/// The kernel's.
pub fn link(dir: &Dir) -> io::Result<()> {
    LINKED.iter().try_for_each(|name| dir.link(name, &format!("{CONTROL}/{name}")))
}

/// Removes the links.
///
/// # Errors
/// The kernel's.
pub fn unlink(dir: &Dir) -> io::Result<()> {
    LINKED.iter().try_for_each(|name| dir.remove(name))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::os::unix::fs::{MetadataExt, chown, symlink};

    const USER: u32 = 71_111;

    #[test]
    fn a_directory_of_the_user_becomes_roots() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("run");
        fs::create_dir(&path).unwrap();
        fs::write(path.join("control.sock"), "of a release before").unwrap();
        chown(&path, Some(USER), None).unwrap();
        let dir = make(&path, USER, Some(USER)).unwrap();
        let owner = |path: &Path| fs::symlink_metadata(path).unwrap().uid();
        assert_eq!((owner(&path), owner(&control(&path))), (0, USER));
        assert_eq!(fs::read_link(path.join("control.sock")).unwrap(), Path::new("control/control.sock"));
        unlink(&dir).unwrap();
        assert!(!dir.has("control.sock") && !dir.has("node.json") && dir.has(CONTROL));
    }

    #[test]
    fn a_link_in_the_place_of_the_folder_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let (path, elsewhere) = (folder.path().join("run"), folder.path().join("elsewhere"));
        fs::create_dir(&path).unwrap();
        fs::create_dir(&elsewhere).unwrap();
        symlink(&elsewhere, control(&path)).unwrap();
        assert!(make(&path, USER, None).is_err());
        assert_eq!(fs::metadata(&elsewhere).unwrap().uid(), 0);
    }
}
