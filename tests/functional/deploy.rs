//! Versions of a model, as authors publish them and people on call take them back: over `omnictl`, under requests, and
//! with a scheduler that is killed in between.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a failed step of a test is a failed test")]

use nix::sys::signal::Signal;
use omni_control_api::{History, Role, State};
use omni_tests::{Node, Output, PATIENCE, SetOnDrop, wait_for};
use serde_json::json;
use std::fs;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use tempfile::TempDir;

/// Where an author works, outside of the node.
struct Author(TempDir);

impl Author {
    fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    /// Writes `hello`, which answers with this word, and runs this setup.
    fn writes(&self, word: &str, setup: &str) -> PathBuf {
        let dir = self.0.path().join("hello");
        fs::create_dir_all(&dir).unwrap();
        let model = format!(
            "import time\n\ndef setup(context):\n    {setup}\n\ndef handle_request(request, context):\n    return {word:?}\n"
        );
        fs::write(dir.join("model.py"), model).unwrap();
        dir
    }

    /// Writes it and deploys it.
    fn deploys(&self, node: &Node, word: &str, setup: &str) -> Output {
        let dir = self.writes(word, setup);
        node.omnictl(["deploy", dir.to_str().unwrap()])
    }
}

/// The model's answer, and its version by its own account.
fn asked(node: &Node) -> (String, String) {
    let answer = node.http().run("hello", &json!({}));
    assert_eq!(answer.status, 200, "{}\n{}", String::from_utf8_lossy(&answer.body), node.log());
    let word = answer.json()["result"].as_str().unwrap().to_owned();
    (word, answer.header("x-omni-model-version").unwrap().to_owned())
}

fn word(node: &Node) -> String {
    asked(node).0
}

fn history(node: &Node) -> Vec<String> {
    let said = node.omnictl(["history", "hello", "-o", "json"]);
    let history: History = serde_json::from_str(&said.stdout).unwrap_or_else(|error| panic!("{error}: {said:?}"));
    history.versions.into_iter().map(|version| version.version).collect()
}

fn version(node: &Node) -> String {
    node.model("hello").version.expect("something serves")
}

/// Asserts the exit code of a command; shows its output otherwise.
fn ends(output: &Output, code: i32, node: &Node) {
    assert_eq!(output.code, code, "{output:?}\n{}", node.log());
}

#[test]
fn versions_come_and_go_without_a_refused_request() {
    let node = Node::builder().start();
    let author = Author::new();
    let first = author.deploys(&node, "one", "pass");
    ends(&first, 0, &node);
    let one = version(&node);
    assert!(first.stdout.contains(&one[..12]), "{first:?}");
    assert_eq!(asked(&node), ("one".to_owned(), one[..12].to_owned()));

    let (stop, answered) = (AtomicBool::new(false), AtomicUsize::new(0));
    thread::scope(|scope| {
        let _stops = SetOnDrop(&stop);
        scope.spawn(|| {
            while !stop.load(Ordering::Relaxed) {
                let word = word(&node);
                assert!(["one", "two"].contains(&word.as_str()), "{word}");
                answered.fetch_add(1, Ordering::Relaxed);
            }
        });
        ends(&author.deploys(&node, "two", "time.sleep(0.5)"), 0, &node);
        assert_eq!(word(&node), "two");
        let two = version(&node);
        assert_eq!(history(&node), [two.clone(), one.clone()]);

        ends(&author.deploys(&node, "two", "time.sleep(0.5)"), 0, &node);
        assert_eq!(history(&node), [two.clone(), one.clone()], "the same content is the same version");

        let back = node.omnictl(["rollback", "hello", "--wait"]);
        ends(&back, 0, &node);
        assert!(back.stdout.contains(&one[..12]), "{back:?}");
        assert_eq!((word(&node), version(&node)), ("one".to_owned(), one.clone()));
        assert_eq!(node.model("hello").pinned, Some(one.clone()));

        let pinned = author.deploys(&node, "two", "time.sleep(0.5)");
        ends(&pinned, 3, &node);
        assert!(pinned.stderr.contains("rollback"), "{pinned:?}");
        ends(&node.omnictl(["rollback", "hello", "--to", &two[..6], "--wait"]), 0, &node);
        assert_eq!((word(&node), history(&node)), ("two".to_owned(), vec![two, one.clone()]));
        assert_eq!(node.model("hello").pinned, None, "it is what the directory has");
    });
    assert!(answered.load(Ordering::Relaxed) > 0);

    let nothing = node.omnictl(["rollback", "hello", "--to", "ffffffffffffffff"]);
    assert!(nothing.code == 1 && nothing.stderr.contains("omnictl history"), "{nothing:?}");
    assert!(fs::read_dir(node.folder()).unwrap().count() == 1, "nothing is left beside the model");
}

#[test]
fn a_version_that_does_not_start_never_serves_and_says_why() {
    let node = Node::builder().start();
    let author = Author::new();
    ends(&author.deploys(&node, "one", "pass"), 0, &node);
    let one = version(&node);

    let broken = author.deploys(&node, "two", "raise ValueError('no weights')");
    ends(&broken, 3, &node);
    for part in ["Traceback", "ValueError: no weights", &one[..12]] {
        assert!(broken.stderr.contains(part), "{part} in {broken:?}");
    }
    assert_eq!(asked(&node), ("one".to_owned(), one[..12].to_owned()));
    let status = node.omnictl(["status", "hello"]);
    ends(&status, 0, &node);
    assert!(status.stdout.contains("candidate") && status.stdout.contains("ValueError: no weights"), "{status:?}");
    assert_eq!(history(&node), std::slice::from_ref(&one), "what never served is nothing to go back to");

    let unimportable = author.writes("two", "pass");
    fs::write(unimportable.join("omni.toml"), "[model]\nentrypoint = \"model:missing\"\n").unwrap();
    let before = fs::metadata(node.folder().join("hello")).unwrap().modified().unwrap();
    let refused = node.omnictl(["deploy", unimportable.to_str().unwrap()]);
    ends(&refused, 1, &node);
    assert!(refused.stdout.contains("missing"), "{refused:?}");
    assert_eq!(fs::metadata(node.folder().join("hello")).unwrap().modified().unwrap(), before);

    fs::remove_file(unimportable.join("omni.toml")).unwrap();
    ends(&author.deploys(&node, "three", "pass"), 0, &node);
    assert_eq!(word(&node), "three");
    assert_eq!(node.model("hello").candidate(), None);
}

#[test]
fn a_rollback_survives_a_killed_scheduler() {
    let mut node = Node::builder().start();
    let author = Author::new();
    for word in ["one", "two", "three"] {
        ends(&author.deploys(&node, word, "pass"), 0, &node);
    }
    let versions = history(&node);
    ends(&node.omnictl(["rollback", "hello", "--to", &versions[2], "--wait"]), 0, &node);
    let back = history(&node);
    node.crash();
    node.start_again();
    assert_eq!((word(&node).as_str(), history(&node)), ("one", back.clone()));
    assert_eq!(node.model("hello").pinned.as_ref(), Some(&versions[2]));

    // The moment after the answer is late enough.
    ends(&node.omnictl(["stop", "hello"]), 0, &node);
    node.crash();
    node.start_again();
    ends(&node.omnictl(["wait", "hello", "--for=stopped"]), 0, &node);
    assert!(node.model("hello").held);
    let refused = node.http().run("hello", &json!({}));
    assert_eq!((refused.status, node.omnictl(["status", "hello"]).code), (503, 3));

    // The launcher has kept what only the history needs, also the next one.
    node.replace_launcher(Signal::SIGKILL);
    ends(&node.omnictl(["start", "hello", "--wait"]), 0, &node);
    assert_eq!(word(&node), "one");
    ends(&node.omnictl(["rollback", "hello", "--to", &versions[1], "--wait"]), 0, &node);
    assert_eq!(word(&node), "two");

    // New content ends the rollback.
    ends(&author.deploys(&node, "four", "pass"), 0, &node);
    assert_eq!((word(&node).as_str(), node.model("hello").pinned), ("four", None));
    assert_eq!(history(&node).len(), 4);
}

#[test]
fn a_deploy_goes_on_without_its_scheduler() {
    let mut node = Node::builder().start();
    let author = Author::new();
    ends(&author.deploys(&node, "one", "pass"), 0, &node);
    let one = version(&node);
    let dir = author.writes("two", "time.sleep(3)");
    let mut deploy = node.omnictl_command().arg("deploy").arg(dir).spawn().unwrap();
    wait_for("the new version to start", PATIENCE, || {
        node.model("hello").candidate().filter(|candidate| candidate.state == State::Starting).map(drop)
    });
    node.crash();
    assert_eq!(deploy.wait().unwrap().code(), Some(5), "nobody is there to ask");
    node.start_again();
    let model = wait_for("the new version to serve", PATIENCE, || {
        Some(node.model("hello")).filter(|model| model.version.as_ref() != Some(&one) && model.state == State::Ready)
    });
    assert_eq!(model.generations.first().map(|generation| generation.role), Some(Role::Serving));
    assert_eq!((word(&node).as_str(), history(&node).len()), ("two", 2));
}

#[test]
fn a_model_that_is_gone_is_forgotten() {
    let mut node = Node::builder().start();
    let author = Author::new();
    ends(&author.deploys(&node, "one", "pass"), 0, &node);
    ends(&node.omnictl(["stop", "hello"]), 0, &node);
    node.unpublish("hello");
    wait_for("it to be gone", PATIENCE, || (node.omnictl(["status", "hello"]).code == 4).then_some(()));
    node.crash();
    node.start_again();
    ends(&author.deploys(&node, "one", "pass"), 0, &node);
    assert_eq!((word(&node).as_str(), history(&node).len()), ("one", 1));
    assert!(!node.model("hello").held);
    assert_eq!(node.http().run("hello", &json!({})).status, 200);
}

/// Moved away, and put back with another content; a new scheduler in between knows it, too.
#[test]
fn a_model_that_comes_back_serves_what_it_came_with_and_can_be_rolled_back() {
    let mut node = Node::builder().start();
    let author = Author::new();
    ends(&author.deploys(&node, "one", "pass"), 0, &node);
    ends(&author.deploys(&node, "two", "pass"), 0, &node);
    node.unpublish("hello");
    wait_for("it to be gone", PATIENCE, || (node.omnictl(["status", "hello"]).code == 4).then_some(()));
    node.crash();
    node.start_again();
    ends(&author.deploys(&node, "three", "pass"), 0, &node);
    assert_eq!((word(&node).as_str(), history(&node).len()), ("three", 3), "{}", node.log());
    ends(&node.omnictl(["rollback", "hello", "--wait"]), 0, &node);
    assert_eq!(word(&node), "two");
    node.stop();
}
