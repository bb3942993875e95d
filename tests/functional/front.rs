//! Requests that the listeners accept or refuse before any model is involved: names, pages of other sites, heads,
//! unwanted bodies, connections; and the headers that a model may set in its answer.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a failed step of a test is a failed test")]

use bytes::Bytes;
use http_body_util::{BodyExt, Empty, Full};
use hyper::Request;
use hyper::client::conn::http2;
use hyper::header::{HeaderMap, HeaderName};
use hyper_util::rt::{TokioExecutor, TokioIo};
use nix::sys::resource::{Resource, setrlimit};
use omni_tests::{Client, Node, PATIENCE, Stream, wait_for};
use serde_json::json;
use std::io::{BufReader, ErrorKind, Read, Write};
use std::thread;
use std::time::Duration;
use tokio::runtime::Builder;

const ECHO: &[(&str, &str)] = &[("model.py", "def handle_request(request, context):\n    return request.body.json\n")];

/// The status of the only answer.
fn status(http: Client, method_and_path: &str, headers: &str) -> u16 {
    let request = format!("{method_and_path} HTTP/1.1\r\nconnection: close\r\ncontent-length: 2\r\n{headers}\r\n{{}}");
    let answer = http.raw(request.as_bytes(), false);
    String::from_utf8_lossy(&answer).get(9..12).and_then(|code| code.parse().ok()).expect("an answer")
}

/// A metric's value.
#[test]
fn a_listener_on_loopback_answers_to_its_own_names_and_to_no_page_of_another_site() {
    let config = "[server]\nhosts = [\"models.example\"]\n";
    let node = Node::builder().model("echo", ECHO).config(config).start();
    assert_eq!(node.http().run("echo", &json!(1)).status, 200);
    let run = "POST /ai/run/echo";
    for (headers, expected) in [
        ("host: localhost\r\n", 200),
        ("host: 127.0.0.1:8080\r\n", 200),
        ("host: models.example\r\n", 200),
        ("host: attacker.example:8080\r\norigin: http://attacker.example:8080\r\nsec-fetch-site: same-origin\r\n", 421),
        ("", 400),
        ("host: localhost\r\nhost: localhost\r\n", 400),
        ("host: localhost\r\nsec-fetch-site: cross-site\r\n", 403),
        ("host: localhost\r\norigin: http://attacker.example\r\n", 403),
        ("host: localhost\r\norigin: http://localhost\r\n", 200),
    ] {
        assert_eq!(status(node.http(), run, headers), expected, "{headers}");
    }
    for (headers, expected) in [
        ("host: localhost\r\n", 200),
        ("host: models.example\r\n", 200),
        ("host: attacker.example\r\n", 421),
        ("", 400),
    ] {
        assert_eq!(status(node.admin(), "GET /capacity", headers), expected, "{headers}");
    }
    assert_eq!(node.metric("omni_http_refusals_total{reason=\"host\"}"), Some(2.0));
    assert_eq!(node.metric("omni_http_refusals_total{reason=\"no-host\"}"), Some(3.0));
    assert_eq!(node.metric("omni_http_refusals_total{reason=\"other-site\"}"), Some(2.0));
    node.stop();
}

/// A refusal that comes before a body says when it is the connection's last answer, and where the body is small it is not.
#[test]
fn a_refusal_before_the_body_says_whether_the_connection_goes_on() {
    let node = Node::builder().model("echo", ECHO).start();
    assert_eq!(node.http().run("echo", &json!(1)).status, 200);
    let good = "POST /ai/run/echo HTTP/1.1\r\nhost: localhost\r\ncontent-length: 2\r\n\r\n{}";
    for (path, length, more, expected, goes_on) in [
        ("/ai/run/none", 2, "", 404, true),
        ("/none", 65536, "", 404, true),
        ("/none", 65537, "", 404, false),
        ("/ai/run/none", 2, "expect: 100-continue\r\n", 404, false),
        ("/ai/run/echo", 1 << 30, "", 413, false),
    ] {
        let mut connection = node.http().connect();
        connection.set_nodelay(true).unwrap();
        let reader = BufReader::new(connection.try_clone().unwrap());
        let head = format!("POST {path} HTTP/1.1\r\nhost: localhost\r\ncontent-length: {length}\r\n{more}\r\n");
        connection.write_all(head.as_bytes()).unwrap();
        // The body comes in a separate segment, as many clients send it.
        thread::sleep(Duration::from_millis(20));
        if goes_on {
            connection.write_all(&vec![b' '; length]).unwrap();
        }
        let (answer, reader) = Stream::read(reader).whole_then();
        assert_eq!(
            (answer.status, answer.header("connection")),
            (expected, (!goes_on).then_some("close")),
            "{path} {length}"
        );
        if goes_on {
            connection.write_all(good.as_bytes()).unwrap();
            assert_eq!(Stream::read(reader).whole().status, 200, "the next request on the connection");
        }
    }
    node.stop();
}

#[test]
fn heads_over_http_2_have_bounds_in_number_and_size() {
    let node = Node::builder().model("echo", ECHO).start();
    let statuses = Builder::new_current_thread().enable_all().build().unwrap().block_on(async {
        let socket = tokio::net::TcpStream::connect(node.data_address()).await.unwrap();
        let (mut sender, connection) =
            http2::Builder::new(TokioExecutor::new()).handshake(TokioIo::new(socket)).await.unwrap();
        tokio::spawn(connection);
        let mut statuses = Vec::new();
        for (count, length) in [(90, 1), (101, 1), (90, 100), (90, 1000)] {
            let mut request = Request::get("http://localhost/none");
            for number in 0..count {
                request = request.header(format!("x-{number}"), "y".repeat(length));
            }
            let answer = sender.send_request(request.body(Empty::<Bytes>::new()).unwrap()).await;
            statuses.push(match answer {
                Ok(answer) => {
                    let status = answer.status().as_u16();
                    let _ = answer.into_body().collect().await;
                    status
                }
                Err(_) => 0,
            });
        }
        statuses
    });
    assert_eq!(statuses[..3], [404, 431, 404]);
    assert!([0, 431].contains(&statuses[3]), "{statuses:?}");
    assert_eq!(
        node.metric("omni_http_refusals_total{reason=\"head\"}"),
        Some(1.0),
        "hyper's own refusals are none of it"
    );
    node.stop();
}

/// A request over HTTP/2 with a trailer of this length, on a separate connection whose window leaves most of the answer
/// unread.
async fn with_trailer(node: &Node, length: usize, model: &str, window: u32) -> (Option<u16>, impl Sized) {
    let socket = tokio::net::TcpStream::connect(node.data_address()).await.unwrap();
    let mut client = http2::Builder::new(TokioExecutor::new());
    client.initial_stream_window_size(window);
    let (mut sender, connection) = client.handshake(TokioIo::new(socket)).await.unwrap();
    let driven = tokio::spawn(connection);
    let trailers = HeaderMap::from_iter([(HeaderName::from_static("x-end"), "y".repeat(length).parse().unwrap())]);
    let body = Full::new(Bytes::from("1")).with_trailers(Box::pin(async { Some(Ok(trailers)) }));
    let answer =
        sender.send_request(Request::post(format!("http://localhost/ai/run/{model}")).body(body).unwrap()).await;
    (answer.as_ref().ok().map(|answer| answer.status().as_u16()), (answer, sender, driven))
}

#[test]
fn trailers_over_http_2_are_bounded_and_unread_small_answers_count() {
    let large = "def handle_request(request, context):\n    return 'x' * 60_000\n";
    let node = Node::builder().model("echo", ECHO).model("large", &[("model.py", large)]).start();
    Builder::new_current_thread().enable_all().build().unwrap().block_on(async {
        assert_eq!(with_trailer(&node, 1000, "echo", 1 << 16).await.0, Some(200));
        assert_eq!(with_trailer(&node, 8000, "echo", 1 << 16).await.0, None);
        assert_eq!(node.metric("omni_http_closed_connections_total{reason=\"trailers\"}"), Some(1.0));
        let untaken = with_trailer(&node, 1, "large", 0).await;
        assert_eq!(untaken.0, Some(200));
        assert!(node.metric("omni_bodies_held_bytes").is_some_and(|held| held >= 60_000.0));
    });
    wait_for("its room to be given back", PATIENCE, || {
        (node.metric("omni_bodies_held_bytes") == Some(0.0)).then_some(())
    });
    node.stop();
}

#[test]
fn connections_of_one_address_are_bounded_where_that_is_configured() {
    let config = "[server]\nconnections-per-address = 2\n";
    let node = Node::builder().model("echo", ECHO).config(config).start();
    let first = node.http().send("echo", &json!(1));
    let (answer, first) = Stream::read(first).whole_then();
    assert_eq!(answer.status, 200);
    let second = node.http().connect();
    let mut third = node.http().connect();
    let end = third.read(&mut [0]);
    assert!(matches!(end, Ok(0)) || end.is_err_and(|error| error.kind() == ErrorKind::ConnectionReset));
    assert_eq!(node.metric("omni_http_closed_connections_total{reason=\"address\"}"), Some(1.0));
    assert_eq!(node.metric("omni_http_connections"), Some(2.0));
    drop((first, second));
    wait_for("room for another", PATIENCE, || (node.connections() == 0).then_some(()));
    assert_eq!(node.http().run("echo", &json!(1)).status, 200);
    node.stop();
}

#[test]
fn clients_leave_open_files_to_the_node() {
    // Limit of this test and of the node that it starts.
    setrlimit(Resource::RLIMIT_NOFILE, 256, 256).unwrap();
    let node = Node::builder().model("echo", ECHO).start();
    assert_eq!(node.metric("omni_http_connections_limit"), Some(80.0));
    assert!(node.log().contains("80 client connections at a time instead of"), "{}", node.log());
    let idle: Vec<_> = (0..140).map(|_| node.http().connect()).collect();
    wait_for("as many as there may be", PATIENCE, || {
        (node.metric("omni_http_connections") == Some(80.0)).then_some(())
    });
    assert_eq!((node.admin().get("/readyz").status, node.omnictl(["start", "echo", "--wait"]).code), (200, 0));
    drop(idle);
    assert_eq!(node.http().run("echo", &json!(1)).status, 200);
    node.stop();
}

/// Refused by the engine or by the scheduler: no such header leaves the node, and the model's log names it.
#[test]
fn a_model_cannot_set_headers_of_the_node() {
    let speaks = "import omni\n\ndef handle_request(request, context):\n    name = request.body.json\n    \
                  return omni.Response('x', headers={name: 'forged'})\n";
    let node = Node::builder().model("speaks", &[("model.py", speaks)]).start();
    for name in
        ["x-request-id", "Server-Timing", "x-omni-model-version", "set-cookie", "x-accel-redirect", "connection"]
    {
        let answer = node.http().run("speaks", &json!(name));
        assert_eq!(answer.status, 500, "{name}: {}", answer.text());
        assert!([None, Some("close")].contains(&answer.header("connection")));
        assert_ne!(answer.header(&name.to_lowercase()), Some("forged"), "{name}");
        let log = || node.omnictl(["logs", "speaks"]).stdout.to_lowercase();
        wait_for("a line that names it", PATIENCE, || log().contains(&name.to_lowercase()).then_some(()));
    }
    let answer = node.http().run("speaks", &json!("x-own"));
    assert_eq!((answer.status, answer.header("x-own")), (200, Some("forged")));
    node.stop();
}

#[test]
fn encoded_bodies_are_refused_by_name_and_a_byte_order_mark_is_not_an_encoding() {
    let node = Node::builder().model("echo", ECHO).start();
    let run = |headers: &[(&str, &str)], body: &[u8]| node.http().request("POST", "/ai/run/echo", headers, body);
    assert_eq!(run(&[], b"\xef\xbb\xbf{\"a\": 1}").json()["result"], json!({ "a": 1 }));
    for media in ["application/json", "image/png"] {
        let answer = run(&[("content-type", media), ("content-encoding", "gzip")], b"\x1f\x8b\x08");
        assert_eq!((answer.status, answer.header("accept-encoding")), (415, Some("identity")), "{}", answer.text());
        assert!(answer.text().contains("`content-encoding: gzip`"), "{}", answer.text());
    }
    assert_eq!(run(&[("content-encoding", "identity")], b"1").json()["result"], 1);
    node.stop();
}

#[test]
fn a_hold_that_could_not_be_stored_is_not_reported_as_stored() {
    let node = Node::builder().model("echo", ECHO).on_disk("state", 64 << 20, 4096).start();
    assert_eq!(node.http().run("echo", &json!(1)).status, 200);
    node.disk().fill();
    let stop = node.omnictl(["stop", "echo", "--wait"]);
    assert_eq!(stop.code, 1, "{}", stop.stderr);
    assert!(stop.stderr.contains("could not write that down"), "{}", stop.stderr);
    node.disk().free();
    let stop = node.omnictl(["stop", "echo", "--wait"]);
    assert_eq!(stop.code, 0, "{}", stop.stderr);
    node.stop();
}

/// Over HTTP/1.0 only the connection's end says that an answer is over: half a one must not look like that.
#[test]
fn a_broken_answer_over_http_1_0() {
    let model = "def handle_request(request, context):
    yield b'half'
    if request.body.json:
        raise RuntimeError
";
    let node = Node::builder().model("model", &[("model.py", model)]).start();
    for (body, ended) in [("0", Ok(4)), ("1", Err(ErrorKind::ConnectionReset))] {
        let mut client = node.http().connect();
        write!(client, "POST /ai/run/model HTTP/1.0\r\ncontent-length: 1\r\n\r\n{body}").unwrap();
        let mut text = String::new();
        let read = client.read_to_string(&mut text).map_err(|error| error.kind());
        assert_eq!(read.map(|_| text.split("\r\n\r\n").nth(1).unwrap().len()), ended, "{text}");
    }
    node.stop();
}
