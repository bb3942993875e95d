//! Effect of a client that hangs up, or is out of time, on the others: none. The handlers here compute in C, where
//! nothing can interrupt them, for as long as their request says.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a failed step of a test is a failed test")]

use omni_tests::{Node, PATIENCE, wait_for};
use serde_json::{Value, json};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

/// Waits for a lock that is never released, in one call into C that no signal ends.
const COMPUTES: &str = r#"
import ctypes
import time

libc = ctypes.CDLL(None)
mutex = ctypes.create_string_buffer(64)
libc.pthread_mutex_lock(mutex)

class Timespec(ctypes.Structure):
    _fields_ = [("seconds", ctypes.c_long), ("nanoseconds", ctypes.c_long)]

def compute(seconds):
    end = time.time() + seconds
    libc.pthread_mutex_timedlock(mutex, ctypes.byref(Timespec(int(end), int(end % 1 * 1e9))))

def handle_request(request, context):
    seconds = request.body.json
    if isinstance(seconds, list):
        return stream(seconds[0])
    if seconds:
        print("began", seconds)
        compute(seconds)
    return context.instance

def stream(seconds):
    yield "first"
    compute(seconds)
    yield "last"
"#;

/// Longer than any test.
const FOR_EVER: u32 = 3600;
const PATIENT: &str = "schema = 1\n[scaling]\nconcurrency = 4\n[timeouts]\ncancel-grace = \"300ms\"\n";

fn instance(node: &Node, model: &str) -> Value {
    let answer = node.http().run(model, &json!(0));
    assert_eq!(answer.status, 200, "{}\n{}", answer.text(), node.log());
    answer.json()["result"].clone()
}

fn began(node: &Node) -> usize {
    node.log().matches("began 3600").count()
}

/// Begins a request that computes for ever, and hangs up its client.
fn hang_up(node: &Node, model: &str) {
    let before = began(node);
    let waiting = node.http().send(model, &json!(FOR_EVER));
    wait_for("the request to begin", PATIENCE, || (began(node) > before).then_some(()));
    drop(waiting);
}

/// Waits until the only instance is a sound one, which is another one than this.
fn await_other(node: &Node, model: &str, than: &Value) {
    wait_for("another instance alone", PATIENCE, || {
        let instances = node.model(model).instances;
        (instances.len() == 1 && json!(instances[0].id) != *than).then_some(())
    });
}

#[test]
fn other_requests_of_an_instance_are_answered_while_it_is_replaced() {
    let node = Node::builder().model("m", &[("model.py", COMPUTES), ("omni.toml", PATIENT)]).start();
    let http = node.http();
    let before = instance(&node, "m");
    thread::scope(|scope| {
        // Requests that outlive the grace and the start of the next instance by far.
        let others: Vec<_> = [5, 6].map(|seconds| scope.spawn(move || http.run("m", &json!(seconds)))).into();
        let streamed = scope.spawn(|| http.stream("m", &json!([6])).events());
        wait_for("three requests", PATIENCE, || (node.model("m").in_flight == 3).then_some(()));
        hang_up(&node, "m");
        for other in others {
            let answer = other.join().unwrap();
            assert_eq!((answer.status, &answer.json()["result"]), (200, &before), "{}", answer.text());
        }
        let events = streamed.join().unwrap();
        assert_eq!(events, [r#"{"response":"first"}"#, r#"{"response":"last"}"#, "[DONE]"]);
    });
    // With the last of them it ends, though the handler is stuck still.
    await_other(&node, "m", &before);
    let model = node.model("m");
    assert_eq!((model.restarts, model.queued), (1, 0));
    let exit = model.last_exit.unwrap_or_default();
    assert!(exit.contains("SIGKILL") && exit.contains("a handler ignored its cancellation"), "{exit}");
    node.stop();
}

#[test]
fn a_handler_that_ends_late_costs_no_other_request() {
    let manifest = "schema = 1\n[scaling]\nconcurrency = 2\n[timeouts]\ncancel-grace = \"100ms\"\n[resources]\nmemory = \"600MiB\"\n[python]\nzygote = false\n";
    // Beside this instance there is no room for another one.
    let room = "[capacity]\nmemory = \"1GiB\"\n";
    let node = Node::builder().config(room).model("m", &[("model.py", COMPUTES), ("omni.toml", manifest)]).start();
    let before = instance(&node, "m");
    let headers = [("x-omni-timeout-ms", "300")];
    thread::scope(|scope| {
        let other = scope.spawn(|| node.http().run("m", &json!(4)).status);
        wait_for("it to begin", PATIENCE, || node.log().contains("began 4").then_some(()));
        let late = node.http().request("POST", "/ai/run/m", &headers, b"2");
        assert_eq!((late.status, late.error_code()), (504, Some(3007)), "{}", late.text());
        assert_eq!(other.join().unwrap(), 200, "{}", node.log());
    });
    wait_for("nothing in flight", PATIENCE, || (node.model("m").in_flight == 0).then_some(()));
    assert_eq!(instance(&node, "m"), before, "it is as good as it was");
    assert_eq!(node.model("m").restarts, 0);
    // A handler that never ends is replaced in place when the instance has no other requests.
    thread::scope(|scope| {
        let other = scope.spawn(|| node.http().run("m", &json!(3.5)).status);
        wait_for("it to begin", PATIENCE, || node.log().contains("began 3.5").then_some(()));
        hang_up(&node, "m");
        assert_eq!(other.join().unwrap(), 200, "{}", node.log());
    });
    await_other(&node, "m", &before);
    assert_ne!(instance(&node, "m"), before);
    node.stop();
}

#[test]
fn ten_hang_ups_in_a_row_cost_other_clients_no_answer() {
    let serial = "schema = 1\n[timeouts]\ncancel-grace = \"100ms\"\n";
    let threads = "schema = 1\n[scaling]\nconcurrency = 4\n[timeouts]\ncancel-grace = \"100ms\"\n";
    let node = Node::builder()
        .model("serial", &[("model.py", COMPUTES), ("omni.toml", serial)])
        .model("threads", &[("model.py", COMPUTES), ("omni.toml", threads)])
        .start();
    for model in ["serial", "threads"] {
        instance(&node, model);
        let ends = AtomicBool::new(false);
        let statuses = thread::scope(|scope| {
            let polite = || {
                let mut statuses = Vec::new();
                while statuses.len() < 5 || !ends.load(Ordering::Relaxed) {
                    statuses.push(node.http().run(model, &json!(0)).status);
                    thread::sleep(Duration::from_millis(20)); // the processors are for the starts
                }
                statuses
            };
            let polite = [scope.spawn(polite), scope.spawn(polite)];
            for _ in 0..10 {
                hang_up(&node, model);
                let late = [("x-omni-timeout-ms", "1")];
                let late = node.http().request("POST", &format!("/ai/run/{model}"), &late, b"3600");
                assert_eq!(late.status, 504, "{}", late.text());
            }
            ends.store(true, Ordering::Relaxed);
            polite.map(|client| client.join().unwrap()).concat()
        });
        assert!(statuses.iter().all(|status| *status == 200), "{model}: {statuses:?}\n{}", node.log());
        wait_for("the end of what is stuck", PATIENCE, || (node.model(model).in_flight == 0).then_some(()));
        assert_eq!(instance(&node, model).as_str().map(str::len), Some(12));
    }
    node.stop();
}
