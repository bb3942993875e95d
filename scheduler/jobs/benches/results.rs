//! Results per second by number of reporters, beside flushes per second of the same disk; and the time that a batch of
//! 50,000 takes from its file to its items, and from its results to its output file.
//!
//! `cargo bench -p omni-jobs --bench results [-- DIR]`: DIR is on the disk that is measured.
#![allow(clippy::unwrap_used, reason = "a failed step is a failed run")]

use omni_jobs::{BatchId, Claim, ItemResult, JobStore, Limits, NewBatch, Scope, UnixMillis, Usage};
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::time::{Duration, Instant};
use tokio::runtime::{Builder, Runtime};
use tokio::task::JoinSet;

const NOW: UnixMillis = UnixMillis(1_800_000_000_000);
const ITEMS: usize = 50_000;
const BODY: usize = 1000;
const RUN: Duration = Duration::from_secs(4);

fn main() {
    let dir = std::env::args().skip(1).find(|argument| !argument.starts_with('-'));
    let dir = tempfile::tempdir_in(dir.as_deref().unwrap_or(env!("CARGO_TARGET_TMPDIR"))).unwrap();
    let runtime = Builder::new_multi_thread().worker_threads(2).build().unwrap();
    println!("flushes of 4 KiB appended, one after the other: {:.0}/s", flushes(dir.path()));
    for reporters in [1, 4, 16, 64, 256] {
        let folder = dir.path().join(reporters.to_string());
        let (results, longest) = results(&runtime, &folder, reporters);
        println!("{reporters:>3} reporters: {results:>6.0} results/s, longest report {longest:.1?}");
    }
    batch(&runtime, &dir.path().join("batch"));
}

fn flushes(dir: &Path) -> f64 {
    let file = File::create(dir.join("flushed")).unwrap();
    let (begin, mut count) = (Instant::now(), 0_u32);
    while begin.elapsed() < RUN {
        file.write_all_at(&[1; 4096], u64::from(count) * 4096).unwrap();
        file.sync_data().unwrap();
        count += 1;
    }
    f64::from(count) / begin.elapsed().as_secs_f64()
}

fn response() -> ItemResult {
    let body = format!("\"{}\"", "x".repeat(BODY)).into_bytes();
    ItemResult { status: 200, request_id: "0196f3a2b4c57d8e9fa0b1c2d3e4f506".into(), body, usage: Usage::default() }
}

/// Creates a batch whose items may run; returns the time of its validation.
fn running(runtime: &Runtime, store: &JobStore) -> (BatchId, Duration) {
    runtime.block_on(async {
        let mut upload = store.upload("a", "input").await.unwrap();
        for item in 0..ITEMS {
            let input = "x".repeat(BODY);
            let line = format!(
                r#"{{"custom_id":"{item}","method":"POST","url":"/v1/embeddings","body":{{"model":"m","input":"{input}"}}}}"#
            );
            upload.write(line.as_bytes()).await.unwrap();
            upload.write(b"\n").await.unwrap();
        }
        let input = upload.finish(None, NOW).await.unwrap().id;
        let (owner, endpoint) = ("a".to_owned(), "/v1/embeddings".to_owned());
        let new = NewBatch { owner, input, endpoint, metadata: None, output_expires_after: None };
        let id = store.create(new, NOW).await.unwrap().id;
        let begin = Instant::now();
        store.tend(NOW).await.unwrap();
        (id, begin.elapsed())
    })
}

/// Each reporter claims items by the eight, and reports one after the other.
fn results(runtime: &Runtime, dir: &Path, reporters: usize) -> (f64, Duration) {
    let store = JobStore::open(dir, Limits::default(), NOW).unwrap();
    let (id, _) = running(runtime, &store);
    let begin = Instant::now();
    let (count, longest) = runtime.block_on(async {
        let mut set = JoinSet::new();
        for _ in 0..reporters {
            let store = store.clone();
            set.spawn(async move {
                let (mut count, mut longest) = (0_u32, Duration::ZERO);
                while begin.elapsed() < RUN {
                    let claims = store.claim(id, "m", 8).await.unwrap();
                    if claims.is_empty() {
                        break;
                    }
                    for mut claim in claims {
                        let begin = Instant::now();
                        claim.complete(response(), NOW).await.unwrap();
                        longest = longest.max(begin.elapsed());
                        count += 1;
                    }
                }
                (count, longest)
            });
        }
        let done = set.join_all().await;
        (done.iter().map(|(count, _)| count).sum::<u32>(), done.iter().map(|(_, longest)| *longest).max().unwrap())
    });
    (f64::from(count) / begin.elapsed().as_secs_f64(), longest)
}

fn batch(runtime: &Runtime, dir: &Path) {
    let store = JobStore::open(dir, Limits::default(), NOW).unwrap();
    let (id, validated) = running(runtime, &store);
    runtime.block_on(async {
        let begin = Instant::now();
        loop {
            let claims = store.claim(id, "m", 500).await.unwrap();
            if claims.is_empty() {
                break;
            }
            let report = |mut claim: Claim| async move { claim.complete(response(), NOW).await.unwrap() };
            claims.into_iter().map(report).collect::<JoinSet<_>>().join_all().await;
        }
        let reported = begin.elapsed();
        let begin = Instant::now();
        store.tend(NOW).await.unwrap();
        let written = begin.elapsed();
        assert_eq!(store.batch(Scope::Node, id).await.unwrap().counts.completed, ITEMS as u64);
        println!(
            "{ITEMS} items of 1 kB: validated and inserted in {validated:.2?}, all reported in {reported:.2?}, output written \
             and items removed in {written:.2?}"
        );
    });
}
