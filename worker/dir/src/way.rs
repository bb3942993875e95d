//! The way to a directory: which of its parents another user could exchange.

use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

const GROUP_WRITES: u32 = 0o020;
const ALL_WRITE: u32 = 0o002;
const STICKY: u32 = 0o1000;

/// A directory on the way that does not belong to root alone.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "what lies in {} can be exchanged by {} (it belongs to uid {owner}): root does not write there; use a folder of root's, \
     in folders of root's",
    path.display(), if *by_user { "the scheduler's user" } else { "others than root" }
)]
pub struct Changeable {
    /// The directory.
    pub path: PathBuf,
    /// User id of its owner.
    pub owner: u32,
    /// The named user could exchange the entries in it.
    pub by_user: bool,
}

/// The directory nearest to `path`, itself included, in which others than root may exchange entries: one of the user `uid`
/// with the group `gid` if there is any, else one of any other user. `path` must be free of links.
///
/// # Errors
/// A directory cannot be looked at.
pub fn changeable(path: &Path, uid: u32, gid: u32) -> io::Result<Option<Changeable>> {
    let mut other = None;
    for dir in path.ancestors().filter(|dir| !dir.as_os_str().is_empty()) {
        let found = fs::symlink_metadata(dir)?;
        let (owner, mode) = (found.uid(), found.mode());
        let open = mode & STICKY == 0;
        let by_group = open && mode & GROUP_WRITES != 0;
        let by_all = open && mode & ALL_WRITE != 0;
        let changeable = |by_user| Changeable { path: dir.to_owned(), owner, by_user };
        if uid != 0 && (owner == uid || by_all || (by_group && found.gid() == gid)) {
            return Ok(Some(changeable(true)));
        }
        if owner != 0 || by_all {
            other.get_or_insert_with(|| changeable(false));
        }
    }
    Ok(other)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::{PermissionsExt, chown};

    const USER: u32 = 71_101;
    const GROUP: u32 = 71_102;
    const OTHER: u32 = 71_103;

    #[test]
    fn a_parent_that_the_user_can_change_is_found() {
        let folder = tempfile::tempdir().unwrap();
        let (upper, dir) = (folder.path().join("upper"), folder.path().join("upper/dir"));
        fs::create_dir_all(&dir).unwrap();
        let set = |owner: u32, group: u32, mode: u32| {
            chown(&upper, Some(owner), Some(group)).unwrap();
            fs::set_permissions(&upper, fs::Permissions::from_mode(mode)).unwrap();
            let found = changeable(&fs::canonicalize(&dir).unwrap(), USER, GROUP).unwrap();
            found.filter(|found| found.path.ends_with("upper")).map(|found| (found.owner, found.by_user))
        };
        for (owner, group, mode, expected) in [
            (0, 0, 0o755, None),
            (USER, 0, 0o755, Some((USER, true))),
            (USER, 0, 0o555, Some((USER, true))), // it may change the mode
            (0, 0, 0o777, Some((0, true))),
            (0, 0, 0o1777, None), // entries are exchanged by their owners only
            (0, GROUP, 0o775, Some((0, true))),
            (0, OTHER, 0o775, None),
            (OTHER, 0, 0o755, Some((OTHER, false))),
        ] {
            assert_eq!(set(owner, group, mode), expected, "{owner} {group} {mode:o}");
        }
        // A folder of the user's is worse than one of another user that is nearer.
        chown(&dir, Some(OTHER), None).unwrap();
        chown(&upper, Some(USER), None).unwrap();
        let found = changeable(&fs::canonicalize(&dir).unwrap(), USER, GROUP).unwrap().unwrap();
        assert_eq!((found.owner, found.by_user), (USER, true));
        assert!(!changeable(&dir, 0, 0).unwrap().unwrap().by_user, "root is not kept from anything");
    }
}
