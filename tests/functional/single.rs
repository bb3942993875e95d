//! A node of a single model: it serves that one and nothing else, sees no changes, and ends when the model fails.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a failed step of a test is a failed test")]

use nix::sys::signal::{Signal, kill};
use omni_control_api::{Role, State};
use omni_tests::process::is_alive;
use omni_tests::{Node, Output, PATIENCE, program, wait_for};
use serde_json::{Value, json};
use std::fs;
use std::io::Write;
use std::os::unix::fs::symlink;
use std::process::Command;
use std::thread;

/// Delays its answer until it gets the order to die, and dies then.
const MORTAL: &str = r#"
import os, time

DIES = False

def handle_request(request, context):
    global DIES
    if request.body.json == "die":
        DIES = True
        os.abort()
    while True:
        time.sleep(0.01)
"#;
const NO_WEIGHTS: &str = r#"
def setup(context):
    raise RuntimeError("no weights")

def handle_request(request, context): ...
"#;
const SLOW: &str = r#"
import time

def setup(context):
    time.sleep(60)

def handle_request(request, context): ...
"#;

/// Goes on whatever happens.
const DEAF: &str = r#"
import time

def handle_request(request, context):
    print("I do not listen")
    while True:
        try:
            time.sleep(0.01)
        except BaseException:
            pass
"#;

fn says(word: &str) -> String {
    format!("def handle_request(request, context):\n    return {word:?}\n")
}

/// A service of one model that fails at its start: how it ends.
fn ends(files: &[(&str, &str)]) -> Output {
    Node::builder().model("m", files).single("m").begin().ends_by_itself()
}

/// The text behind this message, which is printed once.
fn after<'a>(said: &'a Output, words: &str) -> &'a str {
    let mut parts = said.stderr.split(words).skip(1);
    let (after, again) = (parts.next(), parts.next());
    assert!(again.is_none(), "said twice: {words}\n{}", said.stderr);
    after.unwrap_or_else(|| panic!("not said: {words}\n{}", said.stderr))
}

/// Has another scheduler take over, and the one before end.
fn upgrade(node: &mut Node) {
    let before = node.pid();
    node.upgrade();
    wait_for("the scheduler before to end", PATIENCE, || (!is_alive(before)).then_some(()));
}

#[test]
fn a_single_model_node_is_ready_when_its_model_is() {
    let quick = "schema = 1\n[scaling]\nidle-timeout = \"1s\"\n";
    let files = [("model.py", &*says("one")), ("omni.toml", quick)];
    let node = Node::builder().model("a", &files).model("b", &[("model.py", &says("b"))]).single("a").start();
    // The model has had no request yet.
    assert_eq!(node.model("a").state, State::Ready);
    assert_eq!(node.http().run("a", &Value::Null).json()["result"], "one");
    assert_eq!(node.http().run("b", &Value::Null).status, 404);
    assert_eq!(node.models().len(), 1);
    // The instance stays, whatever its manifest says of idle times.
    let explained: Value = serde_json::from_str(&node.omnictl(["explain", "a", "-o", "json"]).stdout).unwrap();
    assert_eq!(explained["min"], 1, "{explained}");

    let status = node.omnictl(["status"]);
    assert!(status.stdout.contains("a alone, from "), "{status:?}");
    let other = fs::canonicalize(node.folder().join("b")).unwrap();
    for (arguments, code, words) in [
        (vec!["status", "b"], 4, "there is no model `b` on this node, which serves `a` alone"),
        (vec!["stop", "b"], 4, "which serves `a` alone"),
        (vec!["stop", "a"], 1, "this node serves `a` alone: it is kept running; stop the service itself"),
        (vec!["rollback", "a"], 1, "this node serves `a` alone: it runs what its directory had"),
        (vec!["deploy", other.to_str().unwrap()], 1, "this node serves `a` alone, from "),
    ] {
        let said = node.omnictl(&arguments);
        assert_eq!(said.code, code, "{arguments:?}: {said:?}");
        assert!(said.stderr.contains(words), "{arguments:?}: {said:?}");
    }
    assert_eq!(node.omnictl(["restart", "a"]).code, 0);
    wait_for("the model to be ready again", PATIENCE, || (node.model("a").state == State::Ready).then_some(()));
    node.stop();
}

#[test]
fn changes_apply_only_after_a_reload_or_a_restart() {
    let mut node = Node::builder().model("m", &[("model.py", &says("one"))]).single("m").start();
    let engine = node.engine("m");
    let is_launcher = |pid: &nix::unistd::Pid| {
        let line = fs::read_to_string(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        line.contains("omni-launcher") && line.contains("--kept")
    };
    let launcher = node.processes().into_iter().find(is_launcher).expect("a launcher");
    let descriptors = fs::read_dir(format!("/proc/{launcher}/fd")).unwrap().flatten();
    let links: Vec<_> = descriptors.filter_map(|fd| fs::read_link(fd.path()).ok()).collect();
    let count = |what: &str| links.iter().filter(|link| link.to_string_lossy().contains(what)).count();
    // A single watch remains: that of the links in the runtime directory.
    assert_eq!((count("signalfd"), count("inotify")), (1, 1), "{links:?}");

    // The same content: the process goes on.
    upgrade(&mut node);
    node.says("m", "one");
    assert_eq!(node.engine("m"), engine);
    // A new content that fails beside the one that serves is no failure of the service.
    node.publish("m", &[("model.py", "raise RuntimeError('not this one')\n")]);
    node.says("m", "one");
    upgrade(&mut node);
    let refused = wait_for("the new content to fail", PATIENCE, || {
        let failed = |generation: &omni_control_api::Generation| generation.state == State::Failed;
        node.model("m").generations.into_iter().find(failed)?.message
    });
    assert!(refused.contains("not this one"), "{refused}");
    node.says("m", "one");
    assert_eq!((node.engine("m"), node.admin().get("/readyz").status), (engine, 200));

    node.publish("m", &[("model.py", &says("two"))]);
    upgrade(&mut node);
    node.says("m", "two");
    let version = node.model("m").version;
    node.publish("m", &[("model.py", &says("three"))]);
    // A restarted launcher reads the directory, and the scheduler ignores that.
    let looks = |node: &Node| node.log().matches("model seen").count();
    let looked = looks(&node);
    kill(launcher, Signal::SIGKILL).unwrap();
    wait_for("the next launcher to look", PATIENCE, || (looks(&node) > looked).then_some(()));
    wait_for("the launcher to be there", PATIENCE, || (node.admin().get("/readyz").status == 200).then_some(()));
    let model = node.model("m");
    assert_eq!((&model.version, &model.directory.version), (&version, &version));
    assert!(model.generations.iter().all(|generation| generation.role != Role::Candidate), "{model:?}");
    assert_eq!(node.http().run("m", &Value::Null).json()["result"], "two");
    node.crash();
    node.start_again();
    node.says("m", "three");
    node.stop();
}

#[test]
fn a_crash_ends_the_service_after_it_has_answered() {
    let files = [("model.py", MORTAL), ("omni.toml", "schema = 1\n[scaling]\nconcurrency = 2\n")];
    let node = Node::builder().model("m", &files).single("m").start();
    thread::scope(|scope| {
        let other = scope.spawn(|| node.http().run("m", &json!("wait")).status);
        wait_for("a request in flight", PATIENCE, || (node.model("m").in_flight == 1).then_some(()));
        assert_eq!(node.http().run("m", &json!("die")).status, 502);
        assert_eq!(other.join().unwrap(), 502);
    });
    let ended = node.ends_by_itself();
    assert_eq!(ended.code, 70, "{}", ended.stderr);
    let why = after(&ended, "the model has failed, and the service ends with it");
    assert!(why.contains("SIGABRT"), "{why}");
}

#[test]
fn clients_that_hang_up_never_end_the_service() {
    let files = [("model.py", DEAF), ("omni.toml", "schema = 1\n[timeouts]\ncancel-grace = \"100ms\"\n")];
    let node = Node::builder().model("m", &files).single("m").start();
    // In the handler's code: before, it would be cancelled without any output of the model.
    let begun = || node.log().matches("I do not listen").count();
    let hang_up = || {
        let (before, client) = (begun(), node.http().connect());
        let post = b"POST /ai/run/m HTTP/1.1\r\nhost: localhost\r\ncontent-length: 6\r\n\r\n\"wait\"";
        (&client).write_all(post).unwrap();
        wait_for("the request to be in work", PATIENCE, || (begun() > before).then_some(()));
    };
    for times in 1..=3 {
        let engine = node.engine("m");
        hang_up();
        wait_for("another instance", PATIENCE, || {
            let model = node.model("m");
            (model.state == State::Ready && model.restarts == times).then_some(())
        });
        assert_ne!(node.engine("m"), engine);
        assert_eq!(node.admin().get("/readyz").status, 200);
    }
    node.stop();
}

#[test]
fn a_failed_start_fails_the_service_with_its_reason() {
    let well = says("well");
    let late = "schema = 1\n[timeouts]\nstartup = \"1s\"\n";
    for (files, reason) in [
        (&[("model.py", NO_WEIGHTS)][..], "RuntimeError: no weights"),
        (&[("model.py", "import nothing_of_this_name\n")], "No module named 'nothing_of_this_name'"),
        (&[("model.py", SLOW), ("omni.toml", late)], "it was not ready within 1s"),
        (&[("model.py", &*well), ("requirements.txt", "no such == syntax !!\n")], "requirements.txt"),
    ] {
        let ended = ends(files);
        assert_eq!(ended.code, 70, "{reason}: {}", ended.stderr);
        let why = after(&ended, "the model has failed, and the service ends with it");
        assert!(why.contains(reason), "{reason}: {}", ended.stderr);
    }
}

#[test]
fn a_permanent_failure_exits_as_a_wrong_configuration() {
    let well = says("well");
    for (files, reason) in [
        (&[("model.py", &*well), ("omni.toml", "schema = 1\n[scaling]\nconcurency = 2\n")][..], "concurency"),
        (&[("model.py", &well), ("omni.toml", "schema = 1\n[network]\naccess = \"host\"\n")], "[network] host-access"),
        (&[("modell.py", &well)], "there is no `model.py` in it, and no `omni.toml`"),
        (&[("model.py", &well), ("omni.toml", "schema = 1\n[resources]\nmemory = \"1TiB\"\n")], "[capacity]"),
    ] {
        let ended = ends(files);
        assert_eq!(ended.code, 78, "{reason}: {}", ended.stderr);
        let why = after(&ended, "the model cannot be served, and the service ends");
        assert!(why.contains(reason), "{reason}: {}", ended.stderr);
    }
    let builder = Node::builder().model("m", &[("model.py", &well)]);
    symlink("m", builder.folder().join("link")).unwrap();
    for (builder, reason) in [
        (builder.single("link"), "it must be a directory, not a link to one"),
        (Node::builder().single("nothing"), "the model's directory cannot be opened"),
        (Node::builder().single("bad name"), "the directory's name is the model's, and this one cannot be"),
    ] {
        let ended = builder.begin().ends_by_itself();
        assert_eq!(ended.code, 78, "{reason}: {}", ended.stderr);
        assert!(ended.stderr.contains(reason), "{reason}: {}", ended.stderr);
    }
}

#[test]
fn wrong_flags_are_reported() {
    let run = |arguments: &[&str]| {
        let output = Command::new(program("omni-scheduler")).args(arguments).output().unwrap();
        (output.status.code(), String::from_utf8_lossy(&output.stderr).into_owned())
    };
    let (code, said) = run(&["--models", "/srv/models", "--model", "/srv/models/m"]);
    assert!(code == Some(2) && said.contains("cannot be used with"), "{said}");
    let (code, said) = run(&["--check-config", "--model", "/srv/bad name"]);
    assert!(code == Some(78) && said.contains("the directory's name is the model's"), "{said}");
    assert_eq!(run(&["--check-config", "--model", "/srv/m"]).0, Some(0));
}

#[test]
fn sigterm_exits_with_success_even_before_the_model_is_ready() {
    let mut node = Node::builder().model("m", &[("model.py", SLOW)]).single("m").begin();
    node.await_listeners();
    wait_for("the model to be starting", PATIENCE, || {
        node.omnictl(["status", "m"]).stdout.contains("starting").then_some(())
    });
    assert_eq!(node.admin().get("/readyz").text(), "the model is not ready\n");
    let refused = node.omnictl(["upgrade"]);
    assert!(refused.code == 1 && refused.stderr.contains("not ready"), "{refused:?}");
    kill(node.pid(), Signal::SIGTERM).unwrap();
    let ended = node.ends_by_itself();
    assert_eq!(ended.code, 0, "{}", ended.stderr);
}
