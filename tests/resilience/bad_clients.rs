//! Clients that break the protocol, off or nothing at all: each is refused or forgotten, the next request is served, and
//! the scheduler has no descriptor more than before.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a failed step of a test is a failed test")]

use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper::Request;
use hyper::client::conn::http2;
use hyper_util::rt::{TokioExecutor, TokioIo};
use omni_tests::process::descriptors;
use omni_tests::{Client, Node, PATIENCE, Stream, rounds, wait_for};
use serde_json::json;
use std::fs;
use std::io::{BufRead, BufReader, ErrorKind, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};
use tokio::runtime::Runtime;

const ECHO: &[(&str, &str)] = &[("model.py", "def handle_request(request, context):\n    return request.body.json\n")];

/// Opens 10,000 connections, half of them silent and half with the beginning of a request, until its input ends.
const CROWD: &str = r#"
import resource, socket, sys
hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
address = ("127.0.0.1", int(sys.argv[1]))
crowd = [socket.create_connection(address) for _ in range(10000)]
for connection in crowd[::2]:
    connection.sendall(b"POST /ai/run/echo HTTP/1.1\r\nhost: ")
print("here", flush=True)
sys.stdin.read()
"#;

/// Asserts that other clients are served, whatever one of them does.
fn serves(node: &Node, after: &str) {
    let answer = node.http().run("echo", &json!({ "still": "here" }));
    assert_eq!(answer.status, 200, "after {after}: {}", answer.text());
    assert_eq!(answer.json()["result"], json!({ "still": "here" }), "after {after}");
}

/// Descriptors of the scheduler without clients and without pending writes of its state.
fn at_rest(node: &Node) -> Vec<String> {
    wait_for("the end of all connections", PATIENCE, || (node.connections() == 0).then_some(()));
    wait_for("its state to be written", PATIENCE, || {
        let open = descriptors(node.pid());
        (!open.iter().any(|path| path.contains("/state/scheduler"))).then_some(open)
    })
}

/// No client is there, and it has open what it had.
fn assert_at_rest(node: &Node, before: &[String]) {
    let mut now = at_rest(node);
    let end = Instant::now() + PATIENCE;
    while now != before {
        assert!(Instant::now() < end, "open are {now:?}, and were {before:?}");
        now = at_rest(node);
    }
}

/// The statuses of all answers on a connection that sends these bytes and then, if `end`, hangs up.
fn statuses(http: Client, bytes: &[u8], end: bool) -> Vec<u16> {
    let answer = http.raw(bytes, end);
    let text = String::from_utf8_lossy(&answer);
    text.split("HTTP/1.").skip(1).filter_map(|answer| answer.get(2..5)?.parse().ok()).collect()
}

fn post(path: &str, headers: &str, body: &str) -> String {
    format!("POST {path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n{headers}\r\n{body}")
}

#[test]
fn malformed_requests() {
    let node = Node::builder().model("echo", ECHO).start();
    serves(&node, "the start");
    let before = at_rest(&node);
    let echo = |headers: &str, body: &str| post("/ai/run/echo", headers, body);
    let many = (0..5000).map(|n| format!("x-{n}: y\r\n")).collect::<String>();
    let long = "x".repeat(1 << 20);
    let chunked = "transfer-encoding: chunked\r\n";

    for (what, bytes, expected) in [
        ("too many headers", echo(&many, ""), &[431, 400][..]),
        ("a long header", echo(&format!("x: {long}\r\n"), ""), &[431]),
        ("a long header's name", echo(&format!("{long}: x\r\n"), ""), &[431]),
        ("a long address", post(&format!("/{long}"), "", ""), &[414, 431]),
        ("no HTTP at all", "\x16\x03\x01\x02\x00\x01\x00\x01\r\n\r\n".to_owned(), &[400]),
        ("a NUL in a header", echo("x: a\0b\r\n", ""), &[400]),
        ("a NUL in the address", post("/ai/run/ec\0ho", "", ""), &[400]),
        ("a header over two lines", echo("x: a\r\n b\r\n", ""), &[400]),
        ("a space before the colon", echo("x : a\r\n", ""), &[400]),
        ("a negative length", echo("content-length: -1\r\n", ""), &[400]),
        ("a length that is none", echo("content-length: 0x2\r\n", "{}"), &[400]),
        ("a length beyond all", echo("content-length: 99999999999999999999999\r\n", "{}"), &[400]),
        ("a large length", echo("content-length: 18446744073709551615\r\n", "{}"), &[413, 431]),
        ("two lengths", echo("content-length: 1\r\ncontent-length: 2\r\n", "{}"), &[400]),
        ("two lengths in one", echo("content-length: 1, 2\r\n", "{}"), &[400]),
        ("an unknown coding", echo("transfer-encoding: gzip\r\n", ""), &[400]),
        ("a chunk size that is none", echo(chunked, "zz\r\nhi\r\n0\r\n\r\n"), &[400]),
        ("a chunk size beyond all", echo(chunked, "fffffffffffffffff\r\n"), &[400]),
        ("a chunk longer than it says", echo(chunked, "1\r\nhi\r\n0\r\n\r\n"), &[400]),
        ("an endless chunk extension", echo(chunked, &format!("2;{long}")), &[400]),
        ("a body that is not JSON", echo("content-length: 2\r\n", "{a"), &[400]),
        ("a body that is not text", echo("content-length: 3\r\n", "\u{0}\u{1}\u{2}"), &[400]),
        ("no body", echo("", ""), &[400]),
        ("a name that climbs", post("/ai/run/../echo", "content-length: 2\r\n", "{}"), &[404]),
        ("a name that climbs, encoded", post("/ai/run/%2e%2e%2fecho", "content-length: 2\r\n", "{}"), &[404]),
        ("a name that is not text", post("/ai/run/%ff%fe", "", ""), &[404]),
        (
            "an address without a path",
            "POST * HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n".to_owned(),
            &[404, 400],
        ),
        (
            "a tunnel",
            "CONNECT localhost:80 HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n".to_owned(),
            &[404, 405],
        ),
        (
            "another method",
            "BREW /ai/run/echo HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n".to_owned(),
            &[405],
        ),
        ("a method that is none", "P{ST /ai/run/echo HTTP/1.1\r\nhost: localhost\r\n\r\n".to_owned(), &[400]),
        ("another version", "POST /ai/run/echo HTTP/3.0\r\nhost: localhost\r\n\r\n".to_owned(), &[400]),
    ] {
        let got = statuses(node.http(), bytes.as_bytes(), false);
        assert!(got.len() == 1 && expected.contains(&got[0]), "{what}: {got:?}, not one of {expected:?}");
        serves(&node, what);
    }
    // Unusual, and right.
    for (what, bytes) in [
        ("absolute form", post("http://127.0.0.1/ai/run/echo", "content-length: 2\r\n", "{}")),
        ("HTTP/1.0", "POST /ai/run/echo HTTP/1.0\r\ncontent-length: 2\r\n\r\n{}".to_owned()),
        ("the same length twice", echo("content-length: 2\r\ncontent-length: 2\r\n", "{}")),
        ("chunks of all kinds", echo(chunked, "1;x=y\r\n[\r\n01\r\n]\r\n0\r\nx-trailer: 1\r\n\r\n")),
        (
            "line feeds alone",
            "POST /ai/run/echo HTTP/1.1\nhost: localhost\nconnection: close\ncontent-length: 2\n\n{}".to_owned(),
        ),
    ] {
        assert_eq!(statuses(node.http(), bytes.as_bytes(), false), [200], "{what}");
    }
    // A length beside chunks must not hide a request: what follows the last chunk is the next one, or nothing is.
    let hidden = "0\r\n\r\nGET /nothing HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n";
    let both = format!("POST /ai/run/echo HTTP/1.1\r\nhost: localhost\r\ncontent-length: 4\r\n{chunked}\r\n{hidden}");
    let got = statuses(node.http(), both.as_bytes(), false);
    assert!([&[400][..], &[400, 404]].contains(&&got[..]), "a length and chunks: {got:?}");
    // The bytes behind a body are a separate request of the same client.
    let longer = "POST /ai/run/echo HTTP/1.1\r\nhost: localhost\r\ncontent-length: 2\r\n\r\n{}{}\r\n\r\n";
    assert_eq!(statuses(node.http(), longer.as_bytes(), false), [200, 400], "a length that is too small");

    serves(&node, "all of them");
    assert_at_rest(&node, &before);
    assert_eq!(node.model("echo").restarts, 0);
    node.stop();
}

#[test]
fn clients_that_disconnect() {
    let node = Node::builder().model("echo", ECHO).start();
    serves(&node, "the start");
    let before = at_rest(&node);
    let raw = "content-type: image/x\r\n";
    let beginnings = [
        "P".to_owned(),
        "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_owned(),
        "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\u{12}\u{4}\0\0\0\0\0garbage that is no settings".to_owned(),
        "POST /ai/run/echo HT".to_owned(),
        "POST /ai/run/echo HTTP/1.1\r\nhost".to_owned(),
        post("/ai/run/echo", "content-length: 9\r\n", "{"),
        post("/ai/run/echo", "transfer-encoding: chunked\r\n", "5\r\n{"),
        post("/ai/run/echo", &format!("{raw}content-length: 5000000\r\n"), "the beginning of a stream"),
        post("/ai/run/echo", &format!("{raw}transfer-encoding: chunked\r\n"), "5\r\nbegun\r\n5\r\n"),
        post("/ai/run/echo", "content-length: 2\r\n", "{}"),
    ];
    for beginning in &beginnings {
        // Half closed: an answer, or an end, but no waiting. Reset at once: no answer is awaited.
        let _ = node.http().raw(beginning.as_bytes(), true);
        for _ in 0..20 {
            let mut connection = node.http().connect();
            connection.write_all(beginning.as_bytes()).unwrap();
            reset(&connection);
        }
        serves(&node, beginning);
    }
    assert_at_rest(&node, &before);
    let model = node.model("echo");
    assert_eq!((model.in_flight, model.queued, model.restarts), (0, 0, 0));
    node.stop();
}

/// Makes the close that follows a reset.
fn reset(connection: &TcpStream) {
    let none = nix::libc::linger { l_onoff: 1, l_linger: 0 };
    nix::sys::socket::setsockopt(connection, nix::sys::socket::sockopt::Linger, &none).unwrap();
}

#[test]
fn slow_clients() {
    let config = "[server]\nheader-timeout = \"1s\"\nconnections = 20\n";
    let node = Node::builder().model("echo", ECHO).config(config).start();
    serves(&node, "the start");
    let before = at_rest(&node);
    // Anything that is begun and not continued is ended by the node.
    let beginnings =
        ["", "P", "PRI * HTTP/2.0\r\n", "POST /ai/run/echo HTTP/1.1\r\n", "POST /ai/run/echo HTTP/1.1\r\nx: y"];
    let begun = beginnings.map(|beginning| {
        let mut connection = node.http().connect();
        connection.write_all(beginning.as_bytes()).unwrap();
        (beginning, connection)
    });
    for (beginning, mut connection) in begun {
        let ended = connection.read_to_end(&mut Vec::new());
        assert!(ended.is_ok(), "{beginning:?} was not ended: {ended:?}");
    }
    let (_, mut idle) = Stream::read(node.http().send("echo", &json!(1))).whole_then();
    assert_eq!(idle.read_to_end(&mut Vec::new()).expect("an end"), 0, "also after a request, in time");
    // A byte now and then does not help.
    let mut slow = node.http().connect();
    slow.write_all(b"POST /ai/run/echo HTTP/1.1\r\n").unwrap();
    let mut listener = BufReader::new(slow.try_clone().unwrap());
    thread::scope(|scope| {
        let ended = scope.spawn(move || listener.read_to_end(&mut Vec::new()));
        while !ended.is_finished() && slow.write_all(b"x: y\r\n").is_ok() {
            thread::sleep(Duration::from_millis(100));
        }
        let _ = slow.shutdown(Shutdown::Both);
    });
    // Neither does a body that does not come: the request has its deadline.
    let late = "POST /ai/run/echo HTTP/1.1\r\nhost: localhost\r\nx-omni-timeout-ms: 300\r\ncontent-length: 9\r\n\r\n{";
    assert_eq!(statuses(node.http(), late.as_bytes(), false), [408]);

    // More connections than allowed, all silent: later clients wait, and are served.
    let silent: Vec<_> = (0..30).map(|_| node.http().connect()).collect();
    serves(&node, "a queue of the silent");
    drop(silent);
    // A connection that was of use is not ended in the middle of a request, however long that takes.
    node.publish(
        "sleeps",
        &[("model.py", "import time\ndef handle_request(request, context):\n    time.sleep(2.5)\n")],
    );
    wait_for("the model", PATIENCE, || (node.omnictl(["status", "sleeps"]).code == 0).then_some(()));
    assert_eq!(node.http().run("sleeps", &json!(1)).status, 200);
    assert_eq!(node.omnictl(["stop", "sleeps", "--wait"]).code, 0);
    assert_at_rest(&node, &before);
    node.stop();
}

/// Answers more than any buffer on the way holds: as events without an end, and in one piece.
const MUCH: &[(&str, &str)] = &[(
    "model.py",
    "import time
def handle_request(request, context):
    if request.body.json == 'events':
        return iter(lambda: 'x' * 65536, None)
    if request.body.json == 'slow':
        return time.sleep(8)
    return ('x' if request.body.json == 'text' else b'x') * (15 << 20)
",
)];

#[test]
fn the_time_to_read_an_answer_does_not_count_for_the_next() {
    let node = Node::builder().model("much", MUCH).start();
    assert_eq!(node.http().run("much", &json!(0)).status, 200);
    let mut client = node.http().connect();
    // The deadline of the first passes, and the time to take its answer, while the second is at work.
    let kept = |headers: &str, body: &str| post("/ai/run/much", headers, body).replace("connection: close\r\n", "");
    client.write_all(kept("content-length: 6\r\nx-omni-timeout-ms: 1500\r\n", "\"text\"").as_bytes()).unwrap();
    let (answer, mut client) = Stream::read(BufReader::new(client)).whole_then();
    assert_eq!(answer.status, 200);
    client.get_mut().write_all(kept("content-length: 6\r\n", "\"slow\"").as_bytes()).unwrap();
    assert_eq!(Stream::read(client).whole().status, 200);
    node.stop();
}

/// A node with a model that says much, which has done so, and what it has open at rest.
fn talkative() -> (Node, Vec<String>) {
    let node = Node::builder().model("much", MUCH).model("more", MUCH).model("echo", ECHO).start();
    serves(&node, "nothing");
    assert_eq!(["much", "more"].map(|model| node.http().run(model, &json!("text")).status), [200, 200]);
    let before = at_rest(&node);
    (node, before)
}

/// Bytes that the kernel holds of the node's answers to a client; `None` when the node has closed the connection. By
/// the two ports.
fn held_by_kernel(ends: [u16; 2]) -> Option<u64> {
    let ends = ends.map(|port| format!(":{port:04X}"));
    let table = fs::read_to_string("/proc/net/tcp").unwrap();
    let rows = table.lines().map(|line| line.split_whitespace().collect::<Vec<_>>());
    let row = rows.into_iter().find(|row| row[1].ends_with(&ends[0]) && row[2].ends_with(&ends[1]))?;
    Some(u64::from_str_radix(row[4].split(':').next()?, 16).unwrap())
}

#[test]
fn clients_that_do_not_read_their_answer() {
    let (node, before) = talkative();
    for asked in ["\"events\"", "\"text\"", "\"bytes\""] {
        let mut client = node.http().connect();
        let headers = format!("content-length: {}\r\nx-omni-timeout-ms: 1000\r\n", asked.len());
        client.write_all(post("/ai/run/much", &headers, asked).as_bytes()).unwrap();
        wait_for("the answer's beginning", PATIENCE, || {
            let mut byte = [0];
            matches!(client.peek(&mut byte), Ok(1)).then_some(())
        });
        // The client reads nothing from here on: at its deadline the request is given up, and the model is free for
        // others.
        let ends = [client.peer_addr(), client.local_addr()].map(|end| end.unwrap().port());
        let mut most = 0;
        wait_for("the node to give it up", PATIENCE, || match held_by_kernel(ends) {
            Some(bytes) => {
                most = most.max(bytes);
                None
            }
            None => Some(()),
        });
        assert!((1..1 << 20).contains(&most), "{most} bytes of {asked} were kept where nobody counts them");
        assert_at_rest(&node, &before);
        wait_for("the model to be free", PATIENCE, || (node.model("much").in_flight == 0).then_some(()));
        let end = client.read_to_end(&mut Vec::new());
        assert_eq!(end.unwrap_err().kind(), ErrorKind::ConnectionReset, "nothing lies in the kernel for it either");
    }
    serves(&node, "clients that take nothing");
    node.stop();
}

#[test]
fn an_http_2_client_that_does_not_read_its_answers() {
    let (node, before) = talkative();
    Runtime::new().unwrap().block_on(async {
        let socket = tokio::net::TcpStream::connect(node.data_address()).await.unwrap();
        // Room for little of such an answer.
        let mut client = http2::Builder::new(TokioExecutor::new());
        client.initial_stream_window_size(1 << 16).initial_connection_window_size(1 << 16);
        let (mut sender, connection) = client.handshake(TokioIo::new(socket)).await.unwrap();
        let driver = tokio::spawn(connection);
        let ask = |model: &str, within: &str| {
            let request = Request::post(format!("http://localhost/ai/run/{model}")).header("x-omni-timeout-ms", within);
            request.body(Full::new(Bytes::from("\"events\""))).unwrap()
        };
        let answer = sender.send_request(ask("much", "1000")).await.unwrap();
        assert_eq!(answer.status(), 200);
        // A request with a longer deadline gives the first no more time.
        let other = sender.send_request(ask("more", "3600000")).await.unwrap();
        assert_eq!(other.status(), 200);
        // A stream alone cannot be ended while its window is closed, as nothing reads it: the whole connection is.
        assert_at_rest(&node, &before);
        wait_for("the model to be free", PATIENCE, || (node.model("much").in_flight == 0).then_some(()));
        assert!(answer.into_body().collect().await.is_err(), "half an answer is told from a whole one");
        assert!(driver.await.unwrap().is_err());
    });
    serves(&node, "a client that takes nothing");
    node.stop();
}

#[test]
fn ten_thousand_connections() {
    let node = Node::builder().model("echo", ECHO).start();
    serves(&node, "the start");
    let before = at_rest(&node);
    let mut kept = node.http().send("echo", &json!(1));
    for _ in 0..rounds(2) {
        let mut crowd = Command::new("python3")
            .args(["-c", CROWD, &node.data_address().port().to_string()])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut said = String::new();
        BufReader::new(crowd.stdout.take().unwrap()).read_line(&mut said).unwrap();
        assert_eq!(said, "here\n");
        wait_for("all of them", PATIENCE, || (node.connections() >= 10_000).then_some(()));
        serves(&node, "ten thousand others came");
        // A connection that was there before them, too.
        let answer;
        (answer, kept) = Stream::read(kept).whole_then();
        assert_eq!(answer.json()["result"], 1);
        kept.get_mut()
            .write_all(b"POST /ai/run/echo HTTP/1.1\r\nhost: localhost\r\ncontent-length: 1\r\n\r\n1")
            .unwrap();
        assert_eq!((node.admin().get("/readyz").status, node.omnictl(["status", "echo"]).code), (200, 0));
        drop(crowd.stdin.take());
        assert!(crowd.wait().unwrap().success());
        serves(&node, "ten thousand others went");
    }
    drop(kept);
    assert_at_rest(&node, &before);
    node.stop();
}
