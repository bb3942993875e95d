//! Readers of a model's `/proc/meminfo`: one model's memory is visible to itself and to no neighbour, an open file
//! keeps its text, and no reader is left waiting when the engine or the file's server is killed.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a failed step of a test is a failed test")]

use nix::sys::signal::{Signal, kill};
use omni_control_api::State;
use omni_tests::probe::{self, assert_found, probe};
use omni_tests::process::is_alive;
use omni_tests::{Node, PATIENCE, wait_for};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::fs;

const LARGE: &str = "schema = 1\n[resources]\nmemory = \"7GiB\"\n";
const SMALL: &str = "schema = 1\n[resources]\nmemory = \"256MiB\"\n";
const LARGE_KIB: i64 = 7 << 20;
const SMALL_KIB: i64 = 256 << 10;
const HELD_KIB: i64 = 512 << 10;
/// Tolerated difference of two readings: other allocations, and pages that each CPU has reserved.
const SLACK_KIB: i64 = 48 << 10;

/// The model's `/proc/meminfo`, in kB.
fn look(node: &Node, model: &str) -> BTreeMap<String, i64> {
    let code = "tell(**{line.split(':')[0]: int(line.split()[1]) for line in open('/proc/meminfo')})";
    let number = |(name, value): (String, Value)| (name, value.as_i64().expect("a number"));
    probe(node, model, code).into_iter().map(number).collect()
}

#[test]
fn memory_of_one_model_does_not_reduce_another_models() {
    let node = Node::builder()
        .model("large", &[("model.py", probe::MODEL), ("omni.toml", LARGE)])
        .model("small", &[("model.py", probe::MODEL), ("omni.toml", SMALL)])
        .start();
    let (large, small) = (look(&node, "large"), look(&node, "small"));
    assert_eq!((large["MemTotal"], small["MemTotal"]), (LARGE_KIB, SMALL_KIB));

    // An open file is what it was; one that is opened later is what it is.
    let code = "
with open('/proc/meminfo') as file:
    before = file.read()
    sys.held = bytearray(b'x') * (512 << 20)
    file.seek(0)
    tell(kept=file.read() == before, later=open('/proc/meminfo').read() == before)
";
    assert_found(&node, "large", code, &json!({"kept": true, "later": false}));
    let (holding, beside) = (look(&node, "large"), look(&node, "small"));
    assert!((large["MemFree"] - holding["MemFree"] - HELD_KIB).abs() < SLACK_KIB, "{large:?} {holding:?}");
    assert!((small["MemFree"] - beside["MemFree"]).abs() < SLACK_KIB, "{small:?} {beside:?}");

    // By kind, once the kernel has counted it: memory of programs, and files in memory.
    assert!(probe(&node, "small", "open('/dev/shm/x', 'wb').write(bytes(32 << 20))").is_empty());
    wait_for("what is held, by kind", PATIENCE, || {
        let (large, small) = (look(&node, "large"), look(&node, "small"));
        (large["AnonPages"] >= HELD_KIB && small["Shmem"] >= 32 << 10 && small["Cached"] >= 32 << 10).then_some(())
    });
    for model in ["large", "small"] {
        let seen = look(&node, model);
        let parts: i64 = ["MemFree", "Buffers", "Cached", "SReclaimable"].iter().map(|name| seen[*name]).sum();
        assert!(parts <= seen["MemTotal"], "{model}'s use is not negative: {seen:?}");
        assert!(
            seen["MemFree"] <= seen["MemAvailable"] && seen["MemAvailable"] <= seen["MemTotal"],
            "{model}: {seen:?}"
        );
    }
    // None of it is mounted where the host would see it.
    assert!(!fs::read_to_string("/proc/self/mountinfo").unwrap().contains(" /proc/meminfo "));
    node.stop();
}

/// Four processes that read without end, and report when they have begun.
const READERS: &str = r#"
import subprocess
code = """
import os
open('/proc/meminfo').read()
os.write(1, b'r')
while True:
    open('/proc/meminfo').read()
"""
sys.readers = [subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE) for _ in range(4)]
tell(reading=[reader.stdout.read(1).decode() for reader in sys.readers])
"#;

#[test]
fn readers_end_with_the_engine_and_with_the_server() {
    let node = Node::builder().model("probe", &[("model.py", probe::MODEL), ("omni.toml", SMALL)]).start();
    for (restarts, victim) in [(1, "engine"), (2, "worker")] {
        assert_found(&node, "probe", READERS, &json!({"reading": ["r", "r", "r", "r"]}));
        let engine = node.engine("probe").expect("a process");
        let worker = node.worker(engine).expect("a worker");
        let group = fs::read_to_string(format!("/proc/{engine}/cgroup")).unwrap();
        let members = || {
            let processes = fs::read_dir("/proc").unwrap().flatten();
            let of = |entry: fs::DirEntry| fs::read_to_string(entry.path().join("cgroup")).ok();
            processes.filter_map(of).filter(|of| *of == group).count()
        };
        assert!(members() >= 5, "the engine and its readers");
        kill(if victim == "engine" { engine } else { worker }, Signal::SIGKILL).unwrap();
        wait_for("its instance to end", PATIENCE, || (!is_alive(engine) && !is_alive(worker)).then_some(()));
        // Not even SIGKILL ends a reader that waits for a dead server.
        wait_for(&format!("its readers to end after the {victim}"), PATIENCE, || (members() == 0).then_some(()));
        wait_for("the next instance", PATIENCE, || {
            let model = node.model("probe");
            (model.state == State::Ready && model.restarts == restarts).then_some(())
        });
        assert_eq!(look(&node, "probe")["MemTotal"], SMALL_KIB, "after the {victim}");
    }
    node.stop();
}
