//! Parts of the kernel's that an instance stands on go away under it: the server of its `/proc/meminfo`, its control
//! group, the node's parent group.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a failed step of a test is a failed test")]

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use omni_control_api::State;
use omni_tests::process::{self, is_alive};
use omni_tests::{Node, PATIENCE, Resources, wait_for};
use serde_json::json;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread;

/// Says how much memory the machine has, as the model sees it; `null` says nothing.
const READS: &[(&str, &str)] = &[(
    "model.py",
    r#"
def handle_request(request, context):
    if request.body.json is None:
        return "well"
    with open("/proc/meminfo") as file:
        return file.readline()
"#,
)];

/// Returns true if a thread of this process waits for a file system in user space.
fn waits_for_fuse(pid: Pid) -> bool {
    let threads = fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    threads
        .filter_map(|thread| fs::read_to_string(thread.path().join("wchan")).ok())
        .any(|at| at.contains("request_wait"))
}

#[test]
fn a_worker_that_dies_during_a_read_of_proc_meminfo_ends_its_model() {
    let node = Node::builder().model("reads", READS).model("neighbour", READS).start();
    let http = node.http();
    for model in ["reads", "neighbour"] {
        assert!(http.run(model, &json!(1)).json()["result"].as_str().unwrap().starts_with("MemTotal:"));
    }
    let neighbour = node.engine("neighbour");
    // Killed first: the server, or the model while it waits for a server that does not answer.
    for server_first in [true, false] {
        let instance = node.instance("reads").expect("an instance");
        let engine = Pid::from_raw(instance.pid.expect("a process"));
        let worker = node.worker(engine).expect("its worker");
        process::stop(worker);
        thread::scope(|scope| {
            let asked = scope.spawn(move || http.run("reads", &json!(1)));
            wait_for("the read to be in the kernel", PATIENCE, || {
                assert!(!asked.is_finished(), "answered by a file system whose server stands still\n{}", node.log());
                waits_for_fuse(engine).then_some(())
            });
            if !server_first {
                kill(engine, Signal::SIGKILL).unwrap();
            }
            kill(worker, Signal::SIGKILL).unwrap();
            let answer = asked.join().unwrap();
            assert_eq!((answer.status, answer.error_code()), (502, Some(3050)), "{}", answer.text());
        });
        wait_for("the processes to be gone", PATIENCE, || {
            let left = node.found().into_iter().find(|line| line.contains(&instance.id));
            (left.is_none() && !is_alive(engine) && !is_alive(worker)).then_some(())
        });
        wait_for("the next one", PATIENCE, || (node.model("reads").state == State::Ready).then_some(()));
        assert!(http.run("reads", &json!(1)).json()["result"].as_str().unwrap().starts_with("MemTotal:"));
        assert_eq!(node.omnictl(["start", "reads"]).code, 0, "the next death is the first in a row again");
    }
    assert_eq!(node.engine("neighbour"), neighbour);
    node.stop();
}

/// The process's own groups below the node's parent, in every hierarchy.
fn groups(pid: Pid) -> Vec<PathBuf> {
    let lines = fs::read_to_string(format!("/proc/{pid}/cgroup")).unwrap();
    let root = Path::new("/sys/fs/cgroup");
    let group = |line: &str| {
        let mut parts = line.splitn(3, ':').skip(1);
        let (controllers, path) = (parts.next()?, parts.next()?);
        let unified = if root.join("unified").exists() { "unified" } else { "" };
        let hierarchy = if controllers.is_empty() { unified } else { controllers };
        path.ends_with("/model").then(|| root.join(hierarchy).join(path.trim_start_matches('/')))
    };
    lines.lines().filter_map(group).collect()
}

#[test]
fn an_instance_whose_control_group_is_taken_away_can_still_be_ended() {
    let node = Node::builder().model("m", READS).start();
    let http = node.http();
    node.says("m", "well");
    assert_eq!(node.omnictl(["stop", "m", "--wait"]).code, 0);
    let before = Resources::at_rest(&node);
    for end in ["stop", "kill"] {
        assert_eq!(node.omnictl(["start", "m", "--wait"]).code, 0, "{}", node.log());
        let engine = node.engine("m").expect("a process");
        let groups = groups(engine);
        assert!(!groups.is_empty());
        for group in &groups {
            // Some tool of the machine's moves everything out and removes it.
            let outside = group.ancestors().nth(3).expect("the hierarchy").join("cgroup.procs");
            wait_for("an empty group", PATIENCE, || {
                let members = fs::read_to_string(group.join("cgroup.procs")).unwrap();
                members.lines().for_each(|pid| drop(fs::write(&outside, pid)));
                fs::remove_dir(group).ok()
            });
        }
        let answer = http.run("m", &json!(null));
        assert!([200, 502].contains(&answer.status), "{}", answer.text());
        if end == "kill" {
            kill(node.worker(engine).unwrap_or(engine), Signal::SIGKILL).unwrap();
            wait_for("its end", PATIENCE, || (node.engine("m") != Some(engine)).then_some(()));
        }
        let stopped = node.omnictl(["stop", "m", "--wait"]);
        assert_eq!(stopped.code, 0, "{stopped:?}\n{}", node.log());
        wait_for("its processes to be gone", PATIENCE, || (!is_alive(engine)).then_some(()));
        before.assert_unchanged(&node);
    }
    node.stop();
}

#[test]
fn a_removed_parent_group_is_created_again() {
    let node = Node::builder().model("m", READS).start();
    node.says("m", "well");
    let parents: Vec<PathBuf> = groups(node.engine("m").expect("a process"))
        .iter()
        .map(|group| group.ancestors().nth(2).expect("the parent").to_owned())
        .collect();
    assert_eq!(node.omnictl(["stop", "m", "--wait"]).code, 0);
    for parent in &parents {
        wait_for("the parent to be empty", PATIENCE, || fs::remove_dir(parent).ok());
    }
    assert_eq!(node.omnictl(["start", "m", "--wait"]).code, 0, "{}", node.log());
    node.says("m", "well");
    assert!(parents.iter().all(|parent| parent.exists()));
    node.stop();
}

/// Soft and hard limit of open files.
fn open_files(pid: Pid) -> (String, String) {
    let limits = fs::read_to_string(format!("/proc/{pid}/limits")).unwrap();
    let line = limits.lines().find_map(|line| line.strip_prefix("Max open files")).expect("a limit");
    let mut words = line.split_whitespace().map(str::to_owned);
    (words.next().expect("soft"), words.next().expect("hard"))
}

#[test]
fn the_node_raises_its_descriptor_limit_to_the_maximum() {
    let node = Node::builder().model("m", READS).start();
    // As a service manager starts it: whatever the scheduler has, the launcher begins with little.
    let keeper = process::parent(node.launcher().expect("a launcher")).expect("its keeper");
    let lowered = Command::new("prlimit").args(["--pid", &keeper.to_string(), "--nofile=256:"]).status().unwrap();
    assert!(lowered.success() && open_files(keeper).0 == "256");
    node.replace_launcher(Signal::SIGKILL);
    node.says("m", "well");
    let worker = node.worker(node.engine("m").expect("a process")).expect("its worker");
    for (who, pid) in
        [("scheduler", node.pid()), ("launcher", node.launcher().expect("a launcher")), ("worker", worker)]
    {
        let (soft, hard) = open_files(pid);
        assert_eq!(soft, hard, "{who}");
    }
    node.stop();
}
