//! Cards full of idle models: their places go to starting models, to further instances and to new versions.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a failed step of a test is a failed test")]

use omni_control_api::{State, StopReason};
use omni_tests::gpu::{ask, card, model, on_card, place};
use omni_tests::{Node, PATIENCE, under_load, wait_for};
use serde_json::json;

/// Asserts that a model's place went to another one, for this purpose, in all outputs.
fn displaced(node: &Node, name: &str, what_for: &str) {
    let stop = wait_for("a stop", PATIENCE, || node.model(name).last_stop);
    let message = format!("its place on a card is needed for {what_for}");
    assert_eq!((stop.reason, &stop.message), (StopReason::Displaced, &message), "{}", node.log());
    for command in ["status", "explain"] {
        let told = node.omnictl([command, name]).stdout;
        assert!(told.contains(&message), "{command}: {told}");
    }
    let logged = format!("the instance stops: {message}");
    assert!(node.log().lines().any(|line| line.contains(&logged) && line.contains(name)), "{}", node.log());
    assert!(place(node, name).is_none());
    assert_eq!((node.model(name).restarts, node.model(name).state), (0, State::Stopped), "{}", node.log());
}

/// A version of it is ready that was not before.
fn replaced(node: &Node, name: &str, before: Option<&String>) {
    wait_for("the new version", PATIENCE, || {
        let found = node.model(name);
        (found.state == State::Ready && found.version.as_ref() != before).then_some(())
    });
    ask(node, name);
}

#[test]
fn a_starting_model_takes_the_place_of_the_longest_idle_one() {
    let node = Node::builder().gpus(&[card(512)], "memory-budget = \"64MiB\"\novercommit = 1.5").start();
    for (name, weights) in [("one", 48), ("two", 48), ("third", 16)] {
        model(name, weights).publish(&node);
        ask(&node, name);
    }
    displaced(&node, "one", "the first instance of third");
    assert_eq!(on_card(&node, "third"), 16);
    ask(&node, "two");
    ask(&node, "one");
    node.stop();
}

#[test]
fn memory_that_cannot_move_makes_room_while_its_model_is_idle() {
    let node = Node::builder().gpus(&[card(512)], "memory-budget = \"64MiB\"").start();
    model("stays", 40).device().publish(&node);
    model("moves", 32).publish(&node);
    ask(&node, "stays");
    ask(&node, "moves");
    displaced(&node, "stays", "the first instance of moves");
    node.stop();
}

#[test]
fn a_further_instance_takes_the_place_of_an_idle_model() {
    let node = Node::builder().gpus(&[card(512)], "memory-budget = \"64MiB\"\novercommit = 1.0").start();
    model("other", 32).publish(&node);
    ask(&node, "other");
    model("app", 32).manifest("[scaling]\nmax-instances = 2\n").publish(&node);
    ask(&node, "app");
    let http = node.http();
    let answers = under_load(
        4,
        |_| http.run("app", &json!("import time; time.sleep(0.2)")).status,
        |_| {
            let two = || node.model("app").instances.iter().filter(|one| one.state == State::Ready).count() == 2;
            wait_for("a second instance", PATIENCE, || two().then_some(()));
        },
    );
    assert!(answers.iter().flatten().all(|status| *status == 200), "{answers:?}");
    displaced(&node, "other", "a further instance of app");
    node.stop();
}

#[test]
fn a_new_version_takes_the_place_of_an_idle_model() {
    let node = Node::builder().gpus(&[card(512)], "memory-budget = \"64MiB\"\novercommit = 1.0").start();
    for name in ["other", "app"] {
        model(name, 32).publish(&node);
        ask(&node, name);
    }
    let old = node.model("app").version;
    model("app", 24).publish(&node);
    replaced(&node, "app", old.as_ref());
    displaced(&node, "other", "a new version of app");
    node.stop();
}

/// The other model keeps its place, and the version that serves is itself what is idle.
#[test]
fn a_new_version_takes_the_place_of_its_idle_predecessor() {
    let node = Node::builder().gpus(&[card(512)], "memory-budget = \"64MiB\"\novercommit = 1.0").start();
    model("kept", 32).manifest("[scaling]\nmin-instances = 1\n").publish(&node);
    ask(&node, "kept");
    model("app", 32).publish(&node);
    ask(&node, "app");
    let old = node.model("app").version;
    model("app", 24).publish(&node);
    replaced(&node, "app", old.as_ref());
    assert_eq!(node.model("app").restarts, 0, "{}", node.log());
    assert!(place(&node, "kept").is_some());
    node.stop();
}

/// An instance that a scheduler before this one started makes room like any other.
#[test]
fn an_adopted_instance_makes_room() {
    let config = "memory-budget = \"64MiB\"\novercommit = 1.0";
    let mut node = Node::builder().hold_listeners().gpus(&[card(512)], config).start();
    for name in ["first", "second"] {
        model(name, 48).publish(&node);
    }
    ask(&node, "first");
    node.crash();
    node.start_again();
    wait_for("its adoption", PATIENCE, || place(&node, "first"));
    ask(&node, "second");
    displaced(&node, "first", "the first instance of second");
    node.stop();
}
