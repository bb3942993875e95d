//! Finds the model directories below the models folder: a directory with a `model.py`, at most four levels deep.
//!
//! What lies inside a model belongs to it; a `model.py` there is no model of its own. Links are not followed.

use omni_config::{ModelName, NameError};
use omni_snapshot::digest::is_ignored;
use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// Levels below the folder at which a model can be: the parts of a model's name.
const DEPTH: usize = 4;
/// Levels that are watched inside a model. What is deeper is refused by the snapshot.
const INSIDE: usize = 32;

/// A directory with a `model.py`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Found {
    /// Its path is a model's name.
    Model,
    /// Its path is not.
    Misnamed(NameError),
    /// It is a link to such a directory.
    Link,
}

/// Finds all models below `folder`, by name. Every directory that matters is first given to `watch` (relative to the
/// folder) and then read, so that nothing that comes later goes unseen.
pub(super) fn scan(folder: &Path, watch: &mut dyn FnMut(&Path)) -> BTreeMap<String, Found> {
    let mut found = BTreeMap::new();
    let mut waiting = vec![(PathBuf::new(), DEPTH, false)];
    while let Some((dir, levels, inside)) = waiting.pop() {
        watch(&dir);
        let is_model = !inside && !dir.as_os_str().is_empty() && is_there(&folder.join(&dir).join("model.py"));
        if is_model {
            found.insert(super::shown(&dir), ModelName::from_path(&dir).map_or_else(Found::Misnamed, |_| Found::Model));
        }
        let (levels, inside) = if is_model { (INSIDE, true) } else { (levels, inside) };
        for (name, is_link) in directories(&folder.join(&dir)) {
            let below = dir.join(&name);
            if !is_link && levels > 0 {
                waiting.push((below, levels - 1, inside));
            } else if is_link && !inside && is_there(&folder.join(&below).join("model.py")) {
                found.insert(super::shown(&below), Found::Link);
            }
        }
    }
    found
}

fn is_there(path: &Path) -> bool {
    path.symlink_metadata().is_ok()
}

/// Directories in a directory, and links, which may lead to one. One that cannot be read has none.
fn directories(dir: &Path) -> Vec<(std::ffi::OsString, bool)> {
    let Ok(entries) = fs::read_dir(dir) else { return Vec::new() };
    let of = |entry: fs::DirEntry| {
        let kind = entry.file_type().ok()?;
        let name: &OsStr = &entry.file_name();
        let wanted = (kind.is_dir() || kind.is_symlink()) && !is_ignored(name.as_bytes());
        wanted.then(|| (name.to_owned(), kind.is_symlink()))
    };
    entries.filter_map(Result::ok).filter_map(of).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;

    #[test]
    fn models_are_found_where_they_can_be() {
        let dir = tempfile::tempdir().unwrap();
        let at = |path: &str| dir.path().join(path);
        for path in
            ["cowsay", "@cf/meta/llama", "a/b/c/d", "a/b/c/deep/e", ".hidden/m", "cowsay/nested", "bad name", "empty"]
        {
            fs::create_dir_all(at(path)).unwrap();
            if path != "empty" {
                fs::write(at(path).join("model.py"), "").unwrap();
            }
        }
        fs::write(at("model.py"), "not a model: the folder itself has no name").unwrap();
        symlink("cowsay", at("link")).unwrap();
        symlink("empty", at("link-to-nothing")).unwrap();
        let mut watched = Vec::new();
        let found = scan(dir.path(), &mut |dir| watched.push(dir.to_string_lossy().into_owned()));
        let expected = [
            ("@cf/meta/llama", Found::Model),
            ("a/b/c/d", Found::Model),
            ("bad name", Found::Misnamed(NameError::Character)),
            ("cowsay", Found::Model),
            ("link", Found::Link),
        ];
        assert_eq!(found, BTreeMap::from(expected.map(|(name, found)| (name.to_owned(), found))));
        for dir in ["", "cowsay", "cowsay/nested", "@cf", "@cf/meta", "empty"] {
            assert!(watched.iter().any(|watched| watched == dir), "{dir:?} is watched");
        }
        assert!(watched.iter().all(|dir| !dir.starts_with(".hidden")));
    }
}
