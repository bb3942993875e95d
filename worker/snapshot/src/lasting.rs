//! Snapshots that outlast a reboot: their files were flushed to the disk, and `<store>/.lasting` names them.
//!
//! Invariants: a digest in the list is whole on the disk. It leaves the list before its snapshot is removed, so that a
//! later copy of the same content, which is not flushed, is not taken for this one.

use crate::beneath::open_beneath;
use nix::dir::{Dir, Type};
use nix::fcntl::OFlag;
use nix::unistd::fsync;
use omni_node_protocol::id::SnapshotDigest;
use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::fs::{self, File};
use std::io::{self, Write};
use std::os::fd::AsFd;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

const LIST: &str = ".lasting";
/// The list while it is written.
const FRESH: &str = ".lasting-new";

#[derive(Debug)]
pub(crate) struct Lasting {
    dir: PathBuf,
    listed: Mutex<BTreeSet<SnapshotDigest>>,
}

impl Lasting {
    /// Reads the list of the store in `dir`; without one, nothing lasts.
    pub(crate) fn open(dir: &Path) -> io::Result<Self> {
        let text = match fs::read_to_string(dir.join(LIST)) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => String::new(),
            other => other?,
        };
        let listed = text.lines().filter_map(|line| SnapshotDigest::parse(line).ok()).collect();
        Ok(Self { dir: dir.to_owned(), listed: Mutex::new(listed) })
    }

    pub(crate) fn has(&self, digest: &SnapshotDigest) -> bool {
        self.listed().contains(digest)
    }

    /// Flushes a snapshot and puts it on the list.
    pub(crate) fn add(&self, digest: &SnapshotDigest) -> io::Result<()> {
        flush(File::open(self.dir.join(digest.as_str()))?)?;
        flush_entry(&self.dir)?; // its name in the store
        self.change(|listed| listed.insert(digest.clone()))
    }

    /// Removes a snapshot from the list.
    pub(crate) fn remove(&self, digest: &SnapshotDigest) -> io::Result<()> {
        self.change(|listed| listed.remove(digest))
    }

    fn change(&self, change: impl FnOnce(&mut BTreeSet<SnapshotDigest>) -> bool) -> io::Result<()> {
        let mut listed = self.listed();
        let mut changed = listed.clone();
        if !change(&mut changed) {
            return Ok(());
        }
        let fresh = self.dir.join(FRESH);
        let mut file = File::create(&fresh)?;
        for digest in &changed {
            writeln!(file, "{digest}")?;
        }
        file.sync_all()?;
        fs::rename(&fresh, self.dir.join(LIST))?;
        flush_entry(&self.dir)?;
        *listed = changed;
        Ok(())
    }

    /// The set is replaced whole.
    fn listed(&self) -> MutexGuard<'_, BTreeSet<SnapshotDigest>> {
        self.listed.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Flushes all files and directories below `dir`, and itself, through no link. Links are part of their directory.
///
/// # Errors
/// Something cannot be opened, or the disk refuses.
pub fn flush(dir: impl AsFd) -> io::Result<()> {
    let mut waiting = vec![PathBuf::new()];
    while let Some(path) = waiting.pop() {
        let mut fd = Dir::from_fd(open_beneath(&dir, &path, OFlag::O_RDONLY | OFlag::O_DIRECTORY)?)?;
        let entries: Vec<_> = fd.iter().collect::<Result<_, _>>()?;
        for entry in entries {
            let name = entry.file_name().to_bytes();
            if name == b"." || name == b".." {
                continue;
            }
            let path = path.join(OsStr::from_bytes(name));
            match entry.file_type() {
                Some(Type::Directory) => waiting.push(path),
                Some(Type::File) => fsync(open_beneath(&dir, &path, OFlag::O_RDONLY)?)?,
                _ => {}
            }
        }
        fsync(fd)?;
    }
    Ok(())
}

fn flush_entry(path: &Path) -> io::Result<()> {
    File::open(path)?.sync_all()
}
