//! Instances from a zygote, through a whole node: they answer, come back, change with their model, and leave nothing.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a failed step of a test is a failed test")]

use nix::sys::signal::{Signal, kill};
use omni_tests::{Node, PATIENCE, rounds, wait_for};
use serde_json::{Value, json};

/// Says whether it was forked, and by which process's child it was preloaded.
const MODEL: &str = r#"
import os, sys
import state

def handle_request(request, context):
    return {"forked": "omni._engine.zygote" in sys.modules, "preloaded": state.pid != os.getpid(), "instance": context.instance}
"#;
/// A module of the model's own.
const STATE: &str = "import os\npid = os.getpid()\n";
const PRELOAD: &str = "schema = 1\n[python]\npreload = [\"state\"]\n";

fn ask(node: &Node) -> Value {
    let answer = node.http().run("m", &json!(null));
    assert_eq!(answer.status, 200, "{}", answer.text());
    answer.json()["result"].clone()
}

fn node(manifest: &str) -> Node {
    Node::builder().model("m", &[("model.py", MODEL), ("state.py", STATE), ("omni.toml", manifest)]).start()
}

#[test]
fn an_instance_that_is_killed_comes_back_from_its_zygote() {
    let node = node(PRELOAD);
    let mut instances = vec![];
    for _ in 0..rounds(40).max(4) {
        let answer = ask(&node);
        assert_eq!((&answer["forked"], &answer["preloaded"]), (&json!(true), &json!(true)));
        instances.push(answer["instance"].clone());
        let engine = node.engine("m").expect("an engine");
        kill(engine, Signal::SIGKILL).unwrap();
        wait_for("its end", PATIENCE, || (node.engine("m") != Some(engine)).then_some(()));
        // Deaths in a row are paused for; what is tried here is the start.
        assert_eq!(node.omnictl(["start", "m", "--wait"]).code, 0);
    }
    instances.dedup();
    assert_eq!(instances.len(), rounds(40).max(4), "each is another one");
    node.stop();
}

#[test]
fn another_version_has_another_zygote() {
    let node = node(PRELOAD);
    assert_eq!(ask(&node)["preloaded"], true);
    let changed = MODEL.replace("{\"forked\"", "{\"version\": 2, \"forked\"");
    node.publish("m", &[("model.py", &changed), ("state.py", STATE), ("omni.toml", PRELOAD)]);
    wait_for("the new version", PATIENCE, || (ask(&node)["version"] == 2).then_some(()));
    assert_eq!(ask(&node)["preloaded"], true);
    node.stop();
}

#[test]
fn a_restarted_launcher_finds_the_zygote_again() {
    let node = node(PRELOAD);
    ask(&node);
    node.replace_launcher(Signal::SIGKILL);
    kill(node.engine("m").expect("an engine"), Signal::SIGKILL).unwrap();
    wait_for("an answer", PATIENCE, || (node.http().run("m", &json!(null)).status == 200).then_some(()));
    assert_eq!(ask(&node)["preloaded"], true);
    node.stop();
}

#[test]
fn a_zygote_is_used_where_the_manifest_asks_for_it() {
    for (manifest, forked) in [
        ("schema = 1\n", false),
        ("schema = 1\n[python]\nzygote = true\n", true),
        ("schema = 1\n[python]\npreload = [\"state\"]\nzygote = false\n", false),
    ] {
        let node = node(manifest);
        assert_eq!(ask(&node)["forked"], forked, "{manifest}");
        node.stop();
    }
}

#[test]
fn a_model_whose_preload_fails_still_answers_and_logs_the_reason() {
    let node = node("schema = 1\n[python]\npreload = [\"not_there\"]\n");
    assert_eq!(ask(&node)["forked"], false);
    let log = node.omnictl(["logs", "m"]).stdout;
    assert!(log.contains("started without the zygote") && log.contains("cannot import not_there"), "{log}");
    node.stop();
}

#[test]
fn an_idle_zygote_counts_and_is_evicted_at_once() {
    let small = format!("{PRELOAD}[resources]\nmemory = \"256MiB\"\n");
    let large = "schema = 1\n[resources]\nmemory = \"600MiB\"\n";
    let plain = "def handle_request(request, context):\n    return context.model\n";
    let node = Node::builder()
        .config("[capacity]\nmemory = \"800MiB\"\n")
        .model("m", &[("model.py", MODEL), ("state.py", STATE), ("omni.toml", &small)])
        .model("large", &[("model.py", plain), ("omni.toml", large)])
        .start();
    let committed = || {
        let metrics = node.admin().get("/metrics").text();
        let line = metrics.lines().find(|line| line.starts_with("omni_capacity_committed{resource=\"memory"));
        line.and_then(|line| line.split(' ').nth(1)?.parse::<f64>().ok()).expect("the metric")
    };
    assert_eq!(ask(&node)["preloaded"], true);
    assert_eq!(node.omnictl(["stop", "m"]).code, 0);
    wait_for("the end of the instance", PATIENCE, || node.instance("m").is_none().then_some(()));
    assert_eq!((node.zygotes(), committed()), (1, f64::from(256 << 20)), "it waits for the next one");

    assert_eq!(node.http().run("large", &json!(null)).status, 200);
    assert_eq!(committed(), f64::from(600 << 20));
    wait_for("the end of the zygote", PATIENCE, || (node.zygotes() == 0).then_some(()));
    assert!(node.log().contains("its room is needed"), "{}", node.log());

    assert_eq!(node.omnictl(["start", "m"]).code, 0);
    assert_eq!(ask(&node)["preloaded"], true, "it was nobody's failure: the next one is made at once");
    node.stop();
}
