//! Zygotes: one for each generation, found again by the next launcher, gone with the node.

use super::node::{Node, Scheduler, request};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use omni_node_protocol::exit::ExitCause;
use omni_node_protocol::id::{EnvironmentKey, InstanceId, SnapshotDigest};
use omni_node_protocol::launcher::{StartSpec, ToLauncher, ZygoteSpec};
use std::fs;

const MODEL: (&str, &str) = ("model.py", "def handle_request(request, context):\n    return 'hi'\n");

struct Model {
    snapshot: SnapshotDigest,
    environment: EnvironmentKey,
}

fn prepared(node: &Node, scheduler: &Scheduler) -> Model {
    node.publish("m", &[MODEL]);
    let snapshot = scheduler.snapshot_of("m");
    let environment = scheduler.prepare("m", &snapshot).unwrap();
    Model { snapshot, environment }
}

impl Model {
    fn instance(&self, id: &str) -> StartSpec {
        let zygote = Some(ZygoteSpec { preload: vec!["json".into()], memory_bytes: 512 << 20, startup_ms: 60_000 });
        StartSpec { zygote, ..request(id, "m", &self.snapshot, &self.environment) }
    }
}

/// The processes in the limited group of an instance or a zygote.
fn processes(node: &Node, name: &str) -> Vec<i32> {
    let group = node.groups().into_iter().find(|group| group.ends_with(name));
    let text = group.and_then(|group| fs::read_to_string(group.join("model/cgroup.procs")).ok());
    text.unwrap_or_default().lines().map(|line| line.parse().unwrap()).collect()
}

/// Starts an instance and waits for its process; its user.
fn begin(node: &Node, scheduler: &Scheduler, spec: StartSpec) -> u32 {
    let id = spec.instance.to_string();
    scheduler.start(spec).unwrap();
    let engine = || processes(node, &id).into_iter().find(|pid| name_of(*pid).starts_with("python"));
    node.wait_for("the engine", || engine().is_some());
    let status = fs::read_to_string(format!("/proc/{}/status", engine().unwrap())).unwrap();
    let uid = status.lines().find_map(|line| line.strip_prefix("Uid:")).unwrap();
    uid.split_ascii_whitespace().next().unwrap().parse().unwrap()
}

fn name_of(pid: i32) -> String {
    fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default()
}

/// Ids of zygotes that take callers.
fn zygotes(node: &Node) -> Vec<String> {
    let names = fs::read_dir(node.path("run/zygotes")).unwrap().map(|entry| entry.unwrap().file_name());
    let mut ids: Vec<String> =
        names.filter_map(|name| Some(name.to_str()?.strip_suffix(".sock")?.to_owned())).collect();
    ids.sort();
    ids
}

fn end(scheduler: &Scheduler, id: &str) {
    let instance = InstanceId::parse(id).unwrap();
    scheduler.say(&ToLauncher::Kill { instance: instance.clone() });
    assert_eq!(scheduler.gone(&instance), ExitCause::WorkerLost);
}

fn assert_nothing_left(node: &Node) {
    assert!(node.groups().is_empty(), "{:?}", node.groups());
    let left: Vec<_> = fs::read_dir(node.path("run/zygotes")).unwrap().map(|entry| entry.unwrap().path()).collect();
    assert!(left.is_empty() && node.traces().is_empty(), "{left:?}");
}

#[test]
fn a_generation_keeps_one_zygote_through_launchers_and_crashes() {
    let mut node = Node::start();
    let scheduler = node.connect();
    let model = prepared(&node, &scheduler);
    let first = begin(&node, &scheduler, model.instance("00000000000a"));
    let second = begin(&node, &scheduler, model.instance("00000000000b"));
    assert_eq!(first, second, "instances of one zygote have one user");
    assert_eq!(zygotes(&node), ["00000000000a"], "named by the instance that it was begun for");
    let alone = begin(&node, &scheduler, request("00000000000c", "m", &model.snapshot, &model.environment));
    assert_ne!(alone, first);

    // All instances gone: the zygote waits for the next, and that has its user.
    for id in ["00000000000a", "00000000000b", "00000000000c"] {
        end(&scheduler, id);
    }
    assert_eq!(begin(&node, &scheduler, model.instance("00000000000d")), first);

    node.end(Signal::SIGKILL);
    node.run(&[]);
    let scheduler = node.connect();
    scheduler.snapshot_of("m");
    assert_eq!(scheduler.prepare("m", &model.snapshot).unwrap(), model.environment);
    assert_eq!(begin(&node, &scheduler, model.instance("00000000000e")), first, "it is found again");
    assert_eq!(zygotes(&node), ["00000000000a"]);

    // Killed: its instances go on, and the next one starts alone. When those are gone, later ones have another zygote.
    let zygote = processes(&node, "zygote-00000000000a");
    assert_eq!(zygote.len(), 1);
    kill(Pid::from_raw(zygote[0]), Signal::SIGKILL).unwrap();
    node.wait_for("it to take no more callers", || zygotes(&node).is_empty());
    assert_ne!(begin(&node, &scheduler, model.instance("00000000000f")), first);
    assert!(zygotes(&node).is_empty(), "not beside the instances of the one before");
    for id in ["00000000000d", "00000000000e"] {
        end(&scheduler, id);
    }
    let mut next = 0x10;
    node.wait_for("another zygote", || {
        begin(&node, &scheduler, model.instance(&format!("{next:012x}")));
        next += 1;
        !zygotes(&node).is_empty()
    });
    let rest = (0x10..next).map(|number| format!("{number:012x}"));
    for id in ["00000000000f".to_owned()].into_iter().chain(rest) {
        end(&scheduler, &id);
    }
    assert_eq!(node.end(Signal::SIGTERM).code(), Some(0));
    node.run(&[]);
    node.wait_for("the next launcher to have swept", || node.groups().is_empty());
    assert_nothing_left(&node);
}

#[test]
fn a_zygote_without_instances_goes_with_its_launcher() {
    let mut node = Node::start();
    let scheduler = node.connect();
    let model = prepared(&node, &scheduler);
    begin(&node, &scheduler, model.instance("00000000000a"));
    end(&scheduler, "00000000000a");
    assert_eq!(zygotes(&node), ["00000000000a"]);
    assert_eq!(node.end(Signal::SIGTERM).code(), Some(0));
    assert_nothing_left(&node);
}

#[test]
fn a_node_that_ends_leaves_none() {
    let mut node = Node::stopped();
    node.run(&["--keep"]);
    let scheduler = node.connect();
    let model = prepared(&node, &scheduler);
    begin(&node, &scheduler, model.instance("00000000000a"));
    scheduler.say(&ToLauncher::Quit);
    end(&scheduler, "00000000000a");
    assert_eq!(node.wait_end().code(), Some(0));
    assert_nothing_left(&node);
}

#[test]
fn a_launcher_started_by_a_service_stays_after_the_node_without_instances() {
    let mut node = Node::start();
    let scheduler = node.connect();
    let model = prepared(&node, &scheduler);
    begin(&node, &scheduler, model.instance("00000000000a"));
    scheduler.say(&ToLauncher::Quit);
    end(&scheduler, "00000000000a");
    assert!(scheduler.is_closed());
    assert!(node.groups().is_empty() && zygotes(&node).is_empty(), "the connection ends last");
    let next = node.connect();
    assert_eq!(next.snapshot_of("m"), model.snapshot);
    next.prepare("m", &model.snapshot).unwrap();
    begin(&node, &next, model.instance("00000000000b"));
    assert_eq!(zygotes(&node), ["00000000000b"]);
    end(&next, "00000000000b");
    assert_eq!(node.end(Signal::SIGTERM).code(), Some(0));
    assert_nothing_left(&node);
}

#[test]
fn requests_for_zygotes_are_checked() {
    let node = Node::start();
    let scheduler = node.connect();
    let model = prepared(&node, &scheduler);
    let with = |modules: Vec<String>| StartSpec {
        zygote: Some(ZygoteSpec { preload: modules, memory_bytes: 512 << 20, startup_ms: 60_000 }),
        ..model.instance("00000000000a")
    };
    let table = [
        (with(vec!["../os".into()]), "`../os` is not an entry point or a module"),
        (with(vec!["os".into(); 1000]), "modules to preload of 1000"),
    ];
    for (spec, expected) in table {
        let message = scheduler.start(spec).unwrap_err();
        assert!(message.contains(expected), "{message}");
    }
    assert_nothing_left(&node);
}
