//! Weights in a folder that the node's configuration lists: mounted read-only, shared, and nothing beside it.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a failed step of a test is a failed test")]

use nix::mount::{MntFlags, MsFlags, mount, umount2};
use omni_tests::probe::{self, assert_found, probe};
use omni_tests::{Node, NodeBuilder, PATIENCE, wait_for};
use serde_json::json;
use std::fs::{self, File};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::thread;
use tempfile::TempDir;

const PROBE: (&str, &str) = ("model.py", probe::MODEL);

/// A folder `weights` with those of `llama`, and a folder `secret` beside it.
fn folders() -> TempDir {
    let dir = tempfile::tempdir().unwrap();
    fs::set_permissions(dir.path(), PermissionsExt::from_mode(0o755)).unwrap();
    fs::create_dir_all(dir.path().join("weights/llama")).unwrap();
    fs::create_dir(dir.path().join("secret")).unwrap();
    for file in ["weights/llama/w.txt", "secret/w.txt"] {
        fs::write(dir.path().join(file), file).unwrap();
    }
    // Nothing but the mount keeps models from writing.
    for (path, mode) in [("weights/llama", 0o777), ("weights/llama/w.txt", 0o666)] {
        fs::set_permissions(dir.path().join(path), PermissionsExt::from_mode(mode)).unwrap();
    }
    symlink("llama", dir.path().join("weights/current")).unwrap();
    symlink(dir.path().join("secret"), dir.path().join("weights/out")).unwrap();
    dir
}

fn listing(folder: &Path) -> String {
    format!("[weights]\nfolders = [{folder:?}]\n")
}

fn manifest(folder: &Path) -> String {
    format!("schema = 1\n[weights]\nsource = \"file://{}\"\n", folder.display())
}

fn node(dir: &TempDir, models: &[(&str, &str)]) -> NodeBuilder {
    models.iter().fold(Node::builder().config(&listing(&dir.path().join("weights"))), |node, (name, path)| {
        node.model(name, &[PROBE, ("omni.toml", &manifest(&dir.path().join(path)))])
    })
}

/// Asks a model that cannot start, and says what the node says of it.
fn refused(node: &Node, model: &str) -> String {
    let answer = node.http().run(model, &json!("tell(ran=True)"));
    assert!(answer.status >= 500, "{model}: {} {}", answer.status, answer.text());
    node.model(model).message.unwrap_or_default()
}

#[test]
fn models_share_a_listed_folder_and_get_nothing_else() {
    let dir = folders();
    let models = [
        ("one", "weights/llama"),
        ("two", "weights/current"),
        ("out", "weights/out"),
        ("beside", "secret"),
        ("alike", "weights2"),
    ];
    let node = node(&dir, &models).start();
    let look = "
import errno
file = context.weights_dir / 'w.txt'
def write():
    (context.weights_dir / 'new').write_text('x')
attempt('write', write)
attempt('change', lambda: file.open('r+'))
tell(dir=str(context.weights_dir), inode=file.stat().st_ino, text=file.read_text())
";
    let inode = fs::metadata(dir.path().join("weights/llama/w.txt")).unwrap().ino();
    let expected = json!({
        "dir": "/weights", "inode": inode, "text": "weights/llama/w.txt", "write": "EROFS", "change": "EROFS",
    });
    for name in ["one", "two"] {
        assert_found(&node, name, look, &expected);
    }
    // No copy: what comes later is there.
    fs::write(dir.path().join("weights/llama/later.txt"), "more").unwrap();
    assert_found(&node, "one", "tell(more=(context.weights_dir / 'later.txt').read_text())", &json!({"more": "more"}));
    assert!(refused(&node, "out").contains("a link in it leads out of"), "{}", refused(&node, "out"));
    for name in ["beside", "alike"] {
        assert!(refused(&node, name).contains("[weights] folders"), "{name}: {}", refused(&node, name));
    }
    // Another folder is another version.
    fs::create_dir(dir.path().join("weights/newer")).unwrap();
    fs::write(dir.path().join("weights/newer/w.txt"), "newer").unwrap();
    let version = node.model("one").directory.version;
    node.publish("one", &[PROBE, ("omni.toml", &manifest(&dir.path().join("weights/newer")))]);
    wait_for("the new version", PATIENCE, || {
        let found = probe(&node, "one", "tell(text=(context.weights_dir / 'w.txt').read_text())");
        (found["text"] == "newer").then_some(())
    });
    assert_ne!(node.model("one").directory.version, version);
    node.stop();
}

#[test]
fn a_zygote_has_the_weights_when_it_imports() {
    let dir = folders();
    let text = format!("{}[python]\npreload = [\"loaded\"]\n", manifest(&dir.path().join("weights/llama")));
    let loaded = "import os\npid = os.getpid()\ntext = open('/weights/w.txt').read()\n";
    let node = node(&dir, &[]).model("m", &[PROBE, ("loaded.py", loaded), ("omni.toml", &text)]).start();
    let look = "
import loaded
tell(preloaded=loaded.pid != os.getpid(), text=loaded.text, same=(context.weights_dir / 'w.txt').read_text() == loaded.text)
";
    assert_found(&node, "m", look, &json!({"preloaded": true, "text": "weights/llama/w.txt", "same": true}));
    node.stop();
}

#[test]
fn a_missing_or_unreadable_folder_is_reported_and_served_once_it_is_there() {
    let dir = folders();
    let node = node(&dir, &[("late", "weights/late")]).start();
    let late = dir.path().join("weights/late");
    let message = refused(&node, "late");
    let missing = format!("open the folder of the model's weights, {}: there is no such folder", late.display());
    assert!(message.contains(&missing), "{message}");

    fs::create_dir(&late).unwrap();
    fs::set_permissions(&late, PermissionsExt::from_mode(0o700)).unwrap();
    wait_for("the next reason", PATIENCE, || {
        refused(&node, "late");
        node.log().contains("it needs `chmod o+x`").then_some(())
    });

    fs::set_permissions(&late, PermissionsExt::from_mode(0o755)).unwrap();
    wait_for("a start", PATIENCE, || {
        (node.http().run("late", &json!("tell(names=os.listdir(context.weights_dir))")).status == 200).then_some(())
    });
    node.stop();
}

#[test]
fn a_pull_says_that_a_folder_cannot_be_used_and_starts_nothing() {
    let dir = folders();
    let node =
        node(&dir, &[("good", "weights/llama"), ("missing", "weights/none"), ("closed", "weights/closed")]).start();
    let closed = dir.path().join("weights/closed");
    fs::create_dir(&closed).unwrap();
    fs::set_permissions(&closed, PermissionsExt::from_mode(0o750)).unwrap();
    for (name, code, reason) in
        [("good", 0, ""), ("missing", 3, "there is no such folder"), ("closed", 3, "it needs `chmod o+x`")]
    {
        node.await_seen(name);
        assert_eq!(node.omnictl(["stop", name]).code, 0);
        let pulled = node.omnictl(["pull", name, "--wait"]);
        assert!(pulled.code == code && pulled.stderr.contains(reason), "{name}: {pulled:?}");
        assert!(node.model(name).instances.is_empty(), "{name}");
    }
    fs::set_permissions(&closed, PermissionsExt::from_mode(0o755)).unwrap();
    assert_eq!(node.omnictl(["pull", "closed", "--wait"]).code, 0);
    node.stop();
}

#[test]
fn an_upgrade_adds_a_folder() {
    let dir = folders();
    let mut node = node(&dir, &[("m", "secret")]).start();
    assert!(refused(&node, "m").contains("[weights] folders"));
    node.configure(&listing(dir.path()));
    node.upgrade();
    wait_for("a start", PATIENCE, || (node.http().run("m", &json!("tell(ran=True)")).status == 200).then_some(()));
    node.stop();
}

/// A file system whose server never answers. Who waits for it is let go when it is dropped.
struct Dead {
    place: PathBuf,
    _server: File,
}

impl Dead {
    fn at(place: PathBuf) -> Self {
        let server = File::options().read(true).write(true).open("/dev/fuse").unwrap();
        let options = format!("fd={},rootmode=40000,user_id=0,group_id=0,allow_other", server.as_raw_fd());
        mount(Some("dead"), &place, Some("fuse"), MsFlags::empty(), Some(options.as_str())).unwrap();
        Self { place, _server: server }
    }
}

impl Drop for Dead {
    fn drop(&mut self) {
        umount2(&self.place, MntFlags::MNT_DETACH).unwrap();
    }
}

#[test]
fn a_file_system_that_does_not_answer_holds_up_its_own_models_only() {
    let dir = folders();
    fs::create_dir(dir.path().join("weights/dead")).unwrap();
    let dead = Dead::at(dir.path().join("weights/dead"));
    let limit = "[timeouts]\nstartup = \"5s\"\n";
    let text = format!("{}{limit}", manifest(&dir.path().join("weights/dead/llama")));
    let node = node(&dir, &[("well", "weights/llama")]).model("stuck", &[PROBE, ("omni.toml", &text)]).start();
    let (http, waits) = (node.http(), json!("tell(ran=True)"));
    let stuck = thread::spawn(move || http.run("stuck", &waits).status);
    wait_for("the start", PATIENCE, || node.instance("stuck").map(drop));
    assert_found(&node, "well", "tell(names=os.listdir(context.weights_dir))", &json!({"names": ["w.txt"]}));
    assert!(!stuck.is_finished(), "it still waits");
    assert!(stuck.join().unwrap() >= 500);
    wait_for("its end", PATIENCE, || node.instance("stuck").is_none().then_some(()));
    node.stop();
    drop(dead);
}
