//! Every command of `omnictl` against a real node, with its exit codes.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a failed step of a test is a failed test")]

use nix::sys::signal::{Signal, kill};
use omni_tests::{Node, Output, PATIENCE, process, wait_for};
use serde_json::{Value, json};
use std::fs;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::process::Stdio;

/// Does what the request says.
const MODEL: &str = r#"
import sys, time
from omni import Response

def handle_request(request, context):
    if request.headers["content-type"] == "application/octet-stream":
        return Response(request.body.bytes[::-1], media_type="image/x-test")
    wanted = request.body.json
    if "say" in wanted:
        print(wanted["say"])
        print(wanted["say"], "as an error", file=sys.stderr)
        return wanted["say"]
    if wanted.get("stream"):
        return iter(["one ", "two", {"n": 3}])
    if "break" in wanted:
        return broken()
    if "sleep" in wanted:
        time.sleep(wanted["sleep"])
    if "raise" in wanted:
        raise RuntimeError("as asked")
    return wanted

def broken():
    yield "half"
    raise RuntimeError("as asked")
"#;
const SLOW_TO_START: &str = "\
import time

def setup(context):
    time.sleep(1.5)

def handle_request(request, context):
    return context.instance
";

fn node() -> Node {
    Node::builder()
        .model(
            "model",
            &[("model.py", MODEL), ("omni.toml", "[resources]\nmemory = \"512MiB\"\n[scaling]\nqueue = 5\n")],
        )
        .model("slow", &[("model.py", SLOW_TO_START)])
        .model("broken", &[("model.py", "import nothing_of_this_name\n")])
        .model("@cf/meta/model", &[("model.py", MODEL)])
        .start()
}

fn value(output: &Output) -> Value {
    serde_json::from_str(&output.stdout).unwrap_or_else(|error| panic!("{error}: {output:?}"))
}

/// The row of a table that begins with this, as words.
fn row(output: &Output, first: &str) -> Vec<String> {
    let row = output.stdout.lines().find(|line| line.split_whitespace().next() == Some(first));
    row.unwrap_or_else(|| panic!("no row of {first}: {output:?}")).split_whitespace().map(str::to_owned).collect()
}

#[test]
fn list_status_show_and_top() {
    let node = node();
    let code = |arguments: &[&str]| node.omnictl(arguments).code;
    assert_eq!(row(&node.omnictl(["list"]), "model")[1], "stopped");
    assert_eq!(code(&["status", "model"]), 0, "it is started by its next request");
    assert_eq!(code(&["start", "model", "--wait"]), 0);
    assert_eq!(code(&["start", "broken", "--wait"]), 3);

    let list = node.omnictl(["list"]);
    assert_eq!(list.code, 0);
    assert!(list.stdout.lines().next().is_some_and(|head| head.starts_with("MODEL") && head.contains("STATE")));
    for (model, state) in [("model", "ready"), ("slow", "stopped"), ("broken", "failed"), ("@cf/meta/model", "stopped")]
    {
        assert_eq!(row(&list, model)[1], state, "{list:?}");
    }
    assert!(row(&list, "broken").join(" ").contains("ModuleNotFoundError"), "{list:?}");
    let names: Vec<String> = node.models().into_iter().map(|model| model.name).collect();
    assert_eq!(names, ["@cf/meta/model", "broken", "model", "slow"]);

    let status = node.omnictl(["status", "broken"]);
    assert_eq!(status.code, 3);
    for part in ["failed", "nothing_of_this_name", "model.py", "exited with code 78"] {
        assert!(status.stdout.contains(part), "{part} in {status:?}");
    }
    let ready = node.omnictl(["status", "model"]);
    assert!(ready.code == 0 && ready.stdout.contains(&node.engine("model").unwrap().to_string()), "{ready:?}");
    let whole = node.omnictl(["status"]);
    for part in
        [&node.data_address().to_string(), &node.pid().to_string(), "connected", "1 ready", "1 failed", "2 stopped"]
    {
        assert!(whole.code == 0 && whole.stdout.contains(part), "{part} in {whole:?}");
    }
    assert_eq!(value(&node.omnictl(["status", "-o", "json"]))["launcher_connected"], true);

    let changes = node.omnictl(["show", "model"]);
    assert!(changes.stdout.contains("512MiB") && !changes.stdout.contains("concurrency"), "{changes:?}");
    let effective = value(&node.omnictl(["show", "--effective", "model", "-o", "json"]));
    assert_eq!((&effective["resources"]["memory"], &effective["scaling"]["queue"]), (&json!("512MiB"), &json!(5)));
    assert_eq!(effective["scaling"]["concurrency"], 1, "a default");

    let top = node.omnictl(["top", "--once"]);
    assert!(top.code == 0 && row(&top, "model").join(" ").contains("512"), "{top:?}");
    let rows = value(&node.omnictl(["top", "--once", "-o", "json"]));
    let used = rows["models"].as_array().unwrap().iter().find(|row| row["name"] == "model").expect("a row");
    let number = |key: &str| used[key].as_u64().unwrap();
    assert_eq!(number("memory_limit_bytes"), 512 << 20);
    assert!((1 << 20..512 << 20).contains(&number("memory_bytes")), "{used}");
    assert!(number("cpu_usec") > 0 && number("pids") > 1, "{used}");

    let version = node.omnictl(["version"]);
    assert!(version.code == 0 && version.stdout.matches(env!("CARGO_PKG_VERSION")).count() == 2, "{version:?}");
    node.stop();
}

#[test]
fn run() {
    let mut node = node();
    let run = |arguments: &[&str]| node.omnictl([&["run", "model"], arguments].concat());
    let text = run(&["--field", "say=hello"]);
    assert_eq!((text.code, text.stdout.as_str()), (0, "hello\n"), "{text:?}");
    assert_eq!(value(&run(&[r#"{"a": [1, null]}"#])), json!({"a": [1, null]}));
    assert_eq!(value(&run(&["{}", "--field", "n:=3"])), json!({"n": 3}));
    let whole = value(&run(&["{}", "-o", "json"]));
    assert_eq!((&whole["result"], &whole["success"]), (&json!({}), &json!(true)));
    let stream = run(&["--stream"]);
    assert_eq!((stream.code, stream.stdout.as_str()), (0, "one two\n{\"n\":3}\n"));

    let folder = tempfile::tempdir().unwrap();
    let [from, to] = ["in", "out"].map(|name| folder.path().join(name));
    fs::write(&from, b"\x00\xffab").unwrap();
    let bytes = run(&["--file", from.to_str().unwrap(), "--out", to.to_str().unwrap()]);
    assert_eq!((bytes.code, bytes.stdout.as_str()), (0, ""), "{bytes:?}");
    assert_eq!(fs::read(&to).unwrap(), b"ba\xff\x00");
    assert_eq!(node.omnictl(["run", "@cf/meta/model", "{}"]).code, 0);

    for (arguments, code, words) in [
        (&["run", "model", "--field", "raise=1"][..], 1, "the model failed"),
        (&["run", "model", "--field", "break=1"], 1, "the model failed"),
        (&["run", "model", "not json"], 2, "JSON"),
        (&["run", "broken", "{}"], 3, "broken"),
        (&["run", "nobody", "{}"], 4, "omnictl list"),
        (&["run", "model", "{\"sleep\": 600}", "--timeout", "500ms"], 124, "deadline"),
    ] {
        let failed = node.omnictl(arguments);
        assert!(failed.code == code && failed.stderr.contains(words), "{arguments:?}: {failed:?}");
    }
    assert_eq!(run(&["--field", "break=1"]).stdout, "half\n");
    assert!(node.omnictl(["logs", "model"]).stdout.contains("RuntimeError: as asked"));

    node.crash();
    let dead = node.omnictl(["run", "model", "{}"]);
    assert!(dead.code == 5 && dead.stderr.contains("nothing listens"), "{dead:?}");
    node.start_again();
    assert_eq!(node.omnictl(["run", "model", "{}"]).code, 0);
    node.stop();
}

#[test]
fn logs() {
    let node = node();
    let say = |word: &str| assert_eq!(node.omnictl(["run", "model", "--field", &format!("say={word}")]).code, 0);
    say("first");
    let instance = node.instance("model").unwrap().id;
    let lines = wait_for("both lines", PATIENCE, || {
        let logs = node.omnictl(["logs", "model"]).stdout;
        (logs.lines().count() == 2).then(|| logs.lines().map(str::to_owned).collect::<Vec<_>>())
    });
    assert!(lines.iter().all(|line| line.contains(&instance)), "{lines:?}");
    assert!(lines.iter().any(|line| line.contains("stdout") && line.ends_with(" first")), "{lines:?}");
    assert!(lines.iter().any(|line| line.contains("stderr") && line.ends_with(" first as an error")), "{lines:?}");

    let mut following = node
        .omnictl_command()
        .args(["logs", "model", "-f", "-n", "1", "-o", "json"])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut followed = BufReader::new(following.stdout.take().unwrap()).lines();
    let mut next = || serde_json::from_str::<Value>(&followed.next().expect("a line").unwrap()).unwrap();
    // Level and request come before the text.
    let words =
        |line: &Value| line["text"].as_str().and_then(|text| text.split_once("] ")).map(|(_, words)| json!(words));
    let last = next();
    assert!(
        words(&last).is_some_and(|words| words.to_string().starts_with("\"first")),
        "the last of what was there: {last}"
    );
    for word in ["second", "\u{1b}[31mthird"] {
        say(word);
        let mut seen = [next(), next()].map(|line| (line["stream"].clone(), words(&line).unwrap_or_default()));
        seen.sort_by_key(|(stream, _)| stream.to_string());
        let error = format!("{word} as an error");
        assert_eq!(seen, [(json!("stderr"), json!(error)), (json!("stdout"), json!(word))]);
    }
    // Output of a model cannot control the terminal.
    let plain = node.omnictl(["logs", "model"]).stdout;
    assert!(plain.contains("[31mthird") && !plain.contains('\u{1b}'), "{plain:?}");

    // Following continues over a restart of the model, and ends with the model itself.
    assert_eq!(node.omnictl(["restart", "model", "--wait"]).code, 0);
    say("fourth");
    let after =
        std::iter::repeat_with(next).take(50).find(|line| words(line) == Some(json!("fourth"))).expect("the line");
    assert_ne!(after["instance"], instance);
    node.unpublish("model");
    let ended = wait_for("the end of the log", PATIENCE, || following.try_wait().unwrap());
    assert!(ended.success());
    assert_eq!(node.omnictl(["logs", "model"]).code, 4);
    node.stop();
}

#[test]
fn start_stop_and_restart() {
    let node = node();
    let code = |arguments: &[&str]| node.omnictl(arguments).code;
    // Without --wait the command only sends the order; with it, it waits for the end.
    let told = node.omnictl(["start", "slow"]);
    assert!(told.code == 0 && ["preparing", "starting"].iter().any(|state| told.stdout.contains(state)), "{told:?}");
    assert_eq!(code(&["status", "slow"]), 3, "not yet");
    let late = node.omnictl(["start", "slow", "--wait", "--timeout", "10ms"]);
    assert!(late.code == 124 && late.stderr.contains("10ms"), "{late:?}");
    assert_eq!((code(&["start", "slow", "--wait"]), code(&["status", "slow"])), (0, 0));

    let first = node.instance("slow").unwrap().id;
    assert_eq!(code(&["restart", "slow", "--wait"]), 0);
    assert_ne!(node.instance("slow").unwrap().id, first);

    // Stopped by hand it stays, whatever comes, until it is started by hand.
    let engine = node.engine("slow").unwrap();
    assert_eq!(code(&["stop", "slow", "--wait"]), 0);
    assert!(!process::is_alive(engine));
    let refused = node.http().run("slow", &json!(0));
    assert_eq!((refused.status, refused.error_code()), (503, Some(3040)));
    let status = node.omnictl(["status", "slow"]);
    assert!(status.code == 3 && status.stdout.contains("by hand"), "{status:?}");
    assert_eq!(code(&["run", "slow", "{}"]), 3);
    assert_eq!(code(&["start", "slow", "--wait"]), 0);
    assert_eq!(node.http().run("slow", &json!(0)).status, 200);

    for verb in ["start", "stop", "restart", "status", "logs", "show"] {
        let missing = node.omnictl([verb, "nobody"]);
        assert!(missing.code == 4 && missing.stderr.contains("nobody"), "{missing:?}");
    }
    for arguments in [&["start"][..], &["frobnicate"], &["start", "slow", "--timeout", "soon"], &["status", "../x"]] {
        assert_eq!(code(arguments), 2, "{arguments:?}");
    }

    // Access: the scheduler's user and group, and no other.
    let socket = fs::metadata(node.control_socket()).unwrap();
    let scheduler = fs::metadata(format!("/proc/{}", node.pid())).unwrap();
    assert_eq!(socket.permissions().mode() & 0o7777, 0o660);
    assert_ne!(scheduler.uid(), 0);
    assert_eq!((socket.uid(), socket.gid()), (scheduler.uid(), scheduler.gid()));
    node.stop();
}

#[test]
fn a_failed_build_is_reported_with_the_builders_message() {
    let code = ("model.py", "def handle_request(request, context):\n    return 'well'\n");
    let node = Node::builder().model("unmet", &[code, ("requirements.txt", "cowsay==0.0.999\n")]).start();
    let failed = node.omnictl(["start", "unmet", "--wait"]);
    assert_eq!(failed.code, 3, "{failed:?}");
    // Kept for later calls.
    for _ in 0..2 {
        let status = node.omnictl(["status", "unmet"]);
        for part in ["failed", "cowsay==0.0.999", "No solution found", "build log"] {
            assert!(status.code == 3 && status.stdout.contains(part), "{part} in {status:?}");
        }
    }
    let list = node.omnictl(["list"]);
    assert!(row(&list, "unmet").join(" ").contains("No solution found"), "{list:?}");
    let refused = node.http().run("unmet", &json!(0));
    assert_eq!((refused.status, refused.error_code()), (503, Some(3040)));
    assert!(!refused.text().contains("cowsay"), "clients are not told: {}", refused.text());
    fs::write(node.folder().join("unmet/requirements.txt"), "").unwrap();
    wait_for("the repaired model", PATIENCE, || (node.http().run("unmet", &json!(0)).status == 200).then_some(()));
    assert_eq!(node.model("unmet").message, None);
    node.stop();
}

/// As after each start and each upgrade, for some milliseconds; here the launcher stands still meanwhile.
#[test]
fn a_node_that_does_not_know_its_models_yet_does_not_deny_them() {
    let mut node = node();
    node.crash();
    let launcher = node.launcher().expect("a launcher, which goes on");
    process::stop(launcher);
    node.begin_again();
    node.await_listeners();
    let status = node.omnictl(["status", "model"]);
    assert_eq!(status.code, 3, "{status:?}");
    assert!(status.stderr.contains("this node does not know its models yet"), "{status:?}");
    assert!(status.stderr.contains("journalctl -u omni-launcher"), "{status:?}");
    let mut list = node.omnictl_command();
    let list = list.arg("list").stdout(Stdio::piped()).spawn().unwrap();
    kill(launcher, Signal::SIGCONT).unwrap();
    let list = list.wait_with_output().unwrap();
    assert!(String::from_utf8_lossy(&list.stdout).contains("model"), "{list:?}\n{}", node.log());
    assert_eq!(node.omnictl(["status", "model"]).code, 0);
    node.stop();
}
