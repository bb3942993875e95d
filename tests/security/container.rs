//! A whole node in a container: separate namespaces, a read-only root, and no more capabilities and devices than
//! `container/README.md` names.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a failed step of a test is a failed test")]

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use omni_tests::{Client, PATIENCE, program, wait_for};
use serde_json::Value;
use std::collections::BTreeSet;
use std::fs::{self, File, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use tempfile::TempDir;

const README: &str = include_str!("../../container/README.md");
/// As an engine makes it: the node's folders can be written, the rest of the root cannot, and of the machine's devices there
/// are those of every container and what the README asks for.
const CONTAINER: &str = "mount --bind \"$0\" \"$0\" && mkdir \"$0/dev\" && mount -t tmpfs -o mode=755 dev \"$0/dev\" \
    && (cd /dev && cp -a null zero full random urandom tty $DEVICES \"$0/dev\") && mount --move \"$0/dev\" /dev \
    && mount -o remount,bind,ro / && exec \"$@\"";
const MODEL: &str = "def handle_request(request, context):\n    open(str(context.cache_dir) + '/x', 'w').write('1')\n    \
                     return open('/proc/meminfo').readline().split()[1]\n";

/// The capabilities of the README's table, as setpriv takes them.
fn capabilities() -> String {
    let names = README.lines().filter_map(|line| line.strip_prefix("| `CAP_")?.split('`').next());
    let names: Vec<_> = names.map(|name| format!("+{}", name.to_lowercase())).collect();
    assert!(names.len() > 10, "{names:?}");
    format!("-all,{}", names.join(","))
}

/// The devices of the README's command.
fn devices() -> String {
    let names = README.split("--device=/dev/").skip(1).filter_map(|text| text.split([' ', '`']).next());
    let names: BTreeSet<_> = names.collect();
    assert!(names.contains("fuse") && names.contains("loop-control"), "{names:?}");
    Vec::from_iter(names).join(" ")
}

/// A node's folder, as its operator fills it.
fn folder() -> TempDir {
    let folder = tempfile::Builder::new().prefix("omni-container").tempdir().unwrap();
    fs::set_permissions(folder.path(), Permissions::from_mode(0o755)).unwrap();
    let model = folder.path().join("models/hello");
    fs::create_dir_all(&model).unwrap();
    fs::write(model.join("model.py"), MODEL).unwrap();
    fs::write(model.join("omni.toml"), "schema = 1\n[resources]\nmemory = \"512MiB\"\n").unwrap();
    let group = format!("[node]\ncgroup-parent = \"{}\"\n", group());
    let folders = ["models", "state-dir", "cache-dir", "runtime-dir"];
    let folders = folders.map(|key| format!("{key} = \"{}\"\n", folder.path().join(key).display()));
    fs::write(folder.path().join("node.toml"), group + &folders.concat()).unwrap();
    folder
}

fn group() -> String {
    format!("omni-container{}", std::process::id())
}

/// A command in a container that has the node's folder.
fn inside(folder: &Path) -> Command {
    let mut command = Command::new("setpriv");
    command.args([
        "--bounding-set",
        &capabilities(),
        "unshare",
        "--mount",
        "--pid",
        "--cgroup",
        "--ipc",
        "--uts",
        "--fork",
    ]);
    command.args(["--kill-child", "--mount-proc", "sh", "-c", CONTAINER]).arg(folder);
    command.env("DEVICES", devices()).stdin(Stdio::null());
    command
}

/// Ends with its namespaces, and every process in them, when it is dropped.
struct Container(Child);

impl Drop for Container {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn a_node_serves_with_the_capabilities_that_its_readme_names() {
    let folder = folder();
    let config = folder.path().join("node.toml");
    let log = folder.path().join("log");
    let said = || fs::read_to_string(&log).unwrap();
    let mut command = inside(folder.path());
    command.arg(program("omni-scheduler")).arg("--config").arg(&config);
    command.args(["--listen", "127.0.0.1:0", "--admin-listen", "127.0.0.1:0"]).stderr(File::create(&log).unwrap());
    let mut node = Container(command.spawn().unwrap());

    let listen = wait_for("the node to listen", PATIENCE, || {
        let text = fs::read_to_string(folder.path().join("runtime-dir/node.json")).ok()?;
        serde_json::from_str::<Value>(&text).unwrap()["listen"].as_str().map(str::to_owned)
    });
    let client = Client::new(listen.parse().unwrap());
    // Known after the first scan of the folder, which the launcher has just begun.
    let answer = wait_for("an answer", PATIENCE, || {
        let answer = client.run("hello", &serde_json::json!({}));
        (answer.status != 404).then_some(answer)
    });
    assert_eq!((answer.status, &answer.json()["result"]), (200, &serde_json::json!("524288")), "{}", said());

    // The first process of the container is the scheduler, which a container engine stops.
    let unshare = node.0.id();
    let children = fs::read_to_string(format!("/proc/{unshare}/task/{unshare}/children")).unwrap();
    kill(Pid::from_raw(children.trim().parse().unwrap()), Signal::SIGTERM).unwrap();
    let status = wait_for("the node to end", PATIENCE, || node.0.try_wait().unwrap());
    assert!(status.success(), "{status}: {}", said());
    let groups = Command::new("find").args(["/sys/fs/cgroup", "-name", &group()]).output().unwrap();
    assert_eq!(String::from_utf8(groups.stdout).unwrap(), "", "no group stays");
    assert!(!said().contains("\"level\":\"ERROR\""), "{}", said());
}

#[test]
fn doctor_finds_nothing_missing_in_a_container() {
    let folder = folder();
    for name in ["cache-dir/models", "state-dir", "runtime-dir"] {
        fs::create_dir_all(folder.path().join(name)).unwrap();
    }
    let mut command = inside(folder.path());
    command.arg(program("omnictl")).args(["doctor", "-o", "json", "--config"]).arg(folder.path().join("node.toml"));
    let output = command.output().unwrap();
    let answer: Value = serde_json::from_slice(&output.stdout).unwrap_or_else(|_| panic!("{output:?}"));
    let missing: Vec<_> = answer["checks"].as_array().unwrap().iter().filter(|one| one["state"] == "missing").collect();
    assert!(missing.is_empty() && answer["serves"] == true, "{answer:#}");
    assert_eq!(output.status.code(), Some(0));
}
