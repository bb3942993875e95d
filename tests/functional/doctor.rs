//! `omnictl doctor` on this machine: as root, as an unprivileged user, and in a container without privileges or
//! devices.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a failed step of a test is a failed test")]

use omni_cuda_card::Settings;
use omni_tests::{Node, program};
use serde_json::{Value, json};
use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use tempfile::TempDir;

/// Run as root of a user namespace with mounts of its own: the only device is the one that programs cannot do without.
const CONTAINER: &str = "mount -t tmpfs none /dev && : >/dev/null && exec \"$@\"";
/// A uid of no user on the machine.
const USER: &str = "1999999999";

/// A configuration with separate folders, which is removed with its folder.
fn configuration() -> (TempDir, PathBuf) {
    let folder = tempfile::Builder::new().prefix("omni-doctor").tempdir().unwrap();
    fs::set_permissions(folder.path(), Permissions::from_mode(0o755)).unwrap();
    let place = folder.path().display();
    let name = format!("omni-d{}", std::process::id());
    let config = format!(
        "[node]\ncgroup-parent = \"{name}\"\nmodels = \"{place}/models\"\nstate-dir = \"{place}/state\"\n\
         cache-dir = \"{place}/cache\"\nruntime-dir = \"{place}/run\"\n"
    );
    fs::create_dir(folder.path().join("models")).unwrap();
    fs::create_dir_all(folder.path().join("cache/models")).unwrap();
    let file = folder.path().join("node.toml");
    fs::write(&file, config).unwrap();
    (folder, file)
}

fn doctor(config: &Path, form: &str) -> Output {
    Command::new(program("omnictl")).args(["doctor", "-o", form, "--config"]).arg(config).output().unwrap()
}

/// The same as a user without any privilege; `inner` begins the command line. Copies of the programs are asked, since the
/// user need not be able to reach this build's.
fn doctor_as_user(inner: &[&str], folder: &Path, config: &Path) -> Answer {
    for name in ["omnictl", "omni-launcher", "omni-scheduler", "omni-worker"] {
        fs::copy(program(name), folder.join(name)).unwrap();
    }
    let (uid, gid) = (format!("--reuid={USER}"), format!("--regid={USER}"));
    let mut command = Command::new("setpriv");
    command.args([&uid, &gid, "--clear-groups"]).args(inner).arg(folder.join("omnictl"));
    Answer::of(&command.args(["doctor", "-o", "json", "--config"]).arg(config).output().unwrap())
}

/// The answer as JSON, and the exit code.
struct Answer(Value, Option<i32>);

impl Answer {
    fn of(output: &Output) -> Self {
        let text = String::from_utf8_lossy(&output.stdout);
        let words = String::from_utf8_lossy(&output.stderr);
        let value = serde_json::from_str(&text).unwrap_or_else(|error| panic!("{error}: {text}{words}"));
        Self(value, output.status.code())
    }

    fn checks(&self) -> &[Value] {
        self.0["checks"].as_array().unwrap()
    }

    fn in_state(&self, state: &str) -> Vec<&str> {
        let lines = self.checks().iter().filter(|line| line["state"] == state);
        lines.map(|line| line["check"].as_str().unwrap()).collect()
    }

    fn found(&self, check: &str) -> &str {
        let line = self.checks().iter().find(|line| line["check"] == check);
        line.unwrap_or_else(|| panic!("no line {check}: {}", self.0))["found"].as_str().unwrap()
    }
}

/// Control groups, loop devices and files that a look could leave.
fn left(folder: &Path) -> Vec<String> {
    let name = format!("omni-d{}*", std::process::id());
    let groups = Command::new("find").args(["/sys/fs/cgroup", "-name", &name]).output().unwrap();
    let devices = fs::read_dir("/sys/block").unwrap().map(|entry| entry.unwrap().path().join("loop/backing_file"));
    let images = devices.filter_map(|file| fs::read_to_string(file).ok());
    let files = Command::new("find").arg(folder).args(["-mindepth", "1"]).output().unwrap();
    let lines = [groups.stdout, files.stdout].concat();
    let lines = String::from_utf8(lines).unwrap().lines().map(str::to_owned).collect::<Vec<_>>();
    lines.into_iter().chain(images.filter(|image| image.starts_with(folder.to_str().unwrap()))).collect()
}

#[test]
fn as_root_all_checks_pass_and_nothing_is_left_behind() {
    let (folder, config) = configuration();
    let answer = Answer::of(&doctor(&config, "json"));
    assert_eq!(answer.in_state("missing"), Vec::<&str>::new(), "{}", answer.0);
    assert_eq!(answer.in_state("unknown"), Vec::<&str>::new(), "{}", answer.0);
    assert_eq!((answer.1, &answer.0["serves"]), (Some(0), &Value::Bool(true)));
    assert_eq!(
        answer.found("listeners"),
        "only this machine reaches them, or there are tokens and TLS (by the configuration, without flags and units)"
    );
    for (check, found) in [
        ("privileges", "root"),
        ("sandbox", "a program ran in one"),
        ("FUSE", "a file for /proc/meminfo was made"),
        ("cache directories", "ext4 on a loop device, with mapped owners"),
        ("limits of groups", "set, and read back"),
    ] {
        assert_eq!(answer.found(check), found);
    }
    let made =
        ["models", "cache", "cache/models", "node.toml"].map(|name| folder.path().join(name).display().to_string());
    let stays: Vec<String> = left(folder.path()).into_iter().filter(|name| !made.contains(name)).collect();
    assert_eq!(stays, Vec::<String>::new(), "a look leaves nothing");
}

#[test]
fn the_table_lists_the_cost_of_each_lack() {
    let (folder, config) = configuration();
    fs::remove_dir(folder.path().join("models")).unwrap();
    let output = doctor(&config, "table");
    let (table, words) = (String::from_utf8(output.stdout).unwrap(), String::from_utf8(output.stderr).unwrap());
    assert_eq!(output.status.code(), Some(6), "{table}{words}");
    let mut lines = table.lines().skip_while(|line| !line.starts_with("missing "));
    let [found, cost, mend] = [(); 3].map(|()| lines.next().unwrap());
    assert!(found.contains("models folder") && found.ends_with("/models is not there"), "{table}");
    assert!(cost.contains("costs: the launcher ends") && mend.contains("mend: install -d "), "{table}");
    assert!(words.contains("this machine cannot serve models"), "{words}");
}

#[test]
fn in_a_container_without_privileges_exactly_the_missing_parts_are_named() {
    let (folder, config) = configuration();
    let namespaces = ["unshare", "--user", "--map-root-user", "--mount", "--pid", "--fork", "--mount-proc"];
    let container = [&namespaces[..], &["sh", "-c", CONTAINER, "sh"]].concat();
    let answer = doctor_as_user(&container, folder.path(), &config);
    let missing = ["privileges", "limits of groups", "FUSE", "cache directories"];
    assert_eq!(answer.in_state("missing"), missing, "{:#}", answer.0);
    // Both need the control group that could not be made.
    assert_eq!(answer.in_state("unknown"), ["processors of groups", "sandbox"]);
    assert_eq!((answer.1, &answer.0["serves"]), (Some(6), &Value::Bool(false)));
    assert!(answer.found("FUSE").contains("/dev/fuse"), "{}", answer.found("FUSE"));
    assert!(answer.found("privileges").contains("user namespace"));
    assert!(answer.found("limits of groups").contains("Permission denied"), "{}", answer.found("limits of groups"));
    // A user namespace provides it: no hint is given.
    assert_eq!(answer.found("system call filter"), "seccomp takes it");
    assert_eq!(answer.found("mounts"), "mounted, copied and removed");
}

#[test]
fn checks_that_need_root_are_unknown_to_a_user() {
    let (folder, config) = configuration();
    let answer = doctor_as_user(&[], folder.path(), &config);
    assert_eq!(answer.in_state("missing"), Vec::<&str>::new(), "{:#}", answer.0);
    let unknown = answer.in_state("unknown");
    let of_groups = ["limits of groups", "processors of groups"];
    let others = ["privileges", "mnt namespace", "mounts", "FUSE", "cache directories", "sandbox"];
    for check in of_groups.into_iter().chain(others) {
        assert!(unknown.contains(&check), "{check}: {:#}", answer.0);
    }
    assert_eq!((answer.1, &answer.0["serves"]), (Some(1), &Value::Null));
    assert_eq!(answer.found("clone3, pidfd"), "a child was started and ended");
}

#[test]
fn beside_a_running_node_its_card_is_found_and_nothing_is_disturbed() {
    let files = [("model.py", "def handle_request(request, context):\n    return context.instance\n")];
    let node = Node::builder().gpus(&[Settings::numbered(0)], "").model("m", &files).start();
    let before = node.http().run("m", &json!({})).json()["result"].clone();
    let folder = node.folder().parent().unwrap().to_owned();
    let with_models = format!("[node]\nmodels = \"{}\"", node.folder().display());
    let config = fs::read_to_string(folder.join("node.toml")).unwrap().replace("[node]", &with_models);
    fs::write(folder.join("doctor.toml"), config).unwrap();
    let mut command = node.omnictl_command();
    command.env(omni_cuda_card::DIRECTORY, folder.join("devices"));
    command.args(["doctor", "-o", "json", "--config"]).arg(folder.join("doctor.toml"));
    let answer = Answer::of(&command.output().unwrap());
    assert_eq!((answer.1, answer.in_state("missing")), (Some(0), Vec::<&str>::new()), "{:#}", answer.0);
    assert!(answer.found("GPU 0").ends_with("memory can be moved"), "{}", answer.found("GPU 0"));
    for name in ["nvidia0", "nvidiactl", "nvidia-uvm"] {
        assert_eq!(answer.found(name), "every user may use it");
    }
    assert_eq!(answer.found("GPU libraries"), folder.join("driver").display().to_string());
    assert_eq!(node.http().run("m", &json!({})).json()["result"], before, "the same instance");
    node.stop();
}

#[test]
fn an_open_listener_gets_the_warning_of_a_start() {
    let (folder, config) = configuration();
    let open = fs::read_to_string(&config).unwrap() + "[server]\nlisten = \"0.0.0.0:8080\"\n";
    fs::write(folder.path().join("open.toml"), open).unwrap();
    let answer = Answer::of(&doctor(&folder.path().join("open.toml"), "json"));
    let words = "anyone who reaches 0.0.0.0:8080 may ask any model: set [server] tokens, or listen on loopback";
    assert_eq!(answer.found("listeners"), words);
    let listeners = answer.in_state("degraded").into_iter().filter(|check| *check == "listeners").count();
    assert_eq!((listeners, answer.1), (2, Some(0)), "{:#}", answer.0);
}

#[test]
fn a_wrong_configuration_is_reported_beside_all_other_checks() {
    let (folder, _) = configuration();
    let wrong = folder.path().join("wrong.toml");
    fs::write(&wrong, "[node]\nuid-bas = 3\n").unwrap();
    let answer = Answer::of(&doctor(&wrong, "json"));
    assert_eq!(answer.1, Some(6));
    assert!(answer.found("configuration").contains("uid-bas"), "{}", answer.found("configuration"));
    assert_eq!(answer.found("FUSE"), "a file for /proc/meminfo was made");
}
