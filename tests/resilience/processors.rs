//! A model that computes all the time is kept to the processors of its limit, and let go when it does no more.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a failed step of a test is a failed test")]

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use omni_tests::{Node, PATIENCE, wait_for};
use serde_json::json;
use std::fs;

/// Hashes in four threads, or does nothing; hashing leaves the interpreter lock.
const BUSY: &str = r#"
import hashlib, threading

BLOCK = bytes(1 << 20)
busy = threading.Event()

def hash_on():
    while busy.wait():
        hashlib.sha256(BLOCK).digest()

def setup(context):
    for _ in range(4):
        threading.Thread(target=hash_on, daemon=True).start()

def handle_request(request, context):
    busy.set() if request.body.json["busy"] else busy.clear()
    return None
"#;

/// The processors that a process may be on, in the kernel's list form.
fn allowed(pid: Pid) -> String {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:"));
    line.unwrap().trim().to_owned()
}

fn is_one(list: &str) -> bool {
    list.parse::<u32>().is_ok()
}

#[test]
fn a_model_that_computes_all_the_time_leaves_processors_to_others() {
    let node = Node::builder()
        .model("busy", &[("model.py", BUSY), ("omni.toml", "[resources]\ncpus = 1.0\n")])
        .model("calm", &[("model.py", BUSY), ("omni.toml", "[resources]\ncpus = 1.0\n")])
        .start();
    let all = allowed(node.pid());
    if is_one(&all) {
        eprintln!("left out: this machine has one processor");
        return;
    }
    for model in ["calm", "busy"] {
        assert_eq!(node.http().run(model, &json!({ "busy": model == "busy" })).status, 200);
    }
    let (busy, calm) = (node.engine("busy").unwrap(), node.engine("calm").unwrap());
    let one =
        wait_for("the busy model to be on one processor", PATIENCE, || Some(allowed(busy)).filter(|on| is_one(on)));
    assert_eq!(allowed(calm), all, "who does nothing may be anywhere");

    // The launcher that decided is gone; the next one decides the same.
    let killed = node.launcher().unwrap();
    kill(killed, Signal::SIGKILL).unwrap();
    wait_for("the next launcher", PATIENCE, || node.launcher().filter(|pid| *pid != killed));
    wait_for("the busy model to be on one processor again", PATIENCE, || is_one(&allowed(busy)).then_some(()));
    assert_eq!(node.engine("busy"), Some(busy), "{one}");

    assert_eq!(node.http().run("busy", &json!({ "busy": false })).status, 200);
    wait_for("the calm model to be on all processors", PATIENCE, || (allowed(busy) == all).then_some(()));
    node.stop();
}
