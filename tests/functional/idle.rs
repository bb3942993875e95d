//! Models without requests: they stop after their `idle-timeout`, and make room for others before that.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a failed step of a test is a failed test")]

use omni_control_api::{State, StopReason};
use omni_tests::{Node, NodeBuilder, PATIENCE, under_load, wait_for};
use serde_json::json;

fn code(says: &str) -> String {
    format!(
        "import time\ndef handle_request(request, context):\n    time.sleep(request.body.json or 0)\n    return {says:?}\n"
    )
}

fn manifest(memory: &str, scaling: &str) -> String {
    format!("schema = 1\n[resources]\nmemory = \"{memory}\"\n[scaling]\n{scaling}\n[python]\nzygote = false\n")
}

/// Models of these names, each with its memory and its scaling, on a node of 1 GiB.
fn node(models: &[(&str, &str, &str)]) -> Node {
    let add = |node: NodeBuilder, (name, memory, scaling): &(&str, &str, &str)| {
        node.model(name, &[("model.py", &code("old")), ("omni.toml", &manifest(memory, scaling))])
    };
    models.iter().fold(Node::builder().config("[capacity]\nmemory = \"1GiB\"\n"), add).start()
}

fn answers(node: &Node, model: &str, expected: &str) {
    let answer = node.http().run(model, &json!(0));
    assert_eq!((answer.status, &answer.json()["result"]), (200, &json!(expected)), "{model}\n{}", node.log());
}

/// The reason why a model's last instance was stopped; all outputs agree on it.
fn stopped(node: &Node, model: &str) -> (StopReason, String) {
    let stop = wait_for("a stop", PATIENCE, || node.model(model).last_stop);
    for command in ["status", "explain"] {
        let told = node.omnictl([command, model]).stdout;
        let line = format!("{}: {}", stop.reason.as_str(), stop.message);
        assert!(told.contains("last stop") && told.contains(&line), "{command}: {told}");
    }
    let logged = format!("the instance stops: {}", stop.message);
    assert!(node.log().lines().any(|line| line.contains(&logged) && line.contains(model)), "{}", node.log());
    (stop.reason, stop.message)
}

/// In the list, of a model without instances.
fn listed(node: &Node, model: &str) -> String {
    let list = node.omnictl(["list"]).stdout;
    list.lines().find(|line| line.starts_with(model)).expect("a row").to_owned()
}

/// The model's own check runs more often than its idle time takes.
#[test]
fn health_checks_do_not_keep_an_idle_model_running() {
    let check = "\ndef healthcheck(context):\n    pass\n";
    let manifest = "schema = 1\n[scaling]\nidle-timeout = \"3s\"\n[timeouts]\nhealthcheck = \"1s\"\n";
    let node = Node::builder()
        .model("checked", &[("model.py", &(code("old") + check)), ("omni.toml", manifest)])
        .model("plain", &[("model.py", &code("old")), ("omni.toml", manifest)])
        .start();
    for model in ["checked", "plain"] {
        answers(&node, model, "old");
    }
    for model in ["checked", "plain"] {
        wait_for("its idle time to end", PATIENCE, || (node.model(model).state == State::Stopped).then_some(()));
        assert_eq!(stopped(&node, model), (StopReason::Idle, "no request for 3s, its `idle-timeout`".to_owned()));
        assert!(listed(&node, model).contains("no request for 3s"), "{}", listed(&node, model));
        answers(&node, model, "old");
    }
    node.stop();
}

#[test]
fn a_new_version_evicts_an_idle_instance_of_another_model() {
    let node = node(&[("a", "340MiB", ""), ("b", "340MiB", ""), ("c", "340MiB", "")]);
    for model in ["a", "b", "c"] {
        answers(&node, model, "old");
    }
    node.publish("c", &[("model.py", &code("new")), ("omni.toml", &manifest("340MiB", ""))]);
    wait_for("the new version", PATIENCE, || {
        let answer = node.http().run("c", &json!(0));
        assert_eq!(answer.status, 200, "{}\n{}", answer.text(), node.log());
        (answer.json()["result"] == json!("new")).then_some(())
    });
    assert_eq!(
        stopped(&node, "a"),
        (StopReason::Displaced, "its room is needed for a new version of c".to_owned()),
        "it was idle longest"
    );
    assert!(listed(&node, "a").contains("its room is needed for a new version of c"), "{}", listed(&node, "a"));
    assert!(node.instance("b").is_some(), "nobody goes in vain");
    node.stop();
}

/// The other model keeps its room, and the version that serves is itself what is idle.
#[test]
fn a_new_version_replaces_an_idle_old_one_in_place() {
    let node = node(&[("kept", "600MiB", "min-instances = 1"), ("app", "300MiB", "")]);
    wait_for("what takes the room", PATIENCE, || node.instance("kept"));
    answers(&node, "app", "old");
    let old = node.model("app").version;
    node.publish("app", &[("model.py", &code("new")), ("omni.toml", &manifest("300MiB", ""))]);
    wait_for("the new version", PATIENCE, || {
        let model = node.model("app");
        (model.state == State::Ready && model.version != old).then_some(())
    });
    answers(&node, "app", "new");
    let (reason, _) = stopped(&node, "app");
    assert_eq!((reason, node.model("app").restarts), (StopReason::Replaced, 0), "{}", node.log());
    assert!(node.instance("kept").is_some());
    node.stop();
}

#[test]
fn a_further_instance_evicts_an_idle_model() {
    let node = node(&[("idle", "500MiB", ""), ("app", "500MiB", "max-instances = 2")]);
    for model in ["idle", "app"] {
        answers(&node, model, "old");
    }
    let http = node.http();
    let statuses = under_load(
        4,
        |_| http.run("app", &json!(0.2)).status,
        |_| {
            wait_for("two instances", PATIENCE, || {
                let ready = |model: omni_control_api::Model| {
                    model.instances.iter().filter(|instance| instance.state == State::Ready).count()
                };
                (ready(node.model("app")) == 2).then_some(())
            });
        },
    );
    assert!(statuses.iter().flatten().all(|status| *status == 200), "{statuses:?}");
    assert_eq!(
        stopped(&node, "idle"),
        (StopReason::Displaced, "its room is needed for a further instance of app".to_owned())
    );
    node.stop();
}

#[test]
fn a_stop_by_hand_is_reported_as_such() {
    let node = node(&[("app", "300MiB", "")]);
    answers(&node, "app", "old");
    assert_eq!(node.omnictl(["stop", "app", "--wait"]).code, 0);
    assert_eq!(stopped(&node, "app"), (StopReason::Held, "by hand: `omnictl stop`".to_owned()));
    assert!(listed(&node, "app").contains("stopped by hand"), "{}", listed(&node, "app"));
    node.stop();
}
