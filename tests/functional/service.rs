//! The service manager's interface of a node: ready, status, reloads, the watchdog, its end.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a failed step of a test is a failed test")]

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use omni_tests::process::is_alive;
use omni_tests::{Node, PATIENCE, program, wait_for};
use serde_json::json;
use std::fs::{self, Permissions};
use std::io::ErrorKind;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixDatagram;
use std::process::Command;
use tempfile::TempDir;

const ECHO: &[(&str, &str)] = &[("model.py", "def handle_request(request, context):\n    return request.body.json\n")];

/// The receiving side of a service manager.
struct Manager {
    folder: TempDir,
    socket: UnixDatagram,
}

impl Manager {
    fn new() -> Self {
        let folder = TempDir::with_prefix("omni-manager").unwrap();
        // The scheduler gives up root and must still reach it.
        fs::set_permissions(folder.path(), Permissions::from_mode(0o755)).unwrap();
        let path = folder.path().join("notify");
        let socket = UnixDatagram::bind(&path).unwrap();
        fs::set_permissions(&path, Permissions::from_mode(0o777)).unwrap();
        socket.set_read_timeout(Some(PATIENCE)).unwrap();
        Self { folder, socket }
    }

    fn path(&self) -> String {
        self.folder.path().join("notify").to_str().unwrap().to_owned()
    }

    /// The next message with a line that begins so.
    fn hears(&self, line: &str) -> String {
        let mut buffer = [0; 4096];
        loop {
            let length = self.socket.recv(&mut buffer).unwrap_or_else(|error| panic!("no `{line}`: {error}"));
            let message = String::from_utf8(buffer[..length].to_vec()).unwrap();
            if message.lines().any(|said| said.starts_with(line)) {
                return message;
            }
        }
    }

    /// Discards the messages so far.
    fn forget(&self) {
        self.socket.set_nonblocking(true).unwrap();
        while self.socket.recv(&mut [0; 4096]).is_ok() {}
        let error = self.socket.recv(&mut [0]).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::WouldBlock);
        self.socket.set_nonblocking(false).unwrap();
    }
}

fn value<'a>(message: &'a str, name: &str) -> &'a str {
    let line = message.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix('='));
    line.unwrap_or_else(|| panic!("no {name} in {message:?}"))
}

#[test]
fn a_single_model_is_ready_before_its_service_is() {
    let manager = Manager::new();
    let code = "import time\n\ndef setup(context):\n    time.sleep(0.5)\n\ndef handle_request(request, context): ...\n";
    let builder = Node::builder().model("one", &[("model.py", code)]).single("one");
    let mut node = builder.environment("NOTIFY_SOCKET", &manager.path()).begin();
    node.await_listeners();
    manager.hears("READY=1");
    assert_eq!(node.model("one").state, omni_control_api::State::Ready);
    assert_eq!(node.admin().get("/readyz").status, 200);
    kill(node.engine("one").unwrap(), Signal::SIGKILL).unwrap();
    manager.hears("STOPPING=1");
    assert_eq!(node.ends_by_itself().code, 70);
}

#[test]
fn a_service_manager_receives_the_nodes_state_and_reloads_it() {
    let manager = Manager::new();
    let builder = Node::builder().hold_listeners().model("one", ECHO).environment("NOTIFY_SOCKET", &manager.path());
    let mut node = builder.environment("WATCHDOG_USEC", "3000000").start();
    manager.hears("READY=1");
    let status = manager.hears("STATUS=");
    assert!(status.contains(&format!("Serving on {}: ", node.data_address())), "{status}");
    assert_eq!(node.http().run("one", &json!(1)).status, 200);
    let engine = node.engine("one");
    manager.hears("STATUS=Serving on "); // the model is ready by now
    manager.hears("WATCHDOG=1");

    let (first, address) = (node.pid(), node.data_address());
    node.configure("[server]\nno-such-key = 1\n");
    kill(first, Signal::SIGHUP).unwrap();
    let begun = manager.hears("RELOADING=1");
    assert!(value(&begun, "MONOTONIC_USEC").parse::<u64>().unwrap() > 0);
    let refused = manager.hears("READY=1");
    assert!(!refused.contains("MAINPID"), "{refused}");
    assert!(node.log().contains("no-such-key"), "{}", node.log());
    assert_eq!(node.http().run("one", &json!(1)).status, 200);

    node.configure("[server]\nconnections = 77\n");
    kill(first, Signal::SIGHUP).unwrap();
    manager.hears("RELOADING=1");
    let main = manager.hears("MAINPID=");
    assert_eq!(value(&main, "READY"), "1");
    let second = node.succeeded(Pid::from_raw(value(&main, "MAINPID").parse().unwrap()));
    wait_for("the scheduler before to end", PATIENCE, || (!is_alive(first)).then_some(()));
    assert!(node.log().contains("server.connections = 77, was "), "{}", node.log());
    assert_eq!(node.http().run("one", &json!(1)).status, 200);
    assert_eq!((node.pid(), node.engine("one")), (second, engine));
    assert_eq!(node.data_address(), address, "the manager's socket, not the address that the configuration has");
    // From here on only the new scheduler sends messages, and it feeds the watchdog.
    manager.forget();
    manager.hears("WATCHDOG=1");
    node.stop();
    manager.hears("STOPPING=1");
}

/// The manager stops the service by the process that it considers the main one.
#[test]
fn a_stop_reaches_a_successor_that_the_manager_does_not_know_yet() {
    let manager = Manager::new();
    let code = "import time\ndef handle_request(request, context):\n    for number in range(request.body.json):\n        \
                yield str(number)\n        time.sleep(0.05)\n";
    let builder = Node::builder().model("one", &[("model.py", code)]);
    let mut node = builder.environment("NOTIFY_SOCKET", &manager.path()).start();
    let mut stream = node.http().stream("one", &json!(60));
    assert!(stream.chunk().unwrap().is_some());
    let first = node.pid();
    node.upgrade();
    manager.hears("MAINPID="); // and no further: it has not taken in all
    assert!(is_alive(first), "it has a stream still");
    kill(first, Signal::SIGTERM).unwrap();
    wait_for("the successor to stop", PATIENCE, || node.log().contains("\"draining\"").then_some(()));
    manager.hears("STOPPING=1");
    assert_eq!(stream.events().last().map(String::as_str), Some("[DONE]"), "{}", node.log());
    assert_eq!(node.ends_by_itself().code, 0);
    wait_for("the scheduler before to end", PATIENCE, || (!is_alive(first)).then_some(()));
}

#[test]
fn a_reload_reports_the_changes_of_the_configuration() {
    let mut node = Node::builder().config("[server]\nconnections = 70\n").start();
    node.configure("[server]\nconnections = 71\n[logs]\nlines-per-second = 9\n");
    let said = node.omnictl(["upgrade"]);
    let pid = said.stdout.split_whitespace().find_map(|word| word.trim_end_matches(';').parse().ok());
    node.succeeded(Pid::from_raw(pid.unwrap_or_else(|| panic!("{said:?}"))));
    let changes: Vec<&str> = said.stdout.lines().filter_map(|line| line.strip_prefix("changed: ")).collect();
    assert_eq!(changes.len(), 2, "{said:?}");
    assert!(changes[0].starts_with("logs.lines-per-second = 9, was "), "{said:?}");
    assert_eq!(changes[1], "server.connections = 71, was 70");
    node.stop();
}

#[test]
fn a_start_that_fails_on_a_wrong_file_leaves_nothing_running() {
    let folder = TempDir::with_prefix("omni-files").unwrap();
    fs::set_permissions(folder.path(), Permissions::from_mode(0o755)).unwrap();
    let file = |name: &str, mode| {
        let path = folder.path().join(name);
        fs::write(&path, "[[token]]").unwrap();
        fs::set_permissions(&path, Permissions::from_mode(mode)).unwrap();
        path.display().to_string()
    };
    let (wrong, closed) = (file("wrong", 0o644), file("closed", 0o600));
    for (toml, words) in [
        (format!("[server]\ntokens = \"{wrong}\"\n"), format!("the tokens in {wrong} are wrong")),
        (format!("[server]\ntokens = \"{closed}\"\n"), format!("cannot read the tokens in {closed}: user ")),
        (
            format!("[tls]\ncertificate = \"{wrong}\"\nkey = \"{wrong}\"\n"),
            format!("there is no certificate in {wrong}"),
        ),
    ] {
        let ended = Node::builder().config(&toml).begin().ends_by_itself();
        assert!(ended.code == 78 && ended.stderr.contains(&words), "{words}: {ended:?}");
    }
}

#[test]
fn a_node_that_was_stopped_leaves_no_socket() {
    let mut node = Node::builder().model("one", ECHO).start();
    assert_eq!(node.http().run("one", &json!(1)).status, 200);
    kill(node.pid(), Signal::SIGTERM).unwrap();
    node.wait_for_end();
    wait_for("the launcher to end", PATIENCE, || node.found().is_empty().then_some(()));
    let runtime = node.control_socket().parent().unwrap().to_owned();
    let mut left: Vec<_> = fs::read_dir(runtime).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    left.sort();
    // Folders, empty, and a lock that must not change its file.
    assert_eq!(left, ["control", "instances", "launcher.lock", "zygotes"]);
    node.stop();
}

#[test]
fn a_wrong_configuration_has_an_exit_code_of_its_own() {
    let folder = TempDir::new().unwrap();
    let config = folder.path().join("omni.toml");
    let unknown = "[node]\nuser = \"nobody-has-this-name\"\nruntime-dir = \"/run/omni-test-wrong\"\n";
    for (toml, words) in [("[sever]\n", "sever"), (unknown, "there is no user")] {
        fs::write(&config, toml).unwrap();
        for name in ["omni-scheduler", "omni-launcher"] {
            let ended = Command::new(program(name)).arg("--config").arg(&config).output().unwrap();
            let said = String::from_utf8_lossy(&ended.stderr);
            assert!(ended.status.code() == Some(78) && said.contains(words), "{name}: {ended:?}");
        }
    }
}
