//! The folder of a model's weights inside: what is there, what cannot be done to it, and what is said where it cannot be.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a failed step of a test is a failed test")]

#[path = "sandbox_support/mod.rs"]
mod support;

use omni_node_protocol::exit::ExitCause;
use omni_sandbox::Weights;
use serde_json::json;
use std::fs::{self, Permissions};
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown, symlink};
use std::path::{Path, PathBuf};
use support::{Host, Setup, body};

/// A listed folder with one model's, and a folder beside it that is not listed.
fn listed(host: &Host) -> PathBuf {
    let folder = host.dir.path().join("weights");
    fs::create_dir_all(folder.join("llama")).unwrap();
    fs::write(folder.join("llama/w.bin"), "tensor").unwrap();
    fs::write(folder.join("single.bin"), "no folder").unwrap();
    fs::create_dir(host.dir.path().join("secret")).unwrap();
    symlink("llama", folder.join("current")).unwrap();
    symlink("../secret", folder.join("out")).unwrap();
    folder
}

fn with(folder: &Path, below: &str, code: &str) -> Setup {
    let weights = Some(Weights { folder: folder.to_owned(), below: below.into() });
    Setup { weights, ..body(code) }
}

#[test]
fn mounted_weights_are_the_files_themselves_and_read_only() {
    let host = Host::new();
    let folder = listed(&host);
    let uid = 3_000_000;
    // Also to who owns them.
    for path in [folder.join("llama"), folder.join("llama/w.bin")] {
        chown(path, Some(uid), Some(uid)).unwrap();
    }
    let code = "
import errno
def attempt(act):
    try:
        act()
        return 'done'
    except OSError as error:
        return errno.errorcode[error.errno]
file = '/weights/w.bin'
flags = next(line.split()[5] for line in open('/proc/self/mountinfo') if line.split()[4] == '/weights')
tell(
    text=open(file).read(), inode=os.stat(file).st_ino, names=os.listdir('/weights'),
    flags=sorted(set(flags.split(',')) & {'ro', 'nosuid', 'nodev'}),
    new=attempt(lambda: open('/weights/new', 'w')), change=attempt(lambda: open(file, 'r+')),
    remove=attempt(lambda: os.unlink(file)), mode=attempt(lambda: os.chmod(file, 0o777)),
)
";
    for below in ["llama", "current"] {
        let setup = Setup { uid: Some(uid), ..with(&folder, below, code) };
        let (facts, cause) = host.run(setup);
        let inode = fs::metadata(folder.join("llama/w.bin")).unwrap().ino();
        let expected = json!({
            "text": "tensor", "inode": inode, "names": ["w.bin"], "flags": ["nodev", "nosuid", "ro"],
            "new": "EROFS", "change": "EROFS", "remove": "EROFS", "mode": "EROFS",
        });
        assert_eq!((facts, cause), (vec![expected], ExitCause::Exited { code: 0 }), "{below}");
    }
}

#[test]
fn the_listed_folder_itself_can_be_named_and_without_any_there_is_nothing() {
    let host = Host::new();
    let folder = listed(&host);
    let code = "tell(there=os.path.exists('/weights'), file=os.path.exists('/weights/single.bin'))";
    assert_eq!(host.run(with(&folder, "", code)).0, [json!({"there": true, "file": true})]);
    assert_eq!(host.run(body(code)).0, [json!({"there": false, "file": false})]);
}

#[test]
fn an_unusable_folder_fails_the_start_with_a_reason() {
    let host = Host::new();
    let folder = listed(&host);
    fs::create_dir(folder.join("closed")).unwrap();
    fs::set_permissions(folder.join("closed"), Permissions::from_mode(0o700)).unwrap();
    let table = [
        ("absent", "there is no such folder on this node: make it"),
        ("single.bin", "it is not a folder"),
        ("out", "a link in it leads out of"),
        ("../secret", "a link in it leads out of"),
        ("closed", "the model's user may not search it: it needs `chmod o+x`"),
    ];
    for (below, reason) in table {
        let (facts, cause) = host.run(with(&folder, below, "tell(ran=True)"));
        let named = format!("the folder of the model's weights, {}", folder.join(below).display());
        let ExitCause::StartFailed { message } = &cause else { panic!("{below}: {cause}") };
        assert!(message.contains(&named) && message.contains(reason), "{below}: {message}");
        assert!(facts.is_empty(), "{below}: {facts:?}");
    }
}
