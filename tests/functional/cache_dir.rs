//! A model's own lasting directory: it outlives instances and contents, follows the instance's user, has a quota, and
//! is no other model's.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a failed step of a test is a failed test")]

use nix::errno::Errno;
use nix::sys::signal::{Signal, kill};
use omni_tests::probe::{self, assert_found, probe};
use omni_tests::{Node, PATIENCE, wait_for};
use serde_json::json;
use std::fs::{self, File};
use std::os::unix::fs::FileExt;

const PROBE: (&str, &str) = ("model.py", probe::MODEL);

#[test]
fn a_cache_directory_lasts_is_bounded_and_is_the_models_own() {
    let manifest = "schema = 1\n[limits]\ncache = \"16MiB\"\n";
    let node = Node::builder()
        .model("one", &[PROBE, ("omni.toml", manifest)])
        .model("@cf/x/one", &[PROBE, ("omni.toml", manifest)])
        .start();
    let write = "
from pathlib import Path
folder = Path(context.cache_dir)
(folder / 'deep').mkdir()
(folder / 'deep' / 'kept').write_text('by one')
(folder / 'private').write_text('x')
os.chmod(folder / 'private', 0o600)
tell(user=os.getuid())
";
    let first = probe(&node, "one", write)["user"].clone();
    assert_found(
        &node,
        "@cf/x/one",
        "tell(other=sorted(os.listdir(context.cache_dir)))",
        &json!({"other": [".cache", "lost+found"]}),
    );

    // The next instance has another user id, and owns the files.
    assert_eq!(node.omnictl(["restart", "one", "--wait"]).code, 0, "{}", node.log());
    let read = "
from pathlib import Path
folder = Path(context.cache_dir)
kept = folder / 'deep' / 'kept'
tell(user=os.getuid(), kept=kept.read_text(), private=(folder / 'private').read_text(), own=kept.stat().st_uid == os.getuid())
kept.write_text('by two')
tell(now=kept.read_text())
def fill():
    with open(folder / 'big', 'wb', buffering=0) as big:
        for _ in range(64):
            big.write(bytes(1 << 20))
attempt('full', fill)
tell(bounded=(folder / 'big').stat().st_size < 16 << 20)
(folder / 'big').unlink()
";
    let mut found = probe(&node, "one", read);
    assert_ne!(found.remove("user"), Some(first), "another user");
    let expected =
        json!({"kept": "by one", "private": "x", "own": true, "now": "by two", "full": "ENOSPC", "bounded": true});
    assert_eq!(json!(found), expected);

    // The directory survives a death and a change of the content.
    kill(node.engine("one").unwrap(), Signal::SIGKILL).unwrap();
    wait_for("its end to be known", PATIENCE, || (node.model("one").restarts == 1).then_some(()));
    let read = "tell(kept=(context.cache_dir / 'deep/kept').open().read())";
    assert_found(&node, "one", read, &json!({"kept": "by two"}));
    node.publish("one", &[PROBE, ("omni.toml", manifest), ("more.txt", "x")]);
    wait_for("the new content", PATIENCE, || {
        let found = probe(&node, "one", "tell(new=os.path.exists('/model/more.txt'))");
        (found["new"] == true).then_some(())
    });
    assert_found(&node, "one", read, &json!({"kept": "by two"}));
    node.stop();
}

#[test]
fn a_spoiled_cache_directory_harms_no_later_instance() {
    let manifest = |quota: &str| format!("schema = 1\n[limits]\ncache = \"{quota}\"\n");
    let node = Node::builder()
        .model("one", &[PROBE, ("omni.toml", &manifest("16MiB"))])
        .model("two", &[PROBE, ("omni.toml", &manifest("16MiB"))])
        .start();
    // Full in bytes and in files, and closed to its own owner.
    let spoil = "
folder = context.cache_dir
os.mkdir(folder / 'many')
def files():
    for number in range(1 << 20):
        os.close(os.open(folder / 'many' / str(number), os.O_CREAT | os.O_WRONLY))
def bytes_():
    with open(folder / 'big', 'wb', buffering=0) as big:
        while True:
            big.write(bytes(1 << 16))
attempt('bytes', bytes_)
attempt('files', files)
os.chmod(folder, 0)
attempt('closed', lambda: os.listdir(folder))
";
    let expected = json!({"bytes": "ENOSPC", "files": "ENOSPC", "closed": "EACCES"});
    assert_found(&node, "one", spoil, &expected);
    assert_eq!(node.omnictl(["restart", "one", "--wait"]).code, 0, "{}", node.log());
    let mend = "
import shutil
folder = context.cache_dir
attempt('closed', lambda: os.listdir(folder))
os.chmod(folder, 0o700)
tell(size=os.stat(folder / 'big').st_size > 8 << 20)
os.unlink(folder / 'big')
shutil.rmtree(folder / 'many')
(folder / 'new').write_bytes(bytes(8 << 20))
";
    assert_found(&node, "one", mend, &json!({"closed": "EACCES", "size": true}));

    // Another quota applies to a new directory: nothing is lost silently.
    node.publish("one", &[PROBE, ("omni.toml", &manifest("64MiB"))]);
    let total = "
room = os.statvfs(context.cache_dir)
tell(new=(context.cache_dir / 'new').exists(), small=room.f_blocks * room.f_frsize < 16 << 20, quota='64MiB' in open('/model/omni.toml').read())
";
    let expected = json!({"new": true, "small": true, "quota": true});
    wait_for("the new content", PATIENCE, || (json!(probe(&node, "one", total)) == expected).then_some(()));
    let told = node.omnictl(["logs", "one"]).stdout + &node.log();
    assert!(told.contains("keeps its 16777216 bytes; for 67108864 bytes remove "), "{told}");

    // An image that the disk has damaged: reported for this model alone, and fixed once the image is gone.
    assert_eq!(node.omnictl(["stop", "one", "--wait"]).code, 0);
    let image = node.folder().with_file_name("cache").join("models/one.img");
    let device = || node.found().iter().any(|found| found.starts_with("loop device") && found.contains("one.img"));
    wait_for("its device to be free", PATIENCE, || (!device()).then_some(()));
    let file = File::options().write(true).open(&image).unwrap_or_else(|error| panic!("{error}: {}", image.display()));
    // The file system's mark stays, its geometry does not.
    file.write_all_at(&[0xff; 0x30], 1024).unwrap();
    let started = node.omnictl(["start", "one", "--wait"]);
    let refused = node.http().run("one", &json!(""));
    assert_eq!((started.code, refused.status), (3, 503), "{started:?} {}", refused.text());
    let message = node.model("one").message.expect("a reason");
    for word in ["the last instance could not be started", "cache image", "one.img", "e2fsck"] {
        assert!(message.contains(word), "{word} in {message}");
    }
    assert!(!refused.text().contains("one.img"), "{}", refused.text());
    assert!(probe(&node, "two", "").is_empty());
    fs::remove_file(&image).unwrap();
    assert_eq!(node.omnictl(["start", "one", "--wait"]).code, 0, "{}", node.log());
    assert_found(
        &node,
        "one",
        "tell(held=sorted(os.listdir(context.cache_dir)))",
        &json!({"held": [".cache", "lost+found"]}),
    );
    node.stop();
}

/// Writes this many MiB, and reports how much it could read of them from the disk.
const WRITES: &str = r#"
import os

def handle_request(request, context):
    path = os.path.join(context.cache_dir, "file")
    try:
        with open(path, "wb") as file:
            for _ in range(request.body.json):
                file.write(os.urandom(1 << 20))
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        return error.errno
    return os.path.getsize(path) >> 20
"#;

#[test]
fn cache_directories_never_fill_the_disk() {
    let quota = |size: &str| format!("schema = 1\n[limits]\ncache = \"{size}\"\n");
    let (good, fills, large, vast) = (quota("40MiB"), quota("60MiB"), quota("2GiB"), quota("1TiB"));
    let node = Node::builder()
        .config("[cache]\nper-model = \"500GiB\"\n")
        .on_disk("cache", 256 << 20, 4096)
        .model("good", &[("model.py", WRITES), ("omni.toml", &good)])
        .model("fills", &[("model.py", WRITES), ("omni.toml", &fills)])
        .model("usual", &[("model.py", WRITES)])
        .model("large", &[("model.py", WRITES), ("omni.toml", &large)])
        .model("vast", &[("model.py", WRITES), ("omni.toml", &vast)])
        .start();
    let http = node.http();
    let wrote = |model: &str, mib: u32| http.run(model, &json!(mib)).json()["result"].clone();
    assert_eq!(wrote("good", 1), 1, "{}", node.log());
    assert_eq!(http.run("vast", &json!(1)).status, 503);
    let status = node.omnictl(["status", "vast"]);
    let told = "`cache` in [limits] is 1TiB, and this node gives a model 500GiB at most";
    assert!(status.stdout.contains(told), "{status:?}");
    // A model that asks for more than fits gets a part of it, and all directories may be full at once: none loses what
    // it wrote, and there is a place for the next one.
    assert_eq!(wrote("large", 3000), Errno::ENOSPC as i32, "{}", node.log());
    assert_eq!(wrote("usual", 1), 1, "{}", node.log());
    assert_eq!(wrote("fills", 100), Errno::ENOSPC as i32);
    assert_eq!(wrote("usual", 300), Errno::ENOSPC as i32);
    assert_eq!(wrote("good", 20), 20);
    assert!(node.disk().left() >= 8 << 20, "{} bytes left", node.disk().left());
    node.stop();
}
