//! `omnictl deploy`: what it does to a models folder, and how it ends for what a daemon says of the version.

#![allow(clippy::unwrap_used, reason = "a helper of tests fails as a test does")]

mod common;
#[path = "common/values.rs"]
#[allow(dead_code, reason = "the other test program uses the rest")]
mod values;

use std::collections::BTreeMap;
use std::fs::{self, File, Permissions};
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use common::{Canned, Daemon, report};
use omni_control_api::{Directory, Generation, Model, Node, Role, State};
use tempfile::TempDir;

const MODEL: &str = "def handle_request(request, context):\n    return 1\n";
const UNKNOWN: &str = "GET /v1/models/hello";

/// A models folder, a directory to deploy, and a daemon that knows the folder.
struct World {
    dir: TempDir,
    daemon: Daemon,
}

impl World {
    fn new() -> Self {
        Self::of(None)
    }

    /// A node that serves only this model, if any is named.
    fn of(single_model: Option<String>) -> Self {
        let world = Self { dir: tempfile::tempdir().unwrap(), daemon: Daemon::start() };
        fs::create_dir(world.path("models")).unwrap();
        world.write("src/hello/model.py", MODEL);
        let models_dir = world.path("models").to_str().unwrap().to_owned();
        world.daemon.on("GET /v1/node", Canned::json(&Node { models_dir, single_model, ..values::node() }));
        world
    }

    fn path(&self, below: &str) -> PathBuf {
        self.dir.path().join(below)
    }

    fn write(&self, path: &str, text: &str) {
        fs::create_dir_all(self.path(path).parent().unwrap()).unwrap();
        fs::write(self.path(path), text).unwrap();
    }

    /// The version that `src/hello` is.
    fn version(&self) -> String {
        let (copy, limits) = (tempfile::tempdir().unwrap(), omni_snapshot::Limits { files: 1000, bytes: 1 << 30 });
        let from = File::open(self.path("src/hello")).unwrap();
        omni_snapshot::copy_directory(&from, File::open(copy.path()).unwrap(), limits).unwrap().to_string()
    }

    /// The model with this content in its directory, and this generation of it.
    fn model(&self, role: Role, state: State) -> Model {
        let version = self.version();
        Model {
            directory: Directory { version: Some(version.clone()), refused: None },
            generations: vec![values::generation(&version, role, state)],
            ..values::model("hello", State::Ready)
        }
    }

    /// The daemon's answers about the model, in order; at first the model is unknown.
    fn says(&self, models: &[Model]) {
        let unknown = || Canned::problem(404, "no-such-model", "there is no model `hello` on this node");
        self.daemon.on(UNKNOWN, unknown()).on(UNKNOWN, unknown());
        for model in models {
            self.daemon.on(UNKNOWN, Canned::json(model));
        }
    }

    fn deploy(&self, arguments: &[&str]) -> String {
        let output = self.daemon.command(&[&["deploy"], arguments].concat()).current_dir(self.path("src")).output();
        report(&output.unwrap(), &fs::canonicalize(self.dir.path()).unwrap(), "[DIR]")
    }

    /// Everything in the models folder: paths, with the text of files.
    fn folder(&self) -> BTreeMap<String, String> {
        let mut found = BTreeMap::new();
        let mut waiting = vec![self.path("models")];
        while let Some(dir) = waiting.pop() {
            for entry in fs::read_dir(dir).unwrap() {
                let path = entry.unwrap().path();
                let name = path.strip_prefix(self.path("models")).unwrap().display().to_string();
                if path.is_dir() {
                    waiting.push(path);
                } else {
                    found.insert(name, fs::read_to_string(path).unwrap());
                }
            }
        }
        found
    }
}

fn paths(folder: &BTreeMap<String, String>) -> Vec<&str> {
    folder.keys().map(String::as_str).collect()
}

fn mode(path: &Path) -> u32 {
    fs::symlink_metadata(path).unwrap().permissions().mode() & 0o7777
}

#[test]
fn a_directory_takes_its_place_and_is_followed_until_it_serves() {
    let world = World::new();
    world.write("src/hello/deep/data.txt", "1");
    world.write("src/hello/.git/config", "");
    world.write("src/hello/__pycache__/model.pyc", "");
    symlink("deep/data.txt", world.path("src/hello/link")).unwrap();
    fs::set_permissions(world.path("src/hello/model.py"), Permissions::from_mode(0o700)).unwrap();
    world.says(&[
        world.model(Role::Candidate, State::Preparing),
        world.model(Role::Candidate, State::Starting),
        world.model(Role::Serving, State::Ready),
    ]);
    // A tight umask changes nothing.
    let mut shell = Command::new("sh");
    shell.args(["-c", "umask 077; exec \"$0\" deploy hello", env!("CARGO_BIN_EXE_omnictl")]);
    shell.env("OMNI_SOCKET", world.daemon.socket()).current_dir(world.path("src"));
    let said = report(&shell.output().unwrap(), world.dir.path(), "[DIR]");
    insta::assert_snapshot!("deploy", said);
    let folder = world.folder();
    assert_eq!(paths(&folder), ["hello/deep/data.txt", "hello/link", "hello/model.py"]);
    for (path, expected) in [("", 0o755), ("deep", 0o755), ("deep/data.txt", 0o644), ("model.py", 0o755)] {
        assert_eq!(mode(&world.path("models/hello").join(path)), expected, "{path}");
    }
}

#[test]
fn a_single_model_node_refuses_deploys() {
    let world = World::of(Some("hello".to_owned()));
    insta::assert_snapshot!("deploy_single", world.deploy(&["hello"]));
    assert!(world.folder().is_empty());
}

#[test]
fn an_older_content_is_replaced_and_leftovers_go() {
    let world = World::new();
    world.write("models/hello/model.py", "old = 1\n");
    world.write("models/hello/gone.txt", "");
    world.write("models/.hello.77-1/model.py", "half");
    world.write("models/.other.77-1/model.py", "of another model");
    let serving = world.model(Role::Serving, State::Ready);
    world.daemon.on(UNKNOWN, Canned::json(&serving));
    let said = world.deploy(&["hello"]);
    assert!(said.starts_with("exit 0\n") && said.contains("the same content as before"), "{said}");
    let folder = world.folder();
    assert_eq!(paths(&folder), [".other.77-1/model.py", "hello/model.py"]);
    assert_eq!(folder["hello/model.py"], MODEL);
}

#[test]
fn a_name_can_be_given_and_be_deep() {
    let world = World::new();
    let route = "GET /v1/models/@acme%2Fhello";
    world.daemon.on(route, Canned::json(&world.model(Role::Serving, State::Ready)));
    let said = world.deploy(&["hello", "@acme/hello", "-o", "json"]);
    assert!(said.starts_with("exit 0\n") && said.contains("\"directory\""), "{said}");
    assert_eq!(paths(&world.folder()), ["@acme/hello/model.py"]);
}

#[test]
fn a_refused_deploy_changes_nothing() {
    type Prepare = fn(&World);
    let cases: [(&str, &str, &[&str], Prepare); 8] = [
        ("findings", "exit 1", &["hello"], |world| world.write("src/hello/omni.toml", "[resources]\nmemroy = 1\n")),
        ("working_copy", "exit 1", &["hello"], |world| {
            world.write("models/hello/model.py", "");
            world.write("models/hello/deep/.git/config", "");
        }),
        ("no_model", "exit 1", &["hello", "group"], |world| world.write("models/group/x/model.py", "")),
        ("within_a_model", "exit 1", &["hello", "outer/hello"], |world| world.write("models/outer/model.py", "")),
        ("a_file", "exit 1", &["hello"], |world| world.write("models/hello", "")),
        ("itself", "exit 1", &["../models/hello"], |world| world.write("models/hello/model.py", MODEL)),
        ("no_folder", "exit 1", &["hello"], |world| fs::remove_dir(world.path("models")).unwrap()),
        ("no_name", "exit 2", &["a b"], |world| world.write("src/a b/model.py", MODEL)),
    ];
    for (name, exit, arguments, prepare) in cases {
        let world = World::new();
        prepare(&world);
        let before = world.path("models").is_dir().then(|| world.folder());
        let said = world.deploy(arguments);
        assert!(said.starts_with(exit), "{name}: {said}");
        assert_eq!(world.path("models").is_dir().then(|| world.folder()), before, "{name}");
        insta::assert_snapshot!(format!("deploy_{name}"), said);
    }
}

/// A folder is on the machine of the node, where `deploy` runs; `check` may run elsewhere.
#[test]
fn weights_must_be_in_a_folder_of_the_node() {
    let world = World::new();
    let listed = fs::canonicalize(world.dir.path()).unwrap().join("weights");
    let models_dir = world.path("models").to_str().unwrap().to_owned();
    let weights_folders = vec![listed.to_str().unwrap().to_owned()];
    world.daemon.on("GET /v1/node", Canned::json(&Node { models_dir, weights_folders, ..values::node() }));
    let names = |path: &Path| {
        world.write("src/hello/omni.toml", &format!("[weights]\nsource = \"file://{}\"\n", path.display()));
    };
    names(Path::new("/etc"));
    insta::assert_snapshot!("deploy_weights_not_listed", world.deploy(&["hello"]));
    names(&listed.join("llama"));
    insta::assert_snapshot!("deploy_weights_missing", world.deploy(&["hello"]));
    let output = world.daemon.command(&["check", "hello"]).current_dir(world.path("src")).output().unwrap();
    insta::assert_snapshot!("check_weights", report(&output, &fs::canonicalize(world.dir.path()).unwrap(), "[DIR]"));
    fs::create_dir_all(listed.join("llama")).unwrap();
    world.says(&[world.model(Role::Serving, State::Ready)]);
    let said = world.deploy(&["hello"]);
    assert!(said.starts_with("exit 0\n"), "{said}");
}

#[test]
fn a_second_deploy_at_once_is_refused() {
    let world = World::new();
    fs::create_dir(world.path("models/.hello.other")).unwrap();
    let other = File::open(world.path("models/.hello.other")).unwrap();
    let lock = nix::fcntl::Flock::lock(other, nix::fcntl::FlockArg::LockExclusiveNonblock).unwrap();
    insta::assert_snapshot!("deploy_two_at_once", world.deploy(&["hello"]));
    drop(lock);
    world.says(&[world.model(Role::Serving, State::Ready)]);
    assert!(world.deploy(&["hello"]).starts_with("exit 0\n"));
    assert_eq!(paths(&world.folder()), ["hello/model.py"]);
}

#[test]
fn a_version_that_does_not_serve_has_an_exit_code_and_a_reason() {
    let failed = |world: &World| {
        let model = world.model(Role::Candidate, State::Failed);
        let traceback =
            "setup failed:\nTraceback (most recent call last):\n  File \"/model/model.py\", line 1\nKeyError: 1";
        let generation = Generation {
            message: Some(traceback.to_owned()),
            retry_in_seconds: Some(2.0),
            ..model.generations[0].clone()
        };
        vec![world.model(Role::Candidate, State::Starting), Model { generations: vec![generation], ..model }]
    };
    type Says = fn(&World) -> Vec<Model>;
    let cases: [(&str, &str, Says); 5] = [
        ("refused", "exit 3", |world| {
            let model = world.model(Role::Serving, State::Ready);
            let refused = Some("omni.toml: not allowed on this node".to_owned());
            let directory = Directory { refused, ..model.directory.clone() };
            vec![Model { directory, generations: Vec::new(), ..model }]
        }),
        ("held", "exit 3", |world| vec![Model { held: true, ..world.model(Role::Serving, State::Stopped) }]),
        ("pinned", "exit 3", |world| {
            vec![Model { pinned: Some(values::OLD_VERSION.to_owned()), ..world.model(Role::Previous, State::Stopped) }]
        }),
        ("replaced", "exit 1", |world| {
            let starting = world.model(Role::Candidate, State::Starting);
            vec![starting.clone(), Model { directory: Directory::default(), ..starting }]
        }),
        ("too_long", "exit 124", |world| vec![world.model(Role::Candidate, State::Preparing)]),
    ];
    let mut said = Vec::new();
    for (name, exit, says) in cases {
        let world = World::new();
        world.says(&says(&world));
        said.push((name, exit, world.deploy(&["hello", "--timeout", "700ms"])));
    }
    let world = World::new();
    world.says(&failed(&world));
    said.push(("failed", "exit 3", world.deploy(&["hello"])));
    for (name, exit, said) in said {
        assert!(said.starts_with(exit), "{name}: {said}");
        insta::assert_snapshot!(format!("deploy_{name}"), said);
    }
}

#[test]
fn a_version_without_requests_is_started_once() {
    let world = World::new();
    world.says(&[world.model(Role::Serving, State::Stopped), world.model(Role::Serving, State::Ready)]);
    world.daemon.on("POST /v1/models/hello/start", Canned::json(&world.model(Role::Serving, State::Starting)));
    assert!(world.deploy(&["hello"]).starts_with("exit 0\n"));
    let starts = world.daemon.requests().into_iter().filter(|request| request.line.starts_with("POST ")).count();
    assert_eq!(starts, 1);
}

#[test]
fn a_deploy_that_is_killed_leaves_the_old_or_the_new_content() {
    let world = World::new();
    for file in 0..200 {
        world.write(&format!("src/hello/data/{file}"), &"x".repeat(10_000));
    }
    world.daemon.on(UNKNOWN, Canned::json(&world.model(Role::Serving, State::Ready)));
    world.write("models/hello/model.py", "old = 1\n");
    let old = world.folder();
    let is_visible = |path: &&String| !path.starts_with('.');
    for round in 0..20 {
        let mut deploy = world.daemon.command(&["deploy", "hello"]).current_dir(world.path("src")).spawn().unwrap();
        thread::sleep(Duration::from_millis(round * 4));
        deploy.kill().unwrap();
        deploy.wait().unwrap();
        let folder = world.folder();
        let visible = folder.keys().filter(is_visible).count();
        assert!(visible == old.len() || visible == 201, "round {round}: {visible} files");
    }
    assert!(world.deploy(&["hello"]).starts_with("exit 0\n"));
    assert!(world.folder().keys().all(|path| path.starts_with("hello/")), "nothing is left");
}

/// Another user with write access to the models folder renames the draft while it is copied, and puts a link in its
/// place.
#[test]
fn a_draft_exchanged_for_a_link_publishes_nothing() {
    let world = World::new();
    for number in 0..300 {
        world.write(&format!("src/hello/{number:03}.bin"), &"x".repeat(64 << 10));
    }
    let outside = world.path("outside");
    fs::create_dir(&outside).unwrap();
    let exchange = || {
        let drafts = fs::read_dir(world.path("models")).unwrap().map(|entry| entry.unwrap().path());
        let Some(draft) = drafts.filter(|path| path.join("000.bin").exists()).find(|path| !path.is_symlink()) else {
            return false;
        };
        fs::rename(&draft, world.path("taken")).is_ok_and(|()| symlink(&outside, draft).is_ok())
    };
    let deadline = Instant::now() + Duration::from_secs(60);
    let mut exchanged = false;
    // A machine that is busy may copy everything between two looks: that one was not attacked, and another is.
    while !exchanged && Instant::now() < deadline {
        world.says(&[]);
        let mut deploy = world.daemon.command(&["deploy", "hello"]);
        let mut deploy = deploy.current_dir(world.path("src")).stderr(Stdio::null()).spawn().unwrap();
        let ended = loop {
            exchanged |= exchange();
            match deploy.try_wait().unwrap() {
                Some(ended) => break ended,
                None if exchanged || world.path("models/hello/model.py").exists() => {
                    break if exchanged { deploy.wait().unwrap() } else { deploy.kill().and(deploy.wait()).unwrap() };
                }
                None => {}
            }
        };
        assert!(!exchanged || ended.code() == Some(1), "{ended}");
        let _ = fs::remove_dir_all(world.path("models/hello"));
    }
    assert!(exchanged, "no draft was exchanged in time");
    assert_eq!(fs::read_dir(&outside).unwrap().count(), 0, "something was written where the link leads");
}
