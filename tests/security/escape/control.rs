//! The control run: `control.py` in separate namespaces, as root and without walls.

use crate::outcomes::Outcomes;
use omni_tests::{PATIENCE, wait_for};
use serde_json::json;
use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// Prefix of every copy of the secret.
pub(crate) const SECRET: &str = "sesame-of-the-neighbour";
/// Where the probes and their programs are.
pub(crate) const FOLDER: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/security/escape");

/// The outcome of every probe where nothing refuses it.
pub(crate) fn run(interpreter: &Path) -> Outcomes {
    // Not in /tmp, which may refuse devices to all users.
    let (scratch, group) = (tempfile::tempdir_in("/var/tmp").unwrap(), Group::make());
    // Killed with everything in its process namespace, should it hang.
    let mut control = Command::new("timeout")
        .args(["--signal=KILL", "60", "unshare", "--mount", "--uts", "--ipc", "--net", "--pid", "--fork"])
        .args(["--kill-child", "--mount-proc"])
        .arg(interpreter)
        .args(["-B", &format!("{FOLDER}/control.py")])
        .env("ESCAPE_SECRET", SECRET)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("timeout and unshare run");
    let given = json!({"scratch": scratch.path(), "groups": [group.0.join("cgroup.procs")]});
    control.stdin.take().unwrap().write_all(given.to_string().as_bytes()).unwrap();
    let output = control.wait_with_output().unwrap();
    assert!(output.status.success(), "the control run ended with {}", output.status);
    serde_json::from_slice(&output.stdout).expect("the outcomes")
}

/// A control group that processes may move to, removed when the run is over.
struct Group(PathBuf);

impl Group {
    fn make() -> Self {
        let hierarchies = ["/sys/fs/cgroup/pids", "/sys/fs/cgroup"].map(Path::new);
        let hierarchy = hierarchies.into_iter().find(|dir| dir.join("cgroup.procs").exists());
        let dir = hierarchy.expect("control groups").join(format!("omni-escape-{}", std::process::id()));
        fs::create_dir(&dir).unwrap();
        Self(dir)
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        // The last process in it may still be on its way out.
        wait_for("the group to be empty", PATIENCE, || fs::remove_dir(&self.0).ok());
    }
}
