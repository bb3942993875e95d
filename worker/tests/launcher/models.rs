//! The models folder as a scheduler hears of it.

use super::node::{Node, Scheduler};
use nix::sys::signal::Signal;
use omni_node_protocol::id::{InstanceId, SnapshotDigest};
use omni_node_protocol::launcher::{FromLauncher, ToLauncher};
use std::fs;
use std::os::unix::fs::symlink;

fn scanned(message: &FromLauncher) -> bool {
    matches!(message, FromLauncher::Scanned)
}

#[test]
fn existing_models_are_reported_first_then_changes() {
    let mut node = Node::stopped();
    node.write("cowsay/model.py", "x = 1\n");
    node.write("@cf/meta/llama/model.py", "x = 1\n");
    node.write("@cf/meta/llama/omni.toml", "schema = 1\n");
    node.write(".hidden/model.py", "");
    node.write("fifo/model.py", "");
    nix::unistd::mkfifo(&node.path("models/fifo/pipe"), nix::sys::stat::Mode::S_IRUSR).unwrap();
    node.write("sparse/model.py", "");
    fs::File::create(node.path("models/sparse/w.bin")).unwrap().set_len(100 << 30).unwrap();
    node.write("bad name/model.py", "");
    symlink("cowsay", node.path("models/link")).unwrap();
    node.run(&[]);
    let scheduler = node.connect();
    let mut heard = scheduler.hear_until(scanned);
    assert_eq!(heard.pop(), Some(FromLauncher::Scanned));
    let mut told: Vec<String> = heard
        .iter()
        .filter_map(|message| match message {
            FromLauncher::Model { name, manifest, .. } => Some(format!("{name}: {manifest:?}")),
            FromLauncher::ModelRefused { name, message, .. } => Some(format!("{name}: {message}")),
            FromLauncher::WeightsCounts(_) => None,
            other => panic!("{other:?}"),
        })
        .collect();
    told.sort();
    let expected = [
        "@cf/meta/llama: Some(\"schema = 1\\n\")",
        "bad name: the directory's path cannot be a model's name:",
        "cowsay: None",
        "fifo: `pipe` is a FIFO",
        "link: the model's directory is a symbolic link",
        "sparse: with `w.bin` (100.0 GiB) the directory has more than 64.0 GiB",
    ];
    assert_eq!(told.len(), expected.len(), "{told:#?}");
    for (told, expected) in told.iter().zip(expected) {
        assert!(told.starts_with(expected), "{told}");
    }

    let first = heard.iter().find_map(|message| match message {
        FromLauncher::Model { name, snapshot, .. } if name == "cowsay" => Some(snapshot.clone()),
        _ => None,
    });
    node.write("cowsay/model.py", "x = 2\n");
    let second = scheduler.snapshot_of("cowsay");
    assert_ne!(Some(&second), first.as_ref());
    let text = fs::read_to_string(node.path("state/snapshots").join(second.as_str()).join("model.py")).unwrap();
    assert_eq!(text, "x = 2\n");

    node.publish("new", &[("model.py", "x = 3\n"), ("deep/data.txt", "d")]);
    let new = scheduler.snapshot_of("new");
    node.write("new/deep/data.txt", "changed in a directory of a new model");
    assert_ne!(scheduler.snapshot_of("new"), new);
    fs::remove_file(node.path("models/fifo/pipe")).unwrap();
    scheduler.snapshot_of("fifo");
    fs::remove_dir_all(node.path("models/@cf")).unwrap();
    scheduler.hear_until(|message| matches!(message, FromLauncher::ModelGone { name } if name == "@cf/meta/llama"));
}

#[test]
fn the_models_folder_may_vanish_and_return() {
    let mut node = Node::stopped();
    node.write("m/model.py", "");
    node.run(&[]);
    let scheduler = node.connect();
    scheduler.hear_until(scanned);
    fs::rename(node.path("models"), node.path("away")).unwrap();
    scheduler.hear_until(|message| matches!(message, FromLauncher::ModelGone { .. }));
    fs::rename(node.path("away"), node.path("models")).unwrap();
    scheduler.snapshot_of("m");
}

#[test]
fn a_new_scheduler_receives_everything_and_replaces_the_old() {
    let node = Node::start();
    let first = node.connect();
    first.hear_until(scanned);
    node.publish("m", &[("model.py", "")]);
    let snapshot = first.snapshot_of("m");
    let second = node.connect();
    assert_eq!(second.snapshot_of("m"), snapshot);
    assert_eq!(second.hear(), FromLauncher::Scanned);
    assert!(first.is_closed());
}

#[test]
fn an_invalid_message_ends_the_connection_and_nothing_else() {
    let node = Node::start();
    let scheduler = node.connect();
    scheduler.hear_until(scanned);
    let bad = node.connect();
    bad.hear_until(scanned);
    bad.send_raw(b"{\"type\":\"start\",\"instance\":\"../../etc\"}");
    assert!(bad.is_closed());
    node.connect().hear_until(scanned);
}

#[test]
fn a_missing_folder_or_a_second_launcher_is_an_error() {
    let mut node = Node::stopped();
    fs::remove_dir(node.path("models")).unwrap();
    let output = node.command(&["--log-format", "text"]).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(78), "{said}");
    assert!(said.contains("cannot open the models folder") && said.contains("No such file"), "{said}");
    fs::create_dir(node.path("models")).unwrap();
    node.run(&[]);
    let output = node.command(&[]).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(75), "{said}");
    assert!(said.contains("another launcher has") && said.contains("--runtime-dir"), "{said}");
    node.connect().hear_until(scanned);
}

/// The user of the scheduler, who owns a parent of it, or a folder in it, could put another one in its place.
#[test]
fn a_folder_that_the_scheduler_could_exchange_is_refused() {
    const USER: u32 = 71_301;
    let node = Node::stopped();
    let ends = |folder: &str, words: &str| {
        let output = node.command_for(USER, &["--log-format", "text"]).output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(78), "{folder}: {said}");
        assert!(said.contains(words) && said.contains("the scheduler's user"), "{folder}: {said}");
    };
    let owned = |path: &str, by: u32| std::os::unix::fs::chown(node.path(path), Some(by), None).unwrap();
    for (folder, words) in [("state", "--state-dir"), ("cache", "--cache-dir"), ("state/snapshots", "--state-dir")] {
        fs::create_dir_all(node.path(folder)).unwrap();
        owned(folder, USER);
        ends(folder, words);
        owned(folder, 0);
    }
    owned("", USER);
    ends("the folder of all of them", "cannot use");
    owned("", 0);
}

#[test]
fn one_folder_may_serve_all_purposes() {
    let mut node = Node::stopped();
    fs::create_dir(node.path("run")).unwrap();
    for folder in ["state", "cache"] {
        symlink("run", node.path(folder)).unwrap();
    }
    node.run(&[]);
    node.connect().hear_until(scanned);
    assert!(node.path("run/launcher.lock").exists());
}

/// A second store would take the first one's instances for its own leftovers.
#[test]
fn a_second_launcher_with_folders_of_its_own_keeps_off_the_control_groups_of_the_first() {
    let (mut first, mut second) = (Node::start(), Node::stopped());
    let own = fs::read_to_string(second.path("node.toml")).unwrap();
    fs::copy(first.path("node.toml"), second.path("node.toml")).unwrap();
    let output = second.command(&["--log-format", "text"]).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(75), "{said}");
    assert!(said.contains("another launcher has the control group") && said.contains("`cgroup-parent`"), "{said}");
    // Which it has for as long as it lives, and no longer.
    first.end(Signal::SIGKILL);
    second.run(&[]);
    second.connect().hear_until(scanned);
    second.end(Signal::SIGTERM);
    // Folders are not shared either.
    fs::write(second.path("node.toml"), own).unwrap();
    first.run(&[]);
    for folder in ["state", "cache"] {
        let moved = second.path("moved");
        fs::rename(second.path(folder), &moved).unwrap();
        symlink(first.path(folder), second.path(folder)).unwrap();
        let output = second.command(&[]).output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(75), "{said}");
        assert!(said.contains(&format!("another launcher has {}", first.path(folder).display())), "{said}");
        fs::remove_file(second.path(folder)).unwrap();
        fs::rename(&moved, second.path(folder)).unwrap();
    }
}

#[test]
fn listed_snapshots_are_kept_and_none_is_removed_before_the_list_is_complete() {
    let mut node = Node::start();
    let stored = |node: &Node, snapshot: &SnapshotDigest| node.path("state/snapshots").join(snapshot.as_str()).exists();
    let publish = |node: &Node, scheduler: &Scheduler, text: &str| {
        node.publish("next", &[("model.py", text)]);
        let snapshot = scheduler.snapshot_of("next");
        fs::remove_dir_all(node.path("models/next")).unwrap();
        scheduler.hear_until(|message| matches!(message, FromLauncher::ModelGone { .. }));
        snapshot
    };
    let keep = |snapshots: &[&SnapshotDigest]| ToLauncher::Keep {
        model: "next".into(),
        snapshots: snapshots.iter().map(|snapshot| (*snapshot).clone()).collect(),
    };
    let first = node.connect();
    first.hear_until(scanned);
    let (kept, other) = (publish(&node, &first, "x = 1\n"), publish(&node, &first, "x = 2\n"));
    first.say(&keep(&[&kept]));
    // Answered in order: what came before has been heard, and nothing was removed for it.
    let unknown = InstanceId::parse("0123456789ab").unwrap();
    let heard = |scheduler: &Scheduler| {
        scheduler.say(&ToLauncher::Kill { instance: unknown.clone() });
        scheduler.gone(&unknown);
    };
    heard(&first);
    assert!(stored(&node, &kept) && stored(&node, &other), "not all was said");
    first.say(&ToLauncher::KeptAll);
    heard(&first);
    assert_eq!((stored(&node, &kept), stored(&node, &other)), (true, false));
    node.wait_for("it to outlast a reboot", || {
        fs::read_to_string(node.path("state/snapshots/.lasting")).is_ok_and(|list| list.contains(kept.as_str()))
    });

    // The next launcher and the next scheduler begin anew.
    node.end(Signal::SIGKILL);
    node.run(&[]);
    let second = node.connect();
    second.hear_until(scanned);
    heard(&second);
    assert!(stored(&node, &kept), "nobody said that it may go");
    second.say(&keep(&[&kept]));
    second.say(&ToLauncher::KeptAll);
    second.say(&ToLauncher::Keep { model: "../odd".into(), snapshots: [kept.clone()].into() });
    heard(&second);
    assert!(stored(&node, &kept));
    second.say(&keep(&[]));
    heard(&second);
    assert!(!stored(&node, &kept));
}

#[test]
fn a_folder_behind_a_link_is_followed_when_the_link_turns() {
    let mut node = Node::stopped();
    for (folder, text) in [("one", "x = 1\n"), ("two", "x = 2\n")] {
        fs::create_dir_all(node.path(folder).join("m")).unwrap();
        fs::write(node.path(folder).join("m/model.py"), text).unwrap();
    }
    fs::remove_dir(node.path("models")).unwrap();
    symlink("one", node.path("models")).unwrap();
    node.run(&[]);
    let scheduler = node.connect();
    let first = scheduler.snapshot_of("m");
    scheduler.hear_until(scanned);
    symlink("two", node.path("next")).unwrap();
    fs::rename(node.path("next"), node.path("models")).unwrap();
    assert_ne!(scheduler.snapshot_of("m"), first);
    fs::write(node.path("two/m/model.py"), "x = 3\n").unwrap();
    scheduler.snapshot_of("m");
}

#[test]
fn a_directory_that_only_looks_like_a_model_is_reported_with_the_reason() {
    let mut node = Node::stopped();
    for path in ["team/project/family/name/v1", "outer", "outer/inner"] {
        node.write(&format!("{path}/model.py"), "");
    }
    node.run(&[]);
    let heard = node.connect().hear_until(scanned);
    let told = |directory: &str, reason: &str| {
        heard.iter().any(|said| match said {
            FromLauncher::ModelRefused { name, message, no_model: true } => {
                name == directory && message.contains(reason)
            }
            _ => false,
        })
    };
    assert!(told("team/project/family/name/v1", "more than four parts"), "{heard:#?}");
    assert!(told("outer/inner", "inside the model `outer`"), "{heard:#?}");
}

/// Nothing in a model with too many files is watched; it is seen all the same when there are fewer.
#[test]
fn a_model_with_too_many_directories_takes_nothing_from_others() {
    let mut node = Node::stopped();
    node.configure("[snapshots]\nfiles = 50\n");
    node.write("crowded/model.py", "");
    node.write("good/model.py", "");
    for number in 0..100 {
        fs::create_dir(node.path("models/crowded").join(number.to_string())).unwrap();
    }
    node.run(&[]);
    let scheduler = node.connect();
    scheduler.hear_until(scanned);
    node.write("good/model.py", "x = 2\n");
    scheduler.snapshot_of("good");
    for number in 0..80 {
        fs::remove_dir(node.path("models/crowded").join(number.to_string())).unwrap();
    }
    let taken = scheduler.snapshot_of("crowded");
    node.write("crowded/90/data", "in a directory that was not watched");
    assert_ne!(scheduler.snapshot_of("crowded"), taken);
}
