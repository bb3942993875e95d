//! Finds the directories with a `model.py` below the models folder, and tells models from what only looks like one.
//!
//! A model is at most four levels deep. What lies inside a model belongs to it; a `model.py` there is no model of its own.
//! Links are not followed. Whatever has a `model.py` and is not served is found all the same, with the reason. Nobody's
//! directories take what others need: below each name in the folder, and in each model, so many are looked at and watched.

use omni_config::{ModelName, NameError};
use omni_snapshot::digest::is_ignored;
use std::collections::{BTreeMap, BTreeSet};
use std::ffi::{OsStr, OsString};
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// Levels below the folder at which a model can be: the parts of a model's name.
const DEPTH: usize = 4;
/// Levels below the folder at which a `model.py` is still noticed.
const NOTICED: usize = 10;
/// Levels that are watched inside a model. What is deeper is refused by the snapshot.
const INSIDE: usize = 32;
/// Directories that are watched inside one model.
pub(super) const MODEL_DIRECTORIES: usize = 2048;
/// Directories that are no models and in none, below one name in the folder.
const OTHER_DIRECTORIES: usize = 2048;
/// Directories inside one model that are told as being no models of their own.
const TOLD: usize = 16;

/// A directory that has a `model.py`, or that is not looked through.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Found {
    /// Its path is a model's name.
    Model,
    /// Its path is not.
    Misnamed(NameError),
    /// It is a link to such a directory.
    Link,
    /// It is inside this model.
    Inside(String),
    /// It has more parts than a model's name.
    Deep,
    /// It cannot be read.
    Unreadable(String),
    /// It is in no model, and there are too many others beside it.
    Many,
}

/// What a look has found.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Scan {
    pub(super) found: BTreeMap<String, Found>,
    /// Some directories are not watched: what happens there is seen by looking.
    pub(super) partly: bool,
}

/// A directory to be looked at.
struct Waiting {
    dir: PathBuf,
    levels: usize,
    /// The model that it is in.
    model: Option<String>,
}

/// Finds all models below `folder`, by name. Every directory that matters is first given to `watch` (relative to the
/// folder) and then read, so that nothing that comes later goes unseen. Nothing inside models that are `crowded` is looked
/// at: they were refused for having too much.
pub(super) fn scan(folder: &Path, crowded: &BTreeSet<String>, watch: &mut dyn FnMut(&Path)) -> Scan {
    let mut scan = Scan::default();
    watch(Path::new(""));
    for (name, is_link) in directories(folder).unwrap_or_default() {
        let first = PathBuf::from(name);
        if is_link {
            scan.link(folder, &first);
        } else {
            scan.below(folder, first, crowded, watch);
        }
    }
    scan
}

impl Scan {
    fn link(&mut self, folder: &Path, path: &Path) {
        if is_there(&folder.join(path).join("model.py")) {
            self.found.insert(super::shown(path), Found::Link);
        }
    }

    /// Looks at one name in the folder, and at all below it.
    fn below(&mut self, folder: &Path, first: PathBuf, crowded: &BTreeSet<String>, watch: &mut dyn FnMut(&Path)) {
        let name = super::shown(&first);
        let (mut others, mut inside, mut told) = (0, 0, 0);
        let mut waiting = vec![Waiting { dir: first, levels: 1, model: None }];
        while let Some(Waiting { dir, levels, model }) = waiting.pop() {
            let count = if model.is_some() { &mut inside } else { &mut others };
            *count += 1;
            if model.is_some() && inside > MODEL_DIRECTORIES {
                self.partly = true;
                continue;
            }
            if model.is_none() && others > OTHER_DIRECTORIES {
                self.partly = true;
                self.found.entry(name.clone()).or_insert(Found::Many);
                return;
            }
            watch(&dir);
            let has_program = is_there(&folder.join(&dir).join("model.py"));
            let model = match (model, has_program) {
                (None, false) => None,
                (Some(outer), false) => Some(outer),
                (Some(outer), true) => {
                    told += 1;
                    if told <= TOLD {
                        self.found.insert(super::shown(&dir), Found::Inside(outer.clone()));
                    }
                    Some(outer)
                }
                (None, true) => {
                    let found = match ModelName::from_path(&dir) {
                        _ if levels > DEPTH => Found::Deep,
                        Ok(_) => Found::Model,
                        Err(error) => Found::Misnamed(error),
                    };
                    let name = super::shown(&dir);
                    self.found.insert(name.clone(), found);
                    (inside, told) = (0, 0); // depth first: the model before is done
                    if crowded.contains(&name) {
                        self.partly = true;
                        continue;
                    }
                    Some(name)
                }
            };
            let most = if model.is_some() { DEPTH + INSIDE } else { NOTICED };
            let below = match directories(&folder.join(&dir)) {
                Ok(below) => below,
                Err(error) if error.kind() == std::io::ErrorKind::NotFound => continue,
                Err(error) => {
                    // What is inside a model is its snapshot's to refuse.
                    if model.is_none() {
                        self.found.insert(super::shown(&dir), Found::Unreadable(error.to_string()));
                    }
                    continue;
                }
            };
            for (name, is_link) in below {
                let below = dir.join(name);
                if is_link && model.is_none() {
                    self.link(folder, &below);
                } else if !is_link && levels < most {
                    waiting.push(Waiting { dir: below, levels: levels + 1, model: model.clone() });
                }
            }
        }
    }
}

fn is_there(path: &Path) -> bool {
    path.symlink_metadata().is_ok()
}

/// Directories in a directory, and links, which may lead to one.
fn directories(dir: &Path) -> std::io::Result<Vec<(OsString, bool)>> {
    let of = |entry: fs::DirEntry| {
        let kind = entry.file_type().ok()?;
        let name: &OsStr = &entry.file_name();
        let wanted = (kind.is_dir() || kind.is_symlink()) && !is_ignored(name.as_bytes());
        wanted.then(|| (name.to_owned(), kind.is_symlink()))
    };
    Ok(fs::read_dir(dir)?.filter_map(Result::ok).filter_map(of).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;

    fn models(paths: &[&str]) -> tempfile::TempDir {
        let dir = tempfile::tempdir().unwrap();
        for path in paths {
            fs::create_dir_all(dir.path().join(path)).unwrap();
            fs::write(dir.path().join(path).join("model.py"), "").unwrap();
        }
        dir
    }

    #[test]
    fn models_are_found_where_they_can_be_and_the_others_are_told() {
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
        let mut watched = Vec::new();
        let scan = scan(dir.path(), &BTreeSet::new(), &mut |dir| watched.push(dir.to_string_lossy().into_owned()));
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
        for dir in ["", "cowsay", "cowsay/nested", "@cf", "@cf/meta", "empty"] {
            assert!(watched.iter().any(|watched| watched == dir), "{dir:?} is watched");
        }
        assert!(watched.iter().all(|dir| !dir.starts_with(".hidden")));
    }

    #[test]
    fn directories_of_one_take_nothing_from_others() {
        let dir = models(&["huge", "good", "good/sub"]);
        for number in 0..=MODEL_DIRECTORIES {
            fs::create_dir(dir.path().join(format!("huge/{number}"))).unwrap();
            fs::create_dir_all(dir.path().join(format!("heap/{number}"))).unwrap();
        }
        let look = |crowded: &[&str]| {
            let crowded = crowded.iter().map(|name| (*name).to_owned()).collect();
            let (mut watched, mut of_huge) = (0, 0);
            let scan = scan(dir.path(), &crowded, &mut |dir| {
                watched += 1;
                of_huge += usize::from(dir.starts_with("huge"));
            });
            (scan, watched, of_huge)
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
        assert_eq!((of_huge, watched), (MODEL_DIRECTORIES + 1, 3 + OTHER_DIRECTORIES + MODEL_DIRECTORIES + 1));
        let (scan, _, of_huge) = look(&["huge"]);
        assert!(scan.partly && of_huge == 1, "nothing is watched inside a model that has too much: {of_huge}");
    }
}
