//! What an author puts into `requirements.txt`, and what a package's archive holds: neither reaches a file of the host, and
//! neither changes what another model gets.

use crate::control::{FOLDER, SECRET};
use omni_tests::index::{Index, Mood};
use omni_tests::{Node, PATIENCE, program, wait_for};
use serde_json::{Value, json};
use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use tempfile::TempDir;

/// A folder of the host that everybody may read.
fn folder() -> TempDir {
    let folder = TempDir::with_prefix("omni-escape").unwrap();
    fs::set_permissions(folder.path(), Permissions::from_mode(0o755)).unwrap();
    folder
}

/// Says what a package holds.
fn says(package: &str) -> String {
    format!("import {package}\ndef handle_request(request, context):\n    return {package}.WORD\n")
}

/// Publishes a model and asks it once.
fn outcome(node: &Node, model: &str, code: &str, requirements: &str) -> (u16, Value) {
    node.publish(model, &[("model.py", code), ("requirements.txt", requirements)]);
    wait_for("the model", PATIENCE, || node.models().iter().any(|known| known.name == model).then_some(()));
    let answer = node.http().run(model, &json!(null));
    (answer.status, answer.json()["result"].take())
}

#[test]
fn requirements_reach_no_file_of_the_host_and_no_other_model() {
    let (host, index, evil) = (folder(), Index::start(Mood::Serves), Index::start(Mood::Serves));
    index.add("omni-one", "WORD = 'one'\n", &[]);
    evil.add("omni-one", "WORD = 'poisoned'\n", &[]);
    // No requirement, so that whoever reads it as one says what it read.
    fs::write(host.path().join("secret"), format!("{SECRET} = ;\n")).unwrap();
    fs::create_dir(host.path().join("package")).unwrap();
    let project = "[project]\nname = \"omni-private\"\nversion = \"1.0\"\n[tool.setuptools]\npy-modules = []\n";
    fs::write(host.path().join("package/pyproject.toml"), project).unwrap();
    let at = host.path().display();

    let node =
        Node::builder().config(crate::ROOMY).config(&format!("[python]\nindex-url = \"{}\"\n", index.url())).start();
    let table = [
        ("includes", format!("-r {at}/secret\n")),
        ("constrains", format!("omni-one\n-c {at}/secret\n")),
        ("climbs", format!("-r ../../../../../../../..{at}/secret\n")),
        ("file", format!("omni-private @ file://{at}/package\n")),
        ("editable", format!("-e {at}/package\n")),
        ("path", format!("{at}/package\n")),
        ("shadow", "-r /etc/shadow\n".to_owned()),
        ("environment", "-r /proc/1/environ\n".to_owned()),
    ];
    for (model, requirements) in &table {
        let (status, _) = outcome(&node, model, "def handle_request(request, context):\n    return 1\n", requirements);
        let told =
            [node.omnictl(["status", model]).stdout, node.omnictl(["logs", model]).stdout, node.log()].join("\n");
        assert_eq!(status, 503, "{model}: {told}");
        assert!(!told.contains(SECRET) && !told.contains("root:$") && !told.contains("root:*"), "{model}: {told}");
    }
    // The control: the same tool with the same file in its sight says all of it.
    fs::write(host.path().join("requirements.txt"), &table[0].1).unwrap();
    let mut uv = Command::new(program("uv"));
    let uv =
        uv.args(["pip", "install", "--dry-run", "--no-config", "--offline", "--target"]).arg(host.path().join("t"));
    let said =
        uv.arg("-r").arg(host.path().join("requirements.txt")).env("UV_CACHE_DIR", host.path().join("c")).output();
    assert!(String::from_utf8_lossy(&said.as_ref().unwrap().stderr).contains(SECRET), "{said:?}");

    // An author may name an index, for this model alone: who comes next gets what the node's index has.
    let elsewhere = format!("--index-url {}\nomni-one==1.0\n", evil.url());
    let (_, poisoned) = outcome(&node, "elsewhere", &says("omni_one"), &elsewhere);
    assert_eq!(outcome(&node, "beside", &says("omni_one"), "omni-one==1.0\n"), (200, json!("one")), "{poisoned}");
    let elsewhere = format!("--extra-index-url {}\nomni-one==1.0\n", evil.url());
    outcome(&node, "elsewhere-too", &says("omni_one"), &elsewhere);
    assert_eq!(outcome(&node, "after", &says("omni_one"), "omni-one\n"), (200, json!("one")));
    node.stop();
}

/// Packages of `probes/wheels.py`, each for another way out, and the names of what they would leave there.
const NAMES: [&str; 9] = ["climbs", "absolute", "inside", "scripts", "data", "backslash", "link", "command", "headers"];
const LED: [&str; 9] =
    ["climbed", "absolute", "inside", "scripted", "data", "backslashed", "linked", "commanded", "headed.h"];

/// What lies in a folder.
fn entries(folder: &Path) -> Vec<PathBuf> {
    fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect()
}

#[test]
fn archives_of_packages_are_unpacked_nowhere_else() {
    let (links, target, index) = (folder(), folder(), Index::start(Mood::Serves));
    let program = format!("{FOLDER}/probes/wheels.py");
    let python = |arguments: &[&Path]| {
        let mut command = Command::new("python3");
        let ended = command.args(["-B", &program]).args(arguments).status().unwrap();
        assert!(ended.success(), "{arguments:?}");
    };
    let scratch = folder();
    // The control: unpacked as they stand, they lead to the target.
    python(&[Path::new("make"), scratch.path(), target.path()]);
    for name in ["climbs", "absolute", "inside", "link"] {
        let into = scratch.path().join(name);
        fs::create_dir(&into).unwrap();
        let wheel = scratch.path().join(format!("omni_{name}-1.0-py3-none-any.whl"));
        python(&[Path::new("unpack"), &wheel, &into]);
        let led = entries(target.path());
        assert_eq!(led.len(), 1, "{name}: {led:?}");
        fs::remove_file(&led[0]).unwrap();
    }

    // The worst target: the cache of all environments, where the unpacking user may write.
    let sources = format!("[python]\nindex-url = \"{}\"\nfind-links = [\"{}\"]\n", index.url(), links.path().display());
    let node = Node::builder().config(crate::ROOMY).config(&sources).start();
    let cache = node.folder().with_file_name("cache").join("uv");
    python(&[Path::new("make"), links.path(), &cache]);
    let code = "def handle_request(request, context):\n    return 1\n";
    let served = NAMES.map(|name| outcome(&node, name, code, &format!("omni-{name}==1.0\n")).0 == 200);
    assert!(served.contains(&true), "nothing was unpacked: {}", node.log());
    let led: Vec<_> = entries(&cache).into_iter().filter(|path| LED.iter().any(|name| path.ends_with(name))).collect();
    assert_eq!(led, Vec::<PathBuf>::new());
    node.stop();
}
