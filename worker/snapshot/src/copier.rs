//! Copies of model directories for a store, made by a process that need not have the store itself: a file system that
//! does not answer holds that process alone.

use crate::SnapshotError;
use crate::beneath::open_beneath;
use crate::content::{Contents, Shared};
use crate::copy::copy_listed;
use crate::layout::{COPY, FILES, SOURCES};
use crate::progress::{Progress, Source};
use crate::room;
use crate::snapshot::Snapshot;
use crate::sources::{LARGE, Sources};
use crate::tree::{FileEntry, Fingerprint, Kind, Limits, Listing, list};
use nix::errno::Errno;
use nix::fcntl::OFlag;
use omni_node_protocol::launcher::MAX_MANIFEST;
use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File, Permissions};
use std::io::{self, ErrorKind, Read};
use std::os::fd::AsFd;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

/// A directory that changes while it is copied is copied again this often.
const ATTEMPTS: u32 = 3;

/// Makes copies in a store's directory.
#[derive(Debug)]
pub struct Copier {
    dir: PathBuf,
    limits: Limits,
    next: AtomicU64,
    contents: Contents,
}

/// A whole copy, which [`Store::adopt`](crate::Store::adopt) gives the name of its digest.
#[derive(Debug)]
pub struct Fresh {
    /// Name in the store's directory.
    pub name: String,
    /// Snapshot that the copy becomes.
    pub snapshot: Snapshot,
}

impl Copier {
    /// Opens the directory of a store that [was opened](crate::Store::open) before.
    ///
    /// # Errors
    /// When it cannot be read.
    pub fn open(dir: &Path, limits: Limits) -> Result<Self, SnapshotError> {
        let contents = Contents::open(&dir.join(FILES)).map_err(SnapshotError::store_at("use the files of", dir))?;
        Ok(Self::new(dir, limits, contents))
    }

    pub(crate) fn new(dir: &Path, limits: Limits, contents: Contents) -> Self {
        Self { dir: dir.to_owned(), limits, next: AtomicU64::new(0), contents }
    }

    /// Copies the directory `model` below the open directory `models`; `None` when it has not changed since `known`.
    ///
    /// # Errors
    /// See [`SnapshotError`]; nothing of the attempt is left.
    pub fn copy(
        &self,
        models: impl AsFd,
        model: &Path,
        known: Option<&Fingerprint>,
        progress: &dyn Progress,
    ) -> Result<Option<Fresh>, SnapshotError> {
        progress.step()?;
        let root = open_beneath(models, model, OFlag::O_RDONLY | OFlag::O_DIRECTORY).map_err(SnapshotError::Open)?;
        let source = Source { root: root.as_fd(), progress };
        let mut attempt = 1;
        loop {
            match self.attempt(source, model, known) {
                Err(SnapshotError::Changing { .. }) if attempt < ATTEMPTS => attempt += 1,
                other => return other,
            }
        }
    }

    fn attempt(
        &self,
        source: Source<'_>,
        model: &Path,
        known: Option<&Fingerprint>,
    ) -> Result<Option<Fresh>, SnapshotError> {
        let before = list(source, self.limits)?;
        if known.is_some_and(|known| known.still_is(&before.fingerprint)) {
            return Ok(None);
        }
        let mut sources = Sources::read(&self.dir.join(SOURCES), model);
        self.check_room(&before, &sources)?;
        let (name, temporary) = self.temporary();
        let made = self.copy_into(source, &before, &temporary, &mut sources);
        if made.is_err() {
            // The error of the copy is the one to report; a leftover goes when the store is next opened.
            let _ = self.discard(&name);
        }
        made.map(|snapshot| Some(Fresh { name, snapshot }))
    }

    fn check_room(&self, listing: &Listing, sources: &Sources) -> Result<(), SnapshotError> {
        let files = listing.entries.iter().filter_map(|entry| match entry.kind {
            Kind::File(file) => Some(file),
            Kind::Directory | Kind::Link { .. } => None,
        });
        let is_new = |file: &FileEntry| {
            let large = file.identity.size >= LARGE;
            !(sources.has(&file.identity) || (large && self.contents.may_have(file.identity.size)))
        };
        room::check(&self.dir, files.filter(is_new).map(|file| file.allocated).sum())
    }

    fn copy_into(
        &self,
        source: Source<'_>,
        before: &Listing,
        temporary: &Path,
        sources: &mut Sources,
    ) -> Result<Snapshot, SnapshotError> {
        fs::create_dir(temporary)
            .and_then(|()| fs::set_permissions(temporary, Permissions::from_mode(0o755)))
            .map_err(SnapshotError::store_at("make", temporary))?;
        let to = File::open(temporary).map_err(SnapshotError::store_at("open", temporary))?;
        let mut shared = Shared { contents: &self.contents, sources };
        let digest = copy_listed(source, before, to.as_fd(), self.limits, &mut shared)?;
        let manifest = manifest(temporary)?;
        if let Err(error) = sources.write(&digest) {
            tracing::warn!(%error, "unchanged files of a model will be read again");
        }
        Ok(Snapshot { digest, manifest, fingerprint: before.fingerprint.clone() })
    }

    /// Removes a copy that has no digest's name, and the files that no other one has.
    ///
    /// # Errors
    /// It is not there, or cannot be removed.
    pub fn discard(&self, name: &str) -> Result<(), SnapshotError> {
        let copy = self.dir.join(name);
        let alone = inodes(&copy).map_err(SnapshotError::store_at("list", &copy))?;
        fs::remove_dir_all(&copy).map_err(SnapshotError::store_at("remove", &copy))?;
        self.contents.sweep(&alone).map_err(|errno| SnapshotError::store_at("clean", &self.dir)(errno.into()))
    }

    /// Shares no file any more that has another content than its name says.
    pub(crate) fn distrust(&self, files: &BTreeMap<u64, [u8; 32]>) -> Result<(), Errno> {
        self.contents.distrust(files)
    }

    /// A name that no other copy has, of this process or another, and its path.
    pub(crate) fn temporary(&self) -> (String, PathBuf) {
        let name = format!("{COPY}{}-{}", std::process::id(), self.next.fetch_add(1, Ordering::Relaxed));
        let path = self.dir.join(&name);
        (name, path)
    }
}

/// Inodes of the files below `dir` that have two names: this one, and the one among the contents.
fn inodes(dir: &Path) -> io::Result<BTreeSet<u64>> {
    let (mut waiting, mut found) = (vec![dir.to_owned()], BTreeSet::new());
    while let Some(dir) = waiting.pop() {
        for entry in fs::read_dir(&dir)? {
            let entry = entry?;
            let metadata = entry.metadata()?;
            if metadata.is_dir() {
                waiting.push(entry.path());
            } else if metadata.is_file() && metadata.nlink() <= 2 {
                found.insert(metadata.ino());
            }
        }
    }
    Ok(found)
}

fn manifest(dir: &Path) -> Result<Option<String>, SnapshotError> {
    let path = dir.join("omni.toml");
    // A link is not followed: its target would be resolved on the host, not in the model's world.
    let file = match fs::symlink_metadata(&path) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(SnapshotError::store_at("look at", &path)(error)),
        Ok(found) if found.is_file() => File::open(&path).map_err(SnapshotError::store_at("open", &path))?,
        Ok(_) => return Err(SnapshotError::ManifestNotText),
    };
    let mut text = Vec::new();
    file.take(MAX_MANIFEST as u64 + 1).read_to_end(&mut text).map_err(SnapshotError::store_at("read", &path))?;
    if text.len() > MAX_MANIFEST {
        return Err(SnapshotError::ManifestTooLarge);
    }
    String::from_utf8(text).map(Some).map_err(|_| SnapshotError::ManifestNotText)
}
