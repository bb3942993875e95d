//! A driver that fails, hangs or is lost, and models that die in the middle of a move: unaffected models go on.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a failed step of a test is a failed test")]

use nix::sys::signal::{Signal, kill};
use omni_control_api::Residency;
use omni_cuda_card::{Faults, Prefetch};
use omni_tests::gpu::{MIB, ask, card, model, on_card, place, slow_moves};
use omni_tests::{Node, PATIENCE, process, wait_for};
use serde_json::json;
use std::thread;

/// Milliseconds of a move: long enough to do something in the middle of it, and half of what it may take.
const SLOW: u64 = 1500;

/// Two models of 40 MiB where 64 may be; both were asked, `one` last.
fn node() -> Node {
    let config = "memory-budget = \"64MiB\"\nquantum = \"50ms\"\nevict-timeout = \"3s\"";
    let node = Node::builder().gpus(&[card(512)], config).start();
    for name in ["one", "two"] {
        model(name, 40).publish(&node);
        ask(&node, name);
    }
    ask(&node, "one");
    node
}

fn set(node: &Node, faults: &Faults) {
    node.cards()[0].set_faults(faults).unwrap();
}

/// Both are served again, whichever was ended, and the ledger is that of two models.
fn both_are_well(node: &Node) {
    for name in ["one", "two", "one"] {
        wait_for("an answer", PATIENCE, || (node.http().run(name, &json!(null)).status == 200).then_some(()));
        ask(node, name);
        assert!(node.cards()[0].state().unwrap().used() <= 64 * MIB);
    }
    assert_eq!((on_card(node, "one"), on_card(node, "two")), (40, 24), "{:?}", node.cards()[0].state());
    assert_eq!(node.gpus().gpus[0].committed_bytes, 80 * MIB);
}

fn ended(node: &Node, name: &str, why: &str) {
    wait_for(why, PATIENCE, || (node.model(name).restarts == 1 && node.log().contains(why)).then_some(()));
}

#[test]
fn memory_that_cannot_be_evicted_costs_its_model_its_place() {
    let node = node();
    set(&node, &Faults { prefetch: Prefetch::Fails(999), ..Faults::default() });
    // The memory of `two` comes by faults, once the room is there: slow, and right. The successor of `one` then asks for
    // that room, and as long as the driver fails, `two` cannot leave either.
    ask(&node, "two");
    wait_for("its end", PATIENCE, || {
        node.log()
            .contains("could not be moved to the host (CUDA error 999): it was ended\",\"model\":\"one")
            .then_some(())
    });
    assert!(node.cards()[0].state().unwrap().counters.fault_to_device > 0);
    set(&node, &Faults::default());
    both_are_well(&node);
    node.stop();
}

#[test]
fn a_move_that_hangs_costs_its_model_its_place_after_the_timeout() {
    let node = node();
    set(&node, &Faults { prefetch: Prefetch::Hangs, ..Faults::default() });
    thread::scope(|scope| {
        let waits = scope.spawn(|| node.http().run("two", &json!(null)));
        ended(&node, "one", "did not answer a command to move its GPU memory");
        set(&node, &Faults::default());
        let answer = waits.join().unwrap();
        assert_eq!(answer.status, 200, "{}", answer.text());
    });
    both_are_well(&node);
    node.stop();
}

#[test]
fn a_model_that_is_killed_while_its_memory_leaves() {
    let node = node();
    set(&node, &slow_moves(SLOW));
    thread::scope(|scope| {
        let waits = scope.spawn(|| ask(&node, "two"));
        wait_for("the move", PATIENCE, || matches!(place(&node, "one"), Some((Residency::Evicting, _))).then_some(()));
        kill(node.engine("one").unwrap(), Signal::SIGKILL).unwrap();
        waits.join().expect("it is served");
    });
    set(&node, &Faults::default());
    assert_eq!(node.model("two").restarts, 0);
    both_are_well(&node);
    node.stop();
}

#[test]
fn a_model_that_is_killed_while_its_memory_comes_back() {
    let node = node();
    set(&node, &slow_moves(SLOW));
    thread::scope(|scope| {
        let waits = scope.spawn(|| node.http().run("two", &json!(null)));
        wait_for("it", PATIENCE, || matches!(place(&node, "two"), Some((Residency::Restoring, _))).then_some(()));
        kill(node.engine("two").unwrap(), Signal::SIGKILL).unwrap();
        // The request was not handed over yet: the next instance may answer it.
        let answer = waits.join().unwrap();
        assert!([200, 502, 503].contains(&answer.status), "{}", answer.text());
    });
    set(&node, &Faults::default());
    assert_eq!(node.model("one").restarts, 0);
    both_are_well(&node);
    node.stop();
}

/// A model whose memory may be evicted does not get its own `healthcheck`: the order to restore finds out.
#[test]
fn a_model_that_hangs_while_its_memory_is_away_is_replaced_when_it_is_asked() {
    let node = node();
    // `two` was asked before: a part of its memory is away.
    process::stop(node.engine("two").unwrap());
    thread::scope(|scope| {
        let waits = scope.spawn(|| node.http().run("two", &json!(null)));
        ended(&node, "two", "did not answer a command to move its GPU memory");
        // The request was not handed over yet: the next instance may answer it.
        let answer = waits.join().unwrap();
        assert!([200, 502, 503].contains(&answer.status), "{}", answer.text());
    });
    assert_eq!(node.model("one").restarts, 0);
    both_are_well(&node);
    node.stop();
}

#[test]
fn a_request_that_goes_away_while_memory_moves_leaves_everything_in_order() {
    let node = node();
    set(&node, &slow_moves(SLOW));
    for _ in 0..3 {
        let gone = node.http().send("two", &json!(null));
        wait_for("the move", PATIENCE, || {
            (!matches!(place(&node, "one"), Some((Residency::Resident, _)))).then_some(())
        });
        drop(gone);
        ask(&node, "one");
    }
    set(&node, &Faults::default());
    for name in ["one", "two"] {
        assert_eq!((node.model(name).restarts, node.model(name).in_flight, node.model(name).queued), (0, 0, 0));
    }
    both_are_well(&node);
    node.stop();
}

#[test]
fn an_allocation_that_the_card_refuses_is_the_models_to_handle() {
    let node = node();
    set(&node, &Faults { fail_allocation: 1, ..Faults::default() });
    let code = "release(allocate(4))";
    let refused = node.http().run("one", &json!(code));
    assert_eq!(refused.status, 500, "within its limit or not: {}", refused.text());
    assert!(
        node.omnictl(["logs", "one"]).stdout.contains("cuMemAllocManaged answered 2")
            || node.omnictl(["logs", "one"]).stdout.contains("cuMemAlloc_v2 answered 2")
    );
    ask(&node, "one");
    assert_eq!(node.model("one").restarts, 0);
    both_are_well(&node);
    node.stop();
}

#[test]
fn a_lost_card_ends_its_models_and_not_the_node() {
    let mut node = node();
    let echo = "def handle_request(request, context):\n    return 1\n";
    node.publish("plain", &[("model.py", echo)]);
    wait_for("the model to be seen", PATIENCE, || (node.models().len() == 3).then_some(()));
    set(&node, &Faults { lost: 46, ..Faults::default() });
    wait_for("the node to notice", PATIENCE, || {
        (["one", "two"].iter().all(|name| place(&node, name).is_none())).then_some(())
    });
    for name in ["one", "two"] {
        let answer = node.http().run(name, &json!(null));
        assert_eq!((answer.status, answer.header("x-omni-retry")), (503, Some("other-node")), "{}", answer.text());
        let message = node.model(name).message.unwrap();
        assert!(message.contains("do not answer any more"), "{message}");
    }
    let said = node.omnictl(["gpu"]);
    assert!(format!("{}{}", said.stdout, said.stderr).contains("does not answer"), "{said:?}");
    assert_eq!(node.http().run("plain", &json!(null)).status, 200);
    assert_eq!(node.admin().get("/readyz").status, 200);
    assert!(node.admin().get("/metrics").text().contains("omni_gpu_lost{gpu=\"0\"} 1"));

    // Repaired, it is used again by the next scheduler.
    set(&node, &Faults::default());
    node.crash();
    node.start_again();
    both_are_well(&node);
    node.stop();
}
