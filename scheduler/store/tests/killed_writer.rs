//! Durability of the store, with the writer killed at any point: files are whole, and never older than what was acknowledged.
#![allow(clippy::unwrap_used, reason = "a failed step of a test is a failed test")]

use omni_config::name::ModelName;
use omni_node_protocol::id::SnapshotDigest;
use omni_store::{PersistedState, StateStore, Version};
use std::collections::BTreeMap;
use std::env;
use std::fs;
use std::io::Read;
use std::path::Path;
use std::process::{Command, Stdio};
use std::thread;
use std::time::Duration;

const DIR: &str = "OMNI_TEST_STATE_DIR";
const MODELS: u64 = 5;
/// Longest life of a writer, in microseconds: some files of it, and often the middle of one.
const LIFE: u64 = 60_000;

/// All of it in a soak, a twentieth else.
fn rounds(full: u64) -> u64 {
    if env::var_os("OMNI_SOAK").is_some_and(|value| value == "1") { full } else { full / 20 }
}

fn model(number: u64) -> ModelName {
    format!("@test/model-{}", number % MODELS).parse().unwrap()
}

/// State number `number` of a writer: every field tells the number.
fn lasting(number: u64) -> PersistedState {
    let mut lasting = PersistedState { held: number.is_multiple_of(2), deaths: number, ..PersistedState::default() };
    for first_ready_unix_ms in number..number + number % 10 {
        let snapshot = SnapshotDigest::parse(&format!("{first_ready_unix_ms:064x}")).unwrap();
        let manifest = Some(format!("# {number}\n").repeat(1000));
        lasting.record_ready(Version { snapshot, manifest, first_ready_unix_ms });
    }
    lasting
}

/// The process that is killed: puts one after the other, and says after some which one is written.
#[test]
#[ignore = "a writer for the test below, which starts it"]
fn writer() {
    let dir = env::var_os(DIR).unwrap();
    let (store, found) = StateStore::open(Path::new(&dir)).unwrap();
    let newest = found.values().map(|lasting| lasting.deaths).max().unwrap_or(0);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
    for number in newest + 1.. {
        store.put(&model(number), Some(lasting(number)));
        if number.is_multiple_of(3) {
            runtime.block_on(store.flush());
            println!("\nsettled {number}");
        }
    }
}

#[test]
fn a_writer_killed_at_any_point_leaves_whole_files() {
    let dir = tempfile::tempdir().unwrap();
    let mut known = BTreeMap::new();
    let mut written = 0;
    for round in 0..rounds(1000) {
        let mut writer = Command::new(env::current_exe().unwrap())
            .args(["writer", "--exact", "--ignored", "--nocapture", "--test-threads=1"])
            .env(DIR, dir.path())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        thread::sleep(Duration::from_micros(fastrand::u64(..LIFE)));
        writer.kill().unwrap();
        let mut said = String::new();
        writer.stdout.take().unwrap().read_to_string(&mut said).unwrap();
        writer.wait().unwrap();

        let (store, found) = StateStore::open(dir.path()).unwrap();
        drop(store);
        for (name, found) in &found {
            assert_eq!((name, found), (&model(found.deaths), &lasting(found.deaths)), "round {round}");
        }
        for (name, known) in &known {
            assert!(found.get(name).is_some_and(|found| found.deaths >= *known), "round {round}: {name} is lost");
        }
        // A line that was cut off has no end.
        let settled = said.rsplit('\n').skip(1).find_map(|line| line.strip_prefix("settled ")?.parse::<u64>().ok());
        // State that the previous writer did not reach is unknown to this one.
        let first = known.values().max().map_or(1, |newest| newest + 1);
        for number in settled.iter().flat_map(|last| last.saturating_sub(MODELS - 1).max(first)..=*last) {
            let found = found.get(&model(number)).map(|found| found.deaths);
            assert!(found >= Some(number), "round {round}: {number} was written, and there is {found:?}");
        }
        written += u64::from(settled.is_some());
        known = found.into_iter().map(|(name, found)| (name, found.deaths)).collect();
        let odd = fs::read_dir(dir.path()).unwrap().map(|entry| entry.unwrap().file_name());
        let odd: Vec<_> = odd.filter(|name| !name.to_string_lossy().ends_with(".json")).collect();
        assert!(odd.is_empty(), "round {round}: {odd:?}");
    }
    assert!(written > 0 && known.len() as u64 == MODELS, "the writers wrote: {written}, {known:?}");
}
