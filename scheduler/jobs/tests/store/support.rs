//! A store in a folder of the test's own, and what tests do with it.

use omni_jobs::{
    Batch, BatchId, Claim, FileId, ItemResult, JobStore, Limits, NewBatch, Recorded, Scope, UnixMillis, Usage,
};
use serde_json::Value;
use std::future::Future;
use std::io::Read;
use std::path::Path;
use std::time::Duration;
use tempfile::TempDir;
use tokio::runtime::Runtime;

pub(crate) const OWNER: &str = "alice";
pub(crate) const MODEL: &str = "@cf/test/m";
pub(crate) const ENDPOINT: &str = "/v1/embeddings";
pub(crate) const HOUR: Duration = Duration::from_secs(3600);
/// Any time will do: the store reads no clock.
pub(crate) const START: UnixMillis = UnixMillis(1_800_000_000_000);

pub(crate) fn runtime() -> Runtime {
    tokio::runtime::Builder::new_multi_thread().worker_threads(2).build().unwrap()
}

pub(crate) struct World {
    // Dropped in this order.
    pub(crate) store: JobStore,
    runtime: Runtime,
    pub(crate) dir: TempDir,
    pub(crate) now: UnixMillis,
}

impl World {
    pub(crate) fn new(limits: Limits) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let store = JobStore::open(dir.path(), limits, START).unwrap();
        Self { store, runtime: runtime(), dir, now: START }
    }

    pub(crate) fn of(store: JobStore, runtime: Runtime, dir: TempDir) -> Self {
        Self { store, runtime, dir, now: START }
    }

    pub(crate) fn wait<T>(&self, future: impl Future<Output = T>) -> T {
        self.runtime.block_on(future)
    }

    /// Ends the store as a process that is replaced does, and opens it again.
    pub(crate) fn restart(self, limits: Limits) -> Self {
        let Self { store, runtime, dir, now } = self;
        drop(store);
        let store = JobStore::open(dir.path(), limits, now).unwrap();
        Self { store, runtime, dir, now }
    }

    pub(crate) fn pass(&mut self, time: Duration) {
        self.now = self.now.after(time);
        self.tend();
    }

    pub(crate) fn tend(&self) -> Option<UnixMillis> {
        self.wait(self.store.tend(self.now)).unwrap()
    }

    pub(crate) fn upload(&self, text: &[u8]) -> FileId {
        self.wait(upload(&self.store, text, self.now))
    }

    pub(crate) fn create(&self, input: FileId) -> Batch {
        self.wait(self.store.create(new_batch(input), self.now)).unwrap()
    }

    /// Batch of `items` requests that may run.
    pub(crate) fn running(&self, items: u32) -> BatchId {
        let input = self.upload(lines(items).as_bytes());
        let batch = self.create(input);
        self.tend();
        assert_eq!(self.batch(batch.id).status().name(), "in_progress");
        batch.id
    }

    pub(crate) fn batch(&self, id: BatchId) -> Batch {
        self.wait(self.store.batch(Scope::Owner(OWNER), id)).unwrap()
    }

    pub(crate) fn claim(&self, id: BatchId, most: u32) -> Vec<Claim> {
        self.wait(self.store.claim(id, MODEL, most)).unwrap()
    }

    pub(crate) fn complete(&self, claim: &mut Claim, status: u16) -> Recorded {
        self.wait(claim.complete(response(claim.item(), status), self.now)).unwrap()
    }

    /// Lines of a file, each as the name of its item and the line.
    pub(crate) fn output(&self, file: Option<FileId>) -> Vec<(String, Value)> {
        let Some(file) = file else { return Vec::new() };
        let mut text = String::new();
        let (info, mut content) = self.wait(self.store.content(Scope::Owner(OWNER), file, self.now)).unwrap();
        content.read_to_string(&mut text).unwrap();
        assert_eq!(info.bytes, text.len() as u64);
        let line = |line| {
            let value: Value = serde_json::from_str(line).unwrap();
            (value["custom_id"].as_str().unwrap().to_owned(), value)
        };
        text.lines().map(line).collect()
    }

    pub(crate) fn names(&self, file: Option<FileId>) -> Vec<String> {
        self.output(file).into_iter().map(|(name, _)| name).collect()
    }
}

pub(crate) async fn upload(store: &JobStore, text: &[u8], now: UnixMillis) -> FileId {
    let mut upload = store.upload(OWNER, "input.jsonl").await.unwrap();
    for part in text.chunks(10_000) {
        upload.write(part).await.unwrap();
    }
    upload.finish(None, now).await.unwrap().id
}

pub(crate) fn new_batch(input: FileId) -> NewBatch {
    let (owner, endpoint) = (OWNER.to_owned(), ENDPOINT.to_owned());
    NewBatch { owner, input, endpoint, metadata: None, output_expires_after: None }
}

pub(crate) fn line(item: u32) -> String {
    format!(
        r#"{{"custom_id":"item-{item}","method":"POST","url":"{ENDPOINT}","body":{{"model":"{MODEL}","input":"{item}"}}}}"#
    )
}

pub(crate) fn lines(items: u32) -> String {
    (0..items).map(|item| line(item) + "\n").collect()
}

pub(crate) fn response(item: u32, status: u16) -> ItemResult {
    let usage = Usage { input: 3, cached: 1, output: 2, reasoning: 0 };
    ItemResult { status, request_id: format!("r{item}"), body: format!("{{\n\"item\": {item}}}").into_bytes(), usage }
}

/// Names of all files below a folder, without the database's.
pub(crate) fn left(dir: &Path) -> Vec<String> {
    let list = |folder: &str| {
        let entries = std::fs::read_dir(dir.join(folder)).unwrap();
        entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect::<Vec<_>>()
    };
    [list("files"), list("results")].concat()
}

/// Inconsistencies between the counters of the database and its rows.
pub(crate) fn inconsistencies(dir: &Path) -> Vec<String> {
    let connection = rusqlite::Connection::open(dir.join("jobs.db")).unwrap();
    let check: String = connection.query_row("PRAGMA integrity_check", [], |row| row.get(0)).unwrap();
    assert_eq!(check, "ok");
    let queries = [
        "SELECT 'counters of batch ' || m.batch FROM batch_models m JOIN batches b ON b.no = m.batch WHERE b.purged = 0
         AND b.phase IN ('running', 'stopping_cancelled', 'stopping_expired')
         AND (m.pending, m.in_flight, m.suspects, m.suspects_in_flight) IS NOT (
             SELECT coalesce(sum(state = 0), 0), coalesce(sum(state = 1), 0), coalesce(sum(state = 0 AND deaths > 0), 0),
             coalesce(sum(state = 1 AND deaths > 0), 0)
             FROM items i WHERE i.batch = m.batch AND i.model = m.model)",
        "SELECT 'results of batch ' || b.no FROM batches b WHERE b.purged = 0 AND ended IS NULL
         AND (b.completed, b.failed, b.results_bytes) IS NOT (
             SELECT coalesce(sum(kind = 0), 0), coalesce(sum(kind > 0), 0), coalesce(max(offset + length), 0)
             FROM results r WHERE r.batch = b.no)",
        "SELECT 'state of item ' || i.item FROM items i LEFT JOIN results r ON r.batch = i.batch AND r.item = i.item
         JOIN batches b ON b.no = i.batch
         WHERE (i.state = 2) <> (r.item IS NOT NULL) AND b.purged = 0 AND b.ended IS NULL",
        "SELECT 'no items in batch ' || no FROM batches b WHERE phase IN ('running', 'stopping_cancelled')
         AND total <> (SELECT count(*) FROM items i WHERE i.batch = b.no)",
    ];
    let mut found = Vec::new();
    for query in queries {
        let mut statement = connection.prepare(query).unwrap();
        found.extend(statement.query_map([], |row| row.get::<_, String>(0)).unwrap().map(Result::unwrap));
    }
    found
}
