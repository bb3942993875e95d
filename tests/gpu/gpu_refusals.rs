//! Refused GPU memory: the request is answered at once, the operator gets the reason, and nothing spins.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a failed step of a test is a failed test")]

use omni_control_api::State;
use omni_cuda_card::Settings;
use omni_tests::gpu::{ask, card, model, on_card, place};
use omni_tests::{Answer, Node, PATIENCE, wait_for};
use serde_json::json;

/// Not evicted while idle.
const KEPT: &str = "[scaling]\nmin-instances = 1\n";

/// The request is refused as one that another node may serve; the client learns nothing of this node and its models.
fn refused(node: &Node, name: &str, others: &[&str]) -> Answer {
    let answer = node.http().run(name, &json!(null));
    assert_eq!((answer.status, answer.error_code()), (503, Some(3040)), "{}\n{}", answer.text(), node.log());
    assert_eq!(answer.header("x-omni-retry"), Some("other-node"));
    let after: u64 = answer.header("retry-after").and_then(|after| after.parse().ok()).expect("when to come back");
    assert!((1..=60).contains(&after), "{after}");
    for other in others {
        assert!(!answer.text().contains(other), "{}", answer.text());
    }
    answer
}

fn count(node: &Node, metric: &str) -> f64 {
    let metrics = node.admin().get("/metrics").text();
    metrics.lines().find_map(|line| line.strip_prefix(metric)?.trim().parse().ok()).unwrap_or(0.0)
}

/// Refused requests of a model that was never started leave nothing: no instance, no restart, no process.
fn never_started(node: &Node, name: &str, why: &str) {
    let found = node.model(name);
    assert!(found.message.as_deref().is_some_and(|message| message.contains(why)), "{:?}", found.message);
    assert_eq!((found.restarts, found.instances.is_empty(), found.in_flight, found.queued), (0, true, 0, 0));
    assert!(place(node, name).is_none());
}

#[test]
fn memory_beyond_the_commit_limit_is_refused_until_some_is_freed() {
    let node = Node::builder().gpus(&[card(512)], "memory-budget = \"64MiB\"\novercommit = 1.5").start();
    for name in ["first-tenant", "second-tenant"] {
        model(name, 48).manifest(KEPT).publish(&node);
    }
    model("third-tenant", 16).publish(&node);
    ask(&node, "first-tenant");
    ask(&node, "second-tenant");
    let before = node.log().lines().count();
    for _ in 0..20 {
        refused(&node, "third-tenant", &["first-tenant", "second-tenant"]);
    }
    never_started(&node, "third-tenant", "`overcommit` in [gpu]");
    assert!(count(&node, "omni_gpu_refusals_total{reason=\"committed\"}") <= 20.0, "it does not ask by itself");
    assert!(node.log().lines().count() <= before + 60, "a refusal is no flood of lines");
    ask(&node, "first-tenant");
    node.unpublish("first-tenant");
    wait_for("room", PATIENCE, || place(&node, "first-tenant").is_none().then_some(()));
    wait_for("its start", PATIENCE, || (node.http().run("third-tenant", &json!(null)).status == 200).then_some(()));
    assert_eq!(on_card(&node, "third-tenant"), 16);
    node.stop();
}

#[test]
fn memory_beyond_the_host_budget_is_refused() {
    let config = "memory-budget = \"64MiB\"\nhost-budget = \"32MiB\"";
    let node = Node::builder().gpus(&[card(512)], config).start();
    // 16 MiB do not fit together, and as much more is away while they change places.
    model("one", 40).manifest(KEPT).publish(&node);
    model("two", 40).manifest(KEPT).publish(&node);
    model("three", 16).publish(&node);
    for name in ["one", "two", "one"] {
        ask(&node, name);
    }
    refused(&node, "three", &["one", "two"]);
    never_started(&node, "three", "`host-budget` in [gpu]");
    let gpus = node.gpus();
    assert_eq!((gpus.host_committed_bytes, gpus.host_budget_bytes), (32 << 20, 32 << 20));
    ask(&node, "two");
    node.stop();
}

#[test]
fn a_model_larger_than_the_budget_is_refused_at_once() {
    let node = Node::builder().gpus(&[card(512)], "memory-budget = \"64MiB\"").start();
    model("beside", 64).publish(&node);
    model("large", 65).publish(&node);
    ask(&node, "beside");
    for _ in 0..20 {
        refused(&node, "large", &["beside", "64", "65"]);
    }
    never_started(&node, "large", "memory-budget");
    assert_eq!(node.model("large").retry_in_seconds, None, "nothing will change by itself");
    assert!(count(&node, "omni_gpu_refusals_total{reason=\"too-big\"}") <= 20.0);
    // The author makes it smaller.
    model("large", 60).publish(&node);
    wait_for("the smaller one", PATIENCE, || (node.http().run("large", &json!(null)).status == 200).then_some(()));
    ask(&node, "beside");
    node.stop();
}

/// A model that is kept without requests retries by itself, and the log says so once.
#[test]
fn an_always_on_model_retries_until_there_is_room() {
    let node = Node::builder().gpus(&[card(512)], "memory-budget = \"64MiB\"").start();
    model("stays", 40).device().manifest(KEPT).publish(&node);
    ask(&node, "stays");
    model("kept", 32).manifest(KEPT).publish(&node);
    let tries = || count(&node, "omni_gpu_refusals_total{reason=\"pinned\"}");
    wait_for("its third try", PATIENCE, || (tries() >= 3.0).then_some(()));
    never_started(&node, "kept", "only 24MiB can be made free");
    let said = |state: &str| {
        let log = node.log();
        log.lines().filter(|line| line.contains("kept") && line.contains(&format!("\"to\":\"{state}\""))).count()
    };
    assert_eq!(["preparing", "starting", "failed"].map(said), [1, 1, 1], "{}", node.log());
    node.unpublish("stays");
    // A request does not wait for the model's own next try.
    wait_for("its start", PATIENCE, || (node.http().run("kept", &json!(null)).status == 200).then_some(()));
    assert_eq!((on_card(&node, "kept"), said("ready")), (32, 1), "{}", node.log());
    node.stop();
}

/// `device` memory never leaves: what it and another would need together is not promised.
#[test]
fn device_memory_is_not_promised_twice() {
    let node = Node::builder().gpus(&[card(512)], "memory-budget = \"64MiB\"").start();
    model("stays", 40).device().manifest(KEPT).publish(&node);
    model("moves", 32).publish(&node);
    model("small", 24).publish(&node);
    ask(&node, "stays");
    refused(&node, "moves", &["stays"]);
    never_started(&node, "moves", "only 24MiB can be made free");
    ask(&node, "small");
    ask(&node, "stays");
    assert_eq!((on_card(&node, "stays"), on_card(&node, "small")), (40, 24));
    node.stop();
}

#[test]
fn a_card_without_concurrent_managed_access_serves_device_models_only() {
    let card = Settings { concurrent_managed: false, ..card(512) };
    let node = Node::builder().gpus(&[card], "memory-budget = \"64MiB\"").start();
    model("unified", 16).publish(&node);
    model("device", 16).device().publish(&node);
    refused(&node, "unified", &["device"]);
    never_started(&node, "unified", "concurrent managed access");
    assert!(node.model("unified").message.unwrap().contains("gpu-mode"));
    ask(&node, "device");
    assert_eq!(on_card(&node, "device"), 16);
    node.stop();
}

#[test]
fn a_node_without_a_card_starts_and_says_why() {
    for places in ["driver-dir = \"/nonexistent\"", ""] {
        let echo = "def handle_request(request, context):\n    return 1\n";
        let node = Node::builder().config(&format!("[gpu]\n{places}\n")).model("plain", &[("model.py", echo)]).start();
        model("gpu", 16).publish(&node);
        assert_eq!(node.admin().get("/readyz").status, 200);
        refused(&node, "gpu", &["plain"]);
        never_started(&node, "gpu", "this node has none");
        let said = node.omnictl(["gpu"]);
        assert!(said.code == 0 && said.stderr.contains("no NVIDIA driver can be used"), "{said:?}");
        assert_eq!(node.http().run("plain", &json!(null)).status, 200);
        assert_eq!(node.model("plain").state, State::Ready);
        node.stop();
    }
}
