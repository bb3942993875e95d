//! The process of the store is killed again and again while it works through a batch.

use crate::support::{MODEL, OWNER, START, World, inconsistencies, lines, response, runtime};
use omni_jobs::{BatchId, JobStore, Limits, Recorded, Scope};
use std::collections::BTreeMap;
use std::env;
use std::fs::{File, OpenOptions};
use std::io::Write;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

const DIR: &str = "OMNI_TEST_JOBS_DIR";
const BATCH: &str = "OMNI_TEST_JOBS_BATCH";
const WORK: &str = "OMNI_TEST_JOBS_WORK_US";
const IN_FLIGHT: u32 = 16;

/// The process that is killed: works through a batch, and writes down each execution and each acknowledged result.
#[test]
#[ignore = "a process for the tests below, which start it"]
fn executor() {
    let (dir, work) = (env::var_os(DIR).unwrap(), env::var(WORK).unwrap().parse().unwrap());
    let id = BatchId::parse(&env::var(BATCH).unwrap()).unwrap();
    let store = JobStore::open(Path::new(&dir), Limits::default(), START).unwrap();
    let log = Arc::new(open_log(Path::new(&dir)));
    tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_time().build().unwrap().block_on(async {
        let mut changes = store.changes();
        loop {
            store.tend(START).await.unwrap();
            let claims = store.claim(id, MODEL, IN_FLIGHT).await.unwrap();
            if claims.is_empty() {
                if store.batch(Scope::Node, id).await.unwrap().phase.is_over() {
                    return;
                }
                changes.changed().await.unwrap();
                continue;
            }
            let execute = claims.into_iter().map(|mut claim| {
                let log = Arc::clone(&log);
                tokio::spawn(async move {
                    let item = claim.item();
                    say(&log, &format!("run {item}\n"));
                    tokio::time::sleep(Duration::from_micros(work)).await;
                    assert_eq!(claim.complete(response(item, 200), START).await.unwrap(), Recorded::First);
                    say(&log, &format!("stored {item}\n"));
                })
            });
            for task in execute.collect::<Vec<_>>() {
                task.await.unwrap();
            }
        }
    });
}

fn open_log(dir: &Path) -> File {
    OpenOptions::new().create(true).append(true).open(dir.join("log")).unwrap()
}

/// A line in one call, which a kill does not divide.
fn say(mut log: &File, line: &str) {
    assert_eq!(log.write(line.as_bytes()).unwrap(), line.len());
}

struct Plan {
    items: u32,
    /// Time that an item takes.
    work: Duration,
    /// Shortest and longest life of a process.
    life: [Duration; 2],
}

/// Works through a batch in processes that are killed, and checks its output. Returns the kills and the executions.
fn work_through(plan: &Plan) -> (u32, u32) {
    let world = World::new(Limits::default());
    let batch = world.create(world.upload(lines(plan.items).as_bytes()));
    let World { store, dir, .. } = world;
    drop(store);
    let mut kills = 0;
    loop {
        let mut child = Command::new(env::current_exe().unwrap())
            .args(["killed::executor", "--exact", "--ignored", "--nocapture", "--test-threads=1"])
            .env(DIR, dir.path())
            .env(BATCH, batch.id.to_string())
            .env(WORK, plan.work.as_micros().to_string())
            .stdout(std::process::Stdio::null())
            .spawn()
            .unwrap();
        let [shortest, longest] = plan.life.map(|life| u64::try_from(life.as_micros()).unwrap());
        thread::sleep(Duration::from_micros(fastrand::u64(shortest..=longest)));
        if let Some(status) = child.try_wait().unwrap() {
            assert!(status.success(), "{status}");
            break;
        }
        child.kill().unwrap();
        child.wait().unwrap();
        kills += 1;
    }
    let executed = check_log(&std::fs::read_to_string(dir.path().join("log")).unwrap(), plan.items);

    assert_eq!(inconsistencies(dir.path()), [""; 0]);
    let store = JobStore::open(dir.path(), Limits::default(), START).unwrap();
    let world = World::of(store, runtime(), dir);
    let batch = world.wait(world.store.batch(Scope::Owner(OWNER), batch.id)).unwrap();
    assert_eq!((batch.status().name(), batch.counts.completed), ("completed", u64::from(plan.items)));
    assert_eq!((batch.usage.input, batch.error), (3 * u64::from(plan.items), None));
    let output = world.output(batch.output);
    assert_eq!(output.len(), plan.items as usize);
    for (item, (name, line)) in (0..).zip(output) {
        assert_eq!((name, &line["response"]["body"]["item"]), (format!("item-{item}"), &serde_json::json!(item)));
    }
    (kills, executed)
}

/// Checks that nothing was executed after its result was acknowledged, and everything at least once; returns the number
/// of executions.
fn check_log(log: &str, items: u32) -> u32 {
    let mut stored: BTreeMap<u32, bool> = BTreeMap::new();
    let mut executed = 0;
    for line in log.lines() {
        let (what, item) = line.split_once(' ').unwrap();
        let item = item.parse().unwrap();
        if what == "run" {
            executed += 1;
            assert_ne!(stored.insert(item, false), Some(true), "item {item} had its result");
        } else {
            stored.insert(item, true);
        }
    }
    assert_eq!(stored.len(), items as usize);
    executed
}

fn is_soak() -> bool {
    env::var_os("OMNI_SOAK").is_some_and(|value| value == "1")
}

#[test]
fn every_item_has_one_result_in_processes_killed_at_any_moment() {
    let items = if is_soak() { 20_000 } else { 1000 };
    let life = [Duration::from_millis(15), Duration::from_millis(100)];
    let (kills, executed) = work_through(&Plan { items, work: Duration::from_micros(500), life });
    println!("{items} items, {kills} kills, {} executed again", executed - items);
    assert!(kills > 0 && executed >= items);
}

#[test]
fn ten_thousand_items_in_processes_killed_every_two_seconds() {
    if !is_soak() {
        return;
    }
    let life = [Duration::from_secs(2); 2];
    let (kills, executed) = work_through(&Plan { items: 10_000, work: Duration::from_millis(50), life });
    println!("10000 items, {kills} kills, {} executed again", executed - 10_000);
    assert!(kills >= 10);
}
