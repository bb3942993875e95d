//! Tokens of the data listener: access, models, rates, and changes by a reload.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a failed step of a test is a failed test")]

use omni_tests::process::is_alive;
use omni_tests::{Answer, Client, Node, PATIENCE, Stream, wait_for};
use serde_json::json;
use std::fs::{self, Permissions};
use std::io::{BufReader, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::process::{Child, Stdio};
use std::thread;
use tempfile::TempDir;

/// Answers with the headers that it sees; a number: after so many seconds.
const MODEL: &[(&str, &str)] = &[
    (
        "model.py",
        "import time\ndef handle_request(request, context):\n    time.sleep(request.body.json or 0)\n    return sorted(request.headers)\n",
    ),
    ("omni.toml", "schema = 1\n[scaling]\nconcurrency = 4\n"),
];
/// SHA-256 of `one` and `two`.
const ONE: &str = "7692c3ad3540bb803c020b3aee66cd8887123234ea0c6e7143c0add73ff431ed";
const TWO: &str = "3fc4ccfe745870e2c0d99f71f30ff0656c8dedd41cc1d7d3d376b0dbe685e2f3";

struct File(TempDir);

impl File {
    fn new(text: &str) -> Self {
        let folder = TempDir::with_prefix("omni-tokens").unwrap();
        fs::set_permissions(folder.path(), Permissions::from_mode(0o755)).unwrap();
        let file = Self(folder);
        file.write(text);
        file
    }

    fn path(&self) -> PathBuf {
        self.0.path().join("tokens.toml")
    }

    fn write(&self, text: &str) {
        fs::write(self.path(), text).unwrap();
    }

    fn config(&self) -> String {
        format!("[server]\ntokens = \"{}\"\n", self.path().display())
    }
}

fn ask(node: &Node, token: Option<&str>, model: &str, seconds: f64) -> Answer {
    ask_at(node.http(), token, model, seconds)
}

fn ask_at(http: Client, token: Option<&str>, model: &str, seconds: f64) -> Answer {
    let bearer = token.map(|token| format!("Bearer {token}"));
    let mut headers = vec![("content-type", "application/json")];
    headers.extend(bearer.as_deref().map(|bearer| ("authorization", bearer)));
    http.request("POST", &format!("/ai/run/{model}"), &headers, seconds.to_string().as_bytes())
}

#[test]
fn tokens_grant_access_to_their_models() {
    let file = File::new(&format!("[ci]\nsha256 = \"{ONE}\"\nmodels = [\"echo\"]\n[web]\nsha256 = \"{TWO}\"\n"));
    let mut node = Node::builder().config(&file.config()).model("echo", MODEL).model("other", MODEL).start();
    for (token, model, status, code) in [
        (None, "echo", 401, 10000),
        (None, "no-such-model", 401, 10000),
        (Some("three"), "echo", 401, 10000),
        (Some("one"), "other", 403, 9109),
        (Some("one"), "no-such-model", 403, 9109),
        (Some("two"), "no-such-model", 404, 5007),
    ] {
        let answer = ask(&node, token, model, 0.0);
        assert_eq!((answer.status, answer.error_code()), (status, Some(code)), "{token:?} {model}");
        assert_eq!(answer.header("www-authenticate"), (status == 401).then_some("Bearer"));
    }
    assert_eq!(node.http().get("/").status, 401, "nothing is said of routes either");
    let body = vec![b'1'; 32 << 20];
    let head = format!("POST /ai/run/echo HTTP/1.1\r\nhost: localhost\r\ncontent-length: {}\r\n\r\n", body.len());
    let refused = node.http().write_all_then_read(&[head.as_bytes(), &body]);
    assert_eq!(refused.status, 401, "to who sends all before it reads, too");
    for (token, model) in [("one", "echo"), ("two", "echo"), ("two", "other")] {
        let answer = ask(&node, Some(token), model, 0.0);
        assert_eq!(answer.status, 200, "{}", answer.text());
        assert!(!answer.text().contains("authorization"), "no model sees a token: {}", answer.text());
    }
    assert_eq!(node.admin().get("/readyz").status, 200, "health is open");
    let metrics = node.admin().get("/metrics").text();
    for sample in [
        r#"omni_token_requests_total{token="ci",outcome="admitted"} 1"#,
        r#"omni_token_requests_total{token="ci",outcome="model"} 2"#,
        r#"omni_token_requests_total{token="",outcome="unknown"} 5"#,
    ] {
        assert!(metrics.contains(sample), "{metrics}");
    }

    // A wrong file changes nothing, and is reported; so are the changes of a good one, without secrets.
    file.write("[ci]\nsha256 = \"one\"\n");
    let said = node.omnictl(["upgrade"]);
    assert!(said.code == 1 && said.stderr.contains("`ci.sha256` (line 2)"), "{said:?}");
    assert_eq!(ask(&node, Some("two"), "other", 0.0).status, 200);
    file.write(&format!("[ci]\nsha256 = \"{ONE}\"\n"));
    let said = node.omnictl(["upgrade", "-o", "json"]);
    assert!(said.stdout.contains("tokens.web.sha256 = unset, was"), "{said:?}");
    assert!(!said.stdout.contains(TWO), "{said:?}");
    let pid = serde_json::from_str::<serde_json::Value>(&said.stdout).unwrap()["pid"].as_i64().unwrap();
    node.succeeded(nix::unistd::Pid::from_raw(pid.try_into().unwrap()));
    assert_eq!(ask(&node, Some("two"), "echo", 0.0).status, 401);
    assert_eq!(ask(&node, Some("one"), "other", 0.0).status, 200);
    assert!(!node.log().contains(ONE) && !node.log().contains(TWO));
    node.stop();
}

#[test]
fn limits_are_separate_for_each_token() {
    let file = File::new(&format!(
        "[ci]\nsha256 = \"{ONE}\"\nin-flight = 1\n[web]\nsha256 = \"{TWO}\"\nrequests-per-second = 0.01\n"
    ));
    let node = Node::builder().config(&file.config()).model("echo", MODEL).start();
    assert_eq!(ask(&node, Some("one"), "echo", 0.0).status, 200);
    thread::scope(|scope| {
        let slow = scope.spawn(|| ask(&node, Some("one"), "echo", 3.0));
        wait_for("the slow request to be in work", PATIENCE, || (node.model("echo").in_flight > 0).then_some(()));
        let refused = ask(&node, Some("one"), "echo", 0.0);
        assert_eq!((refused.status, refused.header("retry-after")), (429, Some("1")), "{}", refused.text());
        assert_eq!(ask(&node, Some("two"), "echo", 0.0).status, 200, "another token has limits of its own");
        assert_eq!(slow.join().unwrap().status, 200);
    });
    assert_eq!(ask(&node, Some("one"), "echo", 0.0).status, 200, "the place was given back");
    let refused = ask(&node, Some("two"), "echo", 0.0);
    assert_eq!((refused.status, refused.header("retry-after")), (429, Some("60")), "never above a minute");
    assert_eq!(refused.json()["errors"][0]["message"], json!("there are too many requests with this token"));
    node.stop();
}

/// A request over the control socket, which wants no token.
fn run(node: &Node, seconds: &str) -> Child {
    let mut command = node.omnictl_command();
    command.args(["run", "serial", seconds]).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
}

#[test]
fn an_admitted_request_counts_once_against_its_rate() {
    const MANY: usize = 4;
    let file = File::new(&format!("[ci]\nsha256 = \"{ONE}\"\nrequests-per-second = 2\n[web]\nsha256 = \"{TWO}\"\n"));
    let mut node = Node::builder().config(&file.config()).model("serial", &MODEL[..1]).start();
    assert_eq!(ask(&node, Some("two"), "serial", 0.0).status, 200);
    let (http, again) = (node.http(), node.http());
    let slow = thread::spawn(move || ask_at(http, Some("two"), "serial", 8.0));
    wait_for("the slow request to be in work", PATIENCE, || (node.model("serial").in_flight == 1).then_some(()));
    // More than the bucket holds: early requests are repeated.
    let ask_on = move || {
        wait_for("the token's limits to have room", PATIENCE, || {
            Some(ask_at(again, Some("one"), "serial", 0.0)).filter(|answer| answer.status != 429)
        })
    };
    let quick: Vec<_> = (0..MANY).map(|_| thread::spawn(ask_on)).collect();
    wait_for("all to be in the queue", PATIENCE, || (node.model("serial").queued == MANY as u64).then_some(()));
    node.upgrade();
    assert_eq!(slow.join().unwrap().status, 200);
    quick.into_iter().for_each(|thread| assert_eq!(thread.join().unwrap().status, 200));
    let metrics = node.admin().get("/metrics").text();
    assert!(metrics.contains(r#"omni_token_requests_total{token="ci",outcome="admitted"} 4"#), "{metrics}");
    assert!(!metrics.contains(r#"outcome="rate""#), "the successor refused some: {metrics}");
    node.stop();
}

#[test]
fn waiting_requests_keep_their_token_or_socket_over_a_takeover() {
    let file = File::new(&format!("[ci]\nsha256 = \"{ONE}\"\nin-flight = 1\n"));
    let mut node = Node::builder().config(&file.config()).model("serial", &MODEL[..1]).start();
    assert_eq!(ask(&node, Some("one"), "serial", 0.0).status, 200);
    let http = node.http();
    let mut by_socket = vec![run(&node, "6")];
    wait_for("the slow request to be in work", PATIENCE, || (node.model("serial").in_flight == 1).then_some(()));
    by_socket.push(run(&node, "0"));
    let by_token = thread::spawn(move || ask_at(http, Some("one"), "serial", 0.0));
    wait_for("both to be in the queue", PATIENCE, || (node.model("serial").queued == 2).then_some(()));
    // Requests of which the old scheduler has the beginning.
    let late = ["/ai/run/serial", "/v1/models/serial/run"].map(|path| {
        let mut client = http.connect();
        client.write_all(format!("POST {path} HTTP/1.1\r\nhost: localhost\r\n").as_bytes()).unwrap();
        client
    });

    let before = node.pid();
    node.upgrade();
    for mut client in late {
        client.write_all(b"content-length: 1\r\n\r\n0").unwrap();
        let refused = Stream::read(BufReader::new(client)).whole();
        assert_eq!(refused.status, 401, "without a token there is no way in: {}", refused.text());
    }
    wait_for("both to be in the queue", PATIENCE, || (node.model("serial").queued == 2).then_some(()));
    assert_eq!(ask(&node, Some("one"), "serial", 0.0).status, 429, "the one with the token counts");
    assert!(is_alive(before), "the slow one is still its");
    for run in by_socket {
        let said = run.wait_with_output().unwrap();
        assert!(said.status.success(), "{said:?}\n{}", node.log());
    }
    let answer = by_token.join().unwrap();
    assert_eq!(answer.status, 200, "it counts once: {}", answer.text());
    assert_eq!(ask(&node, Some("one"), "serial", 0.0).status, 200, "its place was given back");
    node.stop();
}

/// A body of `/v1` names its model, which nobody knows before it has ended.
#[test]
fn bodies_that_do_not_end_leave_room_to_the_holders_of_other_tokens() {
    const HALF: usize = 32 << 20;
    let file = File::new(&format!("[ci]\nsha256 = \"{ONE}\"\n[web]\nsha256 = \"{TWO}\"\n"));
    let config = format!("{}buffered-bytes = \"{}MiB\"\n", file.config(), (2 * HALF) >> 20);
    let node = Node::builder().config(&config).model("echo", MODEL).start();
    let ask = |token: &str| {
        let headers = [("content-type", "application/json"), ("x-api-key", token)];
        let body = json!({ "model": "nobody", "input": "a" }).to_string();
        node.http().request("POST", "/v1/embeddings", &headers, body.as_bytes()).status
    };
    assert_eq!(["one", "two"].map(ask), [404, 404]);
    let mut endless = node.http().connect();
    let head = "POST /v1/embeddings HTTP/1.1\r\nhost: localhost\r\nx-api-key: one\r\n";
    endless.write_all(format!("{head}content-length: {HALF}\r\n\r\n").as_bytes()).unwrap();
    endless.write_all(&vec![b' '; HALF - 1]).unwrap();
    wait_for("the memory to be used up", PATIENCE, || (ask("one") == 503).then_some(()));
    assert_eq!(ask("two"), 404);
    drop(endless);
    wait_for("the memory to be free", PATIENCE, || (ask("one") == 404).then_some(()));
    node.stop();
}
