//! Environments with required hashes: only files whose hash the author has listed are installed, and missing hashes are
//! reported.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a failed step of a test is a failed test")]

use omni_control_api::State;
use omni_tests::Node;
use omni_tests::index::{Behaviour, Index, write_source};
use serde_json::{Value, json};
use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;

const REQUIRED: &str = "[python]\nrequire-hashes = true\n";
/// A hash that matches no file.
const OTHER: &str = "0000000000000000000000000000000000000000000000000000000000000000";
/// A build step that would be seen, if it ran.
const BACKEND: &str = "raise SystemExit('the build step was run')";

/// Says what a package holds.
fn says(package: &str) -> String {
    format!("import {package}\ndef handle_request(request, context):\n    return {package}.WORD\n")
}

/// A line of requirements.
fn hashed(package: &str, hash: &str) -> String {
    format!("{package}==1.0 --hash=sha256:{hash}\n")
}

/// A model that wants hashes.
fn files<'a>(code: &'a str, requirements: &'a str) -> [(&'a str, &'a str); 3] {
    [("model.py", code), ("omni.toml", REQUIRED), ("requirements.txt", requirements)]
}

/// Names of what is in a folder of the node's cache.
fn names(node: &Node, folder: &str) -> Vec<String> {
    let folder = node.folder().parent().expect("beside the models").join("cache").join(folder);
    fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
}

fn environments(node: &Node) -> usize {
    names(node, "environments").iter().filter(|name| name.ends_with(".json")).count()
}

fn result(node: &Node, model: &str) -> Value {
    let answer = node.http().run(model, &json!({}));
    assert_eq!(answer.status, 200, "{model}: {} {:?}\n{}", answer.text(), node.model(model), node.log());
    answer.json()["result"].take()
}

/// Asserts that the model is refused for good, and that its status has these words and its name.
fn is_refused(node: &Node, model: &str, words: &[&str]) {
    let refused = node.http().run(model, &json!({}));
    assert_eq!((refused.status, refused.error_code()), (503, Some(3040)), "{model}: {}", refused.text());
    let seen = node.model(model);
    let why = seen.message.expect("a reason").split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(words.iter().all(|words| why.contains(words)), "{model}: {why}");
    assert!(seen.state == State::Failed && seen.retry_in_seconds.is_none(), "{model}: trying again is in vain");
    let status = node.omnictl(["status", model]);
    assert!(status.code == 3 && status.stdout.starts_with(&format!("model      {model}\n")), "{status:?}");
}

#[test]
fn where_hashes_are_required_nothing_else_is_installed() {
    let index = Index::start(Behaviour::Serves);
    let one = hashed("omni-one", &index.add("omni-one", "WORD = 'one'", &[]));
    let two = hashed("omni-two", &index.add("omni-two", "WORD = 'two'", &["omni-one"]));
    let links = tempfile::tempdir().unwrap();
    fs::set_permissions(links.path(), Permissions::from_mode(0o755)).unwrap();
    let source = hashed("omni-source", &write_source(links.path(), "omni-source", BACKEND));
    let config = format!("[python]\nindex-url = \"{}\"\nfind-links = [\"{}\"]\n", index.url(), links.path().display());
    let (first, second) = (says("omni_one"), says("omni_two"));
    let node = Node::builder()
        .config(&config)
        .model("wrong", &files(&first, &hashed("omni-one", OTHER)))
        .model("missing", &files(&first, "# as ever\nomni-one==1.0\n"))
        .model("below", &files(&second, &two))
        .model("unpinned", &files(&first, &one.replace("==1.0", "")))
        .model("source", &files(&first, &source))
        .model("half", &[&files(&first, "-r more.txt\n")[..], &[("more.txt", "omni-one==1.0\n")]].concat())
        .model("right", &files(&first, &one))
        .model("both", &files(&second, &(two.clone() + &one)))
        .model("included", &[&files(&first, "-r more.txt\n")[..], &[("more.txt", &one)]].concat())
        .model("careless", &[("model.py", &first), ("requirements.txt", &one)])
        .start();

    is_refused(&node, "wrong", &["Hash mismatch for `omni-one==1.0`", "the index serves another file"]);
    is_refused(&node, "missing", &["requirements.txt has no hash", "`omni-one==1.0` (line 2)", "--generate-hashes"]);
    is_refused(&node, "below", &["no trusted hash was provided for: `omni-one`", "--generate-hashes"]);
    is_refused(&node, "unpinned", &["versions pinned with `==`, but found: omni-one", "--generate-hashes"]);
    is_refused(&node, "source", &["omni-source==1.0 has no usable wheels", "nothing is built from source"]);
    is_refused(&node, "half", &["none were provided for: omni-one==1.0", "--generate-hashes"]);
    assert_eq!(names(&node, "environments"), [""; 0], "nothing is left of them");

    assert_eq!(result(&node, "right"), "one");
    assert_eq!(result(&node, "both"), "two");
    assert_eq!(result(&node, "included"), "one");
    assert_eq!(environments(&node), 3);
    // Packages installed without hashes are no environment for a model that requires them.
    assert_eq!(result(&node, "careless"), "one");
    assert_eq!(environments(&node), 4);
    assert!(!names(&node, "").iter().any(|name| name.starts_with("build-")), "{:?}", names(&node, ""));
    node.stop();
}

#[test]
fn a_node_that_requires_hashes_does_so_of_every_model() {
    let index = Index::start(Behaviour::Serves);
    let one = hashed("omni-one", &index.add("omni-one", "WORD = 'one'", &[]));
    let code = says("omni_one");
    let weaker = REQUIRED.replace("true", "false");
    let node = Node::builder()
        .config(&format!("{REQUIRED}index-url = \"{}\"\n", index.url()))
        .model("weaker", &[("model.py", &code), ("omni.toml", &weaker), ("requirements.txt", "omni-one==1.0\n")])
        .model("right", &[("model.py", &code), ("requirements.txt", &one)])
        .model("without", &[("model.py", "def handle_request(request, context):\n    return 'well'\n")])
        .start();
    is_refused(&node, "weaker", &["`omni-one==1.0` (line 1)", "the node's configuration"]);
    assert_eq!(result(&node, "right"), "one");
    assert_eq!(result(&node, "without"), "well", "who installs nothing needs no hash");

    // Said before it is published.
    let folder = tempfile::tempdir().unwrap();
    let draft = folder.path().join("draft");
    fs::create_dir(&draft).unwrap();
    fs::write(draft.join("model.py"), &code).unwrap();
    let deploy = |requirements: &str| {
        fs::write(draft.join("requirements.txt"), requirements).unwrap();
        node.omnictl(["deploy", draft.to_str().unwrap()])
    };
    let refused = deploy("omni-one==1.0\n");
    let words =
        "requirements.txt:1: `omni-one==1.0` has no hash, and `require-hashes` in [python] of the node's configuration";
    assert!(refused.code == 1 && refused.stdout.contains(words), "{refused:?}");
    assert!(!node.folder().join("draft").exists());
    let deployed = deploy(&one);
    assert_eq!(deployed.code, 0, "{deployed:?}");
    node.stop();
}
