//! Starting and stopping a model over and over leaves nothing: no descriptor, mount, control group, process, file.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a failed step of a test is a failed test")]

use nix::unistd::Pid;
use omni_tests::process::descriptors;
use omni_tests::{Node, PATIENCE, rounds, wait_for};
use serde_json::json;
use std::fs;
use std::time::{Duration, Instant};

const MODEL: &str = r#"
import os

def handle_request(request, context):
    with open(os.path.join(context.cache_dir, "kept"), "a") as file:
        file.write("x")
    return os.path.getsize(file.name)
"#;

/// All that a node has while no model runs.
#[derive(Debug, PartialEq)]
struct Belongings {
    scheduler: Vec<String>,
    launcher: Vec<String>,
    threads: [usize; 2],
    mounts: [usize; 2],
    traces: Vec<String>,
    found: Vec<String>,
}

impl Belongings {
    fn of(node: &Node) -> Self {
        let (scheduler, launcher) = (node.pid(), node.launcher().expect("a launcher"));
        Self {
            scheduler: descriptors(scheduler),
            launcher: descriptors(launcher),
            threads: [scheduler, launcher].map(|pid| count(pid, "task")),
            mounts: [scheduler, launcher].map(mounts),
            traces: node.traces(),
            found: node.found(),
        }
    }
}

fn count(pid: Pid, part: &str) -> usize {
    fs::read_dir(format!("/proc/{pid}/{part}")).unwrap().count()
}

/// Other tests mount things meanwhile: only those of nodes count.
fn mounts(pid: Pid) -> usize {
    let mounts = fs::read_to_string(format!("/proc/{pid}/mountinfo")).unwrap();
    mounts.lines().filter(|line| line.contains("fuse") || line.contains("/omni")).count()
}

#[test]
fn cycles_leave_nothing() {
    let node = Node::builder().model("cycle", &[("model.py", MODEL)]).start();
    let mut cold: Vec<Duration> = Vec::new();
    let cycle = |number: usize| {
        assert_eq!(node.omnictl(["start", "cycle", "--wait"]).code, 0, "{}", node.log());
        let model = node.model("cycle");
        assert_eq!((model.restarts, &model.last_exit), (0, &None), "{}", node.log());
        let answer = node.http().post("/ai/run/cycle", &json!({}));
        assert_eq!(answer.json()["result"], number, "the cache lasts\n{}", node.log());
        assert_eq!(node.omnictl(["stop", "cycle", "--wait"]).code, 0, "{}", node.log());
    };
    cycle(1);
    let settled = || {
        let one = Belongings::of(&node);
        (one.traces.is_empty() && one.found.iter().all(|line| !line.ends_with("/model"))).then_some(one)
    };
    let before = wait_for("the first cycle to end", PATIENCE, settled);
    for number in 2..rounds(1000) + 2 {
        let begun = Instant::now();
        cycle(number);
        cold.push(begun.elapsed());
    }
    let mut after = Belongings::of(&node);
    let end = Instant::now() + Duration::from_secs(10);
    while after != before && Instant::now() < end {
        after = Belongings::of(&node);
    }
    assert_eq!(after, before, "{}", node.log());
    cold.sort();
    println!("{} cycles, {:?} each at the median", cold.len(), cold[cold.len() / 2]);
    node.stop();
}

#[test]
fn a_request_starts_what_idleness_stopped() {
    let manifest = "schema = 1\n[scaling]\nidle-timeout = \"50ms\"\n";
    let node = Node::builder().model("cycle", &[("model.py", MODEL), ("omni.toml", manifest)]).start();
    let mut cold: Vec<Duration> = Vec::new();
    for number in 1..=rounds(200) {
        let begun = Instant::now();
        let answer = node.http().post("/ai/run/cycle", &json!({}));
        assert_eq!((answer.status, &answer.json()["result"]), (200, &json!(number)), "{}", node.log());
        cold.push(begun.elapsed());
        let stopped = || node.traces().is_empty() && node.engine("cycle").is_none();
        wait_for("idleness to stop it", PATIENCE, || stopped().then_some(()));
    }
    assert_eq!((node.model("cycle").restarts, node.model("cycle").last_exit), (0, None), "{}", node.log());
    cold.sort();
    println!("first answers of a stopped model: {:?} at the median, {:?} at most", cold[cold.len() / 2], cold.last());
    node.stop();
}
