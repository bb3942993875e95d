//! Every end of an engine is called by its right name, and what follows is by the rules: at once, later, or never.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a failed step of a test is a failed test")]

use nix::sys::signal::{Signal, kill};
use omni_control_api::{Model, State};
use omni_tests::process::{self, is_alive};
use omni_tests::{Answer, Node, PATIENCE, Stream, rounds, wait_for};
use serde_json::{Value, json};
use std::fs;
use std::io::Write;
use std::thread;

/// Ends in the requested way.
const ENDS: &str = r#"
import os, signal, sys, time

def handle_request(request, context):
    how = request.body.json
    if how == "oom":
        return len(bytearray(b"x") * (1 << 30))
    if how == "abort":
        os.abort()
    if how == "segfault":
        import ctypes
        ctypes.string_at(0)
    if how == "wait":
        time.sleep(60)
    if isinstance(how, int):
        os._exit(how)
    if isinstance(how, dict):
        os.kill(os.getpid(), how["signal"])
        time.sleep(60)
    return "well"
"#;
const SMALL: &str = "schema = 1\n[resources]\nmemory = \"64MiB\"\n";
const OOM: &str = "killed for exceeding its memory limit";

/// Ends when its answer is written: only then the engine lets go of it.
const LAST_WORDS: &str = r#"
import os, time

class Last(dict):
    def __del__(self):
        os._exit(7)

def handle_request(request, context):
    if request.body.json == "last":
        while not os.path.exists("/tmp/go"):
            time.sleep(0.01)
        return Last(text="x" * 150_000)
    return "well"
"#;

fn post(node: &Node, model: &str, body: &Value) -> Answer {
    node.http().post(&format!("/ai/run/{model}"), body)
}

/// Waits until the model serves again after its `deaths`th death.
fn back(node: &Node, model: &str, deaths: u64) -> Model {
    wait_for("the next instance", PATIENCE, || {
        Some(node.model(model)).filter(|model| model.state == State::Ready && model.restarts == deaths)
    })
}

fn metric(node: &Node, line: &str) -> u64 {
    let metrics = node.admin().get("/metrics").text();
    let value = metrics.lines().find_map(|found| found.strip_prefix(line)?.trim().parse().ok());
    value.unwrap_or_else(|| panic!("{line} in\n{metrics}"))
}

#[test]
fn every_end_is_classified() {
    let node = Node::builder().model("ends", &[("model.py", ENDS), ("omni.toml", SMALL)]).start();
    assert_eq!(post(&node, "ends", &json!("")).json()["result"], "well");
    let mut deaths = 0;
    let mut dies = |how: &Value, name: &str, from_outside: bool| {
        let engine = node.engine("ends").expect("a process");
        let answer = thread::scope(|scope| {
            let asked = scope.spawn(|| post(&node, "ends", how));
            if from_outside {
                wait_for("the request to be in work", PATIENCE, || (node.model("ends").in_flight == 1).then_some(()));
                kill(engine, Signal::SIGKILL).unwrap();
            }
            asked.join().unwrap()
        });
        deaths += 1;
        assert_eq!((answer.status, answer.error_code()), (502, Some(3050)), "{how}: {}", answer.text());
        assert_eq!(answer.header("x-should-retry"), Some("false"));
        let model = back(&node, "ends", deaths);
        assert_eq!(model.last_exit.as_deref(), Some(name), "death {deaths}, {how}\n{}", node.log());
        assert_ne!(model.instances.first().and_then(|instance| instance.pid), Some(engine.as_raw()));
        // The model's log says it too, of the instance and of the request.
        let id = answer.header("x-request-id").expect("its id").to_owned();
        let of_request = node.omnictl(["logs", "ends", "--request", &id]).stdout;
        assert!(of_request.contains("died while it worked on this request"), "{how}: {of_request}");
        let log = node.omnictl(["logs", "ends"]).stdout;
        assert!(log.contains(&format!("the instance has ended: {name}")), "{how}: {log}");
        // A start by hand clears the tally: every death here is the first in a row.
        assert_eq!(node.omnictl(["start", "ends", "--wait"]).code, 0);
    };
    let each = rounds(100);
    for _ in 0..each {
        dies(&json!("oom"), OOM, false);
        dies(&json!("wait"), "killed by SIGKILL", true);
        dies(&json!("abort"), "killed by SIGABRT", false);
    }
    let others = [
        (json!("segfault"), "killed by SIGSEGV"),
        (json!(0), "exited with code 0"),
        (json!(1), "exited with code 1"),
        (json!(255), "exited with code 255"),
        (json!({"signal": 9}), "killed by SIGKILL"),
        (json!({"signal": 15}), "killed by SIGTERM"),
        (json!({"signal": 40}), "killed by signal 40"),
    ];
    for (how, name) in &others {
        dies(how, name, false);
    }

    let status = node.omnictl(["status", "ends"]);
    assert!(status.stdout.contains("last exit") && status.stdout.contains("signal 40"), "{status:?}");
    let of =
        |reason: &str| metric(&node, &format!("omni_instance_restarts_total{{model=\"ends\",reason=\"{reason}\"}}"));
    let each = each as u64;
    assert_eq!((of("oom"), of("signal"), of("exit")), (each, 2 * each + 4, 3));
    assert_eq!(metric(&node, "omni_worker_oom_kills_total{model=\"ends\"}"), each);
    node.stop();
}

#[test]
fn the_first_restart_is_at_once_and_later_ones_wait() {
    let node = Node::builder().model("ends", &[("model.py", ENDS)]).start();
    assert_eq!(post(&node, "ends", &json!("")).status, 200);
    assert_eq!(post(&node, "ends", &json!(3)).status, 502);
    // No gap: what comes now waits for the new instance.
    assert_eq!(post(&node, "ends", &json!("")).status, 200, "{}", node.log());

    assert_eq!(post(&node, "ends", &json!(4)).status, 502);
    let refused = wait_for("a refusal", PATIENCE, || {
        let answer = post(&node, "ends", &json!(""));
        (answer.status == 503).then_some(answer)
    });
    assert_eq!(refused.error_code(), Some(3040), "{}", refused.text());
    assert_eq!(refused.header("x-omni-retry"), Some("other-node"));
    let seconds: u64 = refused.header("retry-after").expect("advice").parse().unwrap();
    assert!((1..=60).contains(&seconds));

    back(&node, "ends", 2);
    assert_eq!(post(&node, "ends", &json!("")).status, 200);
    assert_eq!(post(&node, "ends", &json!(5)).status, 502);
    let failed =
        wait_for("the pause", PATIENCE, || Some(node.model("ends")).filter(|model| model.state == State::Failed));
    assert!(failed.retry_in_seconds.is_some_and(|seconds| seconds <= 1.0), "{failed:?}");
    assert_eq!((failed.restarts, failed.last_exit.as_deref()), (3, Some("exited with code 5")));
    assert!(failed.message.is_some_and(|message| message.contains("exited with code 5")));
    let status = node.omnictl(["status", "ends"]);
    assert!(status.code == 3 && status.stdout.contains("next try"), "{status:?}");
    // A person need not wait.
    assert_eq!(node.omnictl(["start", "ends", "--wait"]).code, 0);
    assert_eq!(post(&node, "ends", &json!("")).status, 200);
    node.stop();
}

#[test]
fn a_permanent_failure_is_not_retried_until_the_content_changes() {
    let good = "def handle_request(request, context):\n    return 'good'\n";
    let broken = [
        ("syntax", "def handle_request(request, context):\n    return (\n", "SyntaxError"),
        ("import", "import nothing_of_this_name\n", "nothing_of_this_name"),
        ("exits", "import sys\nsys.exit(7)\n", "SystemExit"),
        ("missing", "x = 1\n", "no function `handle_request`"),
        ("value", "handle_request = 3\n", "not a function"),
    ];
    let mut builder = Node::builder();
    for (name, code, _) in broken {
        builder = builder.model(name, &[("model.py", code)]);
    }
    let node = builder.start();
    for (name, _, words) in broken {
        for _ in 0..5 {
            let answer = post(&node, name, &json!({}));
            assert_eq!((answer.status, answer.error_code()), (503, Some(3040)), "{name}: {}", answer.text());
            assert_eq!(answer.header("x-omni-retry"), Some("other-node"));
            assert!(!answer.text().contains(words), "{name}: the client is not told about the inside");
        }
        let model = node.model(name);
        assert_eq!((model.state, model.restarts, model.retry_in_seconds), (State::Failed, 1, None), "{name}");
        assert!(model.message.as_ref().is_some_and(|message| message.contains(words)), "{name}: {model:?}");
        let status = node.omnictl(["status", name]);
        assert!(status.code == 3 && status.stdout.contains(words), "{status:?}");

        node.publish(name, &[("model.py", good)]);
        wait_for("the new content", PATIENCE, || (post(&node, name, &json!({})).status == 200).then_some(()));
        assert_eq!(node.model(name).message, None);
    }
    node.stop();
}

#[test]
fn answers_before_a_crash_count_and_untouched_requests_go_to_the_next_instance() {
    let manifest = "schema = 1\n[scaling]\nconcurrency = 2\n";
    let node = Node::builder().model("ends", &[("model.py", LAST_WORDS), ("omni.toml", manifest)]).start();
    let http = node.http();
    let (_, mut kept) = Stream::read(http.send("ends", &json!(""))).whole_then();
    for _ in 0..rounds(100) {
        let engine = node.engine("ends").expect("a process");
        let last = http.send("ends", &json!("last"));
        wait_for("the request to be in work", PATIENCE, || (node.model("ends").in_flight == 1).then_some(()));
        // The next request, the answer and the end are there before the scheduler sees any of them. It processes them
        // in order: the request is sent to an instance that has ended, whose answer is still to be read.
        process::stop(node.pid());
        kept.get_mut()
            .write_all(b"POST /ai/run/ends HTTP/1.1\r\nhost: localhost\r\ncontent-length: 6\r\n\r\n\"next\"")
            .unwrap();
        fs::write(format!("/proc/{engine}/root/tmp/go"), "").unwrap();
        wait_for("its end", PATIENCE, || (!is_alive(engine)).then_some(()));
        kill(node.pid(), Signal::SIGCONT).unwrap();
        let last = Stream::read(last).whole();
        assert_eq!(last.json()["result"]["text"].as_str().map(str::len), Some(150_000), "{}", node.log());
        let (next, connection) = Stream::read(kept).whole_then();
        assert_eq!(next.json()["result"], "well", "{}", node.log());
        kept = connection;
        assert_ne!(node.engine("ends"), Some(engine));
        assert_eq!(node.omnictl(["start", "ends", "--wait"]).code, 0, "the next death is the first in a row again");
    }
    node.stop();
}
