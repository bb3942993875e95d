//! A models folder and a store beside it. Copies go into the store as the launcher's do: made by a copier, then adopted.
#![allow(dead_code, clippy::unwrap_used, reason = "each test file uses a part; a failed set-up fails the test")]

use omni_snapshot::{Copier, Fresh, Limits, Snapshot, SnapshotError, Store};
use std::collections::BTreeSet;
use std::fs::{self, File};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, SystemTime};
use tempfile::TempDir;

pub(crate) struct Folder {
    pub(crate) dir: TempDir,
    pub(crate) store: Store,
    pub(crate) copier: Copier,
}

impl Folder {
    /// With the directory of one model, `m`, which is empty.
    pub(crate) fn new(limits: Limits) -> Self {
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir_all(dir.path().join("models/m")).unwrap();
        Self::open(dir, limits)
    }

    /// The same as the next launcher has it.
    pub(crate) fn opened_again(self, limits: Limits) -> Self {
        Self::open(self.dir, limits)
    }

    fn open(dir: TempDir, limits: Limits) -> Self {
        let snapshots = dir.path().join("snapshots");
        let store = Store::open(&snapshots, limits).unwrap();
        let copier = Copier::open(&snapshots, limits).unwrap();
        Self { dir, store, copier }
    }

    pub(crate) fn model(&self) -> PathBuf {
        self.dir.path().join("models/m")
    }

    pub(crate) fn models(&self) -> File {
        File::open(self.dir.path().join("models")).unwrap()
    }

    /// The snapshot of a model, held; the known one where nothing has changed since.
    pub(crate) fn copy(&self, model: impl AsRef<Path>, known: Option<&Snapshot>) -> Result<Snapshot, SnapshotError> {
        let copy = |known| self.copier.copy(self.models(), model.as_ref(), known, &());
        if let Some(known) = known {
            match copy(Some(&known.fingerprint))? {
                Some(fresh) => return self.adopt(fresh),
                None if self.store.hold(&known.digest) => return Ok(known.clone()),
                None => {}
            }
        }
        self.adopt(copy(None)?.unwrap())
    }

    fn adopt(&self, fresh: Fresh) -> Result<Snapshot, SnapshotError> {
        let Fresh { name, snapshot } = fresh;
        if let Err(error) = self.store.adopt(&name, &snapshot.digest) {
            self.store.discard(&name).unwrap();
            return Err(error);
        }
        Ok(snapshot)
    }

    pub(crate) fn take(&self) -> Snapshot {
        self.copy("m", None).unwrap()
    }

    pub(crate) fn write(&self, name: &str, content: &[u8]) {
        fs::write(self.model().join(name), content).unwrap();
    }

    /// Names in the store, those of the store's own files included; in place of the folder of contents, those.
    pub(crate) fn stored(&self) -> BTreeSet<String> {
        let names = |dir: &str| {
            let dir = fs::read_dir(self.dir.path().join("snapshots").join(dir)).unwrap();
            dir.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect::<BTreeSet<_>>()
        };
        names("").into_iter().filter(|name| name != ".files").chain(names(".files")).collect()
    }

    pub(crate) fn in_snapshot(&self, of: &Snapshot, name: &str) -> PathBuf {
        self.store.find(&of.digest).unwrap().join(name)
    }

    pub(crate) fn contents(&self) -> usize {
        fs::read_dir(self.dir.path().join("snapshots/.files")).unwrap().count()
    }

    /// Waits until a file's last change lies so far back that the next one has another time.
    pub(crate) fn settle(&self, name: &str) {
        let deadline = Instant::now() + Duration::from_secs(10);
        let changed = || {
            let found = fs::metadata(self.model().join(name)).unwrap();
            SystemTime::UNIX_EPOCH
                + Duration::new(found.ctime().unsigned_abs(), found.ctime_nsec().unsigned_abs() as u32)
        };
        while SystemTime::now() < changed() + Duration::from_millis(40) && Instant::now() < deadline {
            std::thread::yield_now();
        }
    }
}
