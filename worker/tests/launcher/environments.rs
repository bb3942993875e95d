//! Environments, built for real from the package index.

use super::node::Node;
use nix::fcntl::{OFlag, open, openat};
use nix::mount::{MntFlags, MsFlags, mount, umount2};
use nix::sys::stat::{Mode, mkdirat};
use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;

const MODEL: (&str, &str) = ("model.py", "def handle_request(request, context):\n    return 'hi'\n");

#[test]
fn packages_are_installed_compiled_sealed_and_shared_by_equal_requirements() {
    let node = Node::start();
    let scheduler = node.connect();
    node.publish("cowsay", &[MODEL, ("requirements.txt", "cowsay==6.1\n")]);
    let first = scheduler.snapshot_of("cowsay");
    let (lines, key) = scheduler.prepare_with("cowsay", &first, None);
    let key = key.unwrap();
    assert!(lines.iter().any(|line| line.contains("+ cowsay==6.1")), "{lines:#?}");

    let dir = node.path("cache/environments").join(key.as_str());
    let python = dir.join("bin/python");
    let output = Command::new(&python)
        .args(["-c", "import cowsay, sys; print(sys.prefix); cowsay.cow('moo')"])
        .output()
        .unwrap();
    let said = String::from_utf8(output.stdout).unwrap();
    assert!(said.starts_with(&format!("{}\n", dir.display())) && said.contains("| moo |"), "{said}");
    let compiled = dir.join("lib/python3.11/site-packages/cowsay/__pycache__/main.cpython-311.pyc");
    assert_eq!(fs::read(compiled).unwrap()[4], 1, "bytecode by hash, not checked");
    let record = fs::read_to_string(node.path("cache/environments").join(format!("{key}.json"))).unwrap();
    let record: serde_json::Value = serde_json::from_str(&record).unwrap();
    assert_eq!(record["packages"], serde_json::json!(["cowsay==6.1"]));
    assert!(record["builder"].as_str().unwrap().starts_with("uv "));

    // Directories are root's, and nobody else may write anything; files may be shared with the cache.
    let mut waiting = vec![dir];
    let mut shared = 0;
    while let Some(path) = waiting.pop() {
        let found = path.symlink_metadata().unwrap();
        assert!(found.is_symlink() || found.mode() & 0o022 == 0, "{}", path.display());
        if found.is_dir() {
            assert_eq!(found.uid(), 0, "{}", path.display());
            waiting.extend(fs::read_dir(&path).unwrap().map(|entry| entry.unwrap().path()));
        } else if found.nlink() > 1 {
            shared += 1;
        } else {
            assert_eq!(found.uid(), 0, "{}", path.display());
        }
    }
    assert!(shared > 0, "files are hard links to the cache");

    node.publish("other", &[("model.py", "y = 1"), ("requirements.txt", "cowsay==6.1\n")]);
    let second = scheduler.snapshot_of("other");
    let (lines, again) = scheduler.prepare_with("other", &second, None);
    assert_eq!((lines, again.unwrap()), (vec![], key));
}

#[test]
fn no_requirements_is_one_bare_environment_for_all() {
    let node = Node::start();
    let scheduler = node.connect();
    node.publish("a", &[MODEL]);
    let a = scheduler.prepare("a", &scheduler.snapshot_of("a")).unwrap();
    node.publish("b", &[MODEL, ("requirements.txt", "# nothing\n")]);
    let b = scheduler.prepare("b", &scheduler.snapshot_of("b")).unwrap();
    assert_eq!(a, b);
    let python = node.path("cache/environments").join(a.as_str()).join("bin/python");
    let script = "import sys; assert sys.prefix != sys.base_prefix; print([p for p in sys.path if 'packages' in p])";
    let output = Command::new(python).args(["-c", script]).output().unwrap();
    let said = String::from_utf8(output.stdout).unwrap();
    assert_eq!(
        said,
        format!("['{}/cache/environments/{a}/lib/python3.11/site-packages']\n", node.dir.path().display())
    );
}

#[test]
fn unsatisfiable_requirements_are_reported_with_uvs_message() {
    let node = Node::start();
    let scheduler = node.connect();
    let table = [
        (
            "absent",
            "no-such-package-of-omni-7f3a==1\n",
            "no-such-package-of-omni-7f3a was not found in the package registry",
        ),
        ("version", "cowsay==99\n", "there is no version of cowsay==99"),
        ("nonsense", "cowsay >>= 1\n", "Couldn't parse requirement in `requirements.txt`"),
        ("file", "-r more.txt\n", "more.txt"),
    ];
    for (name, requirements, expected) in table {
        node.publish(name, &[MODEL, ("requirements.txt", requirements)]);
        let (message, permanent) = scheduler.prepare(name, &scheduler.snapshot_of(name)).unwrap_err();
        let joined = message.split_whitespace().collect::<Vec<_>>().join(" ");
        assert!(joined.contains(expected) && permanent, "{name}: {permanent} {message}");
    }
    let left: Vec<_> = fs::read_dir(node.path("cache/environments")).unwrap().collect();
    assert!(left.is_empty(), "{left:?}");
    assert!(node.groups().is_empty());
}

#[test]
fn a_network_that_does_not_answer_is_not_final() {
    let mut node = Node::stopped();
    node.configure("index-url = \"http://127.0.0.1:9/simple\"\n");
    node.run(&[]);
    let scheduler = node.connect();
    node.publish("m", &[MODEL, ("requirements.txt", "cowsay==6.1\n")]);
    let (message, permanent) = scheduler.prepare("m", &scheduler.snapshot_of("m")).unwrap_err();
    assert!(message.contains("127.0.0.1:9") && !permanent, "{permanent} {message}");
}

/// A package's build step that tries what it must not be able to do, and says in its version what it could.
const HOSTILE: &str = r#"
import glob, os, sys
from setuptools import setup
done = []
for path in glob.glob('@CACHE@/environments/*/lib/python3.11/site-packages/cowsay/*.py') + ['/usr/hostile', '@CACHE@/hostile',
        '@CACHE@/uv/hostile', '@CACHE@/environments/hostile', '@STATE@/hostile', '/omni/uv']:
    try:
        open(path, 'a').write('hostile')
        done.append(path)
    except OSError:
        pass
if os.path.exists('@CACHE@/environments/@KEY@') or os.path.exists('@CACHE@/uv') or os.getuid() == 0:
    done.append('seen')
os.makedirs(sys.prefix, exist_ok=True)
setup(name='hostile', version='1.%d' % len(done), py_modules=[], description=' '.join(done))
"#;

#[test]
fn a_hostile_build_step_reaches_nothing_but_its_own_environment() {
    let node = Node::start();
    let scheduler = node.connect();
    node.publish("good", &[MODEL, ("requirements.txt", "cowsay==6.1\n")]);
    let good = scheduler.prepare("good", &scheduler.snapshot_of("good")).unwrap();
    let before = tree(&node, good.as_str());

    let setup = HOSTILE
        .replace("@CACHE@", node.path("cache").to_str().unwrap())
        .replace("@STATE@", node.path("state").to_str().unwrap())
        .replace("@KEY@", good.as_str());
    let project = "[build-system]\nrequires = ['setuptools==75.8.0']\nbuild-backend = 'setuptools.build_meta'\n";
    let files =
        [MODEL, ("requirements.txt", "./hostile\n"), ("hostile/setup.py", &setup), ("hostile/pyproject.toml", project)];
    node.publish("hostile", &files);
    let snapshot = scheduler.snapshot_of("hostile");
    let (lines, built) = scheduler.prepare_with("hostile", &snapshot, None);
    let key = built.unwrap_or_else(|error| panic!("{error:?} {lines:#?}"));
    assert!(lines.iter().any(|line| line.contains("+ hostile==1.0")), "{lines:#?}");
    assert_eq!(tree(&node, good.as_str()), before);
    assert!(!node.path("cache/uv/hostile").exists());
    let left: Vec<_> = fs::read_dir(node.path("cache")).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert!(left.iter().all(|name| !name.to_string_lossy().starts_with("build-")), "{left:?}");
    // All of it is root's now, too: the user of build steps is the next one's as well.
    let own = node.path("cache/environments").join(key.as_str());
    assert_eq!((own.metadata().unwrap().uid(), own.join("lib").metadata().unwrap().uid()), (0, 0));
}

/// Path, owner, mode and content of everything in an environment.
fn tree(node: &Node, key: &str) -> Vec<(String, u32, u32, Vec<u8>)> {
    let mut waiting = vec![node.path("cache/environments").join(key)];
    let mut all = Vec::new();
    while let Some(path) = waiting.pop() {
        let found = path.symlink_metadata().unwrap();
        let content = if found.is_file() { fs::read(&path).unwrap() } else { Vec::new() };
        if found.is_dir() {
            waiting.extend(fs::read_dir(&path).unwrap().map(|entry| entry.unwrap().path()));
        }
        all.push((path.display().to_string(), found.uid(), found.mode(), content));
    }
    all.sort();
    all
}

#[test]
fn an_existing_environment_is_used_as_it_is() {
    let node = Node::start();
    let scheduler = node.connect();
    node.publish("m", &[MODEL, ("requirements.txt", "no-such-package-of-omni-7f3a\n")]);
    let snapshot = scheduler.snapshot_of("m");
    let (_, key) = scheduler.prepare_with("m", &snapshot, Some("/usr/bin/python3.11"));
    key.unwrap();
    let (_, error) = scheduler.prepare_with("m", &snapshot, Some("/nowhere/bin/python"));
    let (message, permanent) = error.unwrap_err();
    assert!(message.contains("/nowhere/bin/python cannot be run") && permanent, "{message}");
}

/// Programs of root that are no interpreters, whatever they say: what they do as root would be done to the machine.
#[test]
fn a_program_that_a_manifest_names_is_never_run_as_root() {
    let node = Node::start();
    let scheduler = node.connect();
    node.publish("m", &[MODEL]);
    let snapshot = scheduler.snapshot_of("m");
    let root = node.path("root");
    fs::create_dir_all(root.join("tool/bin")).unwrap();
    let write = |name: &str, text: &str| {
        let path = root.join("tool/bin").join(name);
        fs::write(&path, format!("#!/bin/sh\n{text}\n")).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
        path.display().to_string()
    };
    let marks = root.display();
    let mark = |name: &str| format!("touch {marks}/{name} {marks}/tool/{name} 2>/dev/null");

    let cleans =
        write("cleans", &format!("{}\necho \"uid $(id -u) $(grep NoNewPrivs /proc/self/status)\"", mark("gain")));
    let (message, permanent) = scheduler.prepare_with("m", &snapshot, Some(&cleans)).1.unwrap_err();
    assert!(
        permanent && message.contains("does not answer as a Python") && message.contains("NoNewPrivs:\t1"),
        "{message}"
    );
    let uid: u32 = message.split("uid ").nth(1).unwrap().split(' ').next().unwrap().parse().unwrap();
    assert_ne!(uid, 0, "{message}");

    // A program that answers as an interpreter does, of bytecode that no other has yet: its own output names the
    // compiler.
    let compiles = write("compiles", &mark("compiled"));
    let answer = format!(
        r#"{{"version": "3.99.1", "build": "", "tag": "cpython-399", "base": "{compiles}", "prefix": "{marks}/tool", "base_prefix": "/usr"}}"#
    );
    let answers = write("answers", &format!("{}\necho '{answer}'", mark("answered")));
    scheduler.prepare_with("m", &snapshot, Some(&answers)).1.unwrap();

    let written: Vec<_> = [root.clone(), root.join("tool")]
        .iter()
        .flat_map(|dir| fs::read_dir(dir).unwrap())
        .map(|entry| entry.unwrap().file_name())
        .filter(|name| name != "tool" && name != "bin")
        .collect();
    assert!(written.is_empty(), "{written:?}");
    assert!(node.groups().is_empty());
}

/// A Python outside `/usr`, behind a directory that only root may enter, and a virtual environment of it: as uv makes them.
#[test]
fn an_environment_of_a_python_below_a_private_directory_is_used() {
    let node = Node::start();
    let scheduler = node.connect();
    node.publish("m", &[MODEL]);
    let snapshot = scheduler.snapshot_of("m");
    let base = node.path("private/share/python/cpython-3.11");
    fs::create_dir_all(base.join("bin")).unwrap();
    fs::create_dir_all(base.join("lib")).unwrap();
    let python = base.join("bin/python3.11");
    fs::copy("/usr/bin/python3.11", &python).unwrap();
    symlink("/usr/lib/python3.11", base.join("lib/python3.11")).unwrap();
    fs::set_permissions(node.path("private"), fs::Permissions::from_mode(0o700)).unwrap();
    let venv = node.path("venvs/one");
    fs::create_dir_all(venv.join("bin")).unwrap();
    fs::create_dir_all(venv.join("lib/python3.11/site-packages")).unwrap();
    fs::write(venv.join("pyvenv.cfg"), format!("home = {}\n", base.join("bin").display())).unwrap();
    symlink(&python, venv.join("bin/python")).unwrap();
    for (named, mounts) in [(&python, vec![&base]), (&venv.join("bin/python"), vec![&base, &venv])] {
        let (_, key) = scheduler.prepare_with("m", &snapshot, named.to_str());
        let key = key.unwrap_or_else(|(message, _)| panic!("{}: {message}", named.display()));
        let record = fs::read_to_string(node.path("cache/environments").join(format!("{key}.json"))).unwrap();
        let record: serde_json::Value = serde_json::from_str(&record).unwrap();
        assert_eq!(record["mounts"], serde_json::json!(mounts));
    }
}

/// A directory with so many levels below it.
fn nest(dir: &Path, levels: usize) {
    let flags = OFlag::O_DIRECTORY | OFlag::O_CLOEXEC;
    fs::create_dir(dir).unwrap();
    let mut here = open(dir, flags, Mode::empty()).unwrap();
    for _ in 0..levels {
        mkdirat(&here, "d", Mode::S_IRWXU).unwrap();
        here = openat(&here, "d", flags, Mode::empty()).unwrap();
    }
}

/// A directory that nobody can remove.
struct Mounted(PathBuf);

impl Mounted {
    fn at(dir: PathBuf) -> Self {
        fs::create_dir(&dir).unwrap();
        mount(Some("tmpfs"), &dir, Some("tmpfs"), MsFlags::empty(), None::<&str>).unwrap();
        Self(dir)
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        let _ = umount2(&self.0, MntFlags::MNT_DETACH); // a test that fails has said more already
    }
}

#[test]
fn half_built_environments_go_when_the_launcher_starts() {
    let mut node = Node::start();
    let scheduler = node.connect();
    node.publish("m", &[MODEL]);
    let key = scheduler.prepare("m", &scheduler.snapshot_of("m")).unwrap();
    node.end(nix::sys::signal::Signal::SIGKILL);
    let environments = node.path("cache/environments");
    fs::create_dir(environments.join("a".repeat(64))).unwrap();
    // A build step may have left more levels than any stack has room for, and what cannot be removed at all.
    nest(&node.path("cache/build-interrupted"), 20_000);
    let _mounted = Mounted::at(node.path("cache/build-mounted"));
    node.run(&[]);
    // At once out of the way, and from the disk in their own time.
    let left = [environments.join("a".repeat(64)), node.path("cache/build-interrupted")];
    assert!(left.iter().all(|dir| !dir.exists()));
    let is_aside = |entry: std::io::Result<fs::DirEntry>| {
        entry.is_ok_and(|entry| entry.file_name().to_string_lossy().starts_with(".gone-"))
    };
    let aside = |dir: &Path| fs::read_dir(dir).unwrap().any(is_aside);
    node.wait_for("leftovers to go", || !aside(&environments) && !aside(&node.path("cache")));
    assert!(environments.join(key.as_str()).exists());
    // Found again without being built.
    let scheduler = node.connect();
    let snapshot = scheduler.snapshot_of("m");
    let heard = scheduler.prepare_with("m", &snapshot, None);
    assert_eq!(heard, (vec![], Ok(key)));
}
