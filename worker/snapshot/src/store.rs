//! The store: `<state-dir>/snapshots/<digest>/`, root's alone from the outside, readable by all from within a mount.
//!
//! A copy is made as `.tmp-…` and renamed when it is complete, so a digest that is there is whole. A copy is not flushed
//! to the disk when it is taken; instead only those that were [made lasting](Store::make_lasting) are trusted after a
//! reboot, when nothing can be running from the others.

use crate::SnapshotError;
use crate::beneath::open_beneath;
use crate::content::{Contents, LARGE, Shared};
use crate::copy::copy_listed;
use crate::lasting::Lasting;
use crate::sources::{self, Sources};
use crate::tree::{Entry, FileEntry, Fingerprint, Kind, Limits, Listing, list};
use crate::{room, verify::is_whole};
use nix::fcntl::{AT_FDCWD, OFlag, RenameFlags, renameat2};
use omni_ipc::id::SnapshotDigest;
use omni_ipc::launcher::MAX_MANIFEST;
use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File, Permissions};
use std::io::{self, ErrorKind, Read};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// A directory that changes while it is copied is copied again this often.
const ATTEMPTS: u32 = 3;
const TEMPORARY: &str = ".tmp-";
const BOOT: &str = ".boot";
const FILES: &str = ".files";
const SOURCES: &str = ".sources";

/// A model's directory as it was at one moment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Snapshot {
    /// Its content, and its name in the store.
    pub digest: SnapshotDigest,
    /// The text of its `omni.toml`, when it has one.
    pub manifest: Option<String>,
    /// The state in which the directory was, for the next [`Store::take`].
    pub fingerprint: Fingerprint,
}

/// All snapshots of a node. One process at a time may use it.
#[derive(Debug)]
pub struct Store {
    dir: PathBuf,
    limits: Limits,
    next: AtomicU64,
    /// Snapshots that were taken and that nobody has asked to keep yet, by how often.
    held: Mutex<BTreeMap<SnapshotDigest, u32>>,
    lasting: Lasting,
    contents: Contents,
}

impl Store {
    /// Opens the store, makes it when it is missing, and removes what an earlier process left half-made.
    ///
    /// # Errors
    /// When the directory cannot be made, read or cleaned.
    pub fn open(dir: &Path, limits: Limits) -> Result<Self, SnapshotError> {
        let failed = |action| SnapshotError::store_at(action, dir);
        fs::create_dir_all(dir).map_err(failed("make"))?;
        fs::set_permissions(dir, Permissions::from_mode(0o700)).map_err(failed("protect"))?;
        let lasting = Lasting::open(dir).map_err(failed("read the list of"))?;
        let boot = fs::read_to_string("/proc/sys/kernel/random/boot_id").map_err(failed("find this boot for"))?;
        let boot_file = dir.join(BOOT);
        let same_boot = fs::read_to_string(&boot_file).is_ok_and(|known| known == boot);
        for name in names(dir).map_err(failed("list"))? {
            let is_cut = || SnapshotDigest::parse(&name).is_ok_and(|digest| !lasting.has(&digest));
            if name.starts_with(TEMPORARY) || (!same_boot && (name == SOURCES || is_cut())) {
                let path = dir.join(name);
                fs::remove_dir_all(&path).map_err(SnapshotError::store_at("remove", &path))?;
            }
        }
        let contents = Contents::open(&dir.join(FILES)).map_err(failed("use the files of"))?;
        if !same_boot {
            fs::write(&boot_file, boot).map_err(failed("mark the boot of"))?;
        }
        let next = AtomicU64::new(0);
        Ok(Self { dir: dir.to_owned(), limits, next, held: Mutex::default(), lasting, contents })
    }

    /// Takes a snapshot of the directory `model` below the open directory `models`. A directory that has not changed
    /// since `known` was taken is not read again.
    ///
    /// What is returned is held: no [`Store::retain`] removes it until it was [released](Store::release).
    ///
    /// # Errors
    /// See [`SnapshotError`]; nothing of the attempt is left.
    pub fn take(&self, models: impl AsFd, model: &Path, known: Option<&Snapshot>) -> Result<Snapshot, SnapshotError> {
        let root = open_beneath(models, model, OFlag::O_RDONLY | OFlag::O_DIRECTORY).map_err(SnapshotError::Open)?;
        let mut attempt = 1;
        loop {
            match self.attempt(root.as_fd(), model, known) {
                Err(SnapshotError::Changing { .. }) if attempt < ATTEMPTS => attempt += 1,
                other => return other,
            }
        }
    }

    /// Where a snapshot is, when it is there.
    #[must_use]
    pub fn find(&self, digest: &SnapshotDigest) -> Option<PathBuf> {
        let path = self.dir.join(digest.as_str());
        path.is_dir().then_some(path)
    }

    /// Whether a snapshot will be there after a reboot.
    #[must_use]
    pub fn is_lasting(&self, digest: &SnapshotDigest) -> bool {
        self.lasting.has(digest)
    }

    /// Writes a snapshot out to the disk, for as long as that takes; from then on it outlasts a reboot.
    ///
    /// # Errors
    /// It is not there, or the disk refuses.
    pub fn make_lasting(&self, digest: &SnapshotDigest) -> Result<(), SnapshotError> {
        // Held meanwhile: a copy that takes its place would not be the one that is flushed.
        *self.held().entry(digest.clone()).or_default() += 1;
        let added = self.lasting.add(digest);
        self.release(digest);
        added.map_err(SnapshotError::store_at("flush", &self.dir.join(digest.as_str())))
    }

    /// Ends the hold of one [`Store::take`]; from now on a snapshot stays for being named in [`Store::retain`].
    pub fn release(&self, digest: &SnapshotDigest) {
        let mut held = self.held();
        match held.get_mut(digest) {
            Some(count) if *count > 1 => *count -= 1,
            Some(_) | None => drop(held.remove(digest)),
        }
    }

    /// Removes all snapshots but these and those that are held; returns those that were removed.
    ///
    /// # Errors
    /// The first removal that failed; the others were tried.
    pub fn retain(&self, keep: &BTreeSet<SnapshotDigest>) -> Result<Vec<SnapshotDigest>, SnapshotError> {
        let mut removed = Vec::new();
        let mut failed = None;
        for digest in self.old(keep)? {
            match self.retire(&digest) {
                Ok(true) => removed.push(digest),
                Ok(false) => {}
                Err(error) => failed = failed.or(Some(error)),
            }
        }
        if let Err(error) = sources::forget(&self.dir.join(SOURCES), &removed) {
            tracing::warn!(%error, "lists of what is gone are left in the store of snapshots");
        }
        failed.map_or(Ok(removed), Err)
    }

    fn old(&self, keep: &BTreeSet<SnapshotDigest>) -> Result<Vec<SnapshotDigest>, SnapshotError> {
        let names = names(&self.dir).map_err(SnapshotError::store_at("list", &self.dir))?;
        let digests = names.iter().filter_map(|name| SnapshotDigest::parse(name).ok());
        Ok(digests.filter(|digest| !keep.contains(digest)).collect())
    }

    fn attempt(&self, root: BorrowedFd<'_>, model: &Path, known: Option<&Snapshot>) -> Result<Snapshot, SnapshotError> {
        let before = list(root, self.limits)?;
        if let Some(known) = known.filter(|known| known.fingerprint.still_is(&before.fingerprint)) {
            let mut held = self.held();
            if self.find(&known.digest).is_some() {
                *held.entry(known.digest.clone()).or_default() += 1;
                return Ok(known.clone());
            }
        }
        let mut sources = Sources::read(&self.dir.join(SOURCES), model);
        self.check_room(&before, &sources)?;
        let temporary = self.temporary();
        let taken = self.copy_into(root, &before, &temporary, &mut sources);
        if taken.is_err() {
            // The error of the copy is the one to tell; a leftover goes when the store is next opened.
            let _ = self.discard(&temporary);
        }
        taken
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
        root: BorrowedFd<'_>,
        before: &Listing,
        temporary: &Path,
        sources: &mut Sources,
    ) -> Result<Snapshot, SnapshotError> {
        fs::create_dir(temporary)
            .and_then(|()| fs::set_permissions(temporary, Permissions::from_mode(0o755)))
            .map_err(SnapshotError::store_at("make", temporary))?;
        let to = File::open(temporary).map_err(SnapshotError::store_at("open", temporary))?;
        let mut shared = Shared { contents: &self.contents, sources };
        let digest = copy_listed(root, before, to.as_fd(), self.limits, &mut shared)?;
        let manifest = manifest(temporary)?;
        *self.held().entry(digest.clone()).or_default() += 1; // whatever becomes of the copy, nobody removes what is there
        if let Err(error) = self.place(temporary, &digest, &before.entries) {
            self.release(&digest);
            return Err(error);
        }
        if let Err(error) = sources.write(&digest) {
            tracing::warn!(%error, "unchanged files of a model will be read again");
        }
        Ok(Snapshot { digest, manifest, fingerprint: before.fingerprint.clone() })
    }

    /// Gives a whole copy its name, unless what has the name is whole too. A damaged one is exchanged for the copy.
    fn place(&self, temporary: &Path, digest: &SnapshotDigest, entries: &[Entry]) -> Result<(), SnapshotError> {
        let place = self.dir.join(digest.as_str());
        let at_name = |error| SnapshotError::store_at("name", temporary)(error);
        match fs::rename(temporary, &place) {
            Ok(()) => return Ok(()),
            Err(error) if matches!(error.kind(), ErrorKind::DirectoryNotEmpty | ErrorKind::AlreadyExists) => {}
            // An empty directory is replaced by rename, a full one is not: nothing else is expected here.
            Err(error) => return Err(at_name(error)),
        }
        if !is_whole(&place, temporary, entries).map_err(SnapshotError::store_at("compare", &place))? {
            tracing::error!(snapshot = %digest, "damaged on the disk: replaced by a fresh copy of the directory");
            let lasting = self.lasting.has(digest);
            self.lasting.remove(digest).map_err(at_name)?;
            renameat2(AT_FDCWD, temporary, AT_FDCWD, &place, RenameFlags::RENAME_EXCHANGE)
                .map_err(|errno| at_name(errno.into()))?;
            if lasting {
                self.lasting.add(digest).map_err(SnapshotError::store_at("flush", &place))?;
            }
        }
        self.discard(temporary)
    }

    /// Removes a copy that has no digest's name, and the files that no other one has.
    fn discard(&self, copy: &Path) -> Result<(), SnapshotError> {
        let alone = inodes(copy).map_err(SnapshotError::store_at("list", copy))?;
        fs::remove_dir_all(copy).map_err(SnapshotError::store_at("remove", copy))?;
        self.contents.sweep(&alone).map_err(|errno| SnapshotError::store_at("clean", &self.dir)(errno.into()))
    }

    /// Removes a snapshot that is not held. Renamed first: what is half removed has no digest's name.
    fn retire(&self, digest: &SnapshotDigest) -> Result<bool, SnapshotError> {
        let (place, temporary) = (self.dir.join(digest.as_str()), self.temporary());
        {
            let held = self.held();
            if held.contains_key(digest) {
                return Ok(false);
            }
            let retired = self.lasting.remove(digest).and_then(|()| fs::rename(&place, &temporary));
            retired.map_err(SnapshotError::store_at("retire", &place))?;
        }
        self.discard(&temporary)?;
        Ok(true)
    }

    /// The table is whole after every change to it, so a thread that panicked with it left nothing half-done.
    fn held(&self) -> MutexGuard<'_, BTreeMap<SnapshotDigest, u32>> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn temporary(&self) -> PathBuf {
        self.dir.join(format!("{TEMPORARY}{}", self.next.fetch_add(1, Ordering::Relaxed)))
    }
}

fn names(dir: &Path) -> io::Result<Vec<String>> {
    let name = |entry: io::Result<fs::DirEntry>| entry.map(|entry| entry.file_name().into_string().ok());
    fs::read_dir(dir)?.filter_map(|entry| name(entry).transpose()).collect()
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
