//! A scheduler that was taken over: what its user can do to files of root, in the runtime directory and by what it says to
//! the launcher. The same attacker is tried once more against the same steps done by path, in a folder that its user owns.

use crate::control::FOLDER;
use nix::sys::signal::{Signal, kill};
use nix::sys::socket::{AddressFamily, SockFlag, SockType, UnixAddr, bind, socket};
use omni_tests::process::is_alive;
use omni_tests::{Node, PATIENCE, process, wait_for};
use serde_json::{Value, json};
use std::fs::{self, File, Permissions};
use std::io::{BufRead, BufReader};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown, lchown, symlink};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};
use tempfile::TempDir;

const ECHO: [(&str, &str); 1] = [("model.py", "def handle_request(request, context):\n    return 'well'\n")];
const TEXT: &str = "of root, and of nobody else";
/// Starts of instances while the attacker is at work: each makes a socket, a record and an exit file.
const STARTS: usize = 12;

/// A file of root in a folder of root, readable by root only.
struct Precious(TempDir);

impl Precious {
    fn new() -> Self {
        let folder = TempDir::with_prefix("omni-precious").unwrap();
        let precious = Self(folder);
        fs::write(precious.path(), TEXT).unwrap();
        fs::set_permissions(precious.path(), Permissions::from_mode(0o600)).unwrap();
        precious
    }

    fn path(&self) -> PathBuf {
        self.0.path().join("shadow")
    }

    /// Returns true if the file is unchanged, and alone in its folder.
    fn is_untouched(&self) -> bool {
        let found = fs::metadata(self.path()).unwrap();
        let alone = fs::read_dir(self.0.path()).unwrap().count() == 1;
        found.uid() == 0 && found.mode() & 0o7777 == 0o600 && alone && fs::read_to_string(self.path()).unwrap() == TEXT
    }
}

/// The attacker in a runtime directory, at work until it is asked what it has done.
struct Attacker {
    process: Child,
    said: BufReader<ChildStdout>,
}

impl Attacker {
    fn start(user: u32, run: &Path, precious: &Precious, names: &[&str]) -> Self {
        let mut process = Command::new("python3")
            .args(["-B", &format!("{FOLDER}/probes/taken_over.py"), &user.to_string()])
            .args([run, &precious.path()])
            .args(names)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("python3 runs");
        let mut said = BufReader::new(process.stdout.take().unwrap());
        let mut line = String::new();
        said.read_line(&mut line).unwrap();
        assert_eq!(line, "ready\n");
        Self { process, said }
    }

    fn done(mut self) -> Value {
        drop(self.process.stdin.take());
        let mut line = String::new();
        self.said.read_line(&mut line).unwrap();
        serde_json::from_str(&line).unwrap_or_else(|error| panic!("{error}: {line}"))
    }
}

impl Drop for Attacker {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// How often `step` is done, as root and by path, until the file is not as it was any more; `None` for never.
fn until_touched(precious: &Precious, mut step: impl FnMut()) -> Option<usize> {
    (1..200_000).find(|_| {
        step();
        !precious.is_untouched()
    })
}

#[test]
fn the_attack_succeeds_where_root_works_by_path() {
    const USER: u32 = 71_201;
    let folder = TempDir::with_prefix("omni-taken-over").unwrap();
    fs::set_permissions(folder.path(), Permissions::from_mode(0o755)).unwrap();
    let run = folder.path().join("run");
    let instances = run.join("instances");
    fs::create_dir_all(&instances).unwrap();
    chown(&run, Some(USER), Some(USER)).unwrap();
    let (written, owned) = (Precious::new(), Precious::new());

    let attacker = Attacker::start(USER, &run, &written, &["instances"]);
    let exit_file = instances.join("000000000000.exit");
    let won = until_touched(&written, || drop(fs::write(&exit_file, "{}")));
    assert!(won.is_some() && fs::read_to_string(written.path()).unwrap() == "{}", "root writes where the link leads");
    assert!(attacker.done()["instances"].as_u64() > Some(0));

    let attacker = Attacker::start(USER, &run, &owned, &["instances"]);
    let place = instances.join("000000000000.sock");
    let won = until_touched(&owned, || {
        let _ = fs::remove_file(&place);
        let made = socket(AddressFamily::Unix, SockType::SeqPacket, SockFlag::SOCK_CLOEXEC, None).unwrap();
        if bind(made.as_raw_fd(), &UnixAddr::new(&place).unwrap()).is_ok() {
            let _ = chown(&place, Some(USER), None);
        }
    });
    assert!(won.is_some() && fs::metadata(owned.path()).unwrap().uid() == USER, "root gives away what the link names");
    drop(attacker);

    // A lock that root opens by path, where a link leads to a name that is free.
    let made = folder.path().join("made");
    symlink(&made, run.join("scheduler.lock")).unwrap();
    File::options().create(true).truncate(false).write(true).open(run.join("scheduler.lock")).unwrap();
    assert!(made.exists());
}

#[test]
fn a_taken_over_scheduler_changes_no_file_of_root() {
    let mut node = Node::builder().config(crate::ROOMY).model("one", &ECHO).start();
    node.says("one", "well");
    let run = node.control_socket().parent().unwrap().to_owned();
    let user = fs::metadata(format!("/proc/{}", node.pid())).unwrap().uid();
    assert_ne!(user, 0);
    let precious = Precious::new();
    let names = ["instances", "zygotes", "launcher.sock", "launcher.lock", "control", "control.sock", "node.json"];
    let attacker = Attacker::start(user, &run, &precious, &names);
    for _ in 0..STARTS {
        assert_eq!(node.omnictl(["restart", "one", "--wait"]).code, 0, "{}", node.log());
        node.says("one", "well");
    }
    // A launcher that begins locks, binds and lists anew.
    let before = node.launcher().expect("a launcher");
    kill(before, Signal::SIGKILL).unwrap();
    wait_for("the next launcher", PATIENCE, || node.launcher().filter(|now| *now != before));
    wait_for("an instance of its own", PATIENCE, || {
        (node.omnictl(["restart", "one", "--wait"]).code == 0).then_some(())
    });
    let done = attacker.done();
    assert!(done.as_object().unwrap().values().all(|times| times == 0), "{done}");
    assert!(precious.is_untouched());

    // Root that starts the next scheduler by hand opens nothing for its user that the user may not open.
    node.crash();
    let own = run.join("control");
    for (name, target) in [("scheduler.lock", precious.0.path().join("made")), ("control.sock", precious.path())] {
        let _ = fs::remove_file(own.join(name));
        symlink(target, own.join(name)).unwrap();
        lchown(own.join(name), Some(user), Some(user)).unwrap();
    }
    let refused = node.rival();
    assert!(refused.code != 0 && refused.stderr.contains("scheduler.lock"), "{refused:?}");
    assert!(precious.is_untouched());
    fs::remove_file(own.join("scheduler.lock")).unwrap();
    node.start_again();
    node.says("one", "well");
    assert!(precious.is_untouched(), "the link in the socket's place is replaced, not followed");
    node.stop();
}

#[test]
fn messages_of_a_taken_over_scheduler_reach_no_file_of_root() {
    let node = Node::builder().config(crate::ROOMY).model("one", &ECHO).model("other", &ECHO).start();
    node.says("one", "well");
    node.says("other", "well");
    let (one, other) = (node.engine("one").unwrap(), node.engine("other").unwrap());
    let launcher = node.launcher().expect("a launcher");
    let run = node.control_socket().parent().unwrap().to_owned();
    let user = fs::metadata(format!("/proc/{}", node.pid())).unwrap().uid();
    let precious = Precious::new();
    // Program that the attack would run as root.
    let program = run.join("control/program");
    fs::write(&program, format!("#!/bin/sh\nid >{}\n", precious.0.path().join("ran").display())).unwrap();
    fs::set_permissions(&program, Permissions::from_mode(0o755)).unwrap();
    chown(&program, Some(user), Some(user)).unwrap();

    process::stop(node.pid()); // the launcher uses the newest connection: this scheduler must not reconnect meanwhile
    let said = Command::new("python3")
        .args(["-B", &format!("{FOLDER}/probes/hostile_scheduler.py"), &user.to_string()])
        .args([&run.join("launcher.sock")])
        .args(["one", "other"])
        .arg(&program)
        .arg(omni_node_protocol::launcher::PROTOCOL.to_string())
        .arg(omni_tests::python())
        .output()
        .unwrap();
    kill(node.pid(), Signal::SIGCONT).unwrap();
    let words = String::from_utf8_lossy(&said.stderr);
    let came_to: Value = serde_json::from_slice(&said.stdout).unwrap_or_else(|_| panic!("{words}\n{}", node.log()));
    let all = |word: &str, count: usize| json!(vec![word; count]);
    let expected = json!({
        // The control: it is obeyed.
        "a start as it should be": "started",
        // Allowed: to choose which model runs.
        "under another model's name": "started",
        "ids": all("ends", 7),
        "snapshots": ["ends", "ends", "start-failed", "ends"],
        "environments": ["ends", "ends", "start-failed"],
        "models": all("start-failed", 6),
        "modules": all("start-failed", 4),
        "limits": all("start-failed", 14),
        "no numbers": all("ends", 3),
        "interpreters": all("prepare-failed", 5),
        "prepared for others": ["prepare-failed", "prepare-failed", "ends"],
        "before hello": "goes on",
        "twice hello": "goes on",
        "another release": "ends",
        "wrong order": "goes on",
        "kept paths": "ends",
        "zygotes of nobody": "goes on",
        "no JSON": "ends",
        "no message": "ends",
        "nothing": "ends",
        "deep": "ends",
        "too long": "ends",
        "descriptors": "goes on",
    });
    for (what, came_to) in came_to.as_object().unwrap() {
        assert_eq!(came_to, &expected[what], "{what}");
    }
    assert_eq!(came_to.as_object().unwrap().len(), expected.as_object().unwrap().len());
    assert!(precious.is_untouched());
    assert_eq!(node.launcher(), Some(launcher), "it goes on");
    assert!([one, other].into_iter().all(is_alive));
    wait_for("the scheduler to be heard again", PATIENCE, || (node.admin().get("/readyz").status == 200).then_some(()));
    node.says("one", "well");
    assert_eq!((node.engine("one"), node.engine("other")), (Some(one), Some(other)));
    fs::remove_file(program).unwrap();
    node.stop();
}
