//! A node whose `[capacity]` is less than its models ask for: evictions, kept instances, and the messages about both.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a failed step of a test is a failed test")]

use omni_control_api::State;
use omni_tests::{Node, NodeBuilder, PATIENCE, under_load, wait_for};
use serde_json::json;

/// Answers after so many seconds.
const CODE: (&str, &str) = (
    "model.py",
    "import time\ndef handle_request(request, context):\n    time.sleep(request.body.json or 0)\n    return context.instance\n",
);

/// Models of these names, each with its memory and its scaling, on a node of 1 GiB. No zygote has a part of it.
fn node(models: &[(&str, &str, &str)]) -> Node {
    let add = |node: NodeBuilder, (name, memory, scaling): &(&str, &str, &str)| {
        let manifest =
            format!("schema = 1\n[resources]\nmemory = \"{memory}\"\n[scaling]\n{scaling}\n[python]\nzygote = false\n");
        node.model(name, &[CODE, ("omni.toml", &manifest)])
    };
    models.iter().fold(Node::builder().config("[capacity]\nmemory = \"1GiB\"\n"), add).start()
}

fn ready(node: &Node, model: &str) -> usize {
    node.model(model).instances.iter().filter(|instance| instance.state == State::Ready).count()
}

#[test]
fn the_longest_idle_model_is_evicted_for_another() {
    let node = node(&[("a", "400MiB", ""), ("b", "400MiB", ""), ("c", "400MiB", "")]);
    let ask = |model: &str| {
        let answer = node.http().run(model, &json!(0));
        assert_eq!(answer.status, 200, "{model}: {}\n{}", answer.text(), node.log());
        wait_for("it to be idle", PATIENCE, || (node.model(model).in_flight == 0).then_some(()));
    };
    ["a", "b", "a"].into_iter().for_each(ask);
    // Two have room. Each gets requests, the least recently used one is evicted, and the other one stays as it is.
    for (asked, goes, stays) in [("c", "b", "a"), ("b", "a", "c"), ("a", "c", "b")] {
        let kept = node.engine(stays).expect("an engine");
        ask(asked);
        assert!(node.instance(goes).is_none(), "{goes} makes room for {asked}\n{}", node.log());
        assert_eq!(node.engine(stays), Some(kept), "{stays} was in work later than {goes}");
    }
    for model in node.models() {
        assert_eq!((model.restarts, &model.last_exit), (0, &None), "{}: nobody's failure", model.name);
    }
    node.stop();
}

#[test]
fn min_instances_are_never_evicted_for_others() {
    let node = node(&[("kept", "600MiB", "min-instances = 1"), ("other", "600MiB", "")]);
    wait_for("its instance", PATIENCE, || (ready(&node, "kept") == 1).then_some(()));
    let engine = node.engine("kept").expect("an engine");
    let refused = node.http().run("other", &json!(0));
    assert_eq!((refused.status, refused.error_code()), (503, Some(3040)), "{}", node.log());
    let why = node.model("other").message.unwrap_or_default();
    assert!(why.contains("it may use 600MiB, 424MiB are free"), "{why}");
    assert_eq!(node.engine("kept"), Some(engine));
    // Without it there is room.
    assert_eq!(node.omnictl(["stop", "kept", "--wait"]).code, 0);
    let answered = || node.http().run("other", &json!(0)).status == 200;
    wait_for("an answer", PATIENCE, || answered().then_some(()));
    node.stop();
}

#[test]
fn a_further_instance_without_room_reports_the_reason_until_it_starts() {
    const WHY: &str = "the node is full: it may use 300MiB, 124MiB are free";
    let node = node(&[("kept", "600MiB", "min-instances = 1"), ("app", "300MiB", "max-instances = 3")]);
    wait_for("what takes the room", PATIENCE, || (ready(&node, "kept") == 1).then_some(()));
    let explained = || {
        let explained = node.omnictl(["explain", "app"]);
        assert_eq!(explained.code, 0, "{explained:?}");
        explained.stdout
    };
    let http = node.http();
    let answers = under_load(
        6,
        |_| http.run("app", &json!(0.2)).status,
        |_| {
            let shortage = wait_for("the reason", PATIENCE, || Some(explained()).filter(|text| text.contains(WHY)));
            assert!(shortage.contains("1 ready, 0 starting or ending"), "{shortage}");
            assert_eq!(node.model("app").message, None, "the model does well");
            assert_eq!(node.omnictl(["stop", "kept"]).code, 0);
            wait_for("three instances", PATIENCE, || (ready(&node, "app") == 3).then_some(()));
            assert!(!explained().contains("message"), "{}", explained());
        },
    );
    assert!(answers.iter().flatten().all(|status| *status == 200), "{answers:?}");
    node.stop();
}
