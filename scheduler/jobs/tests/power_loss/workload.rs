//! Work that is recorded, in a process of its own: files, a batch until its output, the end of the process in between.

use crate::filesystem;
use crate::trace::{Promise, Trace};
use omni_jobs::{
    BatchId, FileId, Interruption, ItemResult, JobStore, Limits, NewBatch, Recorded, Scope, UnixMillis, Usage,
};
use std::env;
use std::path::{Path, PathBuf};
use std::process::Command;
use tokio::task::JoinSet;

pub(crate) const OWNER: &str = "alice";
pub(crate) const MODEL: &str = "m";
pub(crate) const NOW: UnixMillis = UnixMillis(1_800_000_000_000);
/// Folder of the store below the root.
pub(crate) const FOLDER: &str = "jobs";
const ROOT: &str = "OMNI_TEST_JOBS_ROOT";
const ITEMS: &str = "OMNI_TEST_JOBS_ITEMS";

pub(crate) fn response(item: u32) -> ItemResult {
    // Different lengths, some larger than a sector and a page.
    let text = item.to_string().repeat(1 + (item as usize * 37) % 1700);
    ItemResult {
        status: 200,
        request_id: "r".into(),
        body: format!("\"{text}\"").into_bytes(),
        usage: Usage::default(),
    }
}

pub(crate) fn lines(items: u32) -> String {
    let line =
        |item| format!(r#"{{"custom_id":"{item}","method":"POST","url":"/v1/x","body":{{"model":"{MODEL}"}}}}"#) + "\n";
    (0..items).map(line).collect()
}

/// Where answers of the store are said.
#[derive(Debug, Clone)]
struct Witness {
    root: PathBuf,
}

impl Witness {
    fn promise(&self, promise: &Promise) {
        std::fs::create_dir(self.root.join(promise.to_name())).unwrap_err();
    }
}

async fn upload(store: &JobStore, witness: &Witness, text: &str) -> FileId {
    let mut upload = store.upload(OWNER, "input").await.unwrap();
    upload.write(text.as_bytes()).await.unwrap();
    let file = upload.finish(None, NOW).await.unwrap();
    witness.promise(&Promise::File { id: file.id.to_string(), bytes: text.len() });
    file.id
}

/// Claims some items and reports them side by side, so that groups of every size are committed.
async fn work(store: &JobStore, witness: &Witness, id: BatchId, most: u32, interrupt: bool) -> bool {
    let claims = store.claim(id, MODEL, most).await.unwrap();
    let some = !claims.is_empty();
    for claim in &claims {
        witness.promise(&Promise::Attempt { item: claim.item(), attempt: claim.attempt() });
    }
    let mut reports = JoinSet::new();
    for mut claim in claims {
        let witness = witness.clone();
        reports.spawn(async move {
            let item = claim.item();
            if interrupt && item % 5 == 1 && !claim.is_suspect() {
                return claim.interrupted(Interruption::InstanceDied, NOW).await.unwrap();
            }
            assert_eq!(claim.complete(response(item), NOW).await.unwrap(), Recorded::First);
            witness.promise(&Promise::Result { item });
        });
    }
    while let Some(report) = reports.join_next().await {
        report.unwrap();
    }
    some
}

async fn first_life(store: &JobStore, witness: &Witness, items: u32) -> BatchId {
    let input = upload(store, witness, &lines(items)).await;
    let new =
        NewBatch { owner: OWNER.into(), input, endpoint: "/v1/x".into(), metadata: None, output_expires_after: None };
    let id = store.create(new, NOW).await.unwrap().id;
    witness.promise(&Promise::Batch { id: id.to_string() });
    store.tend(NOW).await.unwrap();
    let mut most = 1;
    for _ in 0..items / 8 {
        work(store, witness, id, most, true).await;
        most = most % 5 + 1;
    }
    let other = upload(store, witness, "something else").await;
    store.delete_file(Scope::Owner(OWNER), other, NOW).await.unwrap();
    witness.promise(&Promise::Deleted { id: other.to_string() });
    store.tend(NOW).await.unwrap();
    // In flight when the process ends.
    let lost = store.claim(id, MODEL, 2).await.unwrap();
    for claim in lost {
        witness.promise(&Promise::Attempt { item: claim.item(), attempt: claim.attempt() });
        std::mem::forget(claim);
    }
    id
}

/// First life of the store, which ends with its process; then another, with its batch.
#[test]
#[ignore = "a process for the test in main.rs, which starts it"]
fn process() {
    let root = PathBuf::from(env::var_os(ROOT).unwrap());
    let items: u32 = env::var(ITEMS).unwrap().parse().unwrap();
    let (dir, witness) = (root.join(FOLDER), Witness { root });
    let is_first = !dir.exists();
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).build().unwrap();
    let store = JobStore::open(&dir, Limits::default(), NOW).unwrap();
    runtime.block_on(async {
        if is_first {
            first_life(&store, &witness, items).await;
            // Nothing is closed.
            std::process::exit(0);
        }
        let page = omni_jobs::Page { after: None, limit: 1 };
        let id = store.batches(Scope::Node, page).await.unwrap()[0].id;
        while work(&store, &witness, id, 3, false).await {}
        store.tend(NOW).await.unwrap();
        assert!(store.batch(Scope::Node, id).await.unwrap().phase.is_over());
        witness.promise(&Promise::Ended);
        store.close().await;
    });
}

/// Runs everything on a recording file system.
pub(crate) fn record(items: u32) -> Trace {
    let (trace, target) = (Trace::default(), tempfile::tempdir().unwrap());
    let session = filesystem::mount(target.path(), &trace);
    for life in ["first", "second"] {
        run(target.path(), items, life);
    }
    session.umount_and_join().unwrap();
    trace
}

fn run(root: &Path, items: u32, life: &str) {
    let output = Command::new(env::current_exe().unwrap())
        .args(["workload::process", "--exact", "--ignored", "--nocapture", "--test-threads=1"])
        .env(ROOT, root)
        .env(ITEMS, items.to_string())
        .output()
        .unwrap();
    assert!(output.status.success(), "{life} life: {}", String::from_utf8_lossy(&output.stderr));
}
