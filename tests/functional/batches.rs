//! Batches over HTTP: their members, what fails alone and what fails together, cancellations, and a takeover.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a failed step of a test is a failed test")]

use nix::sys::signal::{Signal, kill};
use omni_control_api::State;
use omni_tests::{Node, PATIENCE, Stream, under_load, wait_for};
use serde_json::{Value, json};
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;

/// Answers each body with the number of requests of its batch. `hold` runs until its client has gone.
const CODE: &str = r#"
import time
from omni import Response

def handle_batch(requests, context):
    bodies = [request.body.json for request in requests]
    if bodies == ["hold"]:
        while True:
            time.sleep(0.005)
    if "poison" in bodies:
        raise ValueError("moo")
    if "short" in bodies:
        return bodies[1:]
    if "slow" in bodies:
        time.sleep(2)
    if "deaf" in bodies:
        until = time.monotonic() + 20
        while time.monotonic() < until:
            try:
                time.sleep(0.01)
            except BaseException:
                pass
    return [Response.error(422, "no cow") if body == "bad" else [body, len(bodies)] for body in bodies]
"#;
const MANIFEST: &str = "[batching]\nmax = 16\n";

fn node(manifest: &str) -> Node {
    Node::builder().model("cows", &[("model.py", CODE), ("omni.toml", manifest)]).start()
}

/// Sends these bodies while the instance is busy, so that they are one batch. Returns statuses and results.
fn together(node: &Node, bodies: &[Value]) -> Vec<(u16, Value)> {
    let (http, before) = (node.http(), node.model("cows"));
    let hold = http.send("cows", &json!("hold"));
    wait_for("the first call", PATIENCE, || (node.model("cows").in_flight == before.in_flight + 1).then_some(()));
    thread::scope(|scope| {
        let asked: Vec<_> = bodies
            .iter()
            .enumerate()
            .map(|(at, body)| {
                let asked = scope.spawn(move || http.run("cows", body));
                wait_for("the queue", PATIENCE, || (node.model("cows").queued == at as u64 + 1).then_some(()));
                asked
            })
            .collect();
        drop(hold);
        let answers = asked.into_iter().map(|thread| thread.join().unwrap());
        answers.map(|answer| (answer.status, answer.json()["result"].clone())).collect()
    })
}

#[test]
fn requests_that_wait_are_handled_by_one_call() {
    let node = node(MANIFEST);
    assert_eq!(node.http().run("cows", &json!("alone")).json()["result"], json!(["alone", 1]));
    let bodies: Vec<Value> = (0..20).map(|number| json!(number)).collect();
    let answers = together(&node, &bodies);
    for (number, answer) in answers.iter().enumerate() {
        let size = if number < 16 { 16 } else { 4 };
        assert_eq!(*answer, (200, json!([number, size])), "{}", node.log());
    }
    let metrics = node.admin().get("/metrics").text();
    assert!(metrics.contains("omni_batch_requests_count{model=\"cows\"} 2"), "{metrics}");
    assert!(metrics.contains("omni_batch_requests_sum{model=\"cows\"} 20.0"), "{metrics}");
    node.stop();
}

#[test]
fn an_item_fails_alone_and_a_call_fails_all() {
    let node = node(MANIFEST);
    let answers = together(&node, &[json!("a"), json!("bad"), json!("b")]);
    assert_eq!(answers[0], (200, json!(["a", 3])));
    assert_eq!((answers[1].0, answers[2].0), (422, 200));
    let statuses = |answers: Vec<(u16, Value)>| answers.into_iter().map(|(status, _)| status).collect::<Vec<_>>();
    assert_eq!(statuses(together(&node, &[json!("a"), json!("poison"), json!("b")])), [500, 500, 500]);
    assert_eq!(statuses(together(&node, &[json!("short"), json!("b")])), [500, 500]);
    assert_eq!(statuses(together(&node, &[json!("a"), json!("b")])), [200, 200], "and on it goes");
    assert_eq!(node.model("cows").restarts, 0);
    node.stop();
}

#[test]
fn the_request_at_fault_fails_alone_where_batches_are_isolated() {
    let node = node("[batching]\nmax = 16\nisolate = true\n");
    let bodies: Vec<Value> = (0..6).map(|number| if number == 4 { json!("poison") } else { json!(number) }).collect();
    let answers = together(&node, &bodies);
    for (number, (status, result)) in answers.iter().enumerate() {
        if number == 4 {
            assert_eq!(*status, 500);
        } else {
            assert_eq!((*status, &result[0]), (200, &json!(number)));
        }
    }
    node.stop();
}

#[test]
fn a_member_may_leave_and_the_call_ends_when_all_have() {
    let node = node("[batching]\nmax = 16\n[timeouts]\ncancel-grace = \"300ms\"\n");
    let http = node.http();
    let begin = |bodies: [&str; 2]| {
        let hold = http.send("cows", &json!("hold"));
        wait_for("the first call", PATIENCE, || (node.model("cows").in_flight == 1).then_some(()));
        let asked = bodies.map(|body| http.send("cows", &json!(body)));
        wait_for("the queue", PATIENCE, || (node.model("cows").queued == 2).then_some(()));
        drop(hold);
        wait_for("the batch", PATIENCE, || (node.model("cows").in_flight == 2).then_some(()));
        asked
    };
    let [stays, leaves] = begin(["slow", "leaves"]);
    let engine = node.engine("cows").expect("an instance");
    drop(leaves);
    let answer = Stream::read(stays).whole();
    assert_eq!((answer.status, &answer.json()["result"]), (200, &json!(["slow", 2])), "{}", node.log());
    assert_eq!(node.model("cows").restarts, 0, "a call for others is not stuck");
    let [one, other] = begin(["deaf", "x"]);
    drop((one, other));
    wait_for("another instance", PATIENCE, || node.engine("cows").filter(|now| *now != engine));
    assert_eq!(http.run("cows", &json!("after")).json()["result"], json!(["after", 1]));
}

#[test]
fn a_model_without_a_handler_of_batches_is_refused() {
    let code = "def handle_request(request, context):\n    return 1\n";
    let node = Node::builder().model("single", &[("model.py", code), ("omni.toml", MANIFEST)]).start();
    assert_eq!(node.http().run("single", &json!(1)).status, 503);
    let model = node.model("single");
    assert_eq!(model.state, State::Failed);
    assert!(model.message.as_deref().unwrap_or_default().contains("no `handle_batch`"), "{:?}", model.message);
    node.stop();
}

#[test]
fn a_batch_is_lost_with_its_instance_and_the_queue_is_not() {
    let node = node(MANIFEST);
    let http = node.http();
    assert_eq!(http.run("cows", &json!(0)).status, 200);
    let [one, other] = [http.send("cows", &json!("slow")), http.send("cows", &json!("x"))];
    wait_for("both", PATIENCE, || {
        let model = node.model("cows");
        (model.in_flight + model.queued == 2).then_some(())
    });
    kill(node.engine("cows").unwrap(), Signal::SIGKILL).unwrap();
    let statuses = [one, other].map(|asked| Stream::read(asked).whole().status);
    assert!(statuses.contains(&502) || statuses.contains(&500), "{statuses:?}: what had begun has failed");
    assert_eq!(http.run("cows", &json!("after")).json()["result"], json!(["after", 1]));
    node.stop();
}

/// Streams of a batch: each client gets its own pieces.
#[test]
fn a_generator_of_lists_is_a_stream_for_each() {
    let code = "\
def handle_batch(requests, context):
    for step in range(3):
        yield [f'{request.body.json}{step} of {len(requests)}' for request in requests]
";
    let node = Node::builder().model("steps", &[("model.py", code), ("omni.toml", MANIFEST)]).start();
    let http = node.http();
    assert_eq!(http.stream("steps", &json!("a")).events().len(), 4);
    thread::scope(|scope| {
        let asked: Vec<_> =
            (0..8).map(|number| scope.spawn(move || (number, http.stream("steps", &json!(number)).events()))).collect();
        for (number, events) in asked.into_iter().map(|thread| thread.join().unwrap()) {
            let own = events.iter().filter(|event| event.contains(&format!("\"{number}"))).count();
            assert_eq!((own, events.len()), (3, 4), "{events:?}");
        }
    });
    node.stop();
}

/// Clients in a closed loop while other schedulers take over.
#[test]
fn no_request_is_lost_or_mixed_up_in_a_takeover() {
    let mut node = node(MANIFEST);
    let (http, next) = (node.http(), AtomicU64::new(0));
    assert_eq!(http.run("cows", &json!(0)).status, 200);
    let ask = |_| {
        let own = next.fetch_add(1, Ordering::Relaxed);
        (own, http.run("cows", &json!(own)))
    };
    let asked = under_load(12, ask, |more| {
        for _ in 0..2 {
            more();
            node.upgrade();
            let is_ready = || (node.admin().get("/readyz").status == 200).then_some(());
            wait_for("the successor to be ready", PATIENCE, is_ready);
        }
        more();
    });
    let mut together = 0;
    for (own, answer) in asked.into_iter().flatten() {
        let result = &answer.json()["result"];
        assert_eq!((answer.status, &result[0]), (200, &json!(own)), "{}", answer.text());
        let size = result[1].as_u64().unwrap();
        assert!(size <= 16);
        together += u64::from(size > 1);
    }
    assert!(together > 0, "clients in a closed loop share calls");
    node.stop();
}
