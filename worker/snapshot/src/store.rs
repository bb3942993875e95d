//! The store: `<state-dir>/snapshots/<digest>/`, root's alone from the outside, readable by all from within a mount.
//!
//! A copy is made as `.tmp-…` and renamed when it is complete, so a digest that is there is whole. A copy is not flushed
//! to the disk when it is taken; instead only those that were [made lasting](Store::make_lasting) are trusted after a
//! reboot, when nothing can be running from the others.

use crate::SnapshotError;
use crate::content::Contents;
use crate::copier::Copier;
use crate::lasting::Lasting;
use crate::layout::{BOOT, COPY, FILES, RETIRED, SOURCES, TEMPORARY};
use crate::sources;
use crate::tree::{Fingerprint, Limits};
use crate::verify::{is_whole, read};
use nix::fcntl::{AT_FDCWD, RenameFlags, renameat2};
use omni_node_protocol::id::SnapshotDigest;
use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, Permissions};
use std::io::{self, ErrorKind};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// All snapshots of a node. One process at a time may use it; [copies](Copier) for it may be made by another.
#[derive(Debug)]
pub struct Store {
    dir: PathBuf,
    limits: Limits,
    /// Snapshots that were taken and not asked to be kept yet, with counts.
    held: Mutex<BTreeMap<SnapshotDigest, u32>>,
    /// Snapshots that were read whole, each as it was then.
    read: Mutex<BTreeMap<SnapshotDigest, Fingerprint>>,
    lasting: Lasting,
    copier: Copier,
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
        let contents = Contents::cleaned(&dir.join(FILES)).map_err(failed("use the files of"))?;
        if !same_boot {
            fs::write(&boot_file, boot).map_err(failed("mark the boot of"))?;
        }
        let copier = Copier::new(dir, limits, contents);
        Ok(Self { dir: dir.to_owned(), limits, held: Mutex::default(), read: Mutex::default(), lasting, copier })
    }

    /// Gives a copy the name of its digest, and holds it: no [`Store::retain`] removes it until it was
    /// [released](Store::release).
    ///
    /// # Errors
    /// See [`SnapshotError::Store`]; the copy is left as it is.
    pub fn adopt(&self, copy: &str, digest: &SnapshotDigest) -> Result<(), SnapshotError> {
        // Kept for any outcome of the copy.
        *self.held().entry(digest.clone()).or_default() += 1;
        self.place(copy, digest).inspect_err(|_| self.release(digest))
    }

    /// Removes a copy that is not adopted.
    ///
    /// # Errors
    /// See [`Copier::discard`].
    pub fn discard(&self, copy: &str) -> Result<(), SnapshotError> {
        self.copier.discard(copy)
    }

    /// Holds a snapshot as [`Store::adopt`] does; whether it is there.
    pub fn hold(&self, digest: &SnapshotDigest) -> bool {
        let mut held = self.held();
        let found = self.find(digest).is_some();
        if found {
            *held.entry(digest.clone()).or_default() += 1;
        }
        found
    }

    /// Removes copies that another process has left half-made. None may be running.
    ///
    /// # Errors
    /// The first removal that failed.
    pub fn remove_copies(&self) -> Result<(), SnapshotError> {
        for name in names(&self.dir).map_err(SnapshotError::store_at("list", &self.dir))? {
            if name.starts_with(COPY) {
                self.copier.discard(&name)?;
            }
        }
        Ok(())
    }

    /// Tests that a snapshot still has the content that its digest names. One that was read and has not changed since
    /// is not read again; no later copy shares a file of a damaged one that has another content than its name says.
    ///
    /// # Errors
    ///
    /// It cannot be read.
    pub fn is_intact(&self, digest: &SnapshotDigest) -> Result<bool, SnapshotError> {
        let (known, place) = (self.read().get(digest).cloned(), self.dir.join(digest.as_str()));
        let found = match read(&place, self.limits, known.as_ref()) {
            Ok(None) => return Ok(true),
            Ok(Some(found)) => found,
            Err(error @ (SnapshotError::Store { .. } | SnapshotError::Source { .. })) => return Err(error),
            Err(_) => return Ok(false), // no snapshot looks like that
        };
        let intact = found.digest == *digest;
        if intact {
            self.read().insert(digest.clone(), found.fingerprint);
        } else {
            let distrusted = self.copier.distrust(&found.files);
            distrusted.map_err(|errno| SnapshotError::store_at("clean", &self.dir)(errno.into()))?;
        }
        Ok(intact)
    }

    /// The table is whole after every change to it.
    fn read(&self) -> MutexGuard<'_, BTreeMap<SnapshotDigest, Fingerprint>> {
        self.read.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Where a snapshot is, when it is there.
    #[must_use]
    pub fn find(&self, digest: &SnapshotDigest) -> Option<PathBuf> {
        let path = self.dir.join(digest.as_str());
        path.is_dir().then_some(path)
    }

    /// Tests that a snapshot will be there after a reboot.
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

    /// Ends one hold; from now on a snapshot stays for being named in [`Store::retain`].
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
            tracing::warn!(%error, "lists of removed snapshots are left in the store");
        }
        failed.map_or(Ok(removed), Err)
    }

    fn old(&self, keep: &BTreeSet<SnapshotDigest>) -> Result<Vec<SnapshotDigest>, SnapshotError> {
        let names = names(&self.dir).map_err(SnapshotError::store_at("list", &self.dir))?;
        let digests = names.iter().filter_map(|name| SnapshotDigest::parse(name).ok());
        Ok(digests.filter(|digest| !keep.contains(digest)).collect())
    }

    /// Gives a whole copy its name, unless what has the name is whole too. A damaged one is exchanged for the copy.
    fn place(&self, copy: &str, digest: &SnapshotDigest) -> Result<(), SnapshotError> {
        let (temporary, place) = (&self.dir.join(copy), self.dir.join(digest.as_str()));
        let at_name = |error| SnapshotError::store_at("name", temporary)(error);
        match fs::rename(temporary, &place) {
            Ok(()) => return Ok(()),
            Err(error) if matches!(error.kind(), ErrorKind::DirectoryNotEmpty | ErrorKind::AlreadyExists) => {}
            // An empty directory is replaced by rename, a full one is not: nothing else is expected here.
            Err(error) => return Err(at_name(error)),
        }
        if !is_whole(&place, temporary).map_err(SnapshotError::store_at("compare", &place))? {
            tracing::error!(snapshot = %digest, "damaged on the disk: replaced by a fresh copy of the directory");
            let lasting = self.lasting.has(digest);
            self.lasting.remove(digest).map_err(at_name)?;
            renameat2(AT_FDCWD, temporary, AT_FDCWD, &place, RenameFlags::RENAME_EXCHANGE)
                .map_err(|errno| at_name(errno.into()))?;
            if lasting {
                self.lasting.add(digest).map_err(SnapshotError::store_at("flush", &place))?;
            }
        }
        self.copier.discard(copy)
    }

    /// Removes a snapshot that is not held. Renamed first: what is half removed has no digest's name.
    fn retire(&self, digest: &SnapshotDigest) -> Result<bool, SnapshotError> {
        let (place, name) = (self.dir.join(digest.as_str()), format!("{RETIRED}{digest}"));
        {
            let held = self.held();
            if held.contains_key(digest) {
                return Ok(false);
            }
            let retired = self.lasting.remove(digest).and_then(|()| fs::rename(&place, self.dir.join(&name)));
            retired.map_err(SnapshotError::store_at("retire", &place))?;
        }
        self.read().remove(digest);
        self.copier.discard(&name)?;
        Ok(true)
    }

    /// The table is whole after every change to it, so a thread that panicked with it left nothing half-done.
    fn held(&self) -> MutexGuard<'_, BTreeMap<SnapshotDigest, u32>> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn names(dir: &Path) -> io::Result<Vec<String>> {
    let name = |entry: io::Result<fs::DirEntry>| entry.map(|entry| entry.file_name().into_string().ok());
    fs::read_dir(dir)?.filter_map(|entry| name(entry).transpose()).collect()
}
