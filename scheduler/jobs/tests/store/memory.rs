//! Memory of a process that takes the largest upload, validates the largest file and writes the largest output.

use crate::support::{ENDPOINT, MODEL, OWNER, START, new_batch, response};
use omni_jobs::{JobStore, Limits, Scope};
use std::env;
use std::path::Path;
use std::process::Command;

const DIR: &str = "OMNI_TEST_JOBS_MEMORY_DIR";
const ITEMS: usize = 50_000;
const BYTES: usize = 200 << 20;
/// Allowance of each step, in KiB.
const ALLOWED: u64 = 4 << 10;

/// Peak of resident memory since the last call, in KiB.
fn peak() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
    std::fs::write("/proc/self/clear_refs", "5").unwrap();
    line.trim().trim_end_matches(" kB").parse().unwrap()
}

/// Line `item` of a file of 200 MiB and 50,000 lines.
fn line(item: usize, text: &str) -> String {
    let head =
        format!(r#"{{"custom_id":"{item}","method":"POST","url":"{ENDPOINT}","body":{{"model":"{MODEL}","input":""#);
    let length = BYTES / ITEMS - head.len() - 4;
    format!("{head}{}\"}}}}\n", &text[..length])
}

/// A process of its own: another test's memory would count.
#[test]
#[ignore = "a process for the test below, which starts it"]
fn process() {
    let store = JobStore::open(Path::new(&env::var_os(DIR).unwrap()), Limits::default(), START).unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    let text = "x".repeat(BYTES / ITEMS);
    runtime.block_on(async {
        // Threads, the allocator's arenas and the database's cache exist after one small batch.
        let small = crate::support::upload(&store, line(0, &text).as_bytes(), START).await;
        let id = store.create(new_batch(small), START).await.unwrap().id;
        store.tend(START).await.unwrap();
        store.claim(id, MODEL, 1).await.unwrap()[0].complete(response(0, 200), START).await.unwrap();
        store.tend(START).await.unwrap();
        peak();
        let before = peak();

        let mut upload = store.upload(OWNER, "large").await.unwrap();
        for item in 0..ITEMS {
            upload.write(line(item, &text).as_bytes()).await.unwrap();
        }
        let file = upload.finish(None, START).await.unwrap();
        let uploaded = peak();
        let id = store.create(new_batch(file.id), START).await.unwrap().id;
        store.tend(START).await.unwrap();
        let validated = peak();
        assert_eq!(store.batch(Scope::Node, id).await.unwrap().counts.total, ITEMS as u64);
        store.cancel(Scope::Node, id, START).await.unwrap();
        store.tend(START).await.unwrap();
        let written = peak();
        println!(
            "\nresident KiB: {before} before, +{} upload of {} bytes, +{} validation, +{} output of 50,000 lines",
            uploaded.saturating_sub(before),
            file.bytes,
            validated.saturating_sub(before),
            written.saturating_sub(before)
        );
        assert!(uploaded <= before + ALLOWED, "upload: {before} to {uploaded}");
        // Besides its buffers: places, hashes of names.
        assert!(validated <= before + 2 * ALLOWED, "validation: {before} to {validated}");
        assert!(written <= before + 2 * ALLOWED, "output: {before} to {written}");
    });
}

#[test]
fn the_largest_batch_takes_a_few_mebibytes() {
    let dir = tempfile::tempdir().unwrap();
    let output = Command::new(env::current_exe().unwrap())
        .args(["memory::process", "--exact", "--ignored", "--nocapture", "--test-threads=1"])
        .env(DIR, dir.path())
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    println!("{said}");
    assert!(output.status.success(), "{said}{}", String::from_utf8_lossy(&output.stderr));
}
