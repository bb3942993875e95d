//! Room for the lasting cache directories of models on the node's disk.
//!
//! A cache directory is an image file with holes: its size is the quota of its model, and the disk gives it blocks as the
//! model writes. All quotas together may exceed the disk; those of the instances that run may not: an instance starts
//! only if its directory and those of all others that run fit when they are full, with what the node keeps for itself
//! left over. So a model that fills its directory gets `ENOSPC` from its own quota, and never has the file system of a
//! neighbour lose what it wrote. A quota is a bound, not a promise: a new directory that does not fit is made with half of
//! the room that is left, so that the next one has a place, too.
//!
//! The images of models that are gone are removed after a day: a model of another name would else be another quota.

use nix::fcntl::{Flock, FlockArg};
use nix::sys::statvfs::statvfs;
use omni_config::name::ModelName;
use std::collections::BTreeSet;
use std::fs::{self, OpenOptions};
use std::io;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

/// Part of the disk that stays free, and the most that stays free: as builds leave it.
const KEPT_PART: u64 = 20;
const KEPT_MOST: u64 = 4 << 30;
/// The smallest directory that is made where the disk has less than was asked for.
const SMALLEST: u64 = 8 << 20;
/// An image whose model is gone is removed when nothing was written to it for so long.
const FORGOTTEN_AFTER: Duration = Duration::from_secs(24 * 60 * 60);

/// The folder of the images.
#[derive(Debug, Clone)]
pub(super) struct Caches {
    dir: PathBuf,
}

/// Why an instance has no cache directory.
#[derive(Debug, thiserror::Error)]
pub(super) enum NoCache {
    #[error(
        "its cache directory of {} MiB may not fit on the disk: {} MiB are free, of which the node keeps {} MiB and the \
         directories of running instances may still take {} MiB; ask for less with `cache` in [limits], stop a model, or \
         make room below {dir}",
        asked >> 20, free >> 20, kept >> 20, promised >> 20
    )]
    Full { asked: u64, free: u64, kept: u64, promised: u64, dir: String },
    #[error("its cache directory cannot be made below {dir}: {source}")]
    Io { dir: String, source: io::Error },
}

/// Bytes of a file system.
#[derive(Debug, Clone, Copy)]
struct Disk {
    free: u64,
    all: u64,
}

impl Disk {
    fn of(dir: &Path) -> io::Result<Self> {
        let found = statvfs(dir)?;
        let block = found.fragment_size();
        Ok(Self { free: found.blocks_available() * block, all: found.blocks() * block })
    }

    fn kept(self) -> u64 {
        (self.all / KEPT_PART).min(KEPT_MOST)
    }

    /// Bytes that fit beside what is `promised` to others.
    fn room(self, promised: u64) -> u64 {
        self.free.saturating_sub(self.kept()).saturating_sub(promised)
    }
}

impl Caches {
    pub(super) fn new(dir: PathBuf) -> Self {
        Self { dir }
    }

    fn image(&self, model: &str) -> PathBuf {
        self.dir.join(format!("{model}.img"))
    }

    /// Reserves the directory of a model beside those of the models that run, and says how large it is. The image is made
    /// here with its size and without content, so that the next reservation counts it.
    pub(super) fn reserve(&self, model: &ModelName, bytes: u64, running: &BTreeSet<String>) -> Result<u64, NoCache> {
        let own = model.as_file_name();
        if bytes == 0 || running.contains(&own) {
            return Ok(bytes);
        }
        let io = |source| NoCache::Io { dir: self.dir.display().to_string(), source };
        let known = growth(&self.image(&own)).map_err(io)?;
        let promised = running.iter().map(|name| growth(&self.image(name)).ok().flatten().unwrap_or(0)).sum();
        let disk = Disk::of(&self.dir).map_err(io)?;
        let full = || {
            let dir = self.dir.display().to_string();
            NoCache::Full { asked: bytes, free: disk.free, kept: disk.kept(), promised, dir }
        };
        let room = disk.room(promised);
        if let Some(growth) = known {
            return if growth <= room { Ok(bytes) } else { Err(full()) };
        }
        let size = size(bytes, room).ok_or_else(full)?;
        if size < bytes {
            tracing::warn!(%model, "its cache directory has {} MiB of {} MiB: the disk has no more", size >> 20, bytes >> 20);
        }
        let image = OpenOptions::new().write(true).create_new(true).mode(0o600).open(self.image(&own)).map_err(io)?;
        image.set_len(size).map_err(io)?;
        Ok(size)
    }

    /// Removes the images of models that are not `known` and that nothing was written to for a day. One that is in use is
    /// locked by its worker, and stays.
    pub(super) fn forget(&self, known: &BTreeSet<String>, now: SystemTime) {
        for entry in fs::read_dir(&self.dir).into_iter().flatten().flatten() {
            let (path, name) = (entry.path(), entry.file_name());
            let Some(model) = name.to_str().and_then(|name| name.strip_suffix(".img")) else { continue };
            let written = entry.metadata().and_then(|found| found.modified()).unwrap_or(now);
            let is_old = now.duration_since(written).is_ok_and(|age| age >= FORGOTTEN_AFTER);
            if !known.contains(model) && is_old && remove_unused(&path) {
                tracing::info!(model, "the cache directory of a model that is gone was removed");
            }
        }
    }
}

/// The name of a model's image, without its ending.
pub(super) fn file_name(model: &str) -> Option<String> {
    model.parse::<ModelName>().ok().map(|name| name.as_file_name())
}

/// Bytes that an image may still take of its disk; `None` where there is none.
fn growth(image: &Path) -> io::Result<Option<u64>> {
    match fs::symlink_metadata(image) {
        Ok(found) => Ok(Some(found.len().saturating_sub(found.blocks() * 512))),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

/// Size of a new directory; `None` where it has to be refused. One that is made smaller leaves half of the room to others.
fn size(asked: u64, room: u64) -> Option<u64> {
    let least = asked.min(SMALLEST);
    match room {
        _ if asked <= room => Some(asked),
        _ if least <= room => Some((((room / 2) >> 20) << 20).max(least)),
        _ => None,
    }
}

/// Removes an image unless a worker has it; says whether it did.
fn remove_unused(image: &Path) -> bool {
    let Ok(file) = OpenOptions::new().read(true).custom_flags(libc::O_NOFOLLOW).open(image) else { return false };
    match Flock::lock(file, FlockArg::LockExclusiveNonblock) {
        Ok(_locked) => fs::remove_file(image).is_ok(),
        Err(_) => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;
    const GIB: u64 = 1 << 30;

    #[test]
    fn the_size_of_a_new_directory_follows_from_the_room_of_the_disk() {
        let small = Disk { free: 280 * MIB, all: 300 * MIB };
        let large = Disk { free: 50 * GIB, all: 1000 * GIB };
        for (disk, promised, asked, given) in [
            (small, 0, 40 * MIB, Some(40 * MIB)),
            (small, 0, GIB, Some(132 * MIB)),
            (small, 200 * MIB, GIB, Some(32 * MIB)),
            (small, 257 * MIB, GIB, Some(8 * MIB)),
            (small, 258 * MIB, GIB, None),
            (small, 264 * MIB, MIB, Some(MIB)),
            (small, 0, 1 << 50, Some(132 * MIB)),
            (large, 0, 46 * GIB, Some(46 * GIB)),
            (large, MIB, 46 * GIB, Some(23 * GIB - MIB)),
            (large, u64::MAX, 1 << 50, None),
        ] {
            assert_eq!(size(asked, disk.room(promised)), given, "{asked} beside {promised} in {disk:?}");
        }
    }

    #[test]
    fn written_cache_bytes_are_not_reserved_again() {
        let dir = tempfile::tempdir().unwrap();
        let caches = Caches::new(dir.path().to_owned());
        let name: ModelName = "team/one".parse().unwrap();
        let none = BTreeSet::new();
        caches.reserve(&name, 8 * MIB, &none).unwrap();
        let image = caches.image(&name.as_file_name());
        assert_eq!(growth(&image).unwrap(), Some(8 * MIB));
        fs::write(&image, vec![1; 8 << 20]).unwrap();
        assert_eq!(growth(&image).unwrap(), Some(0));
        // Exists already: it does not grow beyond its size, for any value in the manifest.
        caches.reserve(&name, 1 << 50, &none).unwrap();
    }

    #[test]
    fn more_than_the_disk_has_is_refused_with_the_numbers() {
        let dir = tempfile::tempdir().unwrap();
        let caches = Caches::new(dir.path().to_owned());
        let [big, next]: [ModelName; 2] = ["big".parse().unwrap(), "next".parse().unwrap()];
        let given = caches.reserve(&big, 1 << 50, &BTreeSet::new()).unwrap();
        assert!(given < 1 << 50, "{given}");
        assert_eq!(growth(&caches.image("big")).unwrap(), Some(given), "it is counted from now on");
        let running = BTreeSet::from([big.as_file_name()]);
        let rest = caches.reserve(&next, 1 << 50, &running).unwrap();
        assert!(rest <= given, "{rest} beside {given}");
        // Two that fit one by one, and not together.
        fs::File::options().write(true).open(caches.image("big")).unwrap().set_len(8 << 40).unwrap();
        let third: ModelName = "third".parse().unwrap();
        let refused = caches.reserve(&third, 16 << 20, &running).unwrap_err().to_string();
        assert!(refused.starts_with("its cache directory of 16 MiB may not fit on the disk: "), "{refused}");
        assert!(!caches.image("third").exists());
        assert_eq!(caches.reserve(&third, 16 << 20, &BTreeSet::new()).unwrap(), 16 << 20);
    }

    #[test]
    fn images_of_models_that_are_gone_go_after_a_day_unless_they_are_in_use() {
        let dir = tempfile::tempdir().unwrap();
        let caches = Caches::new(dir.path().to_owned());
        for name in ["here", "gone", "used"] {
            fs::write(caches.image(name), "").unwrap();
        }
        let used = Flock::lock(fs::File::open(caches.image("used")).unwrap(), FlockArg::LockShared).unwrap();
        let known = BTreeSet::from(["here".to_owned()]);
        caches.forget(&known, SystemTime::now());
        assert!(caches.image("gone").exists());
        caches.forget(&known, SystemTime::now() + FORGOTTEN_AFTER);
        assert!(caches.image("here").exists() && !caches.image("gone").exists() && caches.image("used").exists());
        drop(used);
        caches.forget(&known, SystemTime::now() + FORGOTTEN_AFTER);
        assert!(!caches.image("used").exists());
    }
}
