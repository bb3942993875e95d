//! Take-over of what the downloader left: its list checked, its files made root's and hashed, a set of links made of
//! them.

use super::{Cache, CacheError, at};
use crate::digest::Digest;
use crate::report::{Fetched, FetchedFile, MOST_FILES, nested};
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
/// Bytes that are read and hashed at a time.
const PIECE: usize = 1 << 20;

impl Cache {
    /// Makes a fetched file root's and read-only, and hashes it: from now on nobody can change it, and no other model
    /// is to get a file by a digest that it has not.
    ///
    /// A file that is root's already is as an earlier call left it.
    pub(super) fn seal(&self, work: &Path, file: &FetchedFile) -> Result<(), CacheError> {
        let Some(part) = file.part else { return Ok(()) };
        let path = work.join(FetchedFile::part_name(part));
        let odd = || CacheError::Odd(format!("another file for {} than it says", shown(&file.path)));
        let opened = match open(&path) {
            Err(error) if is_other_kind(&error) => return Err(odd()),
            opened => opened.map_err(at("open a fetched file"))?,
        };
        let found = opened.metadata().map_err(at("look at a fetched file"))?;
        if !found.is_file() || found.size() != file.size || (found.uid() != 0 && found.nlink() != 1) {
            return Err(odd());
        }
        fchown(&opened, Some(Uid::from_raw(0)), Some(Gid::from_raw(0)))
            .map_err(io::Error::from)
            .map_err(at("take a fetched file over"))?;
        opened.set_permissions(Permissions::from_mode(0o444)).map_err(at("take a fetched file over"))?;
        if digest_of(opened).map_err(at("read a fetched file"))? == file.sha256 { Ok(()) } else { Err(odd()) }
    }

    /// Makes a sealed file a content, under its digest. Its first name stays until the set is recorded: an end in the
    /// middle leaves all that the next call needs.
    pub(super) fn take_over(&self, work: &Path, file: &FetchedFile) -> Result<(), CacheError> {
        if let Some(part) = file.part {
            let place = self.files().join(file.sha256.as_str());
            match fs::hard_link(work.join(FetchedFile::part_name(part)), place) {
                // The first file of a content stays, as sets have it.
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
                linked => linked.map_err(at("name a fetched file"))?,
            }
        }
        if self.has(file) { Ok(()) } else { Err(CacheError::Odd(format!("no content for {}", shown(&file.path)))) }
    }

    /// Tells if a file's content is in the cache.
    pub(super) fn has(&self, file: &FetchedFile) -> bool {
        let found = fs::symlink_metadata(self.files().join(file.sha256.as_str()));
        found.is_ok_and(|found| found.is_file() && found.size() == file.size)
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

/// Opens a file that the downloader left: no link is followed, and none that has no writer is waited for.
fn open(path: &Path) -> io::Result<File> {
    File::options().read(true).custom_flags(nix::libc::O_NOFOLLOW | nix::libc::O_NONBLOCK).open(path)
}

/// Tells a missing file, a link or a socket from a file system that refuses.
fn is_other_kind(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(nix::libc::ENOENT | nix::libc::ELOOP | nix::libc::ENXIO))
}

/// Reads the downloader's list, which is no link and of bounded size.
pub(super) fn read_list(path: &Path) -> Result<Fetched, CacheError> {
    let step = at("read the list of fetched files");
    let none = || CacheError::Odd("something else in the place of its list of files".to_owned());
    let file = match open(path) {
        Err(error) if is_other_kind(&error) => return Err(none()),
        file => file.map_err(&step)?,
    };
    if !file.metadata().map_err(&step)?.is_file() {
        return Err(none());
    }
    let mut text = Vec::new();
    file.take(LIST_MAX + 1).read_to_end(&mut text).map_err(&step)?;
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
    let unusable = paths.iter().copied().find(|path| !is_file_path(path));
    match unusable.or_else(|| nested(&paths).map(|(_, path)| path)) {
        Some(path) => odd(format!("the path {}", shown(path))),
        None => Ok(()),
    }
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

/// Digest of a file, which is read to its end.
fn digest_of(mut file: File) -> io::Result<Digest> {
    let (mut hasher, mut buffer) = (Sha256::new(), vec![0; PIECE]);
    loop {
        match file.read(&mut buffer)? {
            0 => return Ok(Digest::of(hasher)),
            read => hasher.update(buffer.get(..read).unwrap_or_default()),
        }
    }
}

pub(super) fn shown(path: &str) -> String {
    path.chars().take(200).collect::<String>().escape_debug().to_string()
}
