//! Starting and stopping a model over and over leaves nothing: no descriptor, mount, control group, process, file.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a failed step of a test is a failed test")]

use omni_tests::{Node, PATIENCE, Resources, rounds, wait_for};
use serde_json::json;
use std::time::{Duration, Instant};

const MODEL: &str = r#"
import os

def handle_request(request, context):
    with open(os.path.join(context.cache_dir, "kept"), "a") as file:
        file.write("x")
    return os.path.getsize(file.name)
"#;

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
    let before = Resources::at_rest(&node);
    for number in 2..rounds(1000) + 2 {
        let begun = Instant::now();
        cycle(number);
        cold.push(begun.elapsed());
    }
    before.assert_unchanged(&node);
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
