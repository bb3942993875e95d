//! Instances: started, ended, adopted by the next launcher, swept when nobody else can.

use super::node::{Node, Scheduler, request};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use omni_node_protocol::exit::ExitCause;
use omni_node_protocol::id::{EnvironmentKey, InstanceId, SnapshotDigest};
use omni_node_protocol::launcher::{EngineSpec, FromLauncher, ToLauncher};
use std::fs;

const MODEL: (&str, &str) = ("model.py", "def handle_request(request, context):\n    return 'hi'\n");

fn prepared(node: &Node, scheduler: &Scheduler) -> (SnapshotDigest, EnvironmentKey) {
    node.publish("m", &[MODEL]);
    let snapshot = scheduler.snapshot_of("m");
    let environment = scheduler.prepare("m", &snapshot).unwrap();
    (snapshot, environment)
}

fn id(text: &str) -> InstanceId {
    InstanceId::parse(text).unwrap()
}

/// A zombie whose parent is not ours to reap it is gone.
fn is_alive(pid: i32) -> bool {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit_once(") ").is_some_and(|(_, state)| !state.starts_with('Z'))
}

#[test]
fn a_killed_instance_leaves_nothing() {
    let node = Node::start();
    let scheduler = node.connect();
    let (snapshot, environment) = prepared(&node, &scheduler);
    let pid = scheduler.start(request("00000000000a", "m", &snapshot, &environment)).unwrap();
    assert!(node.path("run/instances/00000000000a.sock").exists());
    assert_eq!(fs::read_to_string(format!("/proc/{pid}/cmdline")).unwrap(), "omni-worker\0");
    scheduler.say(&ToLauncher::Kill { instance: id("00000000000a") });
    assert_eq!(scheduler.gone(&id("00000000000a")), ExitCause::WorkerLost);
    assert_eq!(node.traces(), Vec::<String>::new());
    assert!(node.groups().is_empty() && !is_alive(pid));
    scheduler.say(&ToLauncher::Kill { instance: id("00000000000b") });
    assert_eq!(scheduler.gone(&id("00000000000b")), ExitCause::WorkerLost);
}

#[test]
fn the_engine_runs_in_its_environment() {
    let node = Node::start();
    let scheduler = node.connect();
    let model = "import os, sys\nos._exit(40 + (sys.prefix != sys.base_prefix) + 2 * (os.getcwd() == '/model'))\n";
    node.publish("exits", &[("model.py", model)]);
    let snapshot = scheduler.snapshot_of("exits");
    let environment = scheduler.prepare("exits", &snapshot).unwrap();
    scheduler.start(request("00000000000a", "exits", &snapshot, &environment)).unwrap();
    assert_eq!(scheduler.gone(&id("00000000000a")), ExitCause::Exited { code: 43 });
    assert_eq!(node.traces(), Vec::<String>::new());
    assert!(node.groups().is_empty());
}

#[test]
fn requests_beyond_what_the_node_gives_are_refused() {
    let mut node = Node::stopped();
    node.configure("[weights]\nfolders = [\"/srv/weights\"]\n");
    node.run(&[]);
    let scheduler = node.connect();
    let (snapshot, environment) = prepared(&node, &scheduler);
    let good = || request("00000000000a", "m", &snapshot, &environment);
    let other = |digit: &str| digit.repeat(64);
    let mut no_snapshot = good();
    no_snapshot.snapshot = SnapshotDigest::parse(&other("a")).unwrap();
    let mut no_environment = good();
    no_environment.engine = EngineSpec::Python {
        environment: EnvironmentKey::parse(&other("b")).unwrap(),
        module: "model".into(),
        function: "handle_request".into(),
    };
    let mut network = good();
    network.host_network = true;
    let mut name = good();
    name.model = "../m".into();
    let mut memory = good();
    memory.memory_bytes = 0;
    let mut variable = good();
    variable.env.insert("A=B".into(), "x".into());
    let mut module = good();
    module.engine = EngineSpec::Python {
        environment: environment.clone(),
        module: "../model".into(),
        function: "handle_request".into(),
    };
    let command = |command: Vec<String>| {
        let engine = EngineSpec::OpenAi { environment: environment.clone(), command };
        omni_node_protocol::launcher::StartSpec { engine, ..good() }
    };
    let weights = |path: &str| omni_node_protocol::launcher::StartSpec {
        weights: Some(omni_node_protocol::launcher::WeightsPlace::Folder { path: path.into() }),
        ..good()
    };
    let table = [
        (weights("/etc"), "in no folder that the launcher knows"),
        (weights("/srv/weights/../../etc"), "in no folder that the launcher knows"),
        (weights("srv/weights"), "in no folder that the launcher knows"),
        (command(Vec::new()), "the server's command has from 1 to 256 arguments"),
        (command(vec!["a\0".into()]), "the server's command has from 1 to 256 arguments"),
        (command(vec!["a".repeat(40_000)]), "the server's command has from 1 to 256 arguments"),
        (no_snapshot, "this snapshot is gone"),
        (no_environment, "prepare it first"),
        (network, "may not use the host's network"),
        (name, "`../m` is not a model's name"),
        (memory, "memory of 0 is not within"),
        (variable, "`A=B` is not a name"),
        (module, "`../model` is not an entry point"),
    ];
    for (spec, expected) in table {
        let message = scheduler.start(spec).unwrap_err();
        assert!(message.contains(expected), "{message}");
    }
    assert!(node.traces().is_empty() && node.groups().is_empty());
}

#[test]
fn instances_outlive_the_launcher_and_are_taken_over() {
    let mut node = Node::start();
    let scheduler = node.connect();
    let (snapshot, environment) = prepared(&node, &scheduler);
    let pids: Vec<i32> = ["00000000000a", "00000000000b", "00000000000c"]
        .map(|id| scheduler.start(request(id, "m", &snapshot, &environment)).unwrap())
        .into();
    node.end(Signal::SIGKILL);
    assert!(pids.iter().all(|pid| is_alive(*pid)));
    // An instance ends while no launcher is there; of another, only the files are left.
    kill(Pid::from_raw(pids[1]), Signal::SIGKILL).unwrap();
    fs::write(node.path("run/instances/00000000000d.sock"), "").unwrap();
    fs::write(node.path("run/instances/00000000000e.json"), "{\"worker_pid\":1}").unwrap();
    node.run(&[]);
    assert!(is_alive(pids[0]) && is_alive(pids[2]));
    let scheduler = node.connect();
    let mut gone = Vec::new();
    while gone.len() < 3 {
        if let FromLauncher::WorkerGone { instance, cause } = scheduler.hear() {
            gone.push((instance.to_string(), cause));
        }
    }
    gone.sort_by(|a, b| a.0.cmp(&b.0));
    let lost = |id: &str| (id.to_owned(), ExitCause::WorkerLost);
    assert_eq!(gone, ["00000000000b", "00000000000d", "00000000000e"].map(lost));
    let mut left = node.traces();
    left.sort();
    assert_eq!(left, ["00000000000a.json", "00000000000a.sock", "00000000000c.json", "00000000000c.sock"]);
    // The adopted ones are the new launcher's in every way.
    for gone in ["00000000000a", "00000000000c"] {
        scheduler.say(&ToLauncher::Kill { instance: id(gone) });
        scheduler.gone(&id(gone));
    }
    assert!(node.traces().is_empty() && node.groups().is_empty());
    assert!(pids.iter().all(|pid| !is_alive(*pid)));
}

#[test]
fn a_kept_launcher_comes_back_and_quits_with_its_scheduler() {
    let mut node = Node::stopped();
    node.run(&["--keep"]);
    let scheduler = node.connect();
    let (snapshot, environment) = prepared(&node, &scheduler);
    let pid = scheduler.start(request("00000000000a", "m", &snapshot, &environment)).unwrap();
    let keeper = node.launcher_pid();
    let children = || fs::read_to_string(format!("/proc/{keeper}/task/{keeper}/children")).unwrap();
    let first = children();
    kill(Pid::from_raw(first.trim().parse().unwrap()), Signal::SIGKILL).unwrap();
    assert!(scheduler.is_closed());
    node.wait_for("another launcher", || {
        !children().is_empty() && children() != first && node.path("run/launcher.sock").exists()
    });
    let mut again = None;
    node.wait_for("it to listen", || {
        again = node.try_connect_scheduler();
        again.is_some()
    });
    let scheduler = again.unwrap();
    scheduler.hear_until(|message| matches!(message, FromLauncher::Scanned));
    assert!(is_alive(pid));
    scheduler.say(&ToLauncher::Quit);
    scheduler.say(&ToLauncher::Kill { instance: id("00000000000a") });
    scheduler.gone(&id("00000000000a"));
    assert_eq!(node.wait_end().code(), Some(0));
}

#[test]
fn sigterm_leaves_instances_and_ends_with_success() {
    let mut node = Node::stopped();
    node.run(&["--keep"]);
    let scheduler = node.connect();
    let (snapshot, environment) = prepared(&node, &scheduler);
    let pid = scheduler.start(request("00000000000a", "m", &snapshot, &environment)).unwrap();
    assert_eq!(node.end(Signal::SIGTERM).code(), Some(0));
    assert!(is_alive(pid));
    node.run(&[]);
    let scheduler = node.connect();
    scheduler.hear_until(|message| matches!(message, FromLauncher::Scanned));
    scheduler.say(&ToLauncher::Kill { instance: id("00000000000a") });
    scheduler.gone(&id("00000000000a"));
    assert!(node.groups().is_empty());
}
