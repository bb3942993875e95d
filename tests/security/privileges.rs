//! Privileges of a model's process, as the kernel shows them to the host: the descriptors of an allow-list, a user of
//! its own, no capability, and the host's network only where the node's configuration says so.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a failed step of a test is a failed test")]

use nix::unistd::Pid;
use omni_control_api::State;
use omni_tests::probe::{self, assert_found};
use omni_tests::process::{descriptors, parent};
use omni_tests::{Node, PATIENCE, wait_for};
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::fs;

/// A field of `/proc/<pid>/status`.
fn status(pid: Pid, field: &str) -> String {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).expect("it lives");
    let value = status.lines().find_map(|line| line.strip_prefix(field)?.strip_prefix(':'));
    value.unwrap_or_else(|| panic!("no {field} in {status}")).split_whitespace().collect::<Vec<_>>().join(" ")
}

const PROBE: (&str, &str) = ("model.py", probe::MODEL);

#[test]
fn exactly_the_listed_descriptors_are_open_and_no_privilege_is_left() {
    let threads = "schema = 1\n[scaling]\nconcurrency = 2\n";
    let tasks = "async def handle_request(request, context):\n    return 1\n";
    let plain = "def handle_request(request, context):\n    return 1\n";
    let node = Node::builder()
        .model("serial", &[("model.py", plain)])
        .model("threads", &[("model.py", plain), ("omni.toml", threads)])
        .model("tasks", &[("model.py", tasks), ("omni.toml", threads)])
        .start();
    let mut users = BTreeSet::new();
    for model in ["serial", "threads", "tasks"] {
        assert_eq!(node.http().run(model, &json!(0)).json()["result"], 1, "{model}");
        let engine = node.engine(model).expect("a process");
        let open = || {
            let entries = fs::read_dir(format!("/proc/{engine}/fd")).unwrap().map(|entry| entry.unwrap());
            let kind = |entry: fs::DirEntry| {
                let number: u32 = entry.file_name().to_str()?.parse().ok()?;
                let target = fs::read_link(entry.path()).ok()?.to_string_lossy().into_owned();
                Some((number, target.split(":[").next().unwrap_or_default().to_owned()))
            };
            entries.filter_map(kind).collect::<BTreeSet<_>>()
        };
        // 3 talks to the worker; the engine's own copy of 2 is its log, whatever becomes of 2; the last two are the data and
        // the cancel connection of this scheduler's life.
        let kinds = ["/dev/null", "pipe", "pipe", "pipe", "socket", "socket", "socket"];
        let mut allowed: Vec<&str> = kinds.into();
        if model == "tasks" {
            // An event loop adds its own.
            allowed.extend(["anon_inode:[eventpoll]", "socket", "socket"]);
        }
        let kinds = || open().into_iter().map(|(_, kind)| kind).collect::<Vec<_>>();
        let mut expected: Vec<String> = allowed.iter().map(|kind| (*kind).to_owned()).collect();
        expected.sort();
        wait_for(&format!("{model} at rest, with {expected:?}"), PATIENCE, || {
            let mut found: Vec<String> = kinds()
                .into_iter()
                .map(|kind| if kind == "anon_inode" { "anon_inode:[eventpoll]".into() } else { kind })
                .collect();
            found.sort();
            (found == expected).then_some(())
        });
        let first: Vec<(u32, String)> = open().into_iter().take(4).collect();
        assert_eq!(first, [(0, "/dev/null"), (1, "pipe"), (2, "pipe"), (3, "socket")].map(|(n, k)| (n, k.to_owned())));

        for pid in [engine, parent(engine).unwrap()] {
            for field in ["CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"] {
                assert_eq!(status(pid, field), "0000000000000000", "{field} of {model}'s {pid}");
            }
            let held = ["NoNewPrivs", "Seccomp", "Groups"].map(|field| status(pid, field));
            assert_eq!(held, ["1", "2", ""], "{model}'s {pid}");
        }
        let user = status(engine, "Uid");
        let ids: BTreeSet<&str> = user.split(' ').collect();
        assert!(ids.len() == 1 && status(engine, "Gid") == user, "{model}: {user}");
        assert!((1_900_000_000..1_900_004_096).contains(&ids.first().unwrap().parse::<u32>().unwrap()), "{user}");
        assert!(users.insert(user), "{model} has a user of its own");
        for namespace in ["pid", "mnt", "ipc", "uts", "cgroup", "net"] {
            let of = |pid: Pid| fs::read_link(format!("/proc/{pid}/ns/{namespace}")).unwrap();
            assert_ne!(of(engine), of(Pid::this()), "{namespace} of {model}");
        }
    }
    // The scheduler that faces the network holds no privilege either.
    for field in ["CapInh", "CapPrm", "CapEff", "CapAmb"] {
        assert_eq!(status(node.pid(), field), "0000000000000000", "{field} of the scheduler");
    }
    assert!(!status(node.pid(), "Uid").split(' ').any(|uid| uid == "0"));
    node.stop();
}

/// Asks for a length, a stream, or a wait that a client gives up.
const BUSY: &str = r#"
import time

def handle_request(request, context):
    if request.headers.get("content-type") == "application/octet-stream":
        return sum(len(piece) for piece in request.body.stream())
    if request.body.json == "stream":
        return (str(number) for number in range(3))
    if request.body.json == "wait":
        time.sleep(600)
    return 1
"#;

#[test]
fn no_descriptor_of_a_request_or_of_a_schedulers_life_stays_open() {
    let mut node = Node::builder().model("busy", &[("model.py", BUSY)]).start();
    assert_eq!(node.http().run("busy", &json!(0)).json()["result"], 1);
    let engine = node.engine("busy").expect("a process");
    let worker = node.worker(engine).expect("a worker");
    let at_rest = [engine, worker].map(descriptors);
    assert_eq!(at_rest[0].len(), 7, "{at_rest:?}");
    for _ in 0..3 {
        let http = node.http();
        let large = vec![0; 3 << 20];
        let media = [("content-type", "application/octet-stream")];
        let uploaded = http.request("POST", "/ai/run/busy", &media, &large);
        assert_eq!(uploaded.json()["result"], large.len(), "{}", uploaded.text());
        assert_eq!(http.stream("busy", &json!("stream")).events().len(), 4);
        // Given up by its client, and one more cut off by the end of the scheduler: just when its handler begins to wait.
        drop(http.send("busy", &json!("wait")));
        let cut = http.send("busy", &json!("wait"));
        wait_for("it to run", PATIENCE, || (node.model("busy").in_flight == 1).then_some(()));
        node.crash();
        drop(cut);
        node.start_again();
        assert_eq!(node.http().run("busy", &json!(0)).json()["result"], 1, "{}", node.log());
        assert_eq!(node.engine("busy"), Some(engine), "the same process");
        wait_for("no descriptor more", PATIENCE, || ([engine, worker].map(descriptors) == at_rest).then_some(()));
    }
    node.stop();
}

#[test]
fn the_hosts_network_is_for_listed_models_only() {
    let asks = "schema = 1\n[network]\naccess = \"host\"\n";
    let node = Node::builder()
        .config("[network]\nhost-access = [\"listed\"]\n")
        .model("listed", &[PROBE, ("omni.toml", asks)])
        .model("unlisted", &[PROBE, ("omni.toml", asks)])
        .start();
    let refused = node.http().run("unlisted", &json!(""));
    assert_eq!((refused.status, refused.error_code()), (503, Some(3040)), "{}", refused.text());
    let model = node.model("unlisted");
    let message = model.message.unwrap();
    assert_eq!(model.state, State::Failed);
    assert!(message.contains("network.access") && message.contains("host-access"), "{message}");

    // An abstract socket of the host would be in reach by the namespace alone.
    let name = format!("omni-isolation-{}", std::process::id());
    let address = <std::os::unix::net::SocketAddr as std::os::linux::net::SocketAddrExt>::from_abstract_name(&name);
    let listener = std::os::unix::net::UnixListener::bind_addr(&address.unwrap()).unwrap();
    let code = r#"
import socket
def reach(family, address):
    with socket.socket(family) as sock:
        sock.connect(address)
attempt("admin", lambda: reach(socket.AF_INET, ("127.0.0.1", ADMIN)))
attempt("control", lambda: reach(socket.AF_UNIX, RUN))
attempt("abstract", lambda: reach(socket.AF_UNIX, "\0NAME"))
attempt("signal", lambda: os.kill(PID, 0))
attempt("listen", lambda: socket.create_server(("127.0.0.1", 0)).close())
tell(names=os.path.exists("/etc/resolv.conf"))
"#;
    let code = code
        .replace("ADMIN", &node.admin_address().port().to_string())
        .replace("RUN", &format!("{:?}", node.control_socket()))
        .replace("NAME", &name)
        .replace("PID", &node.pid().to_string());
    let expected = json!({
        "admin": null, "control": "ENOENT", "abstract": "EPERM", "signal": "ESRCH", "listen": Value::Null, "names": true,
    });
    assert_found(&node, "listed", &code, &expected);
    drop(listener);
    node.stop();
}
