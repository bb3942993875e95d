//! A request's way through a node: every kind of answer, one connection for many requests, HTTP/2, cold starts and
//! idle stops. What is refused is in `serve.rs`
//! and `limits.rs`, what is given up in `cancellation.rs`.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a failed step of a test is a failed test")]

use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper::client::conn::http2;
use hyper_util::rt::{TokioExecutor, TokioIo};
use omni_control_api::State;
use omni_tests::{Node, PATIENCE, Stream, wait_for};
use serde_json::{Value, json};
use std::io::{BufReader, Write};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

/// Answers in the way that the request names.
const KINDS: &str = r#"
from dataclasses import dataclass
from omni import Response

@dataclass
class Point:
    x: int
    y: float

def handle_request(request, context):
    wanted = request.body.json
    if isinstance(wanted, dict):
        return wanted
    return {
        "text": lambda: "Grüße\n",
        "none": lambda: None,
        "list": lambda: [1, {"a": [True]}],
        "dataclass": lambda: Point(1, 2.5),
        "headers": lambda: dict(request.headers),
        "session": lambda: request.session,
        "large": lambda: "x" * (5 << 20),
        "bytes": lambda: b"\x00\xff",
        "typed": lambda: Response("<p>", media_type="text/html"),
        "created": lambda: Response({"made": 1}, status=201, headers={"x-own": "1"}),
        "refused": lambda: Response.error(422, "too blue"),
        "later": lambda: Response.error(503, "not today"),
        "pieces": lambda: Response.stream(iter([b"one", b"two"]), media_type="image/x-test"),
        "events": lambda: iter(["a", {"b": 1}]),
    }[wanted]()
"#;

#[test]
fn every_kind_of_answer() {
    let node = Node::builder().model("kinds", &[("model.py", KINDS)]).start();
    let ask = |kind: &str| node.http().run("kinds", &json!(kind));
    let enveloped = |result: &str| format!(r#"{{"result":{result},"success":true,"errors":[],"messages":[]}}"#);

    for (kind, result) in [
        ("text", r#""Grüße\n""#),
        ("none", "null"),
        ("list", r#"[1,{"a":[true]}]"#),
        ("dataclass", r#"{"x":1,"y":2.5}"#),
    ] {
        let answer = ask(kind);
        assert_eq!((answer.status, answer.text()), (200, enveloped(result)), "{kind}");
        assert_eq!(answer.header("content-type"), Some("application/json"), "{kind}");
    }
    assert_eq!(ask("large").json()["result"].as_str().map(str::len), Some(5 << 20));
    let unusual = json!({"emoji \u{1F600}": [1e300, -0.5, 9_007_199_254_740_993_u64, "\u{0}"]});
    assert_eq!(node.http().run("kinds", &unusual).json()["result"], unusual);

    let bytes = ask("bytes");
    assert_eq!((bytes.header("content-type"), &bytes.body[..]), (Some("application/octet-stream"), &b"\x00\xff"[..]));
    let typed = ask("typed");
    assert_eq!((typed.header("content-type"), typed.text().as_str()), (Some("text/html"), "<p>"));
    let created = ask("created");
    assert_eq!((created.status, created.text()), (201, enveloped(r#"{"made":1}"#)));
    assert_eq!((created.header("x-own"), created.header("server")), (Some("1"), None));
    let pieces = ask("pieces");
    assert_eq!((pieces.header("content-type"), pieces.text().as_str()), (Some("image/x-test"), "onetwo"));
    let events = node.http().stream("kinds", &json!("events"));
    assert_eq!(events.header("content-type"), Some("text/event-stream"));
    assert_eq!(events.events(), [r#"{"response":"a"}"#, r#"{"b":1}"#, "[DONE]"]);

    for (kind, status, code, message, repeat) in
        [("refused", 422, 5004, "too blue", None), ("later", 503, 3043, "not today", Some("false"))]
    {
        let answer = ask(kind);
        assert_eq!((answer.status, answer.error_code()), (status, Some(code)), "{kind}");
        assert_eq!(answer.json()["errors"][0]["message"], message);
        assert_eq!(answer.header("x-should-retry"), repeat, "{kind}");
    }
    node.stop();
}

#[test]
fn headers_both_ways() {
    let node = Node::builder().model("kinds", &[("model.py", KINDS)]).start();
    let sent = [
        ("content-type", "application/json"),
        ("authorization", "Bearer secret"),
        ("cookie", "secret"),
        ("traceparent", "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"),
        ("X-Mixed", "Case"),
        ("x-twice", "1"),
        ("x-twice", "2"),
        ("x-session-affinity", "s-1"),
        ("x-request-id", "mine/1"),
    ];
    let answer = node.http().request("POST", "/ai/run/kinds", &sent, br#""headers""#);
    assert_eq!(answer.header("x-request-id"), Some("mine/1"));
    let seen = &answer.json()["result"];
    assert_eq!((&seen["x-mixed"], &seen["x-twice"]), (&json!("Case"), &json!("1, 2")));
    assert_eq!(seen["traceparent"], sent[3].1);
    assert!(seen.get("authorization").is_none() && seen.get("cookie").is_none(), "credentials are withheld: {seen}");
    let session = node.http().request("POST", "/ai/run/kinds", &sent, br#""session""#);
    assert_eq!(session.json()["result"], "s-1");

    // Every answer has an id, whether or not a model was found; a generated id is a UUIDv7 and unique.
    let ids: Vec<String> = ["/ai/run/kinds", "/ai/run/nobody", "/ai/run/..", "/nothing"]
        .map(|path| node.http().post(path, &json!("none")))
        .iter()
        .map(|answer| answer.header("x-request-id").expect("an id").to_owned())
        .collect();
    for (at, id) in ids.iter().enumerate() {
        assert!(id.len() == 36 && id.as_bytes()[14] == b'7', "{id}");
        assert!(!ids[..at].contains(id), "{ids:?}");
    }

    let answer = node.http().run("kinds", &json!("none"));
    let version = node.model("kinds").version.expect("a version");
    assert!(version.starts_with(answer.header("x-omni-model-version").expect("a version")), "{version}");
    let timing = answer.header("server-timing").expect("timing");
    for part in timing.split(", ") {
        let duration = part.split_once(";dur=").and_then(|(_, number)| number.parse::<f64>().ok());
        assert!(duration.is_some_and(|ms| (0.0..60_000.0).contains(&ms)), "{timing}");
    }
    node.stop();
}

#[test]
fn one_connection_carries_many_requests() {
    let node = Node::builder().model("kinds", &[("model.py", KINDS)]).start();
    let request = |number: usize| {
        let body = json!({ "n": number }).to_string();
        format!("POST /ai/run/kinds HTTP/1.1\r\nhost: localhost\r\ncontent-length: {}\r\n\r\n{body}", body.len())
    };
    // Kept alive: the next request follows the answer; a refusal does not end the connection either.
    let mut connection = BufReader::new(node.http().connect());
    for number in 0..5 {
        let text =
            if number == 2 { "GET /nothing HTTP/1.1\r\nhost: localhost\r\n\r\n".to_owned() } else { request(number) };
        connection.get_mut().write_all(text.as_bytes()).unwrap();
        let answer;
        (answer, connection) = Stream::read(connection).whole_then();
        let expected = if number == 2 { json!(7000) } else { json!(number) };
        let got = if number == 2 { &answer.json()["errors"][0]["code"] } else { &answer.json()["result"]["n"] };
        assert_eq!(*got, expected, "{}", answer.text());
    }
    // Pipelined: all requests at once, answers in their order. The next one gets through after a stream, too.
    let many: String = (0..100).map(request).collect();
    let stream = "POST /ai/run/kinds HTTP/1.1\r\nhost: localhost\r\ncontent-length: 8\r\n\r\n\"events\"";
    connection.get_mut().write_all(format!("{many}{stream}{}", request(100)).as_bytes()).unwrap();
    for number in 0..100 {
        let answer;
        (answer, connection) = Stream::read(connection).whole_then();
        assert_eq!(answer.json()["result"]["n"], number);
    }
    let (events, connection) = Stream::read(connection).whole_then();
    assert!(events.text().ends_with("data: [DONE]\n\n"), "{}", events.text());
    let (last, _) = Stream::read(connection).whole_then();
    assert_eq!(last.json()["result"]["n"], 100);
    node.stop();
}

#[test]
fn http_2_with_prior_knowledge() {
    let node = Node::builder().model("kinds", &[("model.py", KINDS)]).start();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let socket = tokio::net::TcpStream::connect(node.data_address()).await.unwrap();
        let (sender, connection) = http2::handshake(TokioExecutor::new(), TokioIo::new(socket)).await.unwrap();
        let driver = tokio::spawn(connection);
        let ask = |body: Value| {
            let mut sender = sender.clone();
            async move {
                let request = hyper::Request::post("http://localhost/ai/run/kinds")
                    .body(Full::new(Bytes::from(body.to_string())))
                    .unwrap();
                let (head, body) = sender.send_request(request).await.unwrap().into_parts();
                let body = body.collect().await.unwrap().to_bytes();
                (head.status.as_u16(), String::from_utf8_lossy(&body).into_owned())
            }
        };
        let asked: Vec<_> = (0..50).map(|number| tokio::spawn(ask(json!({ "n": number })))).collect();
        for (number, asked) in asked.into_iter().enumerate() {
            let (status, text) = asked.await.unwrap();
            assert_eq!(status, 200, "{text}");
            assert_eq!(serde_json::from_str::<Value>(&text).unwrap()["result"]["n"], number);
        }
        let (status, events) = ask(json!("events")).await;
        assert_eq!(
            (status, events.as_str()),
            (200, "data: {\"response\":\"a\"}\n\ndata: {\"b\":1}\n\ndata: [DONE]\n\n")
        );
        assert_eq!(ask(json!("refused")).await.0, 422);
        assert_eq!(ask(json!("large")).await.1.len(), (5 << 20) + 54);
        drop(sender);
        driver.await.unwrap().unwrap();
    });
    node.stop();
}

#[test]
fn concurrency_follows_the_manifest() {
    // Each request waits until three are there together: with fewer at once none returns, with more the peak shows it.
    let model = |kind: &str, wait: &str, barrier: &str| {
        format!(
            "import asyncio, threading\nBARRIER = {barrier}(3)\nLOCK = threading.Lock()\nNOW = PEAK = 0\n\
             def change(by):\n    global NOW, PEAK\n    with LOCK:\n        NOW += by\n        PEAK = max(PEAK, NOW)\n\
             {kind} handle_request(request, context):\n    change(1)\n    {wait}BARRIER.wait()\n    change(-1)\n    return PEAK\n"
        )
    };
    let manifest = "[scaling]\nconcurrency = 3\n";
    let threads = model("def", "", "threading.Barrier");
    let tasks = model("async def", "await ", "asyncio.Barrier");
    let node = Node::builder()
        .model("threads", &[("model.py", &threads), ("omni.toml", manifest)])
        .model("tasks", &[("model.py", &tasks), ("omni.toml", manifest)])
        .start();
    for name in ["threads", "tasks"] {
        let http = node.http();
        thread::scope(|scope| {
            let asked: Vec<_> = (0..9).map(|_| scope.spawn(move || http.run(name, &json!(0)))).collect();
            for answer in asked.into_iter().map(|thread| thread.join().unwrap()) {
                assert_eq!(answer.json()["result"], 3, "{name}: {}", answer.text());
            }
        });
    }
    node.stop();
}

/// Each request finds the model stopped, or on its way there, and none is lost.
#[test]
fn a_model_that_stops_as_soon_as_it_is_idle_answers_all_the_same() {
    let code = "def handle_request(request, context):\n    return request.body.json\n";
    let manifest = "[scaling]\nidle-timeout = \"1ms\"\n";
    let node = Node::builder().model("brief", &[("model.py", code), ("omni.toml", manifest)]).start();
    for number in 0..5 {
        let answer = node.http().run("brief", &json!(number));
        assert_eq!((answer.status, &answer.json()["result"]), (200, &json!(number)), "{}", node.log());
    }
    wait_for("the stop", PATIENCE, || (node.model("brief").state == State::Stopped).then_some(()));
    assert_eq!((node.model("brief").restarts, node.engine("brief")), (0, None), "a stop is no death");
    node.stop();
}

#[test]
fn the_first_requests_start_the_model_and_wait_in_order() {
    let model = r#"
import time
COUNT = 0

def setup(context):
    time.sleep(1)

def handle_request(request, context):
    global COUNT
    COUNT += 1
    return [request.body.json, COUNT, context.instance]
"#;
    let manifest = "[scaling]\nidle-timeout = \"500ms\"\n";
    let node = Node::builder().model("cold", &[("model.py", model), ("omni.toml", manifest)]).start();
    assert_eq!(node.model("cold").state, State::Stopped, "nothing is started for its own sake");
    let http = node.http();
    let answered = AtomicUsize::new(0);
    let first = thread::scope(|scope| {
        let mut asked = Vec::new();
        for number in 0..5 {
            let answered = &answered;
            asked.push(scope.spawn(move || {
                let answer = http.run("cold", &json!(number));
                answered.fetch_add(1, Ordering::Relaxed);
                answer
            }));
            // The next one is sent when this one has its place.
            wait_for("a place in the queue", PATIENCE, || {
                let before = answered.load(Ordering::Relaxed) as u64;
                let model = node.model("cold");
                (before + model.queued + model.in_flight > number).then_some(())
            });
        }
        let answers: Vec<Value> =
            asked.into_iter().map(|thread| thread.join().unwrap().json()["result"].clone()).collect();
        for (number, answer) in answers.iter().enumerate() {
            assert_eq!((&answer[0], &answer[1]), (&json!(number), &json!(number + 1)), "{answers:?}");
            assert_eq!(answer[2], answers[0][2], "one instance for all: {answers:?}");
        }
        answers[0][2].clone()
    });

    wait_for("the stop of an idle model", PATIENCE, || (node.model("cold").state == State::Stopped).then_some(()));
    assert_eq!(node.engine("cold"), None);
    let model = node.model("cold");
    assert_eq!((model.restarts, model.last_exit, model.held), (0, None, false), "a stop is no death");
    let again = node.http().run("cold", &json!("again")).json()["result"].clone();
    assert_eq!((&again[0], &again[1]), (&json!("again"), &json!(1)), "a fresh process");
    assert_ne!(again[2], first, "another instance");
    node.stop();
}
