//! Three models that do not fit on one card together, byte for byte, as the card itself saw it.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a failed step of a test is a failed test")]

use omni_control_api::Residency::{Evicted, Resident};
use omni_cuda_card::Direction::{ToDevice, ToHost};
use omni_tests::gpu::{MIB, ask, card, crossed, model, moved, on_card, place, swap};
use omni_tests::{Node, PATIENCE, wait_for};

const MODELS: [&str; 3] = ["a", "b", "c"];

/// A has 32 MiB, B 40, C 32, and 80 may be on the card.
fn node() -> Node {
    let node = Node::builder().gpus(&[card(512)], "memory-budget = \"80MiB\"\nquantum = \"50ms\"").start();
    for (name, weights) in [("a", 32), ("b", 40), ("c", 32)] {
        model(name, weights).publish(&node);
    }
    node
}

/// Asserts the memory on the card, by the card and by the node.
fn have(node: &Node, expected: [u64; 3]) {
    assert_eq!(MODELS.map(|model| on_card(node, model)), expected, "{:?}", node.cards()[0].state());
    let said = || MODELS.map(|model| place(node, model).map_or(0, |(_, resident)| resident));
    wait_for("the node to say the same", PATIENCE, || (said() == expected).then_some(()));
}

fn metric(node: &Node, line: &str) -> Option<f64> {
    let metrics = node.admin().get("/metrics").text();
    metrics.lines().find_map(|found| found.strip_prefix(line)?.trim().parse().ok())
}

fn is_resident(node: &Node, model: &str) -> bool {
    let capacity = node.admin().get("/capacity").json();
    let found = capacity["models"].as_array().unwrap().iter().find(|one| one["name"] == model).cloned();
    found.expect("every model is there")["resident"].as_bool().unwrap()
}

#[test]
fn three_models_swap_partly_and_back_byte_for_byte() {
    let node = node();
    ask(&node, "b");
    ask(&node, "a");
    have(&node, [32, 40, 0]);
    assert_eq!(crossed(&node, 0, &engines(&node)), []);

    // C lacks 24 MiB to start. B was used before A: so much of it goes to the host, its youngest memory.
    let seen = moved(&node);
    ask(&node, "c");
    assert_eq!(crossed(&node, seen, &engines(&node)), [("b", ToHost, 24)]);
    have(&node, [32, 16, 32]);
    let shown = node.omnictl(["gpu"]).stdout;
    for (model, residency) in [("a", "resident"), ("b", "evicted"), ("c", "resident")] {
        let is_shown = |line: &str| line.split_whitespace().any(|word| word == model) && line.contains(residency);
        assert!(shown.lines().any(is_shown), "{model} {residency}:\n{shown}");
    }
    assert_eq!(MODELS.map(|model| is_resident(&node, model)), [true, false, true]);
    assert_eq!(MODELS.map(|model| place(&node, model).unwrap().0), [Resident, Evicted, Resident]);
    assert_eq!(node.cards()[0].state().unwrap().used(), 80 * MIB);

    // B is asked for. A was used before C.
    let seen = moved(&node);
    let answer = ask(&node, "b");
    assert!(swap(&answer).is_some_and(|millis| millis > 0.0), "{answer:?}");
    assert_eq!(crossed(&node, seen, &engines(&node)), [("a", ToHost, 24), ("b", ToDevice, 24)]);
    have(&node, [8, 40, 32]);

    // A is asked for, and C leaves.
    let seen = moved(&node);
    assert!(swap(&ask(&node, "a")).is_some());
    assert_eq!(crossed(&node, seen, &engines(&node)), [("c", ToHost, 24), ("a", ToDevice, 24)]);
    have(&node, [32, 40, 8]);

    // Both resident models are served without a move and without a reported swap.
    let seen = moved(&node);
    for model in ["a", "b", "b", "a"] {
        assert_eq!(swap(&ask(&node, model)), None);
    }
    assert_eq!(moved(&node), seen);

    let counters = node.cards()[0].state().unwrap().counters;
    assert_eq!((counters.fault_to_device, counters.fault_to_host, counters.evicted), (0, 0, 0));
    assert_eq!((counters.prefetch_to_host, counters.prefetch_to_device), (72 * MIB, 48 * MIB));
    node.stop();
}

#[test]
fn swaps_are_visible_in_metrics() {
    let node = node();
    for model in ["b", "a", "c", "b", "a"] {
        ask(&node, model);
    }
    let mib = |count: u64| Some((count * MIB) as f64);
    for (line, expected) in [
        ("omni_gpu_memory_total_bytes{gpu=\"0\"}", mib(512)),
        ("omni_gpu_memory_budget_bytes{gpu=\"0\"}", mib(80)),
        ("omni_gpu_memory_committed_bytes{gpu=\"0\"}", mib(104)),
        ("omni_gpu_memory_used_bytes{gpu=\"0\"}", mib(80)),
        ("omni_gpu_resident_bytes{model=\"a\"}", mib(32)),
        ("omni_gpu_resident_bytes{model=\"b\"}", mib(40)),
        ("omni_gpu_resident_bytes{model=\"c\"}", mib(8)),
        ("omni_gpu_swap_bytes_total{direction=\"out\"}", mib(72)),
        ("omni_gpu_swap_bytes_total{direction=\"in\"}", mib(48)),
        ("omni_gpu_swap_in_seconds_count{model=\"a\"}", Some(1.0)),
        ("omni_gpu_swap_in_seconds_count{model=\"b\"}", Some(1.0)),
        ("omni_gpu_lost{gpu=\"0\"}", Some(0.0)),
    ] {
        wait_for(line, PATIENCE, || (metric(&node, line) == expected).then_some(()));
    }
    // A removed model holds nothing, and is not listed with its former memory.
    node.unpublish("a");
    wait_for("its place to be free", PATIENCE, || place(&node, "a").is_none().then_some(()));
    assert_eq!(metric(&node, "omni_gpu_resident_bytes{model=\"a\"}"), None);
    wait_for("the ledger", PATIENCE, || {
        (metric(&node, "omni_gpu_memory_committed_bytes{gpu=\"0\"}") == mib(72)).then_some(())
    });
    assert_eq!(on_card(&node, "b") + on_card(&node, "c"), node.cards()[0].state().unwrap().used() / MIB);
    node.stop();
}

fn engines(node: &Node) -> Vec<(&'static str, nix::unistd::Pid)> {
    MODELS.into_iter().filter_map(|model| Some((model, node.engine(model)?))).collect()
}
