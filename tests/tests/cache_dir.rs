//! A model's own lasting directory: it outlives instances and contents, follows the instance's user, has a quota, and
//! is no other model's.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a failed step of a test is a failed test")]

use nix::sys::signal::{Signal, kill};
use omni_tests::probe::{self, assert_found, probe};
use omni_tests::{Node, PATIENCE, wait_for};
use serde_json::json;

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
    assert_found(&node, "@cf/x/one", "tell(other=os.listdir(context.cache_dir))", &json!({"other": ["lost+found"]}));

    // The next instance has another user, and the files are its own.
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

    // It lasts over a death and over a change of the content.
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
