//! Links that a model leaves in the place of its own directories and files, for the root process that makes its next
//! sandbox.

use crate::control::FOLDER;
use omni_tests::Node;
use serde_json::{Value, json};
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::process::Command;

const LINKS: &str = include_str!("probes/links.py");

/// Everything in a folder, and how it was left.
fn state(folder: &Path) -> Vec<String> {
    let mut found: Vec<String> = fs::read_dir(folder)
        .unwrap()
        .map(|entry| entry.unwrap())
        .map(|entry| {
            let of = entry.metadata().unwrap();
            let content = fs::read_to_string(entry.path()).unwrap_or_default();
            format!("{:?} {} {:o} {} {}", entry.file_name(), of.uid(), of.mode(), of.ctime_nsec(), content)
        })
        .collect();
    let of = folder.metadata().unwrap();
    found.push(format!("itself {} {:o} {}", of.uid(), of.mode(), of.ctime_nsec()));
    found
}

#[test]
fn links_left_by_a_model_are_not_followed() {
    // The control: the same traps below a folder, and a program that creates the same things there carelessly.
    let folder = tempfile::tempdir().unwrap();
    let (world, target) = (folder.path().join("world"), folder.path().join("target"));
    fs::create_dir(&target).unwrap();
    for dir in ["cache/lost+found", "tmp/home", "dev/shm", "etc", "model", "proc", "run", "usr", "var/tmp"] {
        fs::create_dir_all(world.join(dir)).unwrap();
    }
    let trap = "import sys; sys.path.insert(0, sys.argv[1]); import links; links.set_traps(*sys.argv[2:])";
    let mut python = Command::new("python3");
    let python = python.args(["-B", "-c", trap, &format!("{FOLDER}/probes")]).arg(&world).arg(&target);
    assert!(python.status().unwrap().success());
    fs::write(world.join("tmp/home/.profile"), "written as root").unwrap();
    assert!(target.join(".profile").exists(), "who makes things by their paths is led away");

    // A world-writable folder of the host: its mode does not keep a model's links away.
    let host = tempfile::tempdir().unwrap();
    fs::write(host.path().join("file"), "of the host").unwrap();
    for path in [host.path().to_owned(), host.path().join("file")] {
        fs::set_permissions(path, std::os::unix::fs::PermissionsExt::from_mode(0o777)).unwrap();
    }
    let before = state(host.path());
    let cache = "[limits]\ncache = \"16MiB\"\n";
    let node = Node::builder()
        .config(crate::ROOMY)
        .model("alone", &[("model.py", LINKS), ("omni.toml", &format!("{cache}[python]\nzygote = false\n"))])
        .model("forked", &[("model.py", LINKS), ("omni.toml", &format!("{cache}[python]\nzygote = true\n"))])
        .start();
    for model in ["alone", "forked"] {
        let trapped: Value = node.http().run(model, &json!(host.path())).json()["result"].take();
        let own = [
            "/cache/model.py",
            "/cache/omni",
            "/cache/tmp",
            "/dev/shm/omni",
            "/tmp/.lock",
            "/tmp/home",
            "/tmp/model",
            "/tmp/omni",
        ];
        assert_eq!(trapped, json!(own), "{model} can do this to its own places, and to no others");
        // Started anew, twice, over what was left: nothing is different for it but what it did itself.
        for round in 0..2 {
            assert_eq!(node.omnictl(["restart", model, "--wait"]).code, 0, "{model}: {}", node.log());
            let trapped: Value = node.http().run(model, &json!(host.path())).json()["result"].take();
            let lasting = |place: &&&str| place.starts_with("/cache");
            for place in own.iter().filter(lasting) {
                assert!(trapped.as_array().unwrap().contains(&json!(place)), "{model}, round {round}: {trapped}");
            }
        }
        assert_eq!(state(host.path()), before, "after {model}");
    }
    node.stop();
    assert_eq!(state(host.path()), before, "after the end of the node");
}
