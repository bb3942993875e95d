//! `requirements.txt` and package archives of a hostile author: neither reaches a file of the host, and neither changes
//! packages of another model.

use crate::control::{FOLDER, SECRET};
use omni_tests::index::{Behaviour, Index};
use omni_tests::{Node, program};
use serde_json::{Value, json};
use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread;
use tempfile::TempDir;

/// A world-readable folder of the host.
fn folder() -> TempDir {
    let folder = TempDir::with_prefix("omni-escape").unwrap();
    fs::set_permissions(folder.path(), Permissions::from_mode(0o755)).unwrap();
    folder
}

/// A node that takes packages from these places.
fn node(index: &Index, more: &str) -> Node {
    let sources = format!("[python]\nindex-url = \"{}\"\n{more}", index.url());
    Node::builder().config(crate::ROOMY).config(&sources).start()
}

/// Publishes models, asks each once, all at a time, and gives the status and the result of each.
fn outcomes(node: &Node, code: &str, models: &[(&str, String)]) -> Vec<(u16, Value)> {
    for (model, requirements) in models {
        node.publish(model, &[("model.py", code), ("requirements.txt", requirements)]);
    }
    models.iter().for_each(|(model, _)| node.await_seen(model));
    let ask = |model: &str| {
        let answer = node.http().run(model, &json!(null));
        (answer.status, answer.json()["result"].take())
    };
    thread::scope(|scope| {
        let asked: Vec<_> = models.iter().map(|(model, _)| scope.spawn(|| ask(model))).collect();
        asked.into_iter().map(|asked| asked.join().unwrap()).collect()
    })
}

/// Says nothing.
const QUIET: &str = "def handle_request(request, context):\n    return 1\n";

/// Asserts that none of these models is served, and that no output has anything of the host in it.
fn assert_none_is_served(node: &Node, table: &[(&str, String)]) {
    for ((model, _), (status, _)) in table.iter().zip(outcomes(node, QUIET, table)) {
        let told =
            [node.omnictl(["status", model]).stdout, node.omnictl(["logs", model]).stdout, node.log()].join("\n");
        assert_eq!(status, 503, "{model}: {told}");
        assert!(!told.contains(SECRET) && !told.contains("root:$") && !told.contains("root:*"), "{model}: {told}");
    }
}

#[test]
fn requirements_include_no_file_of_the_host() {
    let (host, index) = (folder(), Index::start(Behaviour::Serves));
    index.add("omni-one", "WORD = 'one'\n", &[]);
    // Not a valid requirement: a reader that parses it as one reports its text.
    fs::write(host.path().join("secret"), format!("{SECRET} = ;\n")).unwrap();
    let at = host.path().display();
    let table = [
        ("includes", format!("-r {at}/secret\n")),
        ("constrains", format!("omni-one\n-c {at}/secret\n")),
        ("climbs", format!("-r ../../../../../../../..{at}/secret\n")),
        ("shadow", "-r /etc/shadow\n".to_owned()),
        ("environment", "-r /proc/1/environ\n".to_owned()),
    ];
    let node = node(&index, "");
    assert_none_is_served(&node, &table);
    // The control: the same tool with the same file in its sight says all of it.
    fs::write(host.path().join("requirements.txt"), &table[0].1).unwrap();
    let mut uv = Command::new(program("uv"));
    let uv =
        uv.args(["pip", "install", "--dry-run", "--no-config", "--offline", "--target"]).arg(host.path().join("t"));
    let said =
        uv.arg("-r").arg(host.path().join("requirements.txt")).env("UV_CACHE_DIR", host.path().join("c")).output();
    assert!(String::from_utf8_lossy(&said.as_ref().unwrap().stderr).contains(SECRET), "{said:?}");
    node.stop();
}

/// A package that needs nothing of any index: its build backend lies in it, and builds an empty wheel.
const PROJECT: &str = "[build-system]\nrequires = []\nbuild-backend = \"backend\"\nbackend-path = [\".\"]\n\
                       [project]\nname = \"omni-private\"\nversion = \"1.0\"\n";
const BACKEND: &str = r#"
import os, zipfile

def build_wheel(directory, settings=None, metadata=None):
    wheel, info = "omni_private-1.0-py3-none-any.whl", "omni_private-1.0.dist-info"
    with zipfile.ZipFile(os.path.join(directory, wheel), "w") as archive:
        archive.writestr(f"{info}/METADATA", "Metadata-Version: 2.1\nName: omni-private\nVersion: 1.0\n")
        archive.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        archive.writestr(f"{info}/RECORD", "")
    return wheel

build_editable = build_wheel
"#;

#[test]
fn requirements_install_no_folder_of_the_host() {
    let (host, index) = (folder(), Index::start(Behaviour::Serves));
    fs::create_dir(host.path().join("package")).unwrap();
    fs::write(host.path().join("package/pyproject.toml"), PROJECT).unwrap();
    fs::write(host.path().join("package/backend.py"), BACKEND).unwrap();
    let at = host.path().display();
    let table = [
        ("file", format!("omni-private @ file://{at}/package\n")),
        ("editable", format!("-e {at}/package\n")),
        ("path", format!("{at}/package\n")),
    ];
    let node = node(&index, "");
    assert_none_is_served(&node, &table);
    // The control: the same tool with the folder in its sight installs it, and asks no index.
    for (name, requirements) in &table {
        let (list, target) = (host.path().join(format!("{name}.txt")), host.path().join(name));
        fs::write(&list, requirements).unwrap();
        let mut uv = Command::new(program("uv"));
        uv.args(["pip", "install", "--no-config", "--offline", "--python", "/usr/bin/python3", "--target"]);
        let said = uv.arg(&target).arg("-r").arg(&list).env("UV_CACHE_DIR", host.path().join("c")).output();
        assert!(target.join("omni_private-1.0.dist-info").exists(), "{name}: {said:?}");
    }
    node.stop();
}

/// An author may name an index with this option, for this model alone: other models get packages of the node's index.
fn assert_others_are_not_poisoned(option: &str, later: &str) {
    let (index, evil) = (Index::start(Behaviour::Serves), Index::start(Behaviour::Serves));
    index.add("omni-one", "WORD = 'one'\n", &[]);
    evil.add("omni-one", "WORD = 'poisoned'\n", &[]);
    let node = node(&index, "");
    let says = "import omni_one\ndef handle_request(request, context):\n    return omni_one.WORD\n";
    let elsewhere = [("elsewhere", format!("{option} {}\nomni-one==1.0\n", evil.url()))];
    let poisoned = outcomes(&node, says, &elsewhere);
    let found = outcomes(&node, says, &[("later", format!("{later}\n"))]);
    assert_eq!(found, [(200, json!("one"))], "{poisoned:?}");
    node.stop();
}

#[test]
fn an_authors_index_gives_nothing_to_other_models() {
    assert_others_are_not_poisoned("--index-url", "omni-one==1.0");
}

#[test]
fn an_authors_further_index_gives_nothing_to_other_models() {
    assert_others_are_not_poisoned("--extra-index-url", "omni-one");
}

/// Files that packages of `probes/wheels.py` would leave elsewhere: each takes another way out.
const LED: [&str; 9] =
    ["climbed", "absolute", "inside", "scripted", "data", "backslashed", "linked", "commanded", "headed.h"];

/// Entries of a folder.
fn entries(folder: &Path) -> Vec<PathBuf> {
    fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect()
}

/// Runs `probes/wheels.py`.
fn wheels(arguments: &[&Path]) {
    let mut command = Command::new("python3");
    let ended = command.args(["-B", &format!("{FOLDER}/probes/wheels.py")]).args(arguments).status().unwrap();
    assert!(ended.success(), "{arguments:?}");
}

/// Installs these packages, each for a model: some can be, and none leads out of its environment.
fn assert_installed_in_place(names: &[&str]) {
    let (links, index) = (folder(), Index::start(Behaviour::Serves));
    let node = node(&index, &format!("find-links = [\"{}\"]\n", links.path().display()));
    // The worst target: the cache of all environments, where the unpacking user may write.
    let cache = node.folder().with_file_name("cache").join("uv");
    wheels(&[Path::new("make"), links.path(), &cache]);
    let models: Vec<_> = names.iter().map(|name| (*name, format!("omni-{name}==1.0\n"))).collect();
    let served = outcomes(&node, QUIET, &models).iter().any(|(status, _)| *status == 200);
    assert!(served, "nothing was unpacked: {}", node.log());
    let led: Vec<_> = entries(&cache).into_iter().filter(|path| LED.iter().any(|name| path.ends_with(name))).collect();
    assert_eq!(led, Vec::<PathBuf>::new());
    node.stop();
}

#[test]
fn the_same_archives_escape_a_naive_unpacker() {
    let (scratch, target) = (folder(), folder());
    wheels(&[Path::new("make"), scratch.path(), target.path()]);
    let ways = ["climbs", "absolute", "inside", "scripts", "data", "backslash", "link", "command", "headers"];
    assert_eq!(ways.len(), LED.len());
    for name in ways {
        let into = scratch.path().join(name);
        fs::create_dir(&into).unwrap();
        let wheel = scratch.path().join(format!("omni_{name}-1.0-py3-none-any.whl"));
        wheels(&[Path::new("unpack"), &wheel, &into]);
        let led = entries(target.path());
        assert!(led.len() == 1 && LED.iter().any(|way| led[0].ends_with(way)), "{name}: {led:?}");
        fs::remove_file(&led[0]).unwrap();
    }
}

#[test]
fn archives_of_packages_cannot_write_outside_their_environment() {
    assert_installed_in_place(&["climbs", "absolute", "inside"]);
}

#[test]
fn special_members_of_archives_cannot_lead_outside() {
    assert_installed_in_place(&["backslash", "link", "data"]);
}

#[test]
fn data_files_of_packages_stay_inside_their_environment() {
    assert_installed_in_place(&["scripts", "command", "headers"]);
}
