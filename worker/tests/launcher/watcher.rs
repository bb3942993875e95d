//! Directories of one author keep no other waiting: large ones, and those that do not answer.

use super::dead_mount::DeadMount;
use super::node::{Node, Scheduler};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use omni_node_protocol::launcher::FromLauncher;
use std::fs;
use std::os::unix::fs::symlink;

fn scanned(message: &FromLauncher) -> bool {
    matches!(message, FromLauncher::Scanned)
}

fn is_of(message: &FromLauncher, model: &str) -> bool {
    matches!(message, FromLauncher::Model { name, .. } | FromLauncher::ModelRefused { name, .. } if name == model)
}

/// Waits until a directory is told as not answering.
fn silent(scheduler: &Scheduler, directory: &str, is_model: bool) -> Vec<FromLauncher> {
    scheduler.hear_until(|said| match said {
        FromLauncher::ModelRefused { name, message, no_model } => {
            name == directory && message.contains("does not answer") && *no_model != is_model
        }
        _ => false,
    })
}

/// The processes that this one has started.
fn watchers(of: Pid) -> Vec<Pid> {
    let children = fs::read_dir(format!("/proc/{of}/task")).unwrap().flatten();
    let text = |task: fs::DirEntry| fs::read_to_string(task.path().join("children")).unwrap_or_default();
    let pids = children.map(text).collect::<String>();
    let pids = pids.split_whitespace().map(|pid| Pid::from_raw(pid.parse().unwrap()));
    let is_watcher =
        |pid: &Pid| fs::read_to_string(format!("/proc/{pid}/cmdline")).unwrap_or_default().contains("\0--watcher\0");
    pids.filter(is_watcher).collect()
}

#[test]
fn a_mount_that_does_not_answer_blocks_no_other() {
    let mut node = Node::stopped();
    node.write("good/model.py", "");
    let dead = DeadMount::at(&node.path("models/dead"));
    node.run(&[]);
    let scheduler = node.connect();
    let first = scheduler.snapshot_of("good");
    node.wait_for("somebody to ask the dead one", || dead.waiting() > 0);
    node.write("good/model.py", "x = 2\n");
    assert_ne!(scheduler.snapshot_of("good"), first, "an edit is seen while the other is waited for");
    silent(&scheduler, "dead", false);
    scheduler.hear_until(scanned);

    // The launcher ends while the kernel still waits, and the next one needs nothing that it had.
    node.end(Signal::SIGTERM);
    node.run(&[]);
    let scheduler = node.connect();
    silent(&scheduler, "dead", false);
    node.write("good/model.py", "x = 3\n");
    scheduler.snapshot_of("good");

    // The content without the mount is served, though the mount has never answered.
    dead.detach();
    node.write("dead/model.py", "");
    scheduler.snapshot_of("dead");
    node.end(Signal::SIGKILL);
}

#[test]
fn a_model_whose_files_do_not_answer_is_named_and_comes_back() {
    let mut node = Node::stopped();
    node.write("other/model.py", "");
    node.write("m/model.py", "");
    node.run(&[]);
    let scheduler = node.connect();
    scheduler.hear_until(scanned);
    let mut dead = DeadMount::at(&node.path("models/m/data"));
    let heard = silent(&scheduler, "m", true);
    assert!(!heard.iter().any(|said| is_of(said, "other")), "{heard:#?}");
    node.write("other/model.py", "x = 2\n");
    scheduler.snapshot_of("other");
    // The daemon ends: that is an answer, and the last one is that of the mount's end.
    dead.abort();
    dead.detach();
    node.write("m/model.py", "x = 2\n");
    scheduler.snapshot_of("m");
}

/// The copy takes as long as hashing 60 GiB does.
#[test]
fn a_huge_model_keeps_no_other_one_waiting() {
    let mut node = Node::stopped();
    node.write("good/model.py", "");
    node.write("a-huge/model.py", "");
    fs::File::create(node.path("models/a-huge/sparse")).unwrap().set_len(60 << 30).unwrap();
    node.run(&[]);
    let scheduler = node.connect();
    let is_good = |said: &FromLauncher| is_of(said, "good");
    let first = scheduler.hear_until(is_good);
    let copies = || {
        let names = fs::read_dir(node.path("state/snapshots")).unwrap().flatten();
        names.filter(|entry| entry.file_name().to_string_lossy().starts_with(".tmp-")).count()
    };
    node.wait_for("the copy of the huge one", || copies() == 1);
    node.write("good/model.py", "x = 2\n");
    let second = scheduler.hear_until(is_good);
    let is_served = |said: &FromLauncher| matches!(said, FromLauncher::Model { name, .. } if name == "a-huge");
    assert!(!first.iter().chain(&second).any(is_served), "the huge one was waited for");
    let told = |said: &FromLauncher| matches!(said, FromLauncher::ModelRefused { name, .. } if name == "a-huge");
    if !first.iter().chain(&second).any(told) {
        scheduler.hear_until(told);
    }
    // An unwanted copy is not finished.
    fs::remove_dir_all(node.path("models/a-huge")).unwrap();
    node.wait_for("nothing to be left of the copy", || copies() == 0);
}

#[test]
fn a_watcher_that_was_killed_is_followed_by_another() {
    let node = Node::start();
    let scheduler = node.connect();
    scheduler.hear_until(scanned);
    node.publish("m", &[("model.py", "")]);
    node.publish("gone", &[("model.py", "x = 1\n")]);
    let first = scheduler.snapshot_of("gone");
    let watcher = watchers(node.launcher_pid());
    assert_eq!(watcher.len(), 1, "{watcher:?}");
    kill(watcher[0], Signal::SIGSTOP).unwrap();
    fs::remove_dir_all(node.path("models/gone")).unwrap();
    node.write("m/model.py", "x = 2\n");
    kill(watcher[0], Signal::SIGKILL).unwrap();
    let heard = scheduler.hear_until(scanned);
    let gone = |said: &FromLauncher| matches!(said, FromLauncher::ModelGone { name } if name == "gone");
    assert!(heard.iter().any(gone) && heard.iter().any(|said| is_of(said, "m")), "{heard:#?}");
    node.publish("gone", &[("model.py", "x = 1\n")]);
    assert_eq!(scheduler.snapshot_of("gone"), first);
}

/// As Kubernetes mounts a `ConfigMap`: links through `..data`, which alone is exchanged.
#[test]
fn a_config_map_is_served_and_its_exchange_is_one_change() {
    let mut node = Node::stopped();
    let at = |path: &str| node.path("models/m").join(path);
    for (folder, text) in [("..2026_1", "x = 1\n"), ("..2026_2", "x = 2\n")] {
        node.write(&format!("m/{folder}/model.py"), text);
        node.write(&format!("m/{folder}/data.txt"), text);
    }
    symlink("..2026_1", at("..data")).unwrap();
    for file in ["model.py", "data.txt"] {
        symlink(format!("..data/{file}"), at(file)).unwrap();
    }
    node.run(&[]);
    let scheduler = node.connect();
    let first = scheduler.snapshot_of("m");
    scheduler.hear_until(scanned);
    symlink("..2026_2", node.path("models/m/..data_tmp")).unwrap();
    fs::rename(node.path("models/m/..data_tmp"), node.path("models/m/..data")).unwrap();
    fs::remove_dir_all(node.path("models/m/..2026_1")).unwrap();
    let second = scheduler.snapshot_of("m");
    for (snapshot, text) in [(first, "x = 1\n"), (second, "x = 2\n")] {
        for file in ["model.py", "data.txt"] {
            let copy = node.path("state/snapshots").join(snapshot.as_str()).join(file);
            assert!(copy.symlink_metadata().unwrap().is_file());
            assert_eq!(fs::read_to_string(copy).unwrap(), text);
        }
    }
}

#[test]
fn a_version_to_come_back_to_is_verified_and_refused_when_damaged() {
    let node = Node::start();
    let scheduler = node.connect();
    scheduler.hear_until(scanned);
    node.publish("m", &[("model.py", "x = 1\n")]);
    let first = scheduler.snapshot_of("m");
    node.write("m/model.py", "x = 2\n");
    let second = scheduler.snapshot_of("m");
    scheduler.prepare("m", &first).expect("it is as it was");
    let file = node.path("state/snapshots").join(first.as_str()).join("model.py");
    fs::write(file, "x = 9\n").unwrap();
    let (message, permanent) = scheduler.prepare("m", &first).unwrap_err();
    assert!(permanent && message.contains("damaged on the disk") && message.contains("omnictl history m"), "{message}");
    scheduler.prepare("m", &second).expect("the directory's own");
    // A directory with the same files again has them from there.
    node.write("m/model.py", "x = 1\n");
    assert_eq!(scheduler.snapshot_of("m"), first);
    scheduler.prepare("m", &first).expect("it was replaced");
}
