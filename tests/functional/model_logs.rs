//! Lines of a model's log about its requests: stacks of handlers that are stuck, killed or crash, lines of libraries
//! and of `print`, and how they are found.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a failed step of a test is a failed test")]

use omni_control_api::LogEntry;
use omni_tests::{Node, PATIENCE, wait_for};
use serde_json::json;

const STUCK: &str = r#"
import ctypes, logging, sys, threading, time

sys.stderr.close()
log = logging.getLogger("a.library")
C = ctypes.PyDLL(None)

def another_thread():
    threading.Event().wait()

def wait_for_what_never_comes(way):
    while way == "listens":
        time.sleep(60)
    while way == "swallows":
        try:
            time.sleep(60)
        except BaseException:
            pass
    if way == "holds the interpreter":
        C.sleep(3600)
    if way == "crashes":
        ctypes.string_at(0)

def handle_request(request, context):
    threading.Thread(target=another_thread, daemon=True).start()
    log.info("told by a library")
    log.warning("warned by a library")
    print("printed by the author")
    wait_for_what_never_comes(request.body.json)
    return 1
"#;
const SHORT: &str = "schema = 1\n[timeouts]\nrequest = \"1s\"\ncancel-grace = \"200ms\"\n";

fn ask(node: &Node, model: &str, id: &str, way: &str) -> u16 {
    let headers = [("x-request-id", id), ("content-type", "application/json")];
    node.http().request("POST", &format!("/ai/run/{model}"), &headers, json!(way).to_string().as_bytes()).status
}

/// The lines of a request, once one of them has this text.
fn lines_of(node: &Node, model: &str, id: &str, words: &str) -> Vec<LogEntry> {
    wait_for(words, PATIENCE, || {
        let told = node.omnictl(["logs", model, "--request", id, "-o", "json"]).stdout;
        let lines: Vec<LogEntry> = told.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        lines.iter().any(|line| line.text.contains(words)).then_some(lines)
    })
}

#[test]
fn the_stack_of_a_stuck_handler_is_logged_with_its_request() {
    let node = Node::builder().model("m", &[("model.py", STUCK), ("omni.toml", SHORT)]).start();
    assert_eq!(ask(&node, "m", "fine", ""), 200);
    for (id, way, status, others) in [
        ("late", "listens", 504, false),
        ("deaf", "swallows", 504, true),
        ("held", "holds the interpreter", 504, true),
        ("dead", "crashes", 502, true),
    ] {
        assert_eq!(ask(&node, "m", id, way), status, "{way}");
        let lines = lines_of(&node, "m", id, "in wait_for_what_never_comes");
        if others {
            lines_of(&node, "m", id, "in another_thread");
        }
        assert!(lines.iter().all(|line| line.request_id.as_deref() == Some(id)), "{lines:?}");
        wait_for("the next instance", PATIENCE, || (ask(&node, "m", "next", "") == 200).then_some(()));
    }
    node.stop();
}

#[test]
fn lines_of_libraries_and_of_print_are_found_by_their_request() {
    let quiet = "schema = 1\n[logs]\nlibraries = \"warning\"\n";
    let node = Node::builder()
        .model("m", &[("model.py", STUCK)])
        .model("quiet", &[("model.py", STUCK), ("omni.toml", quiet)])
        .start();
    for model in ["m", "quiet"] {
        assert_eq!(ask(&node, model, "first", ""), 200);
        assert_eq!(ask(&node, model, "find-me", ""), 200);
        let lines = lines_of(&node, model, "find-me", "printed by the author");
        let lines: Vec<_> =
            lines.iter().chain(&lines_of(&node, model, "find-me", "warned by")).map(|line| line.text.clone()).collect();
        assert!(lines.contains(&"INFO [find-me] printed by the author".to_owned()), "{lines:?}");
        let told = lines.contains(&"INFO [find-me] a.library: told by a library".to_owned());
        assert_eq!(told, model == "m", "{lines:?}");
    }
    node.stop();
}

#[test]
fn omnictl_shows_the_stack_of_a_model_that_holds_the_interpreter() {
    let node = Node::builder().model("m", &[("model.py", STUCK)]).start();
    let none = node.omnictl(["stack", "m"]);
    assert_ne!(none.code, 0);
    assert!(none.stderr.contains("no instance of `m` can report its stacks"), "{}", none.stderr);
    let waiting = node.http().send("m", &json!("holds the interpreter"));
    wait_for("the request to begin", PATIENCE, || node.log().contains("printed by the author").then_some(()));
    let engine = node.engine("m");
    let stack = node.omnictl(["stack", "m"]);
    assert_eq!(stack.code, 0, "{}", stack.stderr);
    assert!(stack.stdout.contains("in wait_for_what_never_comes"), "{}", stack.stdout);
    assert!(stack.stdout.contains("in another_thread"), "{}", stack.stdout);
    assert_eq!((node.engine("m"), node.model("m").restarts), (engine, 0), "it goes on");
    drop(waiting);
    node.stop();
}

#[test]
fn an_http_error_in_the_middle_of_a_stream_reaches_the_client() {
    let code = "from omni import errors\ndef handle_request(request, context):\n    yield 1\n    raise errors.HTTPError(429, 'the context is \"full\"')\n";
    let node = Node::builder().model("m", &[("model.py", code)]).start();
    let events = node.http().stream("m", &json!(null)).events();
    assert_eq!(events, ["1", r#"{"error":{"message":"the context is \"full\""}}"#]);
    node.stop();
}

#[test]
fn a_start_that_fails_is_in_the_log_with_its_traceback() {
    let code = "def load():\n    raise ValueError('no weights')\n\nload()\n\ndef handle_request(request, context):\n    return 1\n";
    let node = Node::builder().model("broken", &[("model.py", code)]).start();
    assert_ne!(node.http().run("broken", &json!(1)).status, 200);
    let logs = node.omnictl(["logs", "broken"]).stdout;
    for part in ["import failed: ", "model.py\", line 2, in load", "ValueError: no weights"] {
        assert!(logs.contains(part), "{part}: {logs}");
    }
}

#[test]
fn a_takeover_writes_no_line_of_an_instance_twice() {
    let model = "def handle_request(request, context):\n    print('line of', request.body.json)\n";
    let mut node = Node::builder().model("m", &[("model.py", model)]).start();
    assert_eq!(ask(&node, "m", "first", "one"), 200);
    wait_for("the first line", PATIENCE, || node.log().contains("line of one").then_some(()));
    node.upgrade();
    lines_of(&node, "m", "first", "line of one"); // the new scheduler has the lines of before
    assert_eq!(ask(&node, "m", "second", "two"), 200);
    wait_for("the second line", PATIENCE, || node.log().contains("line of two").then_some(()));
    for line in ["line of one", "line of two"] {
        assert_eq!(node.log().matches(line).count(), 1, "{line}: {}", node.log());
    }
    node.stop();
}
