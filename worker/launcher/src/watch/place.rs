//! Detects that the models folder is not the watched one any more: the path may lead elsewhere since, by a link that
//! was turned, a folder that was exchanged, or a file system that was mounted over it or below.

use std::fs::{self, File};
use std::os::unix::fs::MetadataExt;
use std::path::Path;

/// Where a folder's path leads, and the file systems below it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Place {
    device: u64,
    inode: u64,
    mounts: Vec<String>,
}

impl Place {
    /// Where the path leads now; `None` while it leads nowhere.
    pub(super) fn of(folder: &Path) -> Option<Self> {
        let found = File::open(folder).and_then(|folder| folder.metadata()).ok()?;
        let path = fs::canonicalize(folder).ok()?;
        let table = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
        Some(Self { device: found.dev(), inode: found.ino(), mounts: mounts(&table, &path) })
    }
}

/// The lines of a mount table that are of the folder itself or of what is below it.
fn mounts(table: &str, folder: &Path) -> Vec<String> {
    let below = |line: &&str| line.split(' ').nth(4).is_some_and(|point| Path::new(&plain(point)).starts_with(folder));
    table.lines().filter(below).map(str::to_owned).collect()
}

/// A path of the mount table, in which some characters are written in octal.
fn plain(point: &str) -> String {
    let escapes = [("\\040", " "), ("\\011", "\t"), ("\\012", "\n"), ("\\134", "\\")];
    escapes.into_iter().fold(point.to_owned(), |point, (escape, character)| point.replace(escape, character))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;

    #[test]
    fn a_link_that_is_turned_leads_elsewhere() {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name);
        for name in ["one", "two"] {
            fs::create_dir(at(name)).unwrap();
        }
        symlink("one", at("current")).unwrap();
        let first = Place::of(&at("current"));
        assert!(first.is_some());
        assert_eq!(Place::of(&at("current")), first);
        symlink("two", at("next")).unwrap();
        fs::rename(at("next"), at("current")).unwrap();
        assert_ne!(Place::of(&at("current")), first);
        fs::remove_file(at("current")).unwrap();
        assert_eq!(Place::of(&at("current")), None);
    }

    #[test]
    fn mounts_below_the_folder_count_and_others_do_not() {
        let line = |point: &str| format!("30 23 0:26 / {point} rw shared:9 - tmpfs tmpfs rw");
        let table = [line("/"), line("/srv/my\\040models"), line("/srv/my\\040models/a"), line("/srv/my\\040models2")]
            .join("\n");
        assert_eq!(
            mounts(&table, Path::new("/srv/my models")),
            [line("/srv/my\\040models"), line("/srv/my\\040models/a")]
        );
    }
}
