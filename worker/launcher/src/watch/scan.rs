//! Finds the directories of models below the models folder, which have a `model.py` or an `omni.toml`, and tells models
//! from directories that only look like one.
//!
//! A model is at most four levels deep. Everything inside a model belongs to it; a `model.py` there is no model of its
//! own. Links are not followed. A directory of these that is not served is found all the same, with the reason. Bounds keep one author's directories from taking the resources of others: below each name in the folder, and
//! in each model, so many are looked at and watched.
//!
//! A look goes through one [place](Unit) and leaves it by no mount (`RESOLVE_NO_XDEV` refuses it untouched): a file
//! system that does not answer holds the look at itself alone.

use super::folder::shown;
use nix::dir::{Dir, Type};
use nix::errno::Errno;
use nix::fcntl::{AtFlags, OFlag};
use nix::sys::stat::fstatat;
use omni_config::name::DEPTH_LIMIT;
use omni_config::{MODEL_FILES, ModelName, NameError};
use omni_snapshot::beneath::{open_beneath, open_within};
use omni_snapshot::digest::is_ignored;
use std::collections::{BTreeMap, BTreeSet};
use std::ffi::{OsStr, OsString};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// Levels below the folder at which a model is still noticed.
const NOTICED: usize = 10;
/// Levels that are watched inside a model. What is deeper is refused by the snapshot.
const INSIDE: usize = 32;
/// Directories that are watched inside one model.
pub(super) const MODEL_DIRECTORIES: usize = 2048;
/// Directories that are no models and in none, below one name in the folder.
const OTHER_DIRECTORIES: usize = 2048;
/// Directories inside one model that are reported as being no models of their own.
const TOLD: usize = 16;

/// A name in the models folder, or a mount below one.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Unit {
    /// Relative to the folder.
    pub(super) path: PathBuf,
    /// The model that it is in.
    pub(super) model: Option<String>,
}

/// A directory of a model, or one that is not looked through.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Found {
    /// The path is a model's name.
    Model,
    /// The path is not a model's name.
    Misnamed(NameError),
    /// A link to such a directory.
    Link,
    /// Inside this model.
    Inside(String),
    /// More parts than a model's name has.
    Deep,
    /// Cannot be read.
    Unreadable(String),
    /// In no model, and there are too many others beside it.
    Many,
    /// A look was begun, and there is no answer.
    Silent,
}

/// Findings of a look.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Scan {
    pub(super) found: BTreeMap<String, Found>,
    /// File systems that are mounted below.
    pub(super) mounts: BTreeSet<Unit>,
    /// Some directories are not watched: what happens there is seen by looking.
    pub(super) partly: bool,
    /// Number of directories that could not be watched.
    pub(super) unwatched: usize,
}

/// A directory to be looked at.
struct Waiting {
    dir: PathBuf,
    levels: usize,
    /// The model that it is in.
    model: Option<String>,
}

/// Callbacks of a look.
pub(super) trait Looker {
    /// Watches an open directory, given relative to the folder; whether it is watched.
    fn watch(&self, dir: BorrowedFd<'_>, path: &Path) -> bool;

    /// Another directory comes next; whether it is still wanted.
    fn step(&self) -> bool;
}

/// Names in the models folder that can be a model or lead to one. Nothing of them is touched.
pub(super) fn names(folder: impl AsFd) -> Result<BTreeSet<OsString>, Errno> {
    let (directories, links, others) = listed(folder)?;
    Ok(directories.into_iter().chain(links).chain(others).collect())
}

/// Finds all models of a unit, by name. Every directory that matters is first given to be watched and then read, so that
/// nothing that comes later goes unseen. Nothing inside models that are `crowded` is looked at: they were refused for having
/// too much.
pub(super) fn scan(folder: impl AsFd, unit: &Unit, crowded: &BTreeSet<String>, looker: &dyn Looker) -> Scan {
    let mut scan = Scan::default();
    let unit_shown = || shown(&unit.path);
    match open_beneath(&folder, &unit.path, OFlag::O_RDONLY | OFlag::O_DIRECTORY) {
        Ok(root) => Walk { scan: &mut scan, root, unit, crowded, looker }.walk(),
        Err(Errno::ENOENT) => {} // gone again: what is in the folder tells of the next change
        Err(Errno::ENOTDIR | Errno::ELOOP) => scan.link(folder.as_fd(), &unit.path, &unit.path),
        Err(_) if unit.model.is_some() => {} // its snapshot's to refuse
        Err(errno) => drop(scan.found.insert(unit_shown(), Found::Unreadable(errno.to_string()))),
    }
    scan
}

impl Scan {
    /// A link is where it leads to: one that leads to a model is reported.
    fn link(&mut self, dir: BorrowedFd<'_>, link: &Path, path: &Path) {
        if is_model(&dir, link) {
            self.found.insert(shown(path), Found::Link);
        }
    }
}

/// Returns whether the directory at a path has one of the files by which a model is known.
fn is_model(dir: &impl AsFd, path: &Path) -> bool {
    MODEL_FILES.iter().any(|name| fstatat(dir, &path.join(name), AtFlags::AT_SYMLINK_NOFOLLOW).is_ok())
}

/// Look at one unit.
struct Walk<'a> {
    scan: &'a mut Scan,
    root: OwnedFd,
    unit: &'a Unit,
    crowded: &'a BTreeSet<String>,
    looker: &'a dyn Looker,
}

impl Walk<'_> {
    fn walk(&mut self) {
        let (mut others, mut inside, mut told) = (0, 0, 0);
        let levels = self.unit.path.components().count();
        let mut waiting = vec![Waiting { dir: PathBuf::new(), levels, model: self.unit.model.clone() }];
        while let Some(Waiting { dir, levels, model }) = waiting.pop() {
            if !self.looker.step() {
                return;
            }
            let path = self.path(&dir);
            let count = if model.is_some() { &mut inside } else { &mut others };
            *count += 1;
            if model.is_some() && inside > MODEL_DIRECTORIES {
                self.scan.partly = true;
                continue;
            }
            if model.is_none() && others > OTHER_DIRECTORIES {
                self.scan.partly = true;
                self.scan.found.entry(shown(&self.unit.path)).or_insert(Found::Many);
                return;
            }
            let Some(open) = self.open(&dir, &path, model.as_ref()) else { continue };
            self.scan.unwatched += usize::from(!self.looker.watch(open.as_fd(), &path));
            let has_program = is_model(&open, Path::new(""));
            let is_outermost = model.is_none();
            let model = match (model, has_program) {
                (None, false) => None,
                (Some(outer), false) => Some(outer),
                (Some(outer), true) => {
                    told += 1;
                    if told <= TOLD {
                        self.scan.found.insert(shown(&path), Found::Inside(outer.clone()));
                    }
                    Some(outer)
                }
                (None, true) => {
                    (inside, told) = (0, 0); // depth first: the model before is done
                    Some(self.model(&path, levels))
                }
            };
            if is_outermost && model.as_ref().is_some_and(|name| self.crowded.contains(name)) {
                self.scan.partly = true;
                continue;
            }
            self.below(&open, &dir, levels, model.as_ref(), &mut waiting);
        }
    }

    /// The path of a directory of the unit, relative to the folder. Joining nothing would add a slash.
    fn path(&self, dir: &Path) -> PathBuf {
        if dir.as_os_str().is_empty() { self.unit.path.clone() } else { self.unit.path.join(dir) }
    }

    /// A directory of a model that is in no other such.
    fn model(&mut self, path: &Path, levels: usize) -> String {
        let found = match ModelName::from_path(path) {
            _ if levels > DEPTH_LIMIT => Found::Deep,
            Ok(_) => Found::Model,
            Err(error) => Found::Misnamed(error),
        };
        let name = shown(path);
        self.scan.found.insert(name.clone(), found);
        name
    }

    fn open(&mut self, dir: &Path, path: &Path, model: Option<&String>) -> Option<OwnedFd> {
        match open_within(&self.root, dir, OFlag::O_RDONLY | OFlag::O_DIRECTORY) {
            Ok(open) => return Some(open),
            Err(Errno::EXDEV) => {
                self.scan.mounts.insert(Unit { path: path.to_owned(), model: model.cloned() });
            }
            Err(Errno::ENOENT | Errno::ENOTDIR | Errno::ELOOP) => {}
            // Inside a model its snapshot refuses it.
            Err(_) if model.is_some() => {}
            Err(errno) => drop(self.scan.found.insert(shown(path), Found::Unreadable(errno.to_string()))),
        }
        None
    }

    fn below(&mut self, open: &OwnedFd, dir: &Path, levels: usize, model: Option<&String>, waiting: &mut Vec<Waiting>) {
        let path = self.path(dir);
        let most = if model.is_some() { DEPTH_LIMIT + INSIDE } else { NOTICED };
        let (directories, links, others) = match listed(open) {
            Ok(listed) => listed,
            Err(errno) => {
                if model.is_none() && errno != Errno::ENOENT {
                    self.scan.found.insert(shown(&path), Found::Unreadable(errno.to_string()));
                }
                return;
            }
        };
        // Where a file system does not say what a name is, opening it does.
        for name in directories.into_iter().chain(others).filter(|_| levels < most) {
            waiting.push(Waiting { dir: dir.join(name), levels: levels + 1, model: model.cloned() });
        }
        for name in links.iter().filter(|_| model.is_none()) {
            self.scan.link(open.as_fd(), Path::new(name), &path.join(name));
        }
    }
}

/// Directories in a directory, links, and what may be either. What is left out of snapshots is left out.
type Listed = (Vec<OsString>, Vec<OsString>, Vec<OsString>);

fn listed(dir: impl AsFd) -> Result<Listed, Errno> {
    let (mut directories, mut links, mut others) = Listed::default();
    for entry in Dir::openat(dir, ".", OFlag::O_RDONLY | OFlag::O_CLOEXEC, nix::sys::stat::Mode::empty())?.iter() {
        let entry = entry?;
        let name = OsStr::from_bytes(entry.file_name().to_bytes());
        if is_ignored(name.as_bytes()) {
            continue;
        }
        match entry.file_type() {
            Some(Type::Directory) => directories.push(name.to_owned()),
            Some(Type::Symlink) => links.push(name.to_owned()),
            None => others.push(name.to_owned()),
            Some(_) => {}
        }
    }
    Ok((directories, links, others))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::RefCell;
    use std::fs::{self, File};
    use std::os::unix::fs::symlink;

    /// Takes note of what it would watch.
    #[derive(Default)]
    struct Noted(RefCell<Vec<PathBuf>>);

    impl Looker for Noted {
        fn watch(&self, _: BorrowedFd<'_>, path: &Path) -> bool {
            self.0.borrow_mut().push(path.to_owned());
            true
        }

        fn step(&self) -> bool {
            true
        }
    }

    /// All units of a folder, together.
    fn look(folder: &Path, crowded: &[&str]) -> (Scan, Vec<PathBuf>) {
        let (noted, folder, mut all) = (Noted::default(), File::open(folder).unwrap(), Scan::default());
        let crowded = crowded.iter().map(|name| (*name).to_owned()).collect();
        for name in names(&folder).unwrap() {
            let one = scan(&folder, &Unit { path: name.into(), model: None }, &crowded, &noted);
            all.found.extend(one.found);
            all.mounts.extend(one.mounts);
            all.partly |= one.partly;
        }
        (all, noted.0.into_inner())
    }

    fn models(paths: &[&str]) -> tempfile::TempDir {
        let dir = tempfile::tempdir().unwrap();
        for path in paths {
            fs::create_dir_all(dir.path().join(path)).unwrap();
            fs::write(dir.path().join(path).join("model.py"), "").unwrap();
        }
        dir
    }

    #[test]
    fn models_are_found_and_misplaced_ones_are_reported() {
        let dir = models(&[
            "cowsay",
            "@cf/meta/llama",
            "a/b/c/d",
            "a/b/c/deep/e",
            "a/b/c/deep/e/inside",
            ".hidden/m",
            "cowsay/nested",
            "bad name",
        ]);
        let at = |path: &str| dir.path().join(path);
        fs::create_dir(at("empty")).unwrap();
        fs::write(at("model.py"), "not a model: the folder itself has no name").unwrap();
        symlink("cowsay", at("link")).unwrap();
        symlink("empty", at("link-to-nothing")).unwrap();
        let (scan, watched) = look(dir.path(), &[]);
        let expected = [
            ("@cf/meta/llama", Found::Model),
            ("a/b/c/d", Found::Model),
            ("a/b/c/deep/e", Found::Deep),
            ("a/b/c/deep/e/inside", Found::Inside("a/b/c/deep/e".to_owned())),
            ("bad name", Found::Misnamed(NameError::Character)),
            ("cowsay", Found::Model),
            ("cowsay/nested", Found::Inside("cowsay".to_owned())),
            ("link", Found::Link),
        ];
        assert_eq!(scan.found, BTreeMap::from(expected.map(|(name, found)| (name.to_owned(), found))));
        assert!(!scan.partly);
        for dir in ["cowsay", "cowsay/nested", "@cf", "@cf/meta", "empty"] {
            assert!(watched.iter().any(|watched| watched == Path::new(dir)), "{dir:?} is watched");
        }
        assert!(watched.iter().all(|dir| !dir.starts_with(".hidden")));
    }

    #[test]
    fn one_models_directories_do_not_use_up_the_watches_of_others() {
        let dir = models(&["huge", "good", "good/sub"]);
        for number in 0..=MODEL_DIRECTORIES {
            fs::create_dir(dir.path().join(format!("huge/{number}"))).unwrap();
            fs::create_dir_all(dir.path().join(format!("heap/{number}"))).unwrap();
        }
        let look = |crowded: &[&str]| {
            let (scan, watched) = look(dir.path(), crowded);
            let of_huge = watched.iter().filter(|dir| dir.starts_with("huge")).count();
            (scan, watched.len(), of_huge)
        };
        let (scan, watched, of_huge) = look(&[]);
        let expected = [
            ("good", Found::Model),
            ("good/sub", Found::Inside("good".to_owned())),
            ("heap", Found::Many),
            ("huge", Found::Model),
        ];
        assert_eq!(scan.found, BTreeMap::from(expected.map(|(name, found)| (name.to_owned(), found))));
        assert!(scan.partly);
        assert_eq!((of_huge, watched), (MODEL_DIRECTORIES + 1, 2 + OTHER_DIRECTORIES + MODEL_DIRECTORIES + 1));
        let (scan, _, of_huge) = look(&["huge"]);
        assert!(scan.partly && of_huge == 1, "nothing is watched inside a model that has too much: {of_huge}");
    }
}
