//! Cancelled requests: the client hung up, or the deadline passed. The model reports what it saw.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a failed step of a test is a failed test")]

use omni_tests::{Node, PATIENCE, wait_for};
use serde_json::{Value, json};
use std::thread;
use std::time::{Duration, Instant};

/// `def` handlers that run until they are stopped. `seen` answers the outcome of the others.
const SYNC: &str = r#"
import time
SEEN = []

def handle_request(request, context):
    kind = request.body.json
    if kind == "seen":
        return SEEN
    if kind.startswith("stream"):
        return stream(kind)
    print(kind, "began")
    try:
        work(kind)
    except BaseException as error:
        SEEN.append([kind, type(error).__name__, context.cancelled])
        raise

def work(kind):
    if kind.startswith("sleep"):
        time.sleep(3600)
    if kind.startswith("poll"):
        for _ in range(360000):
            time.sleep(0.01)
    while True:
        pass

def stream(kind):
    try:
        yield "first"
        if kind == "stream and on":
            while True:
                yield "x" * 1000
        work("sleep" if kind == "stream and sleep" else "busy")
    except BaseException as error:
        SEEN.append([kind, type(error).__name__, None])
        raise
"#;

const ASYNC: &str = r#"
import asyncio
SEEN = []

async def handle_request(request, context):
    kind = request.body.json
    if kind == "seen":
        return SEEN
    if kind.startswith("stream"):
        return stream(kind)
    print(kind, "began")
    try:
        await asyncio.sleep(3600)
    except BaseException as error:
        SEEN.append([kind, type(error).__name__, context.cancelled])
        raise

async def stream(kind):
    try:
        yield "first"
        while kind == "stream and on":
            yield "x" * 1000
        await asyncio.sleep(3600)
    except BaseException as error:
        SEEN.append([kind, type(error).__name__, None])
        raise
"#;

/// Ignores its cancellation when it is asked to.
const STUBBORN: &str = r#"
import time

def handle_request(request, context):
    while request.body.json == "ignore":
        print("ignoring")
        try:
            time.sleep(3600)
        except BaseException:
            pass
    return context.instance
"#;

/// Waits until the model has printed this.
fn await_line(node: &Node, model: &str, line: &str) {
    wait_for(line, PATIENCE, || node.omnictl(["logs", model]).stdout.contains(line).then_some(()));
}

/// Waits until the model says that it saw this.
fn await_seen(node: &Node, model: &str, what: &Value) {
    let mut last = Value::Null;
    let end = Instant::now() + PATIENCE;
    while !last.as_array().is_some_and(|seen| seen.contains(what)) {
        assert!(Instant::now() < end, "{model} saw {last}, not {what}");
        last = node.http().run(model, &json!("seen")).json()["result"].clone();
    }
}

#[test]
fn a_client_that_hangs_up_cancels_the_handler() {
    let concurrent = "[scaling]\nconcurrency = 4\n";
    let node = Node::builder()
        .model("serial", &[("model.py", SYNC)])
        .model("threads", &[("model.py", SYNC), ("omni.toml", concurrent)])
        .model("tasks", &[("model.py", ASYNC), ("omni.toml", concurrent)])
        .start();
    let http = node.http();
    for (model, cause, kinds) in [
        ("serial", "Cancelled", &["busy", "sleep"][..]),
        // A thread receives it when it returns from the kernel.
        ("threads", "Cancelled", &["busy", "poll"]),
        ("tasks", "CancelledError", &["sleep"]),
    ] {
        assert_eq!(http.run(model, &json!("seen")).json()["result"], json!([]));
        let engine = node.engine(model);
        assert!(engine.is_some(), "{model}");
        for kind in kinds {
            let waiting = http.send(model, &json!(kind));
            await_line(&node, model, &format!("{kind} began"));
            drop(waiting);
            await_seen(&node, model, &json!([kind, cause, true]));
        }
        let streams: &[&str] = match model {
            "serial" => &["stream", "stream and sleep", "stream and on"],
            _ => &["stream", "stream and on"],
        };
        for kind in streams {
            let mut stream = http.stream(model, &json!(kind));
            assert_eq!(stream.chunk().unwrap().as_deref().map(|event| &event[..12]), Some(&b"data: {\"resp"[..]));
            drop(stream);
            await_seen(&node, model, &json!([kind, cause, null]));
        }
        assert_eq!(node.engine(model), engine, "{model}: nobody was killed for it");
        let after = node.model(model);
        assert_eq!((after.in_flight, after.queued, after.restarts), (0, 0, 0), "{model}");
    }

    // A client that hangs up while it waits is not served at all; the client behind it is.
    let running = http.send("serial", &json!("busy 2"));
    await_line(&node, "serial", "busy 2 began");
    let waiting = http.send("serial", &json!("busy 3"));
    wait_for("a place in the queue", PATIENCE, || (node.model("serial").queued == 1).then_some(()));
    drop(waiting);
    wait_for("an empty queue", PATIENCE, || (node.model("serial").queued == 0).then_some(()));
    drop(running);
    await_seen(&node, "serial", &json!(["busy 2", "Cancelled", true]));
    assert!(!node.omnictl(["logs", "serial"]).stdout.contains("busy 3"));
    node.stop();
}

#[test]
fn deadlines() {
    let short = "[scaling]\nconcurrency = 2\n[timeouts]\nrequest = \"1s\"\n";
    let node = Node::builder()
        .model("long", &[("model.py", SYNC)])
        .model("short", &[("model.py", ASYNC), ("omni.toml", short)])
        .model("vectors", &[("model.py", SYNC), ("omni.toml", "[model]\nkind = \"embeddings\"\n")])
        .start();
    for model in ["long", "short"] {
        assert_eq!(node.omnictl(["start", model, "--wait"]).code, 0);
    }
    let without = node.http().run("short", &json!("sleep none"));
    assert_eq!((without.status, without.error_code()), (504, Some(3007)), "{}", without.text());
    let with_timeout = |model: &str, kind: &str, milliseconds: &str| {
        let headers = [("content-type", "application/json"), ("x-omni-timeout-ms", milliseconds)];
        node.http().open("POST", &format!("/ai/run/{model}"), &headers, json!(kind).to_string().as_bytes())
    };
    // The client's own; the manifest's; the client's, which cannot be more than the manifest's.
    for (model, kind, header, cause) in [
        ("long", "busy", "500", "DeadlineExceeded"),
        ("long", "sleep", "500", "DeadlineExceeded"),
        ("short", "sleep more", "60000", "CancelledError"),
    ] {
        let late = with_timeout(model, kind, header).whole();
        assert_eq!((late.status, late.error_code()), (504, Some(3007)), "{kind}: {}", late.text());
        assert_eq!(late.header("x-should-retry"), Some("false"));
        await_seen(&node, model, &json!([kind, cause, true]));
    }
    // A value that is no number is refused, in the form of each API.
    let nonsense = |path: &str, header: &str, body: &Value| {
        let headers = [("content-type", "application/json"), (header, "soon")];
        let answer = node.http().request("POST", path, &headers, body.to_string().as_bytes());
        assert_eq!(answer.status, 400, "{path} {header}: {}", answer.text());
        answer.json()
    };
    for header in ["x-omni-timeout-ms", "x-omni-priority"] {
        let native = nonsense("/ai/run/long", header, &json!("busy"));
        let openai = nonsense("/v1/embeddings", header, &json!({ "model": "vectors", "input": "a" }));
        for (refusal, message) in [(&native, &native["errors"][0]["message"]), (&openai, &openai["error"]["message"])] {
            assert!(message.as_str().is_some_and(|message| message.contains(header)), "{refusal}");
        }
    }
    // In mid-stream it is too late for a status: an error event, then the end, and no [DONE].
    for (model, cause) in [("long", "DeadlineExceeded"), ("short", "CancelledError")] {
        let events = with_timeout(model, "stream", "800").events();
        assert_eq!(events.len(), 2, "{events:?}");
        assert_eq!(events[0], r#"{"response":"first"}"#);
        assert!(events[1].contains("error") && events[1].contains("deadline"), "{events:?}");
        await_seen(&node, model, &json!(["stream", cause, null]));
        assert_eq!(node.model(model).restarts, 0);
    }
    node.stop();
}

/// Generates more than any buffer on the way holds, or one word.
const TALKATIVE: &str = r#"
from omni import TextGeneration

def handle_request(request: TextGeneration, context):
    return "a word" if request.prompt == "word" else endless()

def endless():
    while True:
        yield "x" * 60000
"#;

#[test]
fn a_client_that_does_not_read_loses_its_models_slot_at_the_deadline() {
    let text = "[model]\nkind = \"text-generation\"\n[chat]\nrender = \"model\"\n";
    let node = Node::builder()
        .model("serial", &[("model.py", SYNC)])
        .model("text", &[("model.py", TALKATIVE), ("omni.toml", text)])
        .start();
    for model in ["serial", "text"] {
        assert_eq!(node.omnictl(["start", model, "--wait"]).code, 0);
    }
    let headers = [("content-type", "application/json"), ("x-omni-timeout-ms", "1000")];
    let prompt =
        |text: &str| json!({ "model": "text", "prompt": text, "stream": text == "all", "max_tokens": 1 << 30 });
    for (path, long, short) in
        [("/ai/run/serial", json!("stream and on"), json!("seen")), ("/v1/completions", prompt("all"), prompt("word"))]
    {
        let begun = Instant::now();
        let unread = node.http().open("POST", path, &headers, long.to_string().as_bytes());
        assert_eq!(unread.status, 200, "{path}");
        let next = node.http().post(path, &short);
        let waited = begun.elapsed();
        assert_eq!(next.status, 200, "{path}: {}", next.text());
        // The connection is cut only 5 s after the deadline.
        let bounds = Duration::from_secs(1)..Duration::from_secs(4);
        assert!(bounds.contains(&waited), "{path}: the slot was free after {waited:?}");
        drop(unread);
    }
    await_seen(&node, "serial", &json!(["stream and on", "DeadlineExceeded", null]));
    assert!(["serial", "text"].iter().all(|model| node.model(model).restarts == 0), "no handler was killed for it");
    node.stop();
}

/// Answers of the others do not give it more time.
#[test]
fn a_handler_that_ignores_its_cancellation_is_replaced_though_others_are_answered() {
    let manifest = "[scaling]\nconcurrency = 4\n[timeouts]\ncancel-grace = \"1s\"\n";
    let node = Node::builder().model("stubborn", &[("model.py", STUBBORN), ("omni.toml", manifest)]).start();
    let http = node.http();
    let before = http.run("stubborn", &json!("")).json()["result"].clone();
    let ignoring = http.send("stubborn", &json!("ignore"));
    await_line(&node, "stubborn", "ignoring");
    drop(ignoring);
    let replaced = || {
        let answer = http.run("stubborn", &json!(""));
        assert_eq!(answer.status, 200, "{}", answer.text());
        (answer.json()["result"] != before).then_some(())
    };
    wait_for("another instance", PATIENCE, replaced);
    wait_for("the end of the other one", PATIENCE, || (node.model("stubborn").restarts == 1).then_some(()));
    node.stop();
}

#[test]
fn a_handler_that_ignores_its_cancellation_is_replaced() {
    let manifest = "[timeouts]\ncancel-grace = \"300ms\"\n";
    let node = Node::builder()
        .model("stubborn", &[("model.py", STUBBORN), ("omni.toml", manifest)])
        .model("neighbour", &[("model.py", STUBBORN)])
        .start();
    let http = node.http();
    let before = http.run("stubborn", &json!("")).json()["result"].clone();
    let neighbour = http.run("neighbour", &json!("")).json()["result"].clone();
    let engine = node.engine("stubborn").expect("a process");

    let ignoring = http.send("stubborn", &json!("ignore"));
    await_line(&node, "stubborn", "ignoring");
    thread::scope(|scope| {
        let waiting = scope.spawn(|| http.run("stubborn", &json!("")));
        wait_for("a place in the queue", PATIENCE, || (node.model("stubborn").queued == 1).then_some(()));
        drop(ignoring);
        // The waiting request had not begun: the next instance answers it.
        let answer = waiting.join().unwrap();
        assert_eq!(answer.status, 200, "{}", answer.text());
        assert_ne!(answer.json()["result"], before);
    });
    let after = node.model("stubborn");
    assert_eq!(after.restarts, 1);
    let now = after.instances.first().and_then(|instance| instance.pid).expect("a process");
    assert_ne!(now, engine.as_raw());
    assert!(!omni_tests::process::is_alive(engine));
    assert_eq!(http.run("neighbour", &json!("")).json()["result"], neighbour, "its neighbour did not notice");
    assert!(after.last_exit.is_some_and(|exit| exit.contains("SIGKILL")), "how it ended is told");
    node.stop();
}
