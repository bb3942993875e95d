//! Replacement of a scheduler: no GPU memory is lost, the next one finds everything where it is, and all models work.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a failed step of a test is a failed test")]

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use omni_control_api::{Residency, State};
use omni_cuda_card::Faults;
use omni_tests::gpu::{MIB, ask, card, instance, model, moved, on_card, place, slow_moves};
use omni_tests::process::is_alive;
use omni_tests::{Node, PATIENCE, SetOnDrop, rounds, wait_for};
use serde_json::json;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;

const MODELS: [&str; 3] = ["a", "b", "c"];

/// Three models of 28 MiB where 64 may be.
fn node() -> Node {
    let config = "memory-budget = \"64MiB\"\nquantum = \"50ms\"\nevict-timeout = \"5s\"";
    let node = Node::builder().hold_listeners().gpus(&[card(512)], config).start();
    for name in MODELS {
        model(name, 28).limit(32).publish(&node);
        ask(&node, name);
    }
    node
}

fn engines(node: &Node) -> [Pid; 3] {
    MODELS.map(|name| node.engine(name).unwrap_or_else(|| panic!("{name} has no process\n{}", node.log())))
}

fn on_cards(node: &Node) -> [u64; 3] {
    MODELS.map(|name| on_card(node, name))
}

/// The new scheduler knows the memory of each model, as the card does.
fn knows(node: &Node, expected: [u64; 3]) {
    let said = || MODELS.map(|name| place(node, name).map_or(u64::MAX, |(_, resident)| resident));
    wait_for(&format!("{expected:?} in the ledger"), PATIENCE, || (said() == expected).then_some(()));
    assert_eq!(on_cards(node), expected);
    let gpu = &node.gpus().gpus[0];
    assert_eq!(gpu.committed_bytes, 96 * MIB);
    for name in MODELS {
        let instance = instance(node, name).unwrap();
        assert_eq!((instance.limit_bytes, instance.allocated_bytes), (32 * MIB, 28 * MIB), "{name}");
    }
}

#[test]
fn memory_stays_in_place_over_a_crash_and_a_handover() {
    let mut node = node();
    for round in 0..rounds(60) {
        // In each round another model is evicted.
        ask(&node, MODELS[round % 3]);
        let (before, have, seen) = (engines(&node), on_cards(&node), moved(&node));
        assert!(have.iter().sum::<u64>() <= 64 && have.contains(&28), "{have:?}");
        if round % 2 == 0 {
            node.crash();
        } else {
            kill(node.pid(), Signal::SIGUSR2).unwrap();
            assert!(node.wait_for_end().success(), "{}", node.log());
        }
        assert_eq!(moved(&node), seen, "nobody is there to move anything");
        node.start_again();
        knows(&node, have);
        assert_eq!(moved(&node), seen, "finding out moves nothing");
        for name in MODELS {
            ask(&node, name);
            assert!(node.cards()[0].state().unwrap().used() <= 64 * MIB);
        }
        assert_eq!(engines(&node), before, "no process was started again\n{}", node.log());
    }
    assert_eq!(node.cards()[0].state().unwrap().counters.fault_to_device, 0);
    assert_eq!(MODELS.map(|name| node.model(name).restarts), [0; 3]);
    node.stop();
}

/// The order of a dead scheduler is carried out, and its answer is dropped.
#[test]
fn a_crash_while_memory_moves() {
    let mut node = node();
    let before = engines(&node);
    for residency in [Residency::Evicting, Residency::Restoring] {
        ask(&node, "a");
        ask(&node, "b");
        node.cards()[0].set_faults(&slow_moves(700)).unwrap();
        let http = node.http();
        let asked = thread::spawn(move || http.send("c", &json!(null)));
        wait_for("the move", PATIENCE, || {
            MODELS.iter().any(|name| place(&node, name).is_some_and(|(now, _)| now == residency)).then_some(())
        });
        node.crash();
        drop(asked.join().unwrap());
        node.start_again();
        for name in ["c", "a", "b"] {
            ask(&node, name);
            assert!(node.cards()[0].state().unwrap().used() <= 64 * MIB);
        }
        node.cards()[0].set_faults(&Faults::default()).unwrap();
        assert_eq!(engines(&node), before, "{residency:?}\n{}", node.log());
        assert_eq!(node.gpus().gpus[0].committed_bytes, 96 * MIB);
    }
    assert_eq!(node.cards()[0].state().unwrap().counters.fault_to_device, 0);
    node.stop();
}

/// Memory in use by requests of the previous scheduler stays on the card until they end, whichever model waits at the
/// next one.
#[test]
fn nothing_is_moved_under_a_request_of_the_previous_scheduler() {
    let config = "memory-budget = \"64MiB\"\nquantum = \"50ms\"";
    let mut node = Node::builder().gpus(&[card(512)], config).start();
    for name in ["other", "slow"] {
        model(name, 40).publish(&node);
        ask(&node, name);
    }
    let (http, before) = (node.http(), node.pid());
    let slow = thread::spawn(move || http.run("slow", &json!(4)));
    wait_for("the slow request to be in work", PATIENCE, || (node.model("slow").in_flight == 1).then_some(()));
    node.upgrade();
    let other = node.http().run("other", &json!(0)).json();
    let slow = slow.join().unwrap().json();
    let (ended, began) = (&slow["result"]["ended"], &other["result"]["began"]);
    assert!(ended.as_f64().unwrap() <= began.as_f64().unwrap(), "{slow} {other}\n{}", node.log());
    assert_eq!((&slow["result"]["whole"], &other["result"]["whole"]), (&json!(true), &json!(true)));
    assert_eq!(node.cards()[0].state().unwrap().counters.fault_to_device, 0);
    // Both go on as before.
    wait_for("the scheduler before to end", PATIENCE, || (!is_alive(before)).then_some(()));
    for name in ["slow", "other", "slow"] {
        ask(&node, name);
        assert!(node.cards()[0].state().unwrap().used() <= 64 * MIB);
    }
    node.stop();
}

/// Clients ask all the time while schedulers are killed; what fails was in flight then, and data stays whole.
#[test]
fn crashes_under_load() {
    let mut node = node();
    let (before, http) = (engines(&node), node.http());
    let (stop, served, failed) = (AtomicBool::new(false), AtomicUsize::new(0), AtomicUsize::new(0));
    let crashes = rounds(60);
    thread::scope(|scope| {
        let stopping = SetOnDrop(&stop);
        for client in 0..4 {
            let (stop, served, failed) = (&stop, &served, &failed);
            scope.spawn(move || {
                for turn in client.. {
                    if stop.load(Ordering::Relaxed) {
                        return;
                    }
                    let head = format!(
                        "POST /ai/run/{} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n",
                        MODELS[turn % 3]
                    );
                    let answer = http.raw(format!("{head}content-length: 4\r\n\r\nnull").as_bytes(), false);
                    let answer = String::from_utf8_lossy(&answer);
                    if answer.starts_with("HTTP/1.1 200 ") {
                        assert!(answer.contains("\"whole\":true"), "{answer}");
                        served.fetch_add(1, Ordering::Relaxed);
                    } else {
                        assert!(answer.is_empty(), "a crash is seen as a closed connection: {answer}");
                        failed.fetch_add(1, Ordering::Relaxed);
                    }
                }
            });
        }
        for _ in 0..crashes {
            let seen = served.load(Ordering::Relaxed);
            wait_for("load", PATIENCE, || (served.load(Ordering::Relaxed) > seen + 10).then_some(()));
            node.crash();
            node.start_again();
        }
        drop(stopping);
    });
    let (served, failed) = (served.into_inner(), failed.into_inner());
    println!("{crashes} crashes, {served} requests served, {failed} cut off");
    assert!(failed <= crashes * 4, "{failed} of {served}");
    assert_eq!(engines(&node), before, "{}", node.log());
    for name in MODELS {
        ask(&node, name);
        assert_eq!((node.model(name).state, node.model(name).restarts), (State::Ready, 0));
    }
    assert!(node.cards()[0].state().unwrap().used() <= 64 * MIB);
    node.stop();
}

#[test]
fn a_model_that_ends_gives_everything_back_and_leaves_nothing() {
    let node = node();
    let traces = node.traces();
    assert_eq!(traces.iter().filter(|name| name.contains("gpu")).count(), 3, "{traces:?}");
    // Stopped, removed, and killed; one of them while its memory is away.
    assert_eq!(node.omnictl(["stop", "a"]).code, 0);
    node.unpublish("b");
    wait_for("their end", PATIENCE, || (place(&node, "a").is_none() && place(&node, "b").is_none()).then_some(()));
    wait_for("the ledger", PATIENCE, || (node.gpus().gpus[0].committed_bytes == 32 * MIB).then_some(()));
    assert_eq!(node.cards()[0].state().unwrap().used(), 28 * MIB);
    kill(node.engine("c").unwrap(), Signal::SIGKILL).unwrap();
    wait_for("the card", PATIENCE, || (node.cards()[0].state().unwrap().used() == 0).then_some(()));
    assert_eq!(node.omnictl(["start", "a", "--wait"]).code, 0);
    ask(&node, "a");
    for name in ["a", "c"] {
        node.unpublish(name);
    }
    wait_for("an empty ledger", PATIENCE, || (node.gpus().gpus[0].committed_bytes == 0).then_some(()));
    wait_for("no trace", PATIENCE, || node.traces().is_empty().then_some(()));
    let state = node.cards()[0].state().unwrap();
    assert_eq!((state.used(), state.processes.len()), (0, 0));
    node.stop();
}
