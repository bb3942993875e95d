//! Cache of fetched weights, below the node's cache directory, root's alone:
//!
//! | path | content |
//! | --- | --- |
//! | `files/<sha256>` | a content, once |
//! | `sets/<id>/` | the files of a source under their paths, hard links to contents; what is mounted |
//! | `records/<key>.json` | what an order fetched, and which set that is; written last |
//! | `snapshots/<digest>` | the set that a model's content uses |
//! | `orders/<key>.json` | the order that the downloader reads |
//! | `work/<key>/` | files that are being fetched: the downloader's own, and the only place that it writes to |

mod intake;

use crate::digest::Digest;
use crate::eviction::{self, Shortage, StoredSet};
use crate::order::Order;
use crate::report::{FETCHED, FetchedFile};
use intake::{check, read_list, set_id, shown};
use nix::sys::stat::{UtimensatFlags, utimensat};
use nix::sys::time::TimeSpec;
use nix::unistd::{Gid, Uid, chown, syncfs};
use omni_node_protocol::id::SnapshotDigest;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File, Permissions};
use std::io::{self, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::Duration;

/// Beginning of the names of sets that are being made or removed.
const UNFINISHED: &str = ".";

/// Cache of fetched weights.
#[derive(Debug, Clone)]
pub struct Cache {
    root: PathBuf,
    uid: u32,
    most: u64,
    /// Held while a content may have no set: it is about to get one, or is looked at to be removed.
    contents: Arc<Mutex<()>>,
}

/// Folder of a running order.
#[derive(Debug, Clone)]
pub struct Work {
    /// The downloader's own folder.
    pub folder: PathBuf,
    /// File with its order.
    pub order: PathBuf,
}

/// Files that an order fetched.
#[derive(Debug, Clone, Serialize, Deserialize)]
struct Record {
    source: String,
    set: Digest,
    files: Vec<FetchedFile>,
}

/// The cache does not take what the downloader left.
#[derive(Debug, thiserror::Error)]
pub enum CacheError {
    /// The file system refused a step.
    #[error("the node cannot {step}")]
    Io {
        /// The step.
        step: &'static str,
        /// The answer.
        source: io::Error,
    },
    /// The list of files is not one that a downloader writes.
    #[error("the downloader left {0}")]
    Odd(String),
    /// The node had a content when the downloader began, and has removed it since.
    #[error("the node has removed `{0}` from its cache meanwhile: it is fetched with the next attempt")]
    Gone(String),
    /// No room.
    #[error(transparent)]
    Shortage(#[from] Shortage),
}

fn at(step: &'static str) -> impl Fn(io::Error) -> CacheError {
    move |source| CacheError::Io { step, source }
}

impl Cache {
    /// Makes the folders in `cache_dir`, and removes what an earlier launcher left unfinished. `uid`: the downloader's
    /// user; `most`: bytes of all contents; `boot`: identifier of the machine's boot; `in_use`: sets that instances have
    /// mounted, which stay.
    ///
    /// # Errors
    /// A folder cannot be made.
    pub fn open(cache_dir: &Path, uid: u32, most: u64, boot: &str, in_use: &BTreeSet<Digest>) -> io::Result<Self> {
        let root = cache_dir.join("weights");
        for name in ["files", "sets", "records", "snapshots", "orders", "work"] {
            fs::create_dir_all(root.join(name))?;
        }
        fs::set_permissions(&root, Permissions::from_mode(0o700))?;
        let cache = Self { root, uid, most, contents: Arc::default() };
        cache.clear(boot, in_use);
        Ok(cache)
    }

    /// Folder of the sets, of which one is mounted.
    #[must_use]
    pub fn sets(&self) -> PathBuf {
        self.root.join("sets")
    }

    /// Folder of the contents.
    #[must_use]
    pub fn files(&self) -> PathBuf {
        self.root.join("files")
    }

    /// The set that an order has fetched already.
    #[must_use]
    pub fn find(&self, key: &Digest) -> Option<Digest> {
        let record = read_record(&self.record_path(key))?;
        self.sets().join(record.set.as_str()).is_dir().then_some(record.set)
    }

    /// Files of a finished order that nothing vouches for but the server's word.
    #[must_use]
    pub fn unverified(&self, key: &Digest) -> usize {
        let record = read_record(&self.record_path(key));
        record.map_or(0, |record| record.files.iter().filter(|file| !file.verified).count())
    }

    /// Makes the folder of an order, with what an attempt before has fetched. What is root's in it stays root's: it may
    /// be a content of the cache by now, and leaves the folder.
    ///
    /// # Errors
    /// It cannot be made.
    pub fn begin(&self, key: &Digest, order: &Order) -> Result<Work, CacheError> {
        let folder = self.work_path(key);
        match fs::create_dir(&folder) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            made => made.map_err(at("make the folder for weights"))?,
        }
        let owner = (Some(Uid::from_raw(self.uid)), Some(Gid::from_raw(self.uid)));
        chown(&folder, owner.0, owner.1).map_err(io::Error::from).map_err(at("give the folder to the downloader"))?;
        for name in names(&folder) {
            let path = folder.join(name);
            if fs::symlink_metadata(&path).is_ok_and(|found| found.uid() != self.uid) {
                discard(&path);
            }
        }
        let path = self.order_path(key.as_str());
        let text = serde_json::to_vec(order).map_err(io::Error::from).map_err(at("write the order for weights"))?;
        fs::write(&path, text).map_err(at("write the order for weights"))?;
        Ok(Work { folder, order: path })
    }

    /// Returns true if a downloader has left all files of an order, and they have not been taken over yet.
    #[must_use]
    pub fn is_fetched(&self, key: &Digest) -> bool {
        fs::symlink_metadata(self.work_path(key).join(FETCHED)).is_ok()
    }

    /// Takes over what a downloader that has ended left for an order: its files become root's and read-only, and a set.
    /// After an end in the middle, or a file system that refused, it may be called again; what is not as it should be
    /// is removed.
    ///
    /// # Errors
    /// The list is not one that a downloader writes, a file is not as listed or has another digest, or the file system
    /// refuses.
    pub fn complete(&self, key: &Digest, order: &Order) -> Result<Digest, CacheError> {
        let work = self.work_path(key);
        let set = self.complete_in(&work, key, order);
        match &set {
            Ok(_) | Err(CacheError::Odd(_)) => discard(&work),
            // The downloader goes on from what is there.
            Err(CacheError::Gone(_)) => discard(&work.join(FETCHED)),
            Err(CacheError::Io { .. } | CacheError::Shortage(_)) => {}
        }
        set
    }

    fn complete_in(&self, work: &Path, key: &Digest, order: &Order) -> Result<Digest, CacheError> {
        let fetched = read_list(&work.join(FETCHED))?;
        check(&fetched)?;
        if let Some(file) = fetched.files.iter().find(|file| file.part.is_none() && !self.has(file)) {
            return Err(CacheError::Gone(shown(&file.path)));
        }
        for file in &fetched.files {
            self.seal(work, file)?;
        }
        let _contents = self.contents.lock().unwrap_or_else(PoisonError::into_inner);
        for file in &fetched.files {
            self.take_over(work, file)?;
        }
        let set = set_id(&fetched);
        let place = self.sets().join(set.as_str());
        if !place.is_dir() {
            let made = self.sets().join(format!("{UNFINISHED}{set}"));
            discard(&made);
            self.link_all(&made, &fetched)?;
            // The record says "complete": it must not outlive a power failure that the files do not.
            let folder = File::open(&made).map_err(at("open a set of weights"))?;
            syncfs(&folder).map_err(io::Error::from).map_err(at("write the weights to the disk"))?;
            fs::rename(&made, &place).map_err(at("name a set of weights"))?;
        }
        let record = Record { source: order.source.clone(), set: set.clone(), files: fetched.files };
        write_lasting(&self.record_path(key), &serde_json::to_vec_pretty(&record).unwrap_or_default())
            .map_err(at("record the weights"))?;
        Ok(set)
    }

    /// Records that a model's content uses a set, now.
    ///
    /// # Errors
    /// The file system refuses.
    pub fn use_for(&self, snapshot: &SnapshotDigest, set: &Digest) -> Result<(), CacheError> {
        let now = TimeSpec::UTIME_NOW;
        utimensat(nix::fcntl::AT_FDCWD, &self.sets().join(set.as_str()), &now, &now, UtimensatFlags::FollowSymlink)
            .map_err(io::Error::from)
            .map_err(at("use a set of weights"))?;
        write_lasting(&self.root.join("snapshots").join(snapshot.as_str()), set.as_str().as_bytes())
            .map_err(at("record who uses the weights"))
    }

    /// The set that a model's content uses, while it is there.
    #[must_use]
    pub fn set_of(&self, snapshot: &SnapshotDigest) -> Option<Digest> {
        let text = fs::read_to_string(self.root.join("snapshots").join(snapshot.as_str())).ok()?;
        let set = Digest::parse(&text).ok()?;
        self.sets().join(set.as_str()).is_dir().then_some(set)
    }

    /// Removes sets until `needed` further bytes fit, the least recently used first and none in use; before them what
    /// orders left that are not `running`.
    ///
    /// # Errors
    /// All that is left is in use.
    pub fn make_room(
        &self,
        needed: u64,
        in_use: &BTreeSet<Digest>,
        running: &BTreeSet<Digest>,
    ) -> Result<(), CacheError> {
        let sets = self.stored(in_use);
        let work = names(&self.root.join("work"));
        let is_idle = |name: &String| Digest::parse(name).is_ok_and(|key| !running.contains(&key));
        let idle: Vec<PathBuf> =
            work.into_iter().filter(is_idle).map(|name| self.root.join("work").join(name)).collect();
        let left = idle.iter().map(|work| on_disk(work)).fold(0, u64::saturating_add);
        let is_full = eviction::bytes(&sets).saturating_add(left).saturating_add(needed) > self.most;
        if is_full {
            idle.iter().for_each(|work| discard(work));
        }
        let evicted = eviction::evict(sets, needed, self.most)?;
        if !evicted.is_empty() || (is_full && !idle.is_empty()) {
            self.remove(&evicted);
        }
        Ok(())
    }

    /// Removes what an order that is not running has left.
    pub fn abandon(&self, key: &Digest) {
        discard(&self.work_path(key));
        discard(&self.order_path(key.as_str()));
    }

    /// Bytes of all contents.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        eviction::bytes(&self.stored(&BTreeSet::new()))
    }

    fn stored(&self, in_use: &BTreeSet<Digest>) -> Vec<StoredSet> {
        let mut sets = BTreeMap::new();
        for name in names(&self.root.join("records")) {
            let Some(record) = read_record(&self.root.join("records").join(name)) else { continue };
            let Ok(found) = fs::metadata(self.sets().join(record.set.as_str())) else { continue };
            let used =
                Duration::new(found.mtime().max(0).unsigned_abs(), u32::try_from(found.mtime_nsec()).unwrap_or(0));
            let files = record.files.into_iter().map(|file| (file.sha256, file.size)).collect();
            let in_use = in_use.contains(&record.set);
            sets.insert(record.set.clone(), StoredSet { id: record.set, files, used, in_use });
        }
        sets.into_values().collect()
    }

    fn remove(&self, sets: &[Digest]) {
        let mut aside = Vec::new();
        for set in sets {
            tracing::info!(%set, "weights are removed from the cache for others");
            let gone = self.sets().join(format!("{UNFINISHED}gone-{set}"));
            match fs::rename(self.sets().join(set.as_str()), &gone) {
                Ok(()) => aside.push(gone),
                Err(error) => tracing::warn!(%set, %error, "weights are left that are not needed"),
            }
        }
        for name in names(&self.root.join("records")) {
            let path = self.root.join("records").join(name);
            if read_record(&path).is_none_or(|record| sets.contains(&record.set)) {
                discard(&path);
            }
        }
        for name in names(&self.root.join("snapshots")) {
            let path = self.root.join("snapshots").join(name);
            let is_of = |text: String| sets.iter().any(|set| set.as_str() == text);
            if fs::read_to_string(&path).is_ok_and(is_of) {
                discard(&path);
            }
        }
        // Large files take their time.
        let cache = self.clone();
        let delete = move || {
            aside.iter().for_each(|set| discard(set));
            cache.remove_unused_files();
        };
        if let Err(error) = thread::Builder::new().name("discard".into()).spawn(delete) {
            tracing::warn!(%error, "weights are left until the launcher starts again");
        }
    }

    /// Removes contents that no set has any more.
    fn remove_unused_files(&self) {
        let _contents = self.contents.lock().unwrap_or_else(PoisonError::into_inner);
        for name in names(&self.files()) {
            let path = self.files().join(name);
            if fs::symlink_metadata(&path).is_ok_and(|found| found.nlink() == 1) {
                discard(&path);
            }
        }
    }

    /// Removes what is unfinished: sets without a record that no instance has, contents without a set, and work of before
    /// the machine's boot, which may not be on the disk.
    fn clear(&self, boot: &str, in_use: &BTreeSet<Digest>) {
        let complete: BTreeSet<Digest> = self.stored(&BTreeSet::new()).into_iter().map(|set| set.id).collect();
        for name in names(&self.sets()) {
            if !Digest::parse(&name).is_ok_and(|set| complete.contains(&set) || in_use.contains(&set)) {
                discard(&self.sets().join(name));
            }
        }
        for name in names(&self.root.join("work")) {
            let order =
                fs::read(self.order_path(&name)).ok().and_then(|text| serde_json::from_slice::<Order>(&text).ok());
            if order.is_none_or(|order| order.boot != boot) {
                discard(&self.root.join("work").join(&name));
                discard(&self.order_path(&name));
            }
        }
        self.remove_unused_files();
    }

    fn work_path(&self, key: &Digest) -> PathBuf {
        self.root.join("work").join(key.as_str())
    }

    fn order_path(&self, key: &str) -> PathBuf {
        self.root.join("orders").join(format!("{key}.json"))
    }

    fn record_path(&self, key: &Digest) -> PathBuf {
        self.root.join("records").join(format!("{key}.json"))
    }
}

/// Reads the record of an order; `None` without a record that this version understands.
fn read_record(path: &Path) -> Option<Record> {
    serde_json::from_slice(&fs::read(path).ok()?).ok()
}

/// Writes a file, complete or not at all.
fn write_lasting(path: &Path, text: &[u8]) -> io::Result<()> {
    let (Some(folder), Some(name)) = (path.parent(), path.file_name()) else {
        return Err(io::ErrorKind::InvalidInput.into());
    };
    let temporary = folder.join(format!("{UNFINISHED}{}", name.to_string_lossy()));
    let mut file = File::options().write(true).create(true).truncate(true).mode(0o600).open(&temporary)?;
    file.write_all(text)?;
    file.sync_all()?;
    fs::rename(&temporary, path)?;
    File::open(folder)?.sync_all()
}

/// Names in a folder; none when it cannot be read.
fn names(folder: &Path) -> Vec<String> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.file_name().into_string().ok()).collect()
}

/// Bytes that the files of a folder have on the disk.
#[must_use]
pub fn on_disk(folder: &Path) -> u64 {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.metadata().ok()).map(|found| found.blocks() * 512).fold(0, u64::saturating_add)
}

/// Removes a file or a tree. Nothing that is left over does harm: it is removed at the next start.
fn discard(path: &Path) {
    let removed = match fs::symlink_metadata(path) {
        Err(_) => return,
        Ok(found) if found.is_dir() => fs::remove_dir_all(path),
        Ok(_) => fs::remove_file(path),
    };
    if let Err(error) = removed {
        tracing::warn!(path = %path.display(), %error, "weights are left that are not needed");
    }
}

#[cfg(test)]
mod tests;
