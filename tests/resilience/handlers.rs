//! Misbehaving handlers: each gets its own failure, and the neighbour goes on.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a failed step of a test is a failed test")]

use omni_control_api::State;
use omni_tests::neighbour::{self, post, with_neighbour};
use omni_tests::process::peak_resident;
use omni_tests::{PATIENCE, wait_for};
use serde_json::json;
use std::fs;

const SHORT: &str = "schema = 1\n[timeouts]\nrequest = \"1s\"\ncancel-grace = \"300ms\"\n";
/// Buffers that a scheduler may allocate while a model floods it.
const BUFFERS: u64 = 24 << 20;

/// A handler with many ways to fail, by name; it lists them for `"ways"`.
const FAILS: &str = r#"
import asyncio, os, sys, threading, time
from omni import Response

class Odd(BaseException):
    def __str__(self):
        raise RuntimeError("not even that")

class Liar:
    dtype = 1
    def tolist(self):
        raise RuntimeError("no list")

KEPT = []

def deep(n):
    return deep(n + 1)

def nested():
    value = []
    for _ in range(100_000):
        value = [value]
    return value

def circle():
    value = []
    value.append(value)
    return value

def files():
    while True:
        KEPT.append(open("/dev/null"))

def fill(path):
    with open(path, "wb") as file:
        while True:
            file.write(b"x" * (1 << 20))

def names(path):
    for n in range(1 << 24):
        open(f"{path}/{n}", "w").close()

def threads():
    while True:
        thread = threading.Thread(target=time.sleep, args=(3600,), daemon=True)
        thread.start()

def processes():
    while True:
        if os.fork() == 0:
            time.sleep(3600)

def throw(error):
    raise error

WAYS = {
    "exception": lambda: throw(RuntimeError("as asked")),
    "keyboard interrupt": lambda: throw(KeyboardInterrupt()),
    "exit": lambda: sys.exit(3),
    "generator exit": lambda: throw(GeneratorExit()),
    "stop iteration": lambda: throw(StopIteration()),
    "cancelled error": lambda: throw(asyncio.CancelledError()),
    "odd": lambda: throw(Odd()),
    "object": lambda: object(),
    "set of objects": lambda: {object()},
    "not a number": lambda: float("nan"),
    "infinity inside": lambda: {"a": [float("inf")]},
    "circle": circle,
    "nested": nested,
    "recursion": lambda: deep(0),
    "surrogate": lambda: "\ud800",
    "liar": lambda: Liar(),
    "coroutine": lambda: asyncio.sleep(0),
    "huge": lambda: "x" * (64 << 20),
    "huge headers": lambda: Response("x", headers={"x": "y" * (1 << 20)}),
    "status": lambda: Response("x", status=99),
    "no memory": lambda: bytearray(1 << 60),
    "descriptors": files,
    "tmp": lambda: fill("/tmp/full"),
    "shm": lambda: fill("/dev/shm/full"),
    "inodes": lambda: names("/tmp"),
    "read-only": lambda: open("/model/model.py", "a"),
    "threads": threads,
    "processes": processes,
}

def handle_request(request, context):
    how = request.body.json
    if how == "ways":
        return list(WAYS)
    if how in WAYS:
        return WAYS[how]()
    return how
"#;

#[test]
fn failures_of_a_handler_cost_their_request_only() {
    let manifest = "schema = 1\n[resources]\npids = 64\n[limits]\ntmp = \"16MiB\"\n";
    let node = with_neighbour().model("fails", &[("model.py", FAILS), ("omni.toml", manifest)]).start();
    let ways = post(&node, "fails", &json!("ways")).json()["result"].clone();
    let engine = node.engine("fails").expect("a process");
    for way in ways.as_array().expect("names") {
        let way = way.as_str().unwrap();
        let answer = post(&node, "fails", &json!(way));
        assert_eq!((answer.status, answer.error_code()), (500, Some(3043)), "{way}: {}\n{}", answer.text(), node.log());
        assert_eq!(answer.header("x-should-retry"), Some("false"), "{way}");
        assert!(!answer.text().contains("asked") && !answer.text().contains("Traceback"), "{way}: {}", answer.text());
        let again = post(&node, "fails", &json!("well"));
        assert_eq!(again.json()["result"], "well", "after {way}\n{}", node.log());
        neighbour::is_well(&node, way);
    }
    assert_eq!(node.engine("fails"), Some(engine), "the same process throughout\n{}", node.log());
    let logs = node.omnictl(["logs", "fails", "-n", "10000"]);
    assert!(logs.stdout.contains("RuntimeError: as asked"), "{}", logs.stdout);
    node.stop();
}

#[test]
fn handlers_that_never_return_run_into_the_deadline() {
    let model = r#"
import time

def handle_request(request, context):
    how = request.body.json
    if how == "busy":
        while True:
            pass
    if how == "sleep":
        time.sleep(3600)
    while how == "stubborn":
        try:
            time.sleep(3600)
        except BaseException:
            pass
    return how
"#;
    let sleeps = "import asyncio\nasync def handle_request(request, context):\n    if request.body.json == 'sleep':\n        await asyncio.sleep(3600)\n    return request.body.json\n";
    let node = with_neighbour()
        .model("slow", &[("model.py", model), ("omni.toml", SHORT)])
        .model("async", &[("model.py", sleeps), ("omni.toml", SHORT)])
        .start();
    for (model, how, replaced) in
        [("slow", "busy", false), ("slow", "sleep", false), ("async", "sleep", false), ("slow", "stubborn", true)]
    {
        assert_eq!(post(&node, model, &json!("well")).status, 200, "before {how}\n{}", node.log());
        let engine = node.engine(model);
        let late = post(&node, model, &json!(how));
        assert_eq!((late.status, late.error_code()), (504, Some(3007)), "{model} {how}: {}", late.text());
        assert_eq!(late.header("x-should-retry"), Some("false"), "{how}");
        neighbour::is_well(&node, how);
        let again = wait_for("the next answer", PATIENCE, || {
            Some(post(&node, model, &json!("well"))).filter(|answer| answer.status == 200)
        });
        assert_eq!(again.json()["result"], "well");
        assert_eq!(node.engine(model) != engine, replaced, "{model} {how}\n{}", node.log());
    }
    assert!(node.log().contains("a handler ignored its cancellation"), "{}", node.log());
    node.stop();
}

#[test]
fn floods_are_bounded() {
    let model = r#"
import sys

SENT = 0

def numbers():
    global SENT
    for _ in range(4096):
        yield b"x" * (1 << 20)
        SENT += 1

def handle_request(request, context):
    how = request.body.json
    if how == "prints":
        for n in range(300_000):
            print(n, "a line that is neither short nor long")
        sys.stdout.write("y" * (32 << 20))
        sys.stderr.write("z" * (32 << 20))
    if how == "streams":
        return numbers()
    if how == "sent":
        return SENT
    return how
"#;
    let manifest = "schema = 1\n[scaling]\nconcurrency = 2\n";
    let node = with_neighbour().model("floods", &[("model.py", model), ("omni.toml", manifest)]).start();
    assert_eq!(post(&node, "floods", &json!("well")).status, 200);
    let (engine, peak) = (node.engine("floods"), peak_resident(node.pid()).unwrap());

    // 64 MiB and 300,000 lines on the log pipes: the handler ends, most lines are dropped, and the log says so.
    assert_eq!(post(&node, "floods", &json!("prints")).status, 200);
    neighbour::is_well(&node, "prints");
    let told = || node.omnictl(["logs", "floods", "-n", "100000"]).stdout.contains("dropped");
    wait_for("the word about what was dropped", PATIENCE, || told().then_some(()));
    assert!(node.log().len() < 16 << 20, "the node's own log took {} bytes", node.log().len());

    // 4 GiB to a client that stops reading: the model is held back, then cancelled when the client hangs up.
    let mut slow = node.http().open("POST", "/ai/run/floods", &[("content-type", "application/json")], b"\"streams\"");
    assert_eq!(slow.status, 200);
    let mut read = 0;
    while read < 32 << 20 {
        read += slow.chunk().unwrap().expect("more").len();
    }
    let sent = || post(&node, "floods", &json!("sent")).json()["result"].as_u64().expect("a number");
    let mut looks = vec![sent()];
    wait_for("the model to be held back", PATIENCE, || {
        looks.push(sent());
        (looks.len() > 20 && looks.iter().rev().take(20).all(|look| Some(look) == looks.last())).then_some(())
    });
    // The client's kernel receives as much as it may, which it raises to that while the client reads.
    let received = fs::read_to_string("/proc/sys/net/ipv4/tcp_rmem").unwrap();
    let received: u64 = received.split_whitespace().next_back().unwrap().parse().unwrap();
    let most = 32 + received.div_ceil(1 << 20) + 4;
    assert!(sent() < most, "{} MiB were taken from the model, 32 MiB were read", sent());
    drop(slow);
    wait_for("the cancellation", PATIENCE, || (node.model("floods").in_flight == 0).then_some(()));
    neighbour::is_well(&node, "streams");
    assert_eq!(node.engine("floods"), engine);
    let grown = peak_resident(node.pid()).unwrap() - peak;
    println!("the scheduler grew by {} KiB", grown / 1024);
    assert!(grown < BUFFERS, "the scheduler grew by {grown} bytes");
    node.stop();
}

#[test]
fn a_setup_that_fails_or_hangs_is_reported() {
    let handler = "def handle_request(request, context):\n    return 'well'\n";
    let with = |setup: &str| format!("import os, time\n{setup}\n{handler}");
    let startup = "schema = 1\n[timeouts]\nstartup = \"1s\"\n";
    let cases = [
        ("raises", with("def setup(context):\n    raise RuntimeError('no weights here')"), "no weights here"),
        (
            "fails-and-stays",
            with(
                "import atexit\natexit.register(time.sleep, 3600)\ndef setup(context):\n    raise RuntimeError('no weights')",
            ),
            "no weights",
        ),
        ("exits", with("def setup(context):\n    os._exit(9)"), "code 9"),
        ("sick", with("def healthcheck(context):\n    return False"), "healthcheck returned False"),
        ("hangs", with("def setup(context):\n    time.sleep(3600)"), "1s"),
        ("hangs-in-import", with("time.sleep(3600)"), "1s"),
    ];
    let mut builder = with_neighbour();
    for (name, code, _) in &cases {
        builder = builder.model(name, &[("model.py", code), ("omni.toml", startup)]);
    }
    let node = builder.start();
    for (name, _, words) in &cases {
        let answer = post(&node, name, &json!({}));
        assert_eq!((answer.status, answer.error_code()), (503, Some(3040)), "{name}: {}", answer.text());
        assert_eq!(answer.header("x-omni-retry"), Some("other-node"), "{name}");
        let failed =
            wait_for("the failure", PATIENCE, || Some(node.model(name)).filter(|model| model.state == State::Failed));
        let message = failed.message.expect("a message");
        assert!(message.contains(words), "{name}: {message}");
        assert!(failed.retry_in_seconds.is_some(), "{name}: it may work later");
        if name.starts_with("hangs") {
            let exit = wait_for("its end", PATIENCE, || node.model(name).last_exit);
            let why = "killed by SIGKILL: it was not ready within 1s, its `startup` in [timeouts]";
            assert_eq!(exit, why, "{name}");
        }
        neighbour::is_well(&node, name);
        assert_eq!(node.omnictl(["stop", name, "--wait"]).code, 0, "{name}");
    }
    node.stop();
}
