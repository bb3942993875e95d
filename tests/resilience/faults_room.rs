//! A node without room on its disks or for processes: operations that need room fail with a message, others go on, and
//! everything recovers by itself when there is room again.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a failed step of a test is a failed test")]

use nix::sys::signal::{Signal, kill};
use omni_control_api::State;
use omni_tests::process::is_alive;
use omni_tests::{Disk, Node, NodeBuilder, PATIENCE, Resources, wait_for};
use serde_json::json;
use std::fs;
use std::path::{Path, PathBuf};

const WELL: &[(&str, &str)] = &[("model.py", "def handle_request(request, context):\n    return 'well'\n")];
/// Writes this much into its lasting folder.
const WRITES: &[(&str, &str)] = &[(
    "model.py",
    r#"
import os

def handle_request(request, context):
    with open(os.path.join(context.cache_dir, "file"), "wb") as file:
        for _ in range(request.body.json):
            file.write(os.urandom(1 << 20))
        file.flush()
        os.fsync(file.fileno())
    return "well"
"#,
)];
const MIB: u64 = 1 << 20;

/// Asserts that the model cannot be served, and that its status has this word.
fn is_told(node: &Node, model: &str, word: &str) {
    wait_for(&format!("{word:?} in the status of {model}"), PATIENCE, || {
        let known = node.models().into_iter().find(|known| known.name == model)?;
        let told = known.message.or(known.directory.refused).unwrap_or_default();
        told.contains(word).then_some(())
    });
}

/// A full disk below the snapshots and the scheduler's own notes, by bytes or by inodes.
fn no_room_for_state(fill: impl Fn(&Disk)) {
    let mut node = Node::builder().on_disk("state", 64 * MIB, 4096).model("old", WELL).start();
    node.says("old", "well");
    let engine = node.engine("old");
    fill(node.disk());
    // Files of more than one page, so that a full disk is full for it.
    let code = format!("# {}\n{}", "x".repeat(64 << 10), WELL[0].1);
    node.publish("new", &[("model.py", &code)]);
    is_told(&node, "new", "No space left on device");
    node.publish("old", &[("model.py", &code.replace("well", "changed"))]);
    wait_for("the refusal", PATIENCE, || {
        node.model("old").directory.refused.filter(|why| why.contains("No space left on device")).map(drop)
    });
    node.says("old", "well");
    assert_eq!(node.engine("old"), engine, "what runs goes on");
    // A scheduler that comes now takes it over all the same.
    node.crash();
    node.start_again();
    node.says("old", "well");
    assert_eq!(node.engine("old"), engine, "{}", node.log());
    node.disk().free();
    node.says("new", "well");
    node.says("old", "changed");
    node.stop();
}

#[test]
fn a_full_disk_stops_new_content_and_nothing_else() {
    no_room_for_state(Disk::fill);
}

#[test]
fn a_full_inode_table_stops_new_content_and_nothing_else() {
    no_room_for_state(Disk::fill_inodes);
}

/// A successor reads the state of models from the disk.
#[test]
fn a_takeover_is_refused_while_model_state_cannot_be_written() {
    let mut node = Node::builder().on_disk("state", 64 * MIB, 4096).model("old", WELL).start();
    node.says("old", "well");
    let scheduler = node.pid();
    node.disk().fill_inodes();
    let stop = node.omnictl(["stop", "old"]);
    assert!(stop.code == 1 && stop.stderr.contains("could not write that down"), "{stop:?}");
    let said = node.omnictl(["upgrade"]);
    assert!(said.code == 1 && said.stderr.contains("the state of models cannot be written"), "{said:?}");
    assert_eq!(node.pid(), scheduler);
    node.disk().free();
    node.upgrade();
    assert_eq!(node.http().run("old", &json!(1)).status, 503, "it is stopped still\n{}", node.log());
    node.stop();
}

#[test]
fn a_full_disk_below_caches_and_environments_is_reported_to_affected_models() {
    let cache = ("omni.toml", "schema = 1\n[limits]\ncache = \"64MiB\"\n");
    let none = ("omni.toml", "schema = 1\n[scaling]\nmin-instances = 1\n");
    let node = Node::builder()
        .on_disk("cache", 256 * MIB, 4096)
        .model("writes", &[WRITES[0], cache])
        .model("neighbour", &[WELL[0], none])
        .start();
    let http = node.http();
    assert_eq!(http.run("writes", &json!(1)).json()["result"], "well", "{}", node.log());
    node.says("neighbour", "well");
    let neighbour = node.engine("neighbour");
    node.disk().fill();
    // The image of a lasting folder has holes: writes into them have no room on the disk.
    let answer = http.run("writes", &json!(32));
    assert_eq!((answer.status, answer.error_code()), (500, Some(3043)), "{}", answer.text());
    // Nor is there room for an image, or for an environment.
    node.publish("late", &[WRITES[0], cache]);
    node.await_seen("late");
    assert_eq!(http.run("late", &json!(1)).status, 503);
    is_told(&node, "late", "its cache directory of 64 MiB may not fit on the disk");
    node.publish("needs", &[WELL[0], ("requirements.txt", "cowsay==6.1\n")]);
    node.await_seen("needs");
    assert_eq!(http.run("needs", &json!(1)).status, 503);
    is_told(&node, "needs", "the build was not begun: ");
    node.says("neighbour", "well");
    assert_eq!(node.engine("neighbour"), neighbour);

    node.disk().free();
    for model in ["late", "needs"] {
        wait_for(model, PATIENCE, || (http.run(model, &json!(1)).json()["result"] == "well").then_some(()));
    }
    assert_eq!(node.omnictl(["restart", "writes", "--wait"]).code, 0, "{}", node.log());
    assert_eq!(http.run("writes", &json!(1)).json()["result"], "well", "{}", node.log());
    node.stop();
}

/// A package whose build takes all room there is, and tries on.
const GREEDY: &str = r#"
import time

def build_wheel(directory, settings=None, metadata=None):
    with open("ballast", "wb", buffering=0) as ballast:
        while True:
            try:
                ballast.write(bytes(1 << 20))
            except OSError:
                time.sleep(0.01)
"#;

#[test]
fn a_build_leaves_room_to_the_node() {
    const PROJECT: &str = "[build-system]\nrequires = []\nbuild-backend = \"backend\"\nbackend-path = [\".\"]\n";
    let node = Node::builder().on_disk("cache", 96 * MIB, 4096).model("neighbour", &[WELL[0]]).start();
    let package = [("package/pyproject.toml", PROJECT), ("package/backend.py", GREEDY)];
    node.publish("greedy", &[WELL[0], ("requirements.txt", "./package\n"), package[0], package[1]]);
    node.await_seen("greedy");
    assert_eq!(node.http().run("greedy", &json!(1)).status, 503);
    is_told(&node, "greedy", "the build was stopped: ");
    assert_eq!(node.omnictl(["stop", "greedy", "--wait"]).code, 0, "{}", node.log());
    wait_for("what was built to be gone", PATIENCE, || (node.disk().left() > 64 * MIB).then_some(()));
    node.says("neighbour", "well");
    node.stop();
}

/// A control group of the test's own, with a bound on processes.
struct Few(PathBuf);

impl Few {
    fn new(node: &Node) -> Self {
        let root = [Path::new("/sys/fs/cgroup/pids"), Path::new("/sys/fs/cgroup")];
        let root = root.into_iter().find(|root| root.join("cgroup.procs").exists()).expect("a hierarchy");
        let dir = root.join(format!("omni-few-{}", node.pid()));
        fs::create_dir(&dir).unwrap();
        Self(dir)
    }

    fn bound(&self, most: &str) {
        fs::write(self.0.join("pids.max"), most).unwrap();
    }
}

impl Drop for Few {
    /// A test that has failed leaves its launcher in the group, which can be removed only when it is empty.
    fn drop(&mut self) {
        let above = self.0.with_file_name("cgroup.procs");
        for process in fs::read_to_string(self.0.join("cgroup.procs")).unwrap_or_default().lines() {
            let _ = fs::write(&above, process); // it may be gone
        }
        let _ = fs::remove_dir(&self.0);
    }
}

#[test]
fn a_launcher_without_spare_processes_still_removes_ended_instances() {
    let soon = ("omni.toml", "schema = 1\n[scaling]\nidle-timeout = \"300s\"\n");
    let build = |builder: NodeBuilder| builder.model("old", &[WELL[0], soon]).model("new", WELL);
    let node = build(Node::builder()).start();
    for model in ["old", "new"] {
        node.says(model, "well");
        assert_eq!(node.omnictl(["stop", model, "--wait"]).code, 0);
    }
    let before = Resources::at_rest(&node);
    assert_eq!(node.omnictl(["start", "old", "--wait"]).code, 0);
    let few = Few::new(&node);
    let launcher = node.launcher().expect("a launcher");
    fs::write(few.0.join("cgroup.procs"), launcher.to_string()).unwrap();
    few.bound("1");

    let refused = node.omnictl(["start", "new", "--wait"]);
    assert_eq!(refused.code, 3, "{refused:?}\n{}", node.log());
    is_told(&node, "new", "Resource temporarily unavailable");
    // An instance that ends meanwhile is removed completely, and reported.
    let engine = node.engine("old").expect("a process");
    kill(engine, Signal::SIGKILL).unwrap();
    wait_for("its end", PATIENCE, || (!is_alive(engine) && node.engine("old").is_none()).then_some(()));
    wait_for("its traces to go", PATIENCE, || node.traces().is_empty().then_some(()));
    assert_eq!(node.launcher(), Some(launcher), "{}", node.log());

    few.bound("max");
    for model in ["old", "new"] {
        node.says(model, "well");
        assert_eq!(node.model(model).state, State::Ready);
        assert_eq!(node.omnictl(["stop", model, "--wait"]).code, 0);
    }
    before.assert_unchanged(&node);
    node.stop();
}
