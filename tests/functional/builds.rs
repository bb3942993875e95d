//! Concurrent builds of environments: which of them wait, and for what, what ends a build, and what remains of a build
//! that took too long. Packages are built by backends of the test's own, which wait for it before they go on.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a failed step of a test is a failed test")]

use omni_control_api::State;
use omni_tests::index::{Behaviour, Index, write_source};
use omni_tests::{Node, PATIENCE, wait_for};
use serde_json::json;
use std::fs::{self, Permissions};
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::thread;
use std::time::{Duration, Instant};
use tempfile::TempDir;

/// Serves at once.
const QUICK: &str = "def handle_request(request, context):\n    return 'well'\n";

/// A build backend that says its name to the test, and builds an empty wheel once it is answered.
const BACKEND: &str = r#"
import os, socket, zipfile

def build_wheel(directory, settings=None, metadata=None):
    gate = socket.create_connection(("127.0.0.1", PORT))
    gate.sendall(b"NAME\n")
    if gate.recv(1) != b"y":
        raise SystemExit("nobody answers")
    module = "NAME".replace("-", "_")
    wheel, info = f"{module}-1.0-py3-none-any.whl", f"{module}-1.0.dist-info"
    with zipfile.ZipFile(os.path.join(directory, wheel), "w") as archive:
        archive.writestr(f"{info}/METADATA", "Metadata-Version: 2.1\nName: NAME\nVersion: 1.0\n")
        archive.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        archive.writestr(f"{info}/RECORD", "")
    return wheel
"#;

/// A build step that runs, and goes on when it is let.
struct Step {
    package: String,
    connection: TcpStream,
}

impl Step {
    fn let_go(mut self) {
        // A build that was ended meanwhile does not get it.
        let _ = self.connection.write_all(b"y");
    }

    /// Looks for the end of the build step.
    fn has_ended(&mut self) -> bool {
        self.connection.set_read_timeout(Some(Duration::from_millis(100))).unwrap();
        // Nothing more is said: the end, or a reset.
        !matches!(self.connection.read(&mut [0]), Err(error) if matches!(error.kind(), std::io::ErrorKind::WouldBlock | std::io::ErrorKind::TimedOut))
    }
}

/// Source packages whose build steps ask here.
struct Gate {
    listener: TcpListener,
    links: TempDir,
}

impl Gate {
    fn new(packages: &[&str]) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        listener.set_nonblocking(true).unwrap();
        let links = tempfile::tempdir().unwrap();
        fs::set_permissions(links.path(), Permissions::from_mode(0o755)).unwrap();
        let port = listener.local_addr().unwrap().port().to_string();
        for package in packages {
            write_source(links.path(), package, &BACKEND.replace("PORT", &port).replace("NAME", package));
        }
        Self { listener, links }
    }

    /// `[python]` of a node that has these packages.
    fn config(&self, index: &Index, more: &str) -> String {
        let (index, links) = (index.url(), self.links.path().display());
        format!("[python]\nindex-url = \"{index}\"\nfind-links = [\"{links}\"]\n{more}")
    }

    /// The next build step that runs.
    fn step(&self) -> Step {
        wait_for("a build step", PATIENCE, || self.arrived())
    }

    fn arrived(&self) -> Option<Step> {
        let mut connection = self.listener.accept().ok()?.0;
        connection.set_nonblocking(false).unwrap();
        let mut package = Vec::new();
        loop {
            let mut byte = [0];
            connection.read_exact(&mut byte).ok()?;
            match byte[0] {
                b'\n' => return Some(Step { package: String::from_utf8(package).unwrap(), connection }),
                byte => package.push(byte),
            }
        }
    }
}

/// Asks for a model's start and waits for nothing.
fn start(node: &Node, model: &str) {
    let started = node.omnictl(["start", model]);
    assert_eq!(started.code, 0, "{started:?}");
}

#[test]
fn only_builds_beyond_the_limit_wait_and_their_models_say_so() {
    let (index, gate) = (Index::start(Behaviour::Serves), Gate::new(&["omni-slow", "omni-second"]));
    index.add("omni-wheel", "WORD = 'wheel'\n", &[]);
    let node = Node::builder()
        .config(&gate.config(&index, "builds = 1\n"))
        .model("slow", &[("model.py", QUICK), ("requirements.txt", "omni-slow\n")])
        .model("second", &[("model.py", QUICK), ("requirements.txt", "omni-second\n")])
        .model("wheel", &[("model.py", QUICK), ("requirements.txt", "omni-wheel\n")])
        .model("bare", &[("model.py", QUICK)])
        .start();
    start(&node, "slow");
    let mut slow = gate.step();
    for model in ["bare", "wheel"] {
        let answer = node.http().run(model, &json!({}));
        assert_eq!(answer.status, 200, "{model}: {} {}", answer.text(), node.log());
    }
    // Wheels first: it waits for a place of the other kind after that.
    start(&node, "second");
    let words = "waits for a place to build packages from source since";
    wait_for("the model to say what it waits for", PATIENCE, || {
        let model = node.model("second");
        (model.state == State::Preparing && model.message.is_some_and(|message| message.contains(words))).then_some(())
    });
    for command in ["status", "explain"] {
        let said = node.omnictl([command, "second"]).stdout;
        assert!(said.contains(words) && said.contains("the places are taken by slow since"), "{command}: {said}");
    }
    let late = node.http().request(
        "POST",
        "/ai/run/second",
        &[("content-type", "application/json"), ("x-omni-timeout-ms", "300")],
        b"{}",
    );
    assert_eq!(late.status, 504, "{}", late.text());
    assert!(late.text().contains("while the model waited for a place to build its environment"), "{}", late.text());
    assert!(!late.text().contains("slow"), "a client is not told of other models: {}", late.text());
    for (labels, count) in [
        (r#"{kind="source",state="running"}"#, 1.0),
        (r#"{kind="source",state="waiting"}"#, 1.0),
        (r#"{kind="wheels",state="running"}"#, 0.0),
    ] {
        assert_eq!(node.metric(&format!("omni_builds{labels}")), Some(count), "{labels}");
    }

    // Stopped by hand: its build ends, and the other one has its place.
    assert_eq!(node.omnictl(["stop", "slow"]).code, 0);
    wait_for("the build of a stopped model to end", PATIENCE, || slow.has_ended().then_some(()));
    let second = gate.step();
    assert_eq!(second.package, "omni-second");
    wait_for("the model to wait no more", PATIENCE, || node.model("second").message.is_none().then_some(()));
    second.let_go();
    let answer = node.http().run("second", &json!({}));
    assert_eq!(answer.status, 200, "{} {}", answer.text(), node.log());
    node.stop();
}

#[test]
fn a_build_ends_with_the_last_model_that_waits_for_it() {
    let (index, gate) = (Index::start(Behaviour::Serves), Gate::new(&["omni-slow", "omni-other"]));
    let slow = [("model.py", QUICK), ("requirements.txt", "omni-slow\n")];
    let other = [("model.py", QUICK), ("requirements.txt", "omni-other\n")];
    let node = Node::builder()
        .config(&gate.config(&index, "builds = 1\n"))
        .model("a", &slow)
        .model("b", &slow)
        .model("removed", &other)
        .start();
    start(&node, "a");
    let shared = gate.step();
    start(&node, "b");
    wait_for("both to wait", PATIENCE, || (node.model("b").state == State::Preparing).then_some(()));
    assert_eq!(node.omnictl(["stop", "a"]).code, 0);
    shared.let_go();
    assert_eq!(node.http().run("b", &json!({})).status, 200, "{}", node.log());
    assert_eq!(node.log().matches("the build was ended").count(), 0, "{}", node.log());

    start(&node, "removed");
    let mut build = gate.step();
    node.unpublish("removed");
    wait_for("the build of a removed model to end", PATIENCE, || build.has_ended().then_some(()));

    node.publish("changed", &other);
    node.await_seen("changed");
    start(&node, "changed");
    let mut build = gate.step();
    node.publish("changed", &[("model.py", QUICK), ("requirements.txt", "# nothing\n")]);
    wait_for("the build for an old content to end", PATIENCE, || build.has_ended().then_some(()));
    assert_eq!(node.http().run("changed", &json!({})).status, 200, "{}", node.log());
    node.stop();
}

#[test]
fn a_timed_out_build_is_resumed_with_its_finished_packages() {
    let (index, gate) = (Index::start(Behaviour::Serves), Gate::new(&["omni-done", "omni-slow"]));
    let node = Node::builder()
        .config(&gate.config(&index, "build-timeout = \"15s\"\n"))
        .model("slow", &[("model.py", QUICK), ("requirements.txt", "omni-done\nomni-slow\n")])
        .start();
    start(&node, "slow");
    let (mut seen, mut held) = (Vec::new(), Vec::new());
    while !held.iter().any(|step: &Step| step.package == "omni-slow") || !seen.contains(&"omni-done".to_owned()) {
        let step = gate.step();
        seen.push(step.package.clone());
        if step.package == "omni-done" { step.let_go() } else { held.push(step) }
    }
    let failed = wait_for("the build to take too long", PATIENCE, || {
        Some(node.model("slow")).filter(|model| model.state == State::Failed)
    });
    let (again, message) = (failed.retry_in_seconds.unwrap(), failed.message.unwrap());
    assert!((8.0..=15.0).contains(&again), "as long as a build may take: {again}");
    assert!(message.contains("`build-timeout`") && message.contains("what was built is kept"), "{message}");
    // Without any intervention.
    let next = gate.step();
    assert_eq!(next.package, "omni-slow", "the other one is not built again");
    next.let_go();
    wait_for("the model", PATIENCE, || (node.model("slow").state == State::Ready).then_some(()));
    node.stop();
}

#[test]
fn requirements_that_can_never_be_met_are_tried_once() {
    let index = Index::start(Behaviour::Serves);
    let wheel = "lfs-1-py3-none-any.whl";
    let table = [
        ("elsewhere", "absl-py @ file:///croot/absl-py_1686852429912/work\n", "Distribution not found at"),
        ("option", "--no-cache-dir\n", "Unexpected '-'"),
        ("name", "./bad.whl\n", "The wheel filename `bad.whl` is invalid"),
        ("pointer", "./lfs-1-py3-none-any.whl\n", "Failed to read metadata"),
        ("other", "foo @ ./lfs-1-py3-none-any.whl\n", "does not match"),
        ("digest", "lfs==1 --hash=md5:abc\n", "Invalid hash digest length"),
        ("index", "--index-url name\n", "Invalid URL"),
    ];
    let mut builder = Node::builder().config(&format!("[python]\nindex-url = \"{}\"\n", index.url()));
    for (name, requirements, _) in table {
        builder =
            builder.model(name, &[("model.py", QUICK), ("requirements.txt", requirements), (wheel, "version 1\n")]);
    }
    let node = builder.start();
    thread::scope(|scope| {
        for (name, ..) in &table {
            let http = node.http();
            scope.spawn(move || assert_eq!(http.run(name, &json!({})).status, 503, "{name}"));
        }
    });
    // Longer than the first pause of what is tried again.
    let until = Instant::now() + Duration::from_secs(2);
    while Instant::now() < until {
        for (name, _, words) in table {
            let model = node.model(name);
            let message = model.message.unwrap_or_default();
            assert_eq!((model.state, model.retry_in_seconds), (State::Failed, None), "{name}: {message}");
            assert!(message.contains(words), "{name}: {message}");
        }
    }
    assert_eq!(node.log().matches("the environment cannot be built").count(), table.len(), "{}", node.log());
    node.stop();
}
