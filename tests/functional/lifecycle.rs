//! Ends and starts by hand, of the scheduler, of the launcher, and of what keeps the launcher running.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a failed step of a test is a failed test")]

use nix::sys::signal::{Signal, kill};
use omni_tests::process::{is_alive, parent};
use omni_tests::{Node, PATIENCE, wait_for};
use serde_json::json;
use std::time::{Duration, Instant};

const ECHO: &[(&str, &str)] = &[("model.py", "def handle_request(request, context):\n    return 'well'\n")];
/// Works for longer than any test waits, and may take that long.
const WORKS: &[(&str, &str)] = &[
    (
        "model.py",
        "import time\ndef handle_request(request, context):\n    yield 'begun'\n    time.sleep(900)\n    yield 'done'\n",
    ),
    ("omni.toml", "[timeouts]\ndrain = \"10m\"\nrequest = \"15m\"\n"),
];
/// Far less than the drain, and enough for a busy machine.
const SOON: Duration = Duration::from_secs(30);

#[test]
fn a_second_signal_ends_every_model_at_once() {
    for signal in [Signal::SIGINT, Signal::SIGTERM] {
        let node = Node::builder().model("works", WORKS).model("one", ECHO).start();
        node.says("one", "well");
        let mut stream = node.http().stream("works", &json!(0));
        assert!(stream.chunk().unwrap().is_some());
        let engine = node.engine("works").expect("a process");
        kill(node.pid(), signal).unwrap();
        wait_for("the node to drain", PATIENCE, || node.log().contains("\"draining\"").then_some(()));
        assert!(is_alive(engine), "the first signal waits for what is in flight");
        let told = Instant::now();
        kill(node.pid(), signal).unwrap();
        // With its launcher, that one's keeper, and all models: it is proved that nothing is left.
        let ended = node.ends_by_itself();
        assert!(ended.code == 0 && told.elapsed() < SOON, "{:?}: {ended:?}", told.elapsed());
        assert!(ended.stderr.contains("all models are killed"), "{ended:?}");
    }
}

#[test]
fn a_second_signal_ends_every_model_without_a_launcher() {
    let mut node = Node::builder().model("works", WORKS).start();
    let mut stream = node.http().stream("works", &json!(0));
    assert!(stream.chunk().unwrap().is_some());
    let engine = node.engine("works").expect("a process");
    let launcher = node.launcher().expect("a launcher");
    kill(parent(launcher).expect("its keeper"), Signal::SIGKILL).unwrap();
    kill(launcher, Signal::SIGKILL).unwrap();
    kill(node.pid(), Signal::SIGTERM).unwrap();
    wait_for("the node to drain", PATIENCE, || node.log().contains("\"draining\"").then_some(()));
    kill(node.pid(), Signal::SIGTERM).unwrap();
    wait_for("the model to end", Duration::from_secs(3), || (!is_alive(engine)).then_some(()));
    drop(stream);
    // The next launcher removes what this one has left.
    node.end_scheduler();
    node.start_again();
    node.stop();
}

#[test]
fn a_launcher_that_serves_another_folder_is_replaced() {
    let mut node = Node::builder().model("old", ECHO).start();
    node.says("old", "well");
    let (launcher, engine) = (node.launcher().expect("a launcher"), node.engine("old").expect("a process"));
    let keeper = parent(launcher).expect("its keeper");
    node.crash();
    // For the same folder it goes on, and so do the models.
    node.start_again();
    assert_eq!((node.launcher(), node.engine("old")), (Some(launcher), Some(engine)));
    node.crash();
    node.serve_another_folder("other");
    node.publish("fresh", ECHO);
    node.start_again();
    node.says("fresh", "well");
    assert!(node.launcher().is_some_and(|now| now != launcher) && !is_alive(keeper), "{}", node.log());
    assert!(node.log().contains("was started for other folders and is replaced"), "{}", node.log());
    wait_for("the model of the other folder to end", PATIENCE, || (!is_alive(engine)).then_some(()));
    assert_eq!(node.http().run("old", &json!(0)).status, 404);
    node.stop();
}

#[test]
fn the_watcher_of_the_launcher_is_itself_restarted() {
    let node = Node::builder().model("one", ECHO).start();
    node.says("one", "well");
    let engine = node.engine("one");
    for _ in 0..2 {
        let launcher = node.launcher().expect("a launcher");
        let keeper = parent(launcher).expect("its keeper");
        kill(keeper, Signal::SIGKILL).unwrap();
        node.await_launcher(launcher);
        assert!(node.log().contains("the process that keeps the launcher running has ended"), "{}", node.log());
        // The new keeper does what the first one did.
        node.replace_launcher(Signal::SIGKILL);
    }
    assert_eq!(node.engine("one"), engine, "models go on");
    node.says("one", "well");
    node.stop();
}

#[test]
fn an_upgrade_applies_to_the_launcher() {
    let manifest = ("omni.toml", "[network]\naccess = \"host\"\n");
    let mut node = Node::builder().model("talks", &[ECHO[0], manifest]).start();
    assert_ne!(node.http().run("talks", &json!(0)).status, 200);
    let (first, scheduler) = (node.launcher().expect("a launcher"), node.pid());
    // A key of the scheduler alone does not replace the launcher.
    node.configure("[server]\nconnections = 77\n");
    node.upgrade();
    wait_for("the scheduler before to end", PATIENCE, || (!is_alive(scheduler)).then_some(()));
    wait_for("the successor to have the launcher", PATIENCE, || {
        (node.admin().get("/readyz").status == 200).then_some(())
    });
    assert_eq!(node.launcher(), Some(first));
    let allowed = "[server]\nconnections = 77\n[network]\nhost-access = [\"talks\"]\n";
    node.configure(allowed);
    node.upgrade();
    let second = node.await_launcher(first);
    assert_eq!(node.omnictl(["restart", "talks"]).code, 0);
    node.says("talks", "well"); // by the second one, which has said what it was started with before it started this
    assert_eq!(node.launcher(), Some(second), "once, and not again and again");
    assert!(!node.log().contains("reads another configuration file"), "{}", node.log());
    node.stop();
}

#[test]
fn a_node_that_has_ended_can_be_started_again_at_once() {
    let mut node = Node::builder().model("m", ECHO).start();
    for _ in 0..10 {
        node.says("m", "well");
        node.end_scheduler();
        node.start_again();
    }
    assert!(!node.log().contains("another launcher has"), "{}", node.log());
    node.stop();
}
