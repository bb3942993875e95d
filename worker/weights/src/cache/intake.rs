//! Take-over of what the downloader left: its list checked, its files made root's, a set of links made of them.

use super::{Cache, CacheError, at};
use crate::digest::Digest;
use crate::report::{Fetched, FetchedFile, MOST_FILES};
use nix::unistd::{Gid, Uid, fchown};
use omni_config::source::is_file_path;
use sha2::{Digest as _, Sha256};
use std::collections::BTreeSet;
use std::fs::{self, File, Permissions};
use std::io::{self, Read};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::Path;

/// Largest list of fetched files, in bytes.
const LIST_MAX: u64 = 32 << 20;

impl Cache {
    /// Makes a fetched file a content: root's, read-only, under its digest.
    pub(super) fn take_over(&self, work: &Path, file: &FetchedFile) -> Result<(), CacheError> {
        let place = self.files().join(file.sha256.as_str());
        let Some(part) = file.part else {
            return match fs::symlink_metadata(&place) {
                Ok(found) if found.is_file() && found.size() == file.size => Ok(()),
                Ok(_) | Err(_) => Err(CacheError::Odd(format!("no content for {}", shown(&file.path)))),
            };
        };
        let path = work.join(FetchedFile::part_name(part));
        let odd = || CacheError::Odd(format!("another file for {} than it says", shown(&file.path)));
        let opened = File::options().read(true).custom_flags(nix::libc::O_NOFOLLOW | nix::libc::O_NONBLOCK).open(&path);
        let opened = match opened {
            // A power failure or an end in the middle of this: it was taken over already.
            Err(error) if error.kind() == io::ErrorKind::NotFound && place.is_file() => return Ok(()),
            opened => opened.map_err(at("open a fetched file"))?,
        };
        let found = opened.metadata().map_err(at("look at a fetched file"))?;
        if !found.is_file() || found.size() != file.size || !(1..=2).contains(&found.nlink()) {
            return Err(odd());
        }
        fchown(&opened, Some(Uid::from_raw(0)), Some(Gid::from_raw(0)))
            .map_err(io::Error::from)
            .map_err(at("take a fetched file over"))?;
        opened.set_permissions(Permissions::from_mode(0o444)).map_err(at("take a fetched file over"))?;
        // The first file of a content stays, as sets have it.
        match fs::hard_link(&path, &place) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            linked => linked.map_err(at("name a fetched file"))?,
        }
        fs::remove_file(&path).map_err(at("name a fetched file"))
    }

    /// Makes a set: the files under their paths, as links to contents.
    pub(super) fn link_all(&self, set: &Path, fetched: &Fetched) -> Result<(), CacheError> {
        let step = at("make a set of weights");
        fs::create_dir(set).map_err(&step)?;
        for file in &fetched.files {
            let path = set.join(&file.path);
            if let Some(parent) = path.parent() {
                fs::create_dir_all(parent).map_err(&step)?;
            }
            fs::hard_link(self.files().join(file.sha256.as_str()), &path).map_err(&step)?;
        }
        Ok(())
    }
}

/// Reads the downloader's list, which is no link and of bounded size.
pub(super) fn read_list(path: &Path) -> Result<Fetched, CacheError> {
    let step = at("read the list of fetched files");
    let file = File::options().read(true).custom_flags(nix::libc::O_NOFOLLOW | nix::libc::O_NONBLOCK).open(path);
    let mut text = Vec::new();
    file.map_err(&step)?.take(LIST_MAX + 1).read_to_end(&mut text).map_err(&step)?;
    if text.len() as u64 > LIST_MAX {
        return Err(CacheError::Odd("a list of files that is too long".to_owned()));
    }
    serde_json::from_slice(&text).map_err(|error| CacheError::Odd(format!("a list of files that is none: {error}")))
}

/// Checks the list: plain paths, each once, none a folder of another.
pub(super) fn check(fetched: &Fetched) -> Result<(), CacheError> {
    let odd = |what: String| Err(CacheError::Odd(what));
    if fetched.files.is_empty() || fetched.files.len() > MOST_FILES {
        return odd(format!("a list of {} files", fetched.files.len()));
    }
    let paths: BTreeSet<&str> = fetched.files.iter().map(|file| file.path.as_str()).collect();
    if paths.len() < fetched.files.len() {
        return odd("a path twice".to_owned());
    }
    for path in &paths {
        let mut folders = Path::new(path).ancestors().skip(1).filter_map(Path::to_str);
        if !is_file_path(path) || folders.any(|folder| paths.contains(folder)) {
            return odd(format!("the path {}", shown(path)));
        }
    }
    Ok(())
}

/// Name of a set: equal files under equal paths have one.
pub(super) fn set_id(fetched: &Fetched) -> Digest {
    let mut files: Vec<_> = fetched.files.iter().map(|file| (&file.path, &file.sha256)).collect();
    files.sort_unstable();
    let mut hasher = Sha256::new();
    for (path, sha256) in files {
        hasher.update(path);
        hasher.update([0]);
        hasher.update(sha256.as_str());
    }
    Digest::of(hasher)
}

fn shown(path: &str) -> String {
    path.chars().take(200).collect::<String>().escape_debug().to_string()
}
