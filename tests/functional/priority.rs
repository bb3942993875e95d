//! Which of the requests that wait comes next: `x-omni-priority`, and what a manifest makes of it.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a failed step of a test is a failed test")]

use omni_tests::{Answer, Client, Node, PATIENCE, wait_for};
use std::thread;

/// Says as which request it was served, after so many seconds.
const CODE: (&str, &str) = (
    "model.py",
    "\
import time
served = 0

def handle_request(request, context):
    global served
    time.sleep(request.body.json)
    served += 1
    return served
",
);

fn ask(http: Client, model: &str, priority: &str, seconds: &str) -> Answer {
    let headers = [("content-type", "application/json"), ("x-omni-priority", priority)];
    http.request("POST", &format!("/ai/run/{model}"), &headers, seconds.as_bytes())
}

fn place(answer: &Answer) -> u64 {
    assert_eq!(answer.status, 200, "{}", answer.text());
    answer.json()["result"].as_u64().expect("a number")
}

/// All waiting requests have arrived within the five seconds of the running one: a head start of five seconds is before
/// all without one, and one of nine would be before one of five.
#[test]
fn requests_that_wait_are_served_by_their_priority_as_far_as_the_manifest_allows_it() {
    let node = Node::builder()
        .model("bounded", &[CODE, ("omni.toml", "schema = 1\n[scaling]\npriority = 5\n")])
        .model("equal", &[CODE])
        .start();
    let http = node.http();
    // The places of those that wait, in the order in which they came.
    for (model, expected) in [("bounded", [5, 6, 3, 4]), ("equal", [3, 4, 5, 6])] {
        assert_eq!(place(&ask(http, model, "0", "0")), 1);
        let places = thread::scope(|scope| {
            let first = scope.spawn(move || place(&ask(http, model, "0", "5")));
            wait_for("it to be in work", PATIENCE, || (node.model(model).in_flight == 1).then_some(()));
            let waiting: Vec<_> = (1..)
                .zip(["0", "0", "5", "9"])
                .map(|(count, priority)| {
                    let asked = scope.spawn(move || place(&ask(http, model, priority, "0")));
                    wait_for("it to wait", PATIENCE, || (node.model(model).queued == count).then_some(()));
                    asked
                })
                .collect();
            assert_eq!(first.join().unwrap(), 2);
            waiting.into_iter().map(|asked| asked.join().unwrap()).collect::<Vec<_>>()
        });
        assert_eq!(places, expected, "{model}");
    }
    node.stop();
}
