//! Models that do not fit on the card together and are all asked for without a pause: they take turns.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a failed step of a test is a failed test")]

use omni_tests::gpu::{MIB, ask, card, model, moved, swap};
use omni_tests::{Node, SetOnDrop, rounds, wait_for};
use serde_json::json;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

const QUANTUM: f64 = 0.5;
/// Number of clients that keeps a model's queue from ever being empty: otherwise its turn would end early.
const CLIENTS: usize = 6;

/// A request that was served: which model, and its beginning and end in seconds of the machine's clock.
#[derive(Debug, Clone, Copy)]
struct Served {
    model: usize,
    began: f64,
    ended: f64,
}

/// Asks all models without a pause until each has been in so many turns.
fn contend(node: &Node, models: &[&str], turns: usize) -> Vec<Served> {
    let (stop, served) = (AtomicBool::new(false), Mutex::new(Vec::new()));
    let http = node.http();
    thread::scope(|scope| {
        let stopping = SetOnDrop(&stop);
        let clients: Vec<_> = (0..models.len() * CLIENTS)
            .map(|client| {
                let (stop, served, which) = (&stop, &served, client % models.len());
                scope.spawn(move || {
                    while !stop.load(Ordering::Relaxed) {
                        let answer = http.run(models[which], &json!(0.02));
                        assert_eq!(answer.status, 200, "{}: {}", models[which], answer.text());
                        let result = &answer.json()["result"];
                        assert_eq!(result["whole"], true);
                        let at = |key: &str| result[key].as_f64().expect("a time");
                        served.lock().unwrap().push(Served { model: which, began: at("began"), ended: at("ended") });
                    }
                })
            })
            .collect();
        // Half of the time that a test may take.
        wait_for("turns", Duration::from_secs(120), || {
            assert!(!clients.iter().any(|client| client.is_finished()), "a client has failed\n{}", node.log());
            let so_far = self::turns(served.lock().unwrap().clone());
            let of = |model| so_far.iter().filter(|turn| turn[0].model == model).count();
            (0..models.len()).all(|model| of(model) > turns).then_some(())
        });
        drop(stopping);
        clients.into_iter().for_each(|client| client.join().expect("every request is answered"));
    });
    served.into_inner().unwrap()
}

/// Requests of one model with none of another between them.
fn turns(mut served: Vec<Served>) -> Vec<Vec<Served>> {
    served.sort_unstable_by(|one, other| one.began.total_cmp(&other.began));
    served.chunk_by(|one, next| one.model == next.model).map(<[Served]>::to_vec).collect()
}

#[test]
fn two_models_under_load_take_turns_and_are_never_moved_under_requests() {
    let config = format!("memory-budget = \"64MiB\"\nquantum = \"{}ms\"", QUANTUM * 1000.0);
    let node = Node::builder().gpus(&[card(512)], &config).start();
    for name in ["one", "two"] {
        model(name, 40).publish(&node);
        ask(&node, name);
    }
    let before = moved(&node);
    let served = contend(&node, &["one", "two"], rounds(100));
    let turns = turns(served.clone());
    // The models never run at the same time: one of them would have run without all of its memory.
    for pair in turns.windows(2) {
        let ended = pair[0].iter().map(|served| served.ended).fold(0.0, f64::max);
        assert!(ended <= pair[1][0].began, "{:?} while {:?}", pair[1][0], pair[0].last());
    }
    let counters = node.cards()[0].state().unwrap().counters;
    assert_eq!((counters.fault_to_device, counters.fault_to_host, counters.evicted), (0, 0, 0));
    assert!(moved(&node) > before);
    // No more turns than quanta, which is what the quantum is for; the first and the last are not whole.
    let (first, last) = (served.iter().map(|one| one.began), served.iter().map(|one| one.ended));
    let took = last.fold(0.0, f64::max) - first.fold(f64::MAX, f64::min);
    assert!((turns.len() - 2) as f64 * QUANTUM <= took, "{} turns in {took} seconds", turns.len());
    println!("{} requests in {} turns, {took:.1} s", served.len(), turns.len());
    for name in ["one", "two"] {
        assert_eq!((node.model(name).restarts, node.model(name).queued), (0, 0));
    }
    node.stop();
}

/// A long request is not interrupted for waiting models, and they wait only until it ends.
#[test]
fn a_request_in_flight_keeps_its_memory_past_its_quantum() {
    let node = Node::builder().gpus(&[card(512)], "memory-budget = \"64MiB\"\nquantum = \"50ms\"").start();
    for name in ["long", "short"] {
        model(name, 40).publish(&node);
        ask(&node, name);
    }
    ask(&node, "long");
    let seen = moved(&node);
    thread::scope(|scope| {
        let long = scope.spawn(|| node.http().run("long", &json!(1.5)));
        wait_for("the long one to run", omni_tests::PATIENCE, || (node.model("long").in_flight == 1).then_some(()));
        let short = scope.spawn(|| ask(&node, "short"));
        let long = long.join().unwrap().json()["result"].clone();
        let short = short.join().unwrap().json()["result"].clone();
        assert_eq!((&long["whole"], &short["whole"]), (&json!(true), &json!(true)));
        assert!(long["ended"].as_f64() <= short["began"].as_f64(), "{long} {short}");
    });
    assert!(moved(&node) > seen, "the short one's memory came in the end");
    assert_eq!(node.cards()[0].state().unwrap().counters.fault_to_device, 0);
    assert!(node.cards()[0].state().unwrap().used() <= 64 * MIB);
    node.stop();
}

/// The wait for the card is no idle time: an instance that stopped in it would have to start and wait again.
#[test]
fn a_wait_longer_than_the_idle_timeout_ends_in_an_answer_of_the_same_instance() {
    let node = Node::builder().gpus(&[card(512)], "memory-budget = \"64MiB\"\nquantum = \"50ms\"").start();
    model("long", 40).publish(&node);
    model("waits", 40).manifest("[scaling]\nidle-timeout = \"2s\"\n").publish(&node);
    ask(&node, "long");
    ask(&node, "waits");
    let http = node.http();
    thread::scope(|scope| {
        let long = scope.spawn(|| http.run("long", &json!(4.0)));
        wait_for("the long one to run", omni_tests::PATIENCE, || (node.model("long").in_flight == 1).then_some(()));
        let waits = scope.spawn(|| ask(&node, "waits"));
        let instances = wait_for("a request that waits for the card", omni_tests::PATIENCE, || {
            let model = node.model("waits");
            let waits = model.queued == 1 && model.state == omni_control_api::State::Ready;
            waits.then_some(model.instances)
        });
        let timing = swap(&waits.join().unwrap()).expect("it waited for its memory");
        assert!(timing > 2000.0, "not beyond its idle-timeout: {timing} ms");
        assert_eq!(node.instance("waits").unwrap().id, instances[0].id);
        assert_eq!(long.join().unwrap().status, 200);
    });
    node.stop();
}
