//! A model that writes to its cache directory without end is slowed down, and let go when it does no more.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a failed step of a test is a failed test")]

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use omni_tests::{Node, PATIENCE, wait_for};
use serde_json::json;
use std::fs;
use std::path::{Path, PathBuf};

/// Writes the same eight mebibytes again and again, or nothing.
const WRITES: &str = r#"
import os, threading

BLOCK = bytes(1 << 20)
busy = threading.Event()

def write_on(path):
    while busy.wait():
        with open(path, "wb") as file:
            for _ in range(8):
                file.write(BLOCK)
                os.fdatasync(file.fileno())

def setup(context):
    path = os.path.join(context.cache_dir, "file")
    threading.Thread(target=write_on, args=(path,), daemon=True).start()

def handle_request(request, context):
    busy.set() if request.body.json["busy"] else busy.clear()
    return None
"#;
const MANIFEST: &str = "[limits]\ncache = \"16MiB\"\n";

/// The device of a process's cache directory.
fn device(pid: Pid) -> String {
    let mounts = fs::read_to_string(format!("/proc/{pid}/mountinfo")).unwrap();
    let cache = mounts.lines().map(|line| line.split(' ').collect::<Vec<_>>()).find(|fields| fields[4] == "/cache");
    cache.unwrap()[2].to_owned()
}

/// Where limits of devices are, of version 1: the guests' tests see those of version 2.
fn limits() -> Option<PathBuf> {
    let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap();
    let hierarchy = mounts.lines().find(|line| line.contains(" - cgroup ") && line.contains("blkio"))?;
    let file = Path::new(hierarchy.split(' ').nth(4)?).join("blkio.throttle.write_bps_device");
    let bounded_by_device = Path::new("/sys/class/bdi/7:0/strict_limit").exists();
    Some(file).filter(|file| bounded_by_device && file.exists())
}

#[test]
fn endless_writers_are_throttled() {
    let Some(limits) = limits() else {
        eprintln!("left out: blkio of version 1 is not mounted, or the kernel bounds no device's dirty pages");
        return;
    };
    let is_slow = |device: &str| {
        let lines = fs::read_to_string(&limits).unwrap();
        let few = fs::read_to_string(format!("/sys/class/bdi/{device}/strict_limit")).unwrap();
        let limited = lines.lines().any(|line| line.split(' ').next() == Some(device));
        assert!(few.trim() == "1" || !limited, "a device that is slow and takes any number of dirty pages: {lines}");
        limited
    };
    let node = Node::builder()
        .model("writes", &[("model.py", WRITES), ("omni.toml", MANIFEST)])
        .model("calm", &[("model.py", WRITES), ("omni.toml", MANIFEST)])
        .start();
    for model in ["calm", "writes"] {
        assert_eq!(node.http().run(model, &json!({ "busy": model == "writes" })).status, 200);
    }
    let engine = node.engine("writes").unwrap();
    let (writes, calm) = (device(engine), device(node.engine("calm").unwrap()));
    wait_for("its device to be slow", PATIENCE, || is_slow(&writes).then_some(()));
    assert!(!is_slow(&calm), "who writes nothing may write");

    // The launcher that decided is gone. The next one decides the same, and lifts the limit: until then the model may
    // still be slow.
    let killed = node.launcher().unwrap();
    kill(killed, Signal::SIGKILL).unwrap();
    wait_for("the next launcher", PATIENCE, || node.launcher().filter(|pid| *pid != killed));
    wait_for("its device to be slow, still or again", PATIENCE, || is_slow(&writes).then_some(()));
    assert_eq!(node.engine("writes"), Some(engine));

    assert_eq!(node.http().run("writes", &json!({ "busy": false })).status, 200);
    wait_for("its device to be let go", PATIENCE, || (!is_slow(&writes)).then_some(()));

    assert_eq!(node.http().run("writes", &json!({ "busy": true })).status, 200);
    wait_for("its device to be slow once more", PATIENCE, || is_slow(&writes).then_some(()));
    node.stop();
    assert!(!is_slow(&writes), "a device stays slow for whoever has it next");
}
