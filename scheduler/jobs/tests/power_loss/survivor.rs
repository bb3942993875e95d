//! Store after a power failure: what it has to have, and that its work can be finished.

use crate::trace::Promise;
use crate::workload::{FOLDER, MODEL, NOW, OWNER, response};
use omni_jobs::{BatchId, FileId, JobStore, Limits, Recorded, Scope};
use std::collections::{BTreeMap, BTreeSet};
use std::io::Read;
use std::path::Path;
use tempfile::TempDir;

/// Folder in memory, where there is one: nothing here has to survive.
pub(crate) fn folder() -> TempDir {
    tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir()).unwrap()
}

struct Survivor<'a> {
    store: JobStore,
    promises: &'a BTreeSet<Promise>,
    when: &'a str,
}

pub(crate) fn check(root: &Path, promises: &BTreeSet<Promise>, when: &str) {
    let store =
        JobStore::open(&root.join(FOLDER), Limits::default(), NOW).unwrap_or_else(|error| panic!("{when}: {error:?}"));
    let survivor = Survivor { store, promises, when };
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    runtime.block_on(async {
        survivor.files().await;
        survivor.batch().await;
    });
    drop(survivor);
    let connection = rusqlite::Connection::open(root.join(FOLDER).join("jobs.db")).unwrap();
    let check: String = connection.query_row("PRAGMA integrity_check", [], |row| row.get(0)).unwrap();
    assert_eq!(check, "ok", "{when}");
}

impl Survivor<'_> {
    async fn files(&self) {
        let deleted = |id: &String| self.promises.contains(&Promise::Deleted { id: id.clone() });
        for promise in self.promises {
            let Promise::File { id, bytes } = promise else { continue };
            let content = self.store.content(Scope::Owner(OWNER), FileId::parse(id).unwrap(), NOW).await;
            match content {
                Ok((info, mut file)) => {
                    let mut text = String::new();
                    file.read_to_string(&mut text).unwrap();
                    assert_eq!((info.bytes, text.len()), (*bytes as u64, *bytes), "{}", self.when);
                    assert!(!deleted(id), "{}: a deleted file is back", self.when);
                }
                // A deletion that was not acknowledged may have happened.
                Err(error) => assert!(deleted(id) || *bytes < 100, "{}: {error}", self.when),
            }
        }
    }

    async fn batch(&self) {
        let id = self.promises.iter().find_map(|promise| match promise {
            Promise::Batch { id } => BatchId::parse(id),
            _ => None,
        });
        let Some(id) = id else { return };
        let batch =
            self.store.batch(Scope::Owner(OWNER), id).await.unwrap_or_else(|error| panic!("{}: {error}", self.when));
        assert!(batch.phase.is_over() || !self.promises.contains(&Promise::Ended), "{}", self.when);
        let results: BTreeSet<u32> = self
            .promises
            .iter()
            .filter_map(|promise| if let Promise::Result { item } = promise { Some(*item) } else { None })
            .collect();
        if !batch.phase.is_over() {
            self.reports(id, &results).await;
            self.finish(id, &results).await;
        }
        self.output(id).await;
    }

    /// Checks every acknowledged result where it is before the output file.
    async fn reports(&self, id: BatchId, results: &BTreeSet<u32>) {
        let batch = self.store.batch(Scope::Node, id).await.unwrap();
        assert!(batch.counts.completed >= results.len() as u64, "{}: {:?} of {results:?}", self.when, batch.counts);
        for item in results {
            let report = self.store.reports(Scope::Node, id, *item, 1, u64::MAX).await.unwrap().remove(0);
            let result = report.result.unwrap_or_else(|| panic!("{}: item {item} is lost", self.when));
            let body = String::from_utf8(response(*item).body).unwrap();
            assert!(result.contains(&format!("\"body\":{body}}}")), "{}: item {item} is torn: {result}", self.when);
        }
    }

    /// Runs what is left: nothing whose result was acknowledged, and each attempt with a new number.
    async fn finish(&self, id: BatchId, results: &BTreeSet<u32>) {
        self.store.tend(NOW).await.unwrap();
        let mut attempts = BTreeMap::new();
        for promise in self.promises {
            if let Promise::Attempt { item, attempt } = promise {
                attempts.insert(*item, *attempt);
            }
        }
        loop {
            let claims = self.store.claim(id, MODEL, 1000).await.unwrap();
            if claims.is_empty() {
                break;
            }
            for mut claim in claims {
                let item = claim.item();
                assert!(!results.contains(&item), "{}: item {item} runs again", self.when);
                assert!(claim.attempt() > attempts.get(&item).copied().unwrap_or(0), "{}: item {item}", self.when);
                assert_eq!(claim.complete(response(item), NOW).await.unwrap(), Recorded::First, "{}", self.when);
            }
        }
        self.store.tend(NOW).await.unwrap();
    }

    async fn output(&self, id: BatchId) {
        let batch = self.store.batch(Scope::Node, id).await.unwrap();
        assert_eq!((batch.status().name(), batch.error), ("completed", None), "{}", self.when);
        let (_, mut file) = self.store.content(Scope::Owner(OWNER), batch.output.unwrap(), NOW).await.unwrap();
        let mut text = String::new();
        file.read_to_string(&mut text).unwrap();
        assert_eq!(text.lines().count() as u64, batch.counts.total, "{}", self.when);
        for (item, line) in (0..).zip(text.lines()) {
            let value: serde_json::Value = serde_json::from_str(line).unwrap();
            let body: serde_json::Value = serde_json::from_slice(&response(item).body).unwrap();
            assert_eq!(value["custom_id"], item.to_string(), "{}", self.when);
            assert_eq!(value["response"]["body"], body, "{}", self.when);
        }
    }
}
