//! Bounds on what requests may take: body sizes, the node's budget for bodies, queues; and bodies that pass through
//! without being held.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a failed step of a test is a failed test")]

use omni_tests::process::peak_resident;
use omni_tests::{Answer, Node, PATIENCE, Stream, crc32, pattern, wait_for};
use serde_json::{Value, json};
use std::io::{BufReader, ErrorKind, Read as _, Write as _};
use std::thread;

const MIB: usize = 1 << 20;

/// Says how long the body is, and its CRC; whole or in pieces.
const MEASURE: &str = r#"
import zlib

def handle_request(request, context):
    if request.headers["content-type"] == "application/json":
        return len(request.body.bytes)
    size, crc, longest = 0, 0, 0
    for piece in request.body.stream():
        size, crc, longest = size + len(piece), zlib.crc32(piece, crc), max(longest, len(piece))
    assert longest <= 1 << 20
    return [size, crc]
"#;

/// Bytes of bodies that the node holds.
fn buffered(node: &Node) -> u64 {
    let status: Value = serde_json::from_str(&node.omnictl(["status", "-o", "json"]).stdout).unwrap();
    status["buffered_bytes"].as_u64().unwrap()
}

/// A request with a chunked body, in pieces of this size.
fn chunked(node: &Node, model: &str, media: &str, size: usize, piece: usize) -> Answer {
    let mut connection = node.http().connect();
    let reader = BufReader::new(connection.try_clone().unwrap());
    let pattern = pattern(piece);
    thread::scope(|scope| {
        scope.spawn(move || {
            let head = format!("POST /ai/run/{model} HTTP/1.1\r\nhost: localhost\r\ncontent-type: {media}\r\n");
            let mut send = |bytes: &[u8]| {
                // A refusal may come, and the connection close, before all is sent.
                let _ = connection.write_all(bytes);
            };
            send(format!("{head}transfer-encoding: chunked\r\n\r\n").as_bytes());
            for _ in 0..size / piece {
                send(format!("{piece:x}\r\n").as_bytes());
                send(&pattern);
                send(b"\r\n");
            }
            send(b"0\r\n\r\n");
        });
        Stream::read(reader).whole()
    })
}

#[test]
fn large_bodies_pass_through() {
    let manifest = "[limits]\nbody = \"65MiB\"\n";
    let node = Node::builder()
        .model("measure", &[("model.py", MEASURE), ("omni.toml", manifest)])
        .config("[server]\nbuffered-bytes = \"8MiB\"\n")
        .start();
    let raw = [("content-type", "application/octet-stream")];
    assert_eq!(node.http().request("POST", "/ai/run/measure", &raw, b"abc").json()["result"][0], 3, "and warm");

    let before = peak_resident(node.pid()).unwrap();
    let whole = pattern(64 * MIB);
    let expected = json!([64 * MIB, crc32(whole.iter().copied())]);
    let declared = node.http().request("POST", "/ai/run/measure", &raw, &whole);
    assert_eq!(declared.json()["result"], expected, "{}", declared.text());
    let piece = pattern(MIB);
    let expected = json!([64 * MIB, crc32(piece.iter().copied().cycle().take(64 * MIB))]);
    let streamed = chunked(&node, "measure", raw[0].1, 64 * MIB, MIB);
    assert_eq!(streamed.json()["result"], expected, "{}", streamed.text());
    let grown = peak_resident(node.pid()).unwrap() - before;
    assert!(grown < 16 * MIB as u64, "the scheduler grew by {grown} bytes over a body of 64 MiB");

    // A handler that does not read its body, or only its beginning, answers all the same.
    node.publish("deaf", &[("model.py", "def handle_request(request, context):\n    return 'no'\n")]);
    wait_for("the model", PATIENCE, || (node.http().run("deaf", &json!(0)).status == 200).then_some(()));
    let ignored = node.http().request("POST", "/ai/run/deaf", &raw, &whole[..8 * MIB]);
    assert_eq!(ignored.json()["result"], "no", "{}", ignored.text());
    node.stop();
}

#[test]
fn a_stream_that_nobody_reads_waits_in_the_model() {
    let endless = "def handle_request(request, context):\n    return stream()\n\n\
                   def stream():\n    while True:\n        yield b'x' * (64 << 10)\n";
    let node =
        Node::builder().model("endless", &[("model.py", endless)]).model("measure", &[("model.py", MEASURE)]).start();
    let http = node.http();
    assert_eq!(http.run("measure", &json!("x")).status, 200);
    let before = peak_resident(node.pid()).unwrap();
    let mut unread = http.stream("endless", &json!(0));
    assert!(unread.chunk().unwrap().is_some());
    // Time for some gigabytes, if they were read.
    for _ in 0..300 {
        assert_eq!(http.run("measure", &json!("x")).json()["result"], 3);
    }
    let grown = peak_resident(node.pid()).unwrap() - before;
    assert!(grown < 8 * MIB as u64, "the scheduler holds {grown} bytes for a client that does not read");
    for _ in 0..200 {
        assert!(unread.chunk().unwrap().is_some(), "it is all there when it is wanted");
    }
    drop(unread);
    wait_for("the handler to be told", PATIENCE, || (node.model("endless").in_flight == 0).then_some(()));
    node.stop();
}

#[test]
fn unread_answers_give_way_to_others() {
    let much = "def handle_request(request, context):\n    return 'x' * (12 << 20)\n";
    let node = Node::builder().model("much", &[("model.py", much)]).config("[server]\nbuffered-bytes = \"64MiB\"\n");
    let node = node.start();
    let http = node.http();
    let whole = 2 + (12 << 20);
    assert_eq!(http.run("much", &json!(0)).json()["result"].as_str().map(str::len), Some(12 << 20));
    wait_for("its room to be given back", PATIENCE, || (buffered(&node) == 0).then_some(()));

    let ask = |held: u64| {
        let asked = http.send("much", &json!(0));
        wait_for("an answer that lies in memory", PATIENCE, || (buffered(&node) == held).then_some(()));
        asked
    };
    let (mut first, second) = (ask(whole), ask(2 * whole));
    // While the two may be quick ones yet, a third is refused; then the one that has waited longest is cut, and no more.
    wait_for("room", PATIENCE, || {
        let third = http.run("much", &json!(0));
        assert!(third.status == 200 || third.error_code() == Some(3040), "{} {:?}", third.status, third.error_code());
        (third.status == 200).then_some(())
    });
    let end = first.read_to_end(&mut Vec::new());
    assert_eq!(end.unwrap_err().kind(), ErrorKind::ConnectionReset);
    assert_eq!(Stream::read(second).whole().json()["result"].as_str().map(str::len), Some(12 << 20));
    wait_for("all of it to be given back", PATIENCE, || (buffered(&node) == 0).then_some(()));
    node.stop();
}

#[test]
fn bodies_over_the_limit() {
    let manifest = "[limits]\nbody = \"2MiB\"\n";
    let node = Node::builder().model("measure", &[("model.py", MEASURE), ("omni.toml", manifest)]).start();
    let json_body = [("content-type", "application/json")];
    let fits = vec![b'1'; 2 * MIB];
    assert_eq!(node.http().request("POST", "/ai/run/measure", &json_body, &fits).json()["result"], 2 * MIB);
    assert_eq!(chunked(&node, "measure", "application/json", 2 * MIB, MIB / 4).json()["result"], 2 * MIB);
    assert_eq!(chunked(&node, "measure", "image/x", 2 * MIB, MIB / 4).json()["result"][0], 2 * MIB);

    // A single byte more, or enough that the answer comes while the client still writes.
    for size in [2 * MIB + 1, 32 * MIB] {
        for media in ["application/json", "image/x"] {
            let declared =
                node.http().request("POST", "/ai/run/measure", &[("content-type", media)], &vec![b'1'; size]);
            assert_eq!((declared.status, declared.error_code()), (413, Some(3006)), "{media}, {size} bytes declared");
            let piece = if size % MIB == 0 { MIB } else { size };
            let streamed = chunked(&node, "measure", media, size, piece);
            assert_eq!((streamed.status, streamed.error_code()), (413, Some(3006)), "{media}, {size} bytes chunked");
        }
    }
    assert_eq!(node.http().run("measure", &json!("x")).json()["result"], 3);
    assert_eq!(node.model("measure").restarts, 0);

    // A handler does not take what has come for the whole.
    let careful = "def handle_request(request, context):\n    try:\n        for _ in request.body.stream():\n            \
                   print('a piece')\n        print('a whole body')\n    except BaseException as error:\n        \
                   print('ended by', type(error).__name__)\n        raise\n";
    let concurrent = "[limits]\nbody = \"2MiB\"\n[scaling]\nconcurrency = 2\n";
    node.publish("serial", &[("model.py", careful), ("omni.toml", manifest)]);
    node.publish("threads", &[("model.py", careful), ("omni.toml", concurrent)]);
    for model in ["serial", "threads"] {
        let written = |line: &str| node.omnictl(["logs", model]).stdout.matches(line).count();
        wait_for("the model", PATIENCE, || (node.http().run(model, &json!(0)).status == 200).then_some(()));
        wait_for("what it printed", PATIENCE, || (written("a whole body") == 1).then_some(()));
        assert_eq!(written("ended by"), 0);
        assert_eq!(chunked(&node, model, "image/x", 4 * MIB, MIB).status, 413);
        wait_for("the handler's end", PATIENCE, || (written("ended by") == 1).then_some(()));
        let before = written("a piece");
        let mut gone = node.http().connect();
        let head = format!("POST /ai/run/{model} HTTP/1.1\r\nhost: localhost\r\ncontent-type: image/x\r\n");
        gone.write_all(format!("{head}transfer-encoding: chunked\r\n\r\n3\r\nabc\r\n").as_bytes()).unwrap();
        wait_for("the handler to begin", PATIENCE, || (written("a piece") > before).then_some(()));
        drop(gone);
        wait_for("the handler's end", PATIENCE, || (written("ended by") == 2).then_some(()));
        assert_eq!(written("a whole body"), 1, "{}", node.omnictl(["logs", model]).stdout);
    }
    node.stop();
}

#[test]
fn a_refusal_reaches_a_client_that_reads_only_after_sending() {
    let node = Node::builder().model("measure", &[("model.py", MEASURE), ("omni.toml", "schema = 1\n")]).start();
    let head = |model: &str, media: &str, framing: &str| {
        format!("POST /ai/run/{model} HTTP/1.1\r\nhost: localhost\r\ncontent-type: {media}\r\n{framing}\r\n\r\n")
            .into_bytes()
    };
    let body = vec![b'1'; 32 * MIB];
    let length = format!("content-length: {}", body.len());
    let chunks = [format!("{:x}\r\n", body.len()).as_bytes(), &body, b"\r\n0\r\n\r\n"].concat();
    let chunked = "transfer-encoding: chunked";
    for (model, media, framing, body, status) in [
        ("measure", "application/json", &*length, &body, 413),
        ("measure", "application/json", chunked, &chunks, 413),
        ("measure", "image/x", &length, &body, 413),
        ("measure", "image/x", chunked, &chunks, 413),
        ("no-such-model", "application/json", &length, &body, 404),
        ("no-such-model", "image/x", chunked, &chunks, 404),
    ] {
        let answer = node.http().write_all_then_read(&[&head(model, media, framing), body]).whole();
        assert_eq!(answer.status, status, "{model} {media} {framing}: {}", answer.text());
    }

    // A small one that comes after its answer, in two pieces: the first would bring the reset, the second meet it.
    let mut late = node.http().connect();
    late.write_all(&head("no-such-model", "application/json", "content-length: 2")).unwrap();
    late.peek(&mut [0]).unwrap();
    late.write_all(b"1").unwrap();
    late.write_all(b"1").unwrap();
    assert_eq!(Stream::read(BufReader::new(late)).whole().status, 404);

    // A small body that came with its head was read, and the connection goes on.
    let small = [head("no-such-model", "application/json", "content-length: 2"), b"11".to_vec()].concat();
    let mut kept = BufReader::new(node.http().connect());
    for _ in 0..2 {
        kept.get_mut().write_all(&small).unwrap();
        let (answer, rest) = Stream::read(kept).whole_then();
        assert_eq!(answer.status, 404);
        kept = rest;
    }
    node.stop();
}

#[test]
fn the_nodes_budget_and_the_models_queue() {
    let model = r#"
import asyncio
GO = asyncio.Event()

async def handle_request(request, context):
    if request.headers.get("x-go"):
        GO.set()
        return "going"
    await GO.wait()
    return len(request.body.bytes)
"#;
    let manifest = "[scaling]\nconcurrency = 3\nqueue = 2\n";
    let node = Node::builder()
        .model("holds", &[("model.py", model), ("omni.toml", manifest)])
        .model("other", &[("model.py", model), ("omni.toml", manifest)])
        .config("[server]\nbuffered-bytes = \"2MiB\"\n")
        .start();
    let http = node.http();
    let go = |model: &str| {
        let answer = http.request("POST", &format!("/ai/run/{model}"), &[("x-go", "1")], b"");
        assert_eq!(answer.json()["result"], "going", "{}", answer.text());
    };
    let large = Value::from("x".repeat(700 * 1024));

    // The budget is of the whole node: one model has at most half of what the others leave, and what is given back can be
    // taken again.
    let less = Value::from("x".repeat(600 * 1024));
    thread::scope(|scope| {
        let first = scope.spawn(|| http.run("holds", &large));
        wait_for("a body that is held", PATIENCE, || (buffered(&node) == 700 * 1024 + 2).then_some(()));
        for model in ["holds", "other"] {
            let refused = http.run(model, &large);
            assert_eq!((refused.status, refused.error_code()), (503, Some(3040)), "{model}: {}", refused.text());
            assert_eq!(refused.header("x-omni-retry"), Some("other-node"));
            assert!(refused.header("retry-after").is_some());
        }
        let other = scope.spawn(|| http.run("other", &less));
        wait_for("the other model's", PATIENCE, || (buffered(&node) == 1300 * 1024 + 4).then_some(()));
        for model in ["holds", "other"] {
            wait_for("both to be at work", PATIENCE, || (node.model(model).in_flight == 1).then_some(()));
        }
        go("other");
        assert_eq!(other.join().unwrap().json()["result"], 600 * 1024 + 2);
        go("holds");
        assert_eq!(first.join().unwrap().json()["result"], 700 * 1024 + 2);
    });
    assert_eq!(buffered(&node), 0);
    assert_eq!(http.run("holds", &large).status, 200);

    // Three at work, two waiting: that is all a model takes; the other one is not concerned.
    assert_eq!(node.omnictl(["restart", "holds", "--wait"]).code, 0);
    let mut asked: Vec<_> = (0..5).map(|_| http.send("holds", &json!("x"))).collect();
    let is_at = |running, waiting| {
        let model = node.model("holds");
        ((model.in_flight, model.queued) == (running, waiting)).then_some(())
    };
    wait_for("a full queue", PATIENCE, || is_at(3, 2));
    for _ in 0..3 {
        let refused = http.run("holds", &json!("x"));
        assert_eq!((refused.status, refused.error_code()), (429, Some(3040)));
        assert!(refused.header("retry-after").is_some_and(|wait| (1..=60).contains(&wait.parse().unwrap())));
        assert_eq!(refused.header("x-should-retry"), None);
    }
    go("other");
    // A client that hangs up makes room.
    drop(asked.drain(..3));
    wait_for("room", PATIENCE, || is_at(2, 0));
    go("holds");
    for waiting in asked {
        assert_eq!(Stream::read(waiting).whole().json()["result"], 3);
    }
    node.stop();
}
