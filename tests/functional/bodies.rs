//! Large bodies on their way from a client's connection to a model: to the byte, whenever they are wanted and not before,
//! and with nothing to gain for a client or a model that does not keep to the rules. Their limits are in `limits.rs`.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a failed step of a test is a failed test")]

use omni_tests::{Node, PATIENCE, Stream, crc32, pattern, wait_for};
use serde_json::{Value, json};
use std::io::{BufReader, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::thread;

const MIB: usize = 1 << 20;

/// Answers length and checksum of a body. A header selects how it is read.
const MEASURE: &str = r#"
import shutil, zlib

def handle_request(request, context):
    size, crc = 0, 0
    if request.headers.get("x-read") == "file":
        with request.body.file() as file, open("/tmp/copy", "wb") as copy:
            shutil.copyfileobj(file, copy)
        pieces = [open("/tmp/copy", "rb").read()]
    else:
        pieces = request.body.stream()
    for piece in pieces:
        size, crc = size + len(piece), zlib.crc32(piece, crc)
    print("a whole body of", size)
    return [size, crc]
"#;
const LIMITS: &str = "[limits]\nbody = \"64MiB\"\n";

/// The head of an upload.
fn head(model: &str, length: usize, more: &str) -> String {
    format!(
        "POST /ai/run/{model} HTTP/1.1\r\nhost: localhost\r\ncontent-type: image/x\r\ncontent-length: {length}\r\n{more}\r\n"
    )
}

fn upload(node: &Node, model: &str, more: &str, body: &[u8]) -> Stream {
    let mut connection = node.http().connect();
    let reader = BufReader::new(connection.try_clone().unwrap());
    connection.write_all(head(model, body.len(), more).as_bytes()).unwrap();
    connection.write_all(body).unwrap();
    Stream::read(reader)
}

/// All that comes until the node closes.
fn rest(mut connection: TcpStream) -> String {
    let mut text = Vec::new();
    let _ = connection.read_to_end(&mut text); // a reset is a way to close, too
    String::from_utf8_lossy(&text).into_owned()
}

#[test]
fn every_byte_arrives_once_however_it_is_cut() {
    let node = Node::builder().model("measure", &[("model.py", MEASURE), ("omni.toml", LIMITS)]).start();
    for size in [MIB + 1, 3 * MIB, 16 * MIB - 7] {
        let body = pattern(size);
        let expected = json!([size, crc32(body.iter().copied())]);
        for (first, piece) in [(0, size), (1, size), (5000, 70_000), (100_000, MIB), (size - 1, 1)] {
            // Two requests on one connection: a small one before the large one.
            let mut connection = node.http().connect();
            let reader = BufReader::new(connection.try_clone().unwrap());
            let small = "POST /ai/run/measure HTTP/1.1\r\nhost: localhost\r\ncontent-type: image/x\r\ncontent-length: 2\r\n\r\nab";
            let mut beginning = format!("{small}{}", head("measure", size, "")).into_bytes();
            beginning.extend_from_slice(&body[..first]);
            connection.write_all(&beginning).unwrap();
            let (answer, reader) = Stream::read(reader).whole_then();
            assert_eq!(answer.json()["result"][0], 2);
            for piece in body[first..].chunks(piece) {
                connection.write_all(piece).unwrap();
            }
            let (answer, reader) = Stream::read(reader).whole_then();
            assert_eq!(
                answer.json()["result"],
                expected,
                "{size} bytes, {first} with the head, then {piece} at a time"
            );
            assert_eq!(answer.header("connection"), None);
            connection.write_all(small.as_bytes()).unwrap();
            assert_eq!(Stream::read(reader).whole().json()["result"][0], 2, "what follows is the next request");
        }
        let file = upload(&node, "measure", "x-read: file\r\n", &body).whole();
        assert_eq!(file.json()["result"], expected, "{}", file.text());
    }
    node.stop();
}

#[test]
fn bytes_after_a_large_body_are_the_next_request_and_bytes_in_it_are_not() {
    let node = Node::builder().model("measure", &[("model.py", MEASURE), ("omni.toml", LIMITS)]).start();
    let hidden =
        "POST /ai/run/measure HTTP/1.1\r\nhost: localhost\r\ncontent-type: image/x\r\ncontent-length: 2\r\n\r\nab";
    let served =
        |size: usize| node.omnictl(["logs", "measure"]).stdout.matches(&format!("a whole body of {size}\n")).count();
    for (round, before) in [0, 100, 2 * MIB].into_iter().enumerate() {
        let mut connection = node.http().connect();
        let reader = BufReader::new(connection.try_clone().unwrap());
        let mut all = head("measure", 2 * MIB, "").into_bytes();
        all.extend(hidden.bytes().cycle().take(before)); // requests in the body, too
        connection.write_all(&all).unwrap();
        let mut all: Vec<u8> = hidden.bytes().cycle().skip(before).take(2 * MIB - before).collect();
        all.extend_from_slice(hidden.as_bytes());
        connection.write_all(&all).unwrap();
        let (large, reader) = Stream::read(reader).whole_then();
        assert_eq!(large.json()["result"][0], 2 * MIB);
        let (small, _reader) = Stream::read(reader).whole_then();
        assert_eq!(small.json()["result"][0], 2);
        wait_for("the log", PATIENCE, || (served(2 * MIB) > round && served(2) > round).then_some(()));
        assert_eq!(served(2), round + 1, "those in the body are none");
    }
    // A length that is said twice, or beside chunks, is refused before anything is moved.
    for bad in [format!("content-length: {MIB}\r\n"), "transfer-encoding: chunked\r\n".to_owned()] {
        let mut connection = node.http().connect();
        connection.write_all(head("measure", 2 * MIB, &bad).as_bytes()).unwrap();
        connection.shutdown(Shutdown::Write).unwrap();
        assert!(!rest(connection).contains(" 200 "), "{bad}");
    }
    node.stop();
}

#[test]
fn a_body_is_continued_only_when_the_model_reads_it() {
    let waits = "import asyncio\nGO = asyncio.Event()\n\nasync def handle_request(request, context):\n    \
                 if request.headers.get('x-go'):\n        GO.set()\n        return 'going'\n    await GO.wait()\n    \
                 return sum([len(piece) async for piece in request.body.stream()])\n";
    let queue = format!("{LIMITS}[scaling]\nconcurrency = 2\nqueue = 1\n");
    let node = Node::builder().model("waits", &[("model.py", waits), ("omni.toml", &queue)]).start();
    let ask = |model: &str, size: usize| {
        let mut connection = node.http().connect();
        connection.write_all(head(model, size, "expect: 100-continue\r\n").as_bytes()).unwrap();
        connection
    };
    for (model, size, status) in [("nobody", 2 * MIB, " 404 "), ("waits", 65 * MIB, " 413 ")] {
        let answer = rest(ask(model, size));
        assert!(answer.starts_with("HTTP/1.1") && answer.contains(status) && !answer.contains(" 100 "), "{answer}");
    }
    let interim = |connection: &mut TcpStream| {
        let mut interim = [0; 25];
        connection.read_exact(&mut interim).unwrap();
        assert_eq!(&interim, b"HTTP/1.1 100 Continue\r\n\r\n");
    };
    // Two are wanted at once, a third one when its turn comes, a fourth one never.
    let mut wanted = [ask("waits", 2 * MIB), ask("waits", 2 * MIB)];
    wanted.iter_mut().for_each(interim);
    let mut queued = ask("waits", 2 * MIB);
    wait_for("the queue", PATIENCE, || (node.model("waits").queued == 1).then_some(()));
    let refused = rest(ask("waits", 2 * MIB));
    assert!(refused.starts_with("HTTP/1.1 429 "), "{refused}");
    queued.set_nonblocking(true).unwrap();
    assert_eq!(queued.read(&mut [0; 1]).unwrap_err().kind(), std::io::ErrorKind::WouldBlock, "not yet");
    queued.set_nonblocking(false).unwrap();
    drop(wanted);
    interim(&mut queued);
    queued.write_all(&pattern(2 * MIB)).unwrap();
    let go = node.http().request("POST", "/ai/run/waits", &[("x-go", "1")], b"");
    assert_eq!(go.json()["result"], "going");
    let answer = Stream::read(BufReader::new(queued)).whole();
    assert_eq!(answer.json()["result"], 2 * MIB);
    node.stop();
}

#[test]
fn an_incomplete_body_fails_only_its_own_request() {
    let careful = "def handle_request(request, context):\n    try:\n        for _ in request.body.stream():\n            \
                   print('a piece')\n        print('a whole body')\n    except BaseException as error:\n        \
                   print('ended by', type(error).__name__)\n        raise\n";
    let concurrent = format!("{LIMITS}[scaling]\nconcurrency = 2\n");
    let node = Node::builder()
        .model("serial", &[("model.py", careful), ("omni.toml", LIMITS)])
        .model("threads", &[("model.py", careful), ("omni.toml", &concurrent)])
        .start();
    for model in ["serial", "threads"] {
        let written = |line: &str| node.omnictl(["logs", model]).stdout.matches(line).count();
        for (round, end) in [Shutdown::Write, Shutdown::Both].into_iter().enumerate() {
            let before = written("a piece");
            let mut gone = node.http().connect();
            gone.write_all(head(model, 8 * MIB, "").as_bytes()).unwrap();
            gone.write_all(&pattern(4 * MIB)).unwrap();
            wait_for("the handler to begin", PATIENCE, || (written("a piece") > before).then_some(()));
            gone.shutdown(end).unwrap();
            wait_for("the handler's end", PATIENCE, || (written("ended by") == round + 1).then_some(()));
        }
        assert_eq!(written("a whole body"), 0);
        assert_eq!(upload(&node, model, "", &pattern(2 * MIB)).status, 200);
        assert_eq!(node.model(model).restarts, 0);
    }
    node.stop();
}

#[test]
fn an_answer_may_be_sent_while_the_body_arrives() {
    let counts = "def handle_request(request, context):\n    for piece in request.body.stream():\n        \
                  yield str(len(piece))\n";
    let early = "def handle_request(request, context):\n    with request.body.file() as file:\n        \
                 return file.raw.read(3).decode()\n";
    let node = Node::builder()
        .model("counts", &[("model.py", counts), ("omni.toml", LIMITS)])
        .model("early", &[("model.py", early), ("omni.toml", LIMITS)])
        .start();
    for framing in ["content-length: 3145728", "transfer-encoding: chunked"] {
        let mut connection = node.http().connect();
        let reader = BufReader::new(connection.try_clone().unwrap());
        let head =
            format!("POST /ai/run/counts HTTP/1.1\r\nhost: localhost\r\ncontent-type: image/x\r\n{framing}\r\n\r\n");
        connection.write_all(head.as_bytes()).unwrap();
        let mut send = |piece: &[u8]| {
            let (before, after) = if framing.ends_with("chunked") {
                (format!("{:x}\r\n", piece.len()), "\r\n")
            } else {
                (String::new(), "")
            };
            connection.write_all(&[before.as_bytes(), piece, after.as_bytes()].concat()).unwrap();
        };
        let body = pattern(3 * MIB);
        send(&body[..MIB]);
        let mut answer = Stream::read(reader);
        assert!(answer.chunk().unwrap().is_some(), "the answer has begun in the middle of the body: {framing}");
        send(&body[MIB..]);
        send(b""); // the end, for chunks
        let mut events = Vec::new();
        while let Some(chunk) = answer.chunk().unwrap() {
            events.extend(chunk);
        }
        assert!(String::from_utf8(events).unwrap().ends_with("data: [DONE]\n\n"), "{framing}");
    }
    // A model that has read enough: a client that writes all before it reads gets the answer.
    for _ in 0..3 {
        assert_eq!(upload(&node, "early", "", &vec![b'a'; 32 * MIB]).whole().json()["result"], "aaa");
    }
    node.stop();
}

#[test]
fn a_model_that_does_not_read_is_not_waited_for() {
    let deaf = "import time\n\ndef handle_request(request, context):\n    time.sleep(3600)\n";
    let node = Node::builder()
        .model("deaf", &[("model.py", deaf), ("omni.toml", LIMITS)])
        .model("measure", &[("model.py", MEASURE), ("omni.toml", LIMITS)])
        .start();
    let mut connection = node.http().connect();
    let reader = BufReader::new(connection.try_clone().unwrap());
    let writer = thread::spawn(move || {
        connection.write_all(head("deaf", 32 * MIB, "x-omni-timeout-ms: 500\r\n").as_bytes()).unwrap();
        let _ = connection.write_all(&pattern(32 * MIB));
    });
    assert_eq!(Stream::read(reader).whole().status, 504);
    writer.join().unwrap();
    assert_eq!(upload(&node, "measure", "", &pattern(2 * MIB)).status, 200, "the others are not held up");
    node.stop();
}

/// Keeps a copy of every socket that it finds while it reads a body, and says later what can be done with them.
const KEEPS: &str = r#"
import os, socket, time
KNOWN, KEPT = set(), []

def tried(what):
    try:
        return repr(what())
    except OSError as error:
        return type(error).__name__

def sockets():
    fds = [fd for fd in os.listdir("/proc/self/fd") if os.path.lexists(f"/proc/self/fd/{fd}")]
    return {(int(fd), link) for fd in fds if (link := os.readlink(f"/proc/self/fd/{fd}")).startswith("socket:")}

def read_on(kept):
    read, end = b"", "its end"
    try:
        while piece := kept.recv(65536):
            read += piece
    except OSError as error:
        end = type(error).__name__
    return [read[-200:].decode("latin-1"), end]

def handle_request(request, context):
    if request.headers.get("content-type") != "image/x":
        KNOWN.update(link for _, link in sockets())  # the engine's
        for kept in KEPT:
            kept.settimeout(0)
        return [{
            "family": kept.family.name,
            "on": read_on(kept),
            "send": tried(lambda: kept.send(b"HTTP/1.1 200 OK\r\n\r\n")),
            "listen": tried(lambda: kept.listen()),
            "connect": tried(lambda: kept.connect("/run/any" if kept.family == socket.AF_UNIX else ("127.0.0.1", 9))),
            "accept": tried(lambda: kept.accept()),
        } for kept in KEPT]
    for piece in request.body.stream():
        if not KEPT:
            KEPT.extend(socket.socket(fileno=os.dup(fd)) for fd, link in sockets() if link not in KNOWN)
            if request.headers.get("x-stop"):
                print("it sleeps")
                time.sleep(3600)
    return "read"
"#;

/// Sockets that the model still holds: the family of each, and the result of using it.
fn kept(node: &Node, model: &str) -> Vec<Value> {
    let answer = node.http().run(model, &json!(0));
    answer.json()["result"].as_array().unwrap_or_else(|| panic!("{}", answer.text())).clone()
}

#[test]
fn the_descriptor_of_a_body_gives_a_model_no_further_access() {
    let node = Node::builder().model("keeps", &[("model.py", KEEPS), ("omni.toml", LIMITS)]).start();
    assert!(kept(&node, "keeps").is_empty());
    let answer = upload(&node, "keeps", "", &pattern(2 * MIB)).whole();
    assert_eq!(answer.json()["result"], "read", "{}", answer.text());
    let kept = kept(&node, "keeps");
    assert!(!kept.is_empty());
    for socket in kept {
        assert_eq!(socket["family"], "AF_UNIX", "the client's connection is not in there");
        assert_eq!((&socket["on"], &socket["send"]), (&json!(["", "its end"]), &json!("BrokenPipeError")), "{socket}");
        for name in ["listen", "connect", "accept"] {
            assert!(socket[name].as_str().unwrap().ends_with("Error"), "{name}: {socket}");
        }
    }
    node.stop();
}

/// After the answer a client's connection is shut down for every process with a copy of it: nothing more can be read or
/// written.
fn assert_shut(node: &Node, mut client: BufReader<TcpStream>) {
    // The client's next request. It may find the connection reset.
    let _ = client.get_mut().write_all(head("measure", 2, "x-next: 1\r\n").as_bytes());
    let kept = kept(node, "keeps");
    let connection = kept.iter().find(|socket| socket["family"] == "AF_INET").expect("the client's connection");
    let (read, end) = (connection["on"][0].as_str().unwrap(), connection["on"][1].as_str().unwrap());
    assert!(!read.contains("x-next"), "another request is not the model's to read: {connection}");
    assert!(["its end", "ConnectionResetError"].contains(&end), "it is shut for reading: {connection}");
    assert_eq!(connection["send"], "BrokenPipeError", "nothing can be said to the client any more");
    // As it is. Who dissolves it first can use it anew, which is why the node has to trust this model.
    for name in ["listen", "connect", "accept"] {
        assert!(connection[name].as_str().unwrap().ends_with("Error"), "{name}: {connection}");
    }
}

#[test]
fn a_trusted_model_reads_the_connection_itself() {
    let handover = format!("{LIMITS}body-handover = true\n");
    let node = Node::builder()
        .model("measure", &[("model.py", MEASURE), ("omni.toml", &handover)])
        .model("keeps", &[("model.py", KEEPS), ("omni.toml", &handover)])
        .config("[server]\nbody-handover = [\"measure\", \"keeps\"]\n")
        .start();
    let size = 16 * MIB - 7;
    let body = pattern(size);
    let expected = json!([size, crc32(body.iter().copied())]);
    for (first, piece, more) in
        [(0, size, ""), (5000, 70_000, ""), (size, 1, "x-read: file\r\n"), (0, MIB, "expect: 100-continue\r\n")]
    {
        let mut connection = node.http().connect();
        let reader = BufReader::new(connection.try_clone().unwrap());
        connection.write_all(&[head("measure", size, more).as_bytes(), &body[..first]].concat()).unwrap();
        if more.starts_with("expect") {
            let mut interim = [0; 25];
            connection.read_exact(&mut interim).unwrap();
            assert_eq!(&interim, b"HTTP/1.1 100 Continue\r\n\r\n");
        }
        for piece in body[first..].chunks(piece) {
            connection.write_all(piece).unwrap();
        }
        connection.write_all(head("measure", 2, "").as_bytes()).unwrap(); // the bytes that follow are not a request
        let (answer, reader) = Stream::read(reader).whole_then();
        assert_eq!(answer.json()["result"], expected, "{first} bytes with the head, then {piece} at a time");
        assert_eq!(answer.header("connection"), Some("close"));
        assert_eq!(rest(reader.into_inner()), "");
    }

    // A model that keeps the connection beyond its answer.
    assert!(kept(&node, "keeps").is_empty());
    let (answer, reader) = upload(&node, "keeps", "", &body[..2 * MIB]).whole_then();
    assert_eq!(answer.json()["result"], "read", "{}", answer.text());
    assert_eq!(rest(reader.get_ref().try_clone().unwrap()), "");
    assert_shut(&node, reader);
    assert_eq!(node.omnictl(["restart", "keeps", "--wait"]).code, 0);

    // A client that goes away in the middle, and a model that keeps the connection beyond its deadline.
    assert!(kept(&node, "keeps").is_empty());
    let printed = |model: &str, line: &str| node.omnictl(["logs", model]).stdout.contains(line);
    let mut gone = node.http().connect();
    // The end of the body lies behind unread bytes: it is noticed at the deadline.
    gone.write_all(head("keeps", 8 * MIB, "x-stop: 1\r\nx-omni-timeout-ms: 5000\r\n").as_bytes()).unwrap();
    gone.write_all(&body[..MIB]).unwrap();
    wait_for("the handler", PATIENCE, || printed("keeps", "it sleeps").then_some(()));
    drop(gone);
    wait_for("the handler's end", PATIENCE, || (node.model("keeps").in_flight == 0).then_some(()));
    assert_eq!(node.omnictl(["restart", "keeps", "--wait"]).code, 0);
    assert!(kept(&node, "keeps").is_empty());
    let mut late = node.http().connect();
    let reader = BufReader::new(late.try_clone().unwrap());
    late.write_all(head("keeps", 8 * MIB, "x-stop: 1\r\nx-omni-timeout-ms: 1000\r\n").as_bytes()).unwrap();
    late.write_all(&body[..MIB]).unwrap();
    let (answer, reader) = Stream::read(reader).whole_then();
    assert_eq!(answer.status, 504);
    assert_eq!(rest(reader.get_ref().try_clone().unwrap()), "");
    assert_shut(&node, reader);
    node.stop();
}
