//! GPU memory through a whole node: real workers with the shim, real HTTP, the simulated driver.
#![allow(clippy::unwrap_used, reason = "a failed step of a test is a failed test")]

use omni_control_api::Residency;
use omni_tests::gpu::{MIB, PAST_THE_SHIM, card, model, moved, place};
use omni_tests::{Node, PATIENCE, wait_for};
use serde_json::json;

/// Allocates memory in a separate process without the shim: `{child}`.
const CHEAT: &str = r#"
import subprocess, sys

CHILD = {child}
CHILDREN = []


def setup(context):
    command = [sys.executable, "-c", CHILD, str(1536 << 20)]
    child = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    if child.stdout.readline() != b"0\n":
        raise RuntimeError("the child has no memory")
    CHILDREN.append(child)


def handle_request(request, context):
    return 1
"#;

/// 40 MiB of weights, 64 MiB to have.
fn publish(node: &Node, name: &str) {
    model(name, 40).limit(64).publish(node);
}

fn residency(node: &Node, model: &str) -> Option<Residency> {
    place(node, model).map(|(residency, _)| residency)
}

#[test]
fn memory_of_an_idle_model_leaves_the_card_for_another_and_comes_back_for_its_request() {
    let node = Node::builder().gpus(&[card(512)], "memory-budget = \"96MiB\"\nquantum = \"50ms\"").start();
    publish(&node, "first");
    publish(&node, "second");

    let answer = node.http().run("first", &json!("tell(total=memory()[1])"));
    assert_eq!(answer.status, 200, "{}\n{}", answer.text(), node.log());
    assert_eq!(answer.json()["result"]["found"]["total"], 64 * MIB, "it sees its own share");
    assert!(!answer.header("server-timing").unwrap().contains("swap"));
    let card = &node.cards()[0];
    assert_eq!(card.state().unwrap().resident(), 40 * MIB);

    // A start alone needs more than what is left.
    let answer = node.http().run("second", &json!({}));
    assert_eq!(answer.status, 200, "{}\n{}", answer.text(), node.log());
    assert!(card.state().unwrap().counters.prefetch_to_host > 0, "{:?}", card.state());
    assert!(card.state().unwrap().resident() <= 96 * MIB);
    assert_eq!(residency(&node, "first"), Some(Residency::Evicted));

    let answer = node.http().run("first", &json!({}));
    assert_eq!(answer.status, 200, "{}\n{}", answer.text(), node.log());
    assert!(answer.header("server-timing").unwrap().contains("swap;dur="));
    assert_eq!(residency(&node, "first"), Some(Residency::Resident));
    let metrics = node.admin().get("/metrics").text();
    assert!(metrics.contains("omni_gpu_swap_in_seconds_count{model=\"first\"} 1"), "{metrics}");
    assert_eq!(card.state().unwrap().counters.fault_to_device, 0, "nothing came back by faults");

    node.unpublish("first");
    node.unpublish("second");
    wait_for("the card to be empty", PATIENCE, || (card.state().unwrap().used() == 0).then_some(()));
    wait_for("the ledger to be empty", PATIENCE, || (node.gpus().gpus[0].committed_bytes == 0).then_some(()));
}

#[test]
fn a_new_scheduler_adopts_gpu_memory_where_it_is() {
    let mut node = Node::builder().gpus(&[card(512)], "memory-budget = \"96MiB\"").start();
    publish(&node, "first");
    assert_eq!(node.http().run("first", &json!({})).status, 200, "{}", node.log());
    let (engine, moves) = (node.engine("first"), moved(&node));
    assert!(engine.is_some());
    node.crash();
    node.start_again();
    let known = || node.gpus().gpus.iter().any(|gpu| gpu.resident_bytes == 40 * MIB).then_some(());
    wait_for("what it has to be known", PATIENCE, known);
    assert_eq!(residency(&node, "first"), Some(Residency::Resident));
    assert_eq!(node.gpus().gpus[0].committed_bytes, 64 * MIB);
    assert_eq!(node.http().run("first", &json!({})).status, 200, "{}", node.log());
    assert_eq!(moved(&node), moves, "it never left");
    assert_eq!(node.engine("first"), engine, "it was not started again");
}

#[test]
fn a_model_that_no_card_fits_is_refused_and_says_why() {
    let node = Node::builder().gpus(&[card(512)], "memory-budget = \"96MiB\"").start();
    model("large", 4).limit(128).publish(&node);
    for _ in 0..2 {
        let answer = node.http().run("large", &json!({}));
        assert_eq!((answer.status, answer.header("x-omni-retry")), (503, Some("other-node")), "{}", answer.text());
        assert!(answer.header("retry-after").is_some() && answer.text().contains("no GPU that fits"));
    }
    let model = node.model("large");
    assert!(model.message.unwrap().contains("memory-budget"));
    assert_eq!((model.restarts, model.retry_in_seconds), (0, None));
}

#[test]
fn a_node_without_a_gpu_says_why_and_serves_the_rest() {
    let plain = [("model.py", "def handle_request(request, context):\n    return 1\n")];
    let node = Node::builder().config("[gpu]\ndriver-dir = \"/nonexistent\"\n").model("plain", &plain).start();
    model("large", 4).limit(128).publish(&node);
    assert_eq!(node.http().run("plain", &json!({})).status, 200);
    assert_eq!(node.http().run("large", &json!({})).status, 503);
    let said = node.omnictl(["gpu"]);
    assert!(said.code == 0 && said.stderr.contains("libnvidia-ml.so.1"), "{said:?}");
}

#[test]
fn a_model_that_bypasses_the_shim_is_ended() {
    let node = Node::builder().gpus(&[card(4096)], "memory-budget = \"2GiB\"").start();
    let manifest = "schema = 1\n[resources]\ngpu-memory = \"64MiB\"\n";
    let cheat = CHEAT.replace("{child}", &json!(PAST_THE_SHIM).to_string());
    node.publish("cheat", &[("model.py", &cheat), ("omni.toml", manifest)]);
    publish(&node, "honest");
    assert_eq!(node.http().run("honest", &json!({})).status, 200, "{}", node.log());
    let honest = node.engine("honest");
    assert_eq!(node.http().run("cheat", &json!({})).status, 200, "{}", node.log());
    let ended = "omni_gpu_ends_total{reason=\"beyond-limit\"}";
    wait_for("the cheat's end", PATIENCE, || node.admin().get("/metrics").text().contains(ended).then_some(()));
    let died = "omni_instance_restarts_total{model=\"cheat\",reason=\"gpu\"}";
    wait_for("its death", PATIENCE, || node.admin().get("/metrics").text().contains(died).then_some(()));
    assert!(node.log().contains("its processes had 1.5GiB on the GPU"), "{}", node.log());
    assert_eq!(node.engine("honest"), honest);
}
