//! A model that eats past its memory limit, itself or through a child, ends alone: the neighbour does not notice.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a failed step of a test is a failed test")]

use omni_control_api::State;
use omni_tests::{Node, PATIENCE, SetOnDrop, rounds, wait_for};
use serde_json::json;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

/// Eats more than it has: itself, in a thread's stack of pages, in a child, or in files of its memory file system.
const EATS: &str = r#"
import os, subprocess, sys

def eat():
    return len(bytearray(b"x") * (1 << 30))

def handle_request(request, context):
    how = request.body.json
    if how == "itself":
        return eat()
    if how == "fork":
        child = os.fork()
        if child == 0:
            eat()
            os._exit(0)
        os.waitpid(child, 0)
        return "survived its child"
    if how == "program":
        subprocess.run([sys.executable, "-c", "bytearray(b'x') * (1 << 30)"])
        return "survived its program"
    if how == "files":
        with open("/tmp/eaten", "wb") as file:
            for _ in range(1 << 10):
                file.write(b"x" * (1 << 20))
        return "ate files"
    return "well"
"#;
const MANIFEST: &str = "schema = 1\n[resources]\nmemory = \"64MiB\"\n[limits]\ntmp = \"1GiB\"\n";
const ECHO: &str = "def handle_request(request, context):\n    return request.body.json\n";
/// Requests per second that the neighbour gets.
const RATE: u32 = 200;

#[test]
fn a_model_that_runs_out_of_memory_does_not_disturb_its_neighbour() {
    let node = Node::builder()
        .model("eats", &[("model.py", EATS), ("omni.toml", MANIFEST)])
        .model("neighbour", &[("model.py", ECHO)])
        .start();
    let http = node.http();
    for model in ["eats", "neighbour"] {
        assert_eq!(http.post(&format!("/ai/run/{model}"), &json!("")).status, 200);
    }
    let neighbour = node.engine("neighbour");
    let (stop, sent) = (AtomicBool::new(false), AtomicUsize::new(0));
    let begun = Instant::now();
    thread::scope(|scope| {
        let _stop = SetOnDrop(&stop);
        // Two clients that each send at half the rate, from a timetable: a late answer does not lower it.
        for client in 0..2 {
            let (stop, sent) = (&stop, &sent);
            scope.spawn(move || {
                for turn in 0.. {
                    let due = begun + Duration::from_secs(1) * (2 * turn + client) / RATE;
                    thread::sleep(due.saturating_duration_since(Instant::now()));
                    if stop.load(Ordering::Relaxed) {
                        return;
                    }
                    let answer = http.post("/ai/run/neighbour", &json!(turn));
                    assert_eq!((answer.status, &answer.json()["result"]), (200, &json!(turn)), "{}", answer.text());
                    sent.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
        let mut deaths = 0;
        for how in ["itself", "fork", "program", "files"] {
            for _ in 0..rounds(25).max(2) {
                let answer = http.post("/ai/run/eats", &json!(how));
                // Version 1 kills the child alone; the worker ends the rest, and its answer may be quicker.
                let survived = answer.status == 200 && answer.text().contains("survived its");
                let ended = (answer.status, answer.error_code()) == (502, Some(3050));
                assert!(ended || survived, "{how}: {}", answer.text());
                deaths += 1;
                wait_for("the next instance", PATIENCE, || {
                    let model = node.model("eats");
                    (model.state == State::Ready && model.restarts == deaths).then_some(())
                });
                let last = node.model("eats").last_exit;
                assert_eq!(last.as_deref(), Some("killed for exceeding its memory limit"), "{how}\n{}", node.log());
                assert_eq!(http.post("/ai/run/eats", &json!("")).json()["result"], "well");
                assert_eq!(node.omnictl(["start", "eats", "--wait"]).code, 0);
            }
        }
    });
    let rate = sent.load(Ordering::Relaxed) as f64 / begun.elapsed().as_secs_f64();
    println!("{} requests to the neighbour, {rate:.0} a second", sent.load(Ordering::Relaxed));
    assert_eq!(node.engine("neighbour"), neighbour);
    assert_eq!(node.model("neighbour").restarts, 0);
    node.stop();
}
