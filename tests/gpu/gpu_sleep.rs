//! Servers that sleep as tenants of the cards: a double of vLLM, with the faults that are known of the real one.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a failed step of a test is a failed test")]

use omni_tests::gpu::{MIB, card, model, on_card};
use omni_tests::{Answer, Node, PATIENCE, wait_for};
use serde_json::json;

const DOUBLE: &str = include_str!("../clients/vllm/double.py");

/// A server of 40 MiB.
fn publish(node: &Node, name: &str, fault: &str) {
    let manifest = format!(
        "[model]\nkind = \"text-generation\"\n[chat]\nrender = \"model\"\n[runtime]\nengine = \"openai\"\n\
         command = [\"python\", \"double.py\", \"{{socket}}\", \"40\", \"{fault}\"]\n\
         [resources]\nmemory = \"256MiB\"\ngpu-memory = \"40MiB\"\ngpu-mode = \"sleep\"\n[scaling]\nconcurrency = 4\n"
    );
    node.publish(name, &[("double.py", DOUBLE), ("omni.toml", &manifest)]);
    node.await_seen(name);
}

/// A node whose card has room for one of them.
fn node(faults: &[(&str, &str)]) -> Node {
    let config = "memory-budget = \"64MiB\"\nquantum = \"50ms\"\nevict-timeout = \"5s\"";
    let node = Node::builder().gpus(&[card(512)], config).start();
    for (name, fault) in faults {
        publish(&node, name, fault);
    }
    node
}

fn chat(node: &Node, name: &str) -> Answer {
    let messages = json!([{ "role": "user", "content": "hi" }]);
    node.http().post("/v1/chat/completions", &json!({ "model": name, "messages": messages }))
}

/// Asks a server, whose memory is whole.
fn ask(node: &Node, name: &str) {
    let answer = chat(node, name);
    assert_eq!(answer.status, 200, "{name}: {}\n{}", answer.text(), node.log_about(name));
    assert_eq!(answer.json()["choices"][0]["message"]["content"], "whole", "{name}: {}", answer.text());
}

/// Asks a server until it answers; its instance may be on its way out.
fn ask_again(node: &Node, name: &str) {
    wait_for("an answer", PATIENCE, || (chat(node, name).status == 200).then_some(()));
    ask(node, name);
}

fn is_within(node: &Node) {
    let used = node.cards()[0].state().unwrap().used();
    assert!(used <= 64 * MIB, "{} MiB on the card", used / MIB);
}

#[test]
fn servers_sleep_for_each_other_and_for_models_that_are_moved() {
    let node = node(&[("one", "well"), ("two", "lingers")]);
    model("plain", 40).publish(&node);
    for _ in 0..3 {
        for name in ["one", "two"] {
            ask(&node, name);
            is_within(&node);
        }
        omni_tests::gpu::ask(&node, "plain");
        is_within(&node);
    }
    // All of a server leaves, however little is missing.
    assert_eq!((on_card(&node, "one"), on_card(&node, "two")), (0, 0), "{:?}", node.gpus());
    for name in ["one", "two", "plain"] {
        assert_eq!(node.model(name).restarts, 0, "{name}\n{}", node.log_about(name));
    }
    node.stop();
}

/// Graphs and buffers of libraries stay on the card while a server sleeps; and some sleep only when they are told twice.
#[test]
fn a_server_that_keeps_a_little_or_is_told_twice_sleeps() {
    for fault in ["keeps", "again"] {
        let node = node(&[("one", fault), ("two", "well")]);
        for _ in 0..3 {
            for name in ["one", "two"] {
                ask(&node, name);
                is_within(&node);
            }
        }
        assert_eq!(node.model("one").restarts, 0, "{fault}\n{}", node.log_about("one"));
        node.stop();
    }
}

/// An answer is no proof: what is on the card counts.
#[test]
fn a_server_that_does_not_leave_the_card_is_ended() {
    for fault in ["lies", "part", "refuses"] {
        let node = node(&[("one", fault), ("two", "well")]);
        ask(&node, "one");
        ask_again(&node, "two");
        is_within(&node);
        let ended = || node.log().lines().any(|line| line.contains("to the host") && line.contains("it was ended"));
        wait_for("the end of the first", PATIENCE, || ended().then_some(()));
        node.stop();
    }
}

#[test]
fn a_server_that_does_not_wake_up_is_started_again() {
    for (fault, why) in [("drowsy", "the server did not wake up"), ("dies", "the server ended: exit code 3")] {
        let node = node(&[("one", fault), ("two", "well")]);
        ask(&node, "one");
        ask(&node, "two");
        ask_again(&node, "one");
        is_within(&node);
        wait_for("the reason", PATIENCE, || node.log_about("one").contains(why).then_some(()));
        ask_again(&node, "two");
        node.stop();
    }
}

#[test]
fn a_server_that_cannot_sleep_says_what_it_needs() {
    let node = node(&[("one", "none")]);
    assert!(chat(&node, "one").status >= 500);
    let told = node.model("one").message.unwrap_or_default();
    assert!(told.contains("vLLM with `--enable-sleep-mode`"), "{told}");
    node.stop();
}

/// Memory of a server that sleeps is found and given back under the next scheduler, too.
#[test]
fn a_sleeping_server_is_adopted_asleep() {
    let mut node = node(&[("one", "well"), ("two", "well")]);
    ask(&node, "one");
    ask(&node, "two");
    let before = node.instance("one").unwrap().id;
    node.crash();
    node.start_again();
    for name in ["one", "two", "one"] {
        ask_again(&node, name);
        is_within(&node);
    }
    assert_eq!(node.instance("one").unwrap().id, before);
    node.stop();
}
