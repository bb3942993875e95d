//! Connections that go on behind large bodies: many bodies over one, pipelined, and the ends that none may outlive.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a failed step of a test is a failed test")]

use omni_tests::{Node, PATIENCE, Stream, crc32, pattern, wait_for};
use serde_json::json;
use std::io::{BufReader, Read, Write};
use std::net::TcpStream;
use std::thread;

const MIB: usize = 1 << 20;

/// Answers length and checksum of a body; with `x-stop` it reads little and answers at once, or not at all.
const MEASURE: &str = "
import zlib

def handle_request(request, context):
    how, size, crc = request.headers.get('x-how'), 0, 0
    for piece in request.body.stream():
        size, crc = size + len(piece), zlib.crc32(piece, crc)
        if how == 'early':
            return 'early'
    if how == 'fails':
        raise RuntimeError
    if how == 'streams':
        return iter(['a', 'b'])
    if how == 'breaks':
        def pieces():
            yield b'half'
            raise RuntimeError
        return pieces()
    return [size, crc]
";

fn node() -> Node {
    Node::builder().model("measure", &[("model.py", MEASURE), ("omni.toml", "[limits]\nbody = \"64MiB\"\n")]).start()
}

fn head(length: usize, more: &str) -> String {
    format!(
        "POST /ai/run/measure HTTP/1.1\r\nhost: localhost\r\ncontent-type: image/x\r\ncontent-length: {length}\r\n{more}\r\n"
    )
}

/// All that comes until the node closes.
fn rest(mut reader: BufReader<TcpStream>) -> Vec<u8> {
    let mut bytes = Vec::new();
    let _ = reader.read_to_end(&mut bytes); // a reset is a way to close, too
    bytes
}

#[test]
fn many_large_bodies_over_one_connection() {
    let node = node();
    let mut connection = node.http().connect();
    let mut reader = BufReader::new(connection.try_clone().unwrap());
    for round in 0..40 {
        let body = pattern(MIB + 1 + round * 7919);
        connection.write_all(head(body.len(), "").as_bytes()).unwrap();
        connection.write_all(&body).unwrap();
        let answer;
        (answer, reader) = Stream::read(reader).whole_then();
        assert_eq!(answer.json()["result"], json!([body.len(), crc32(body.iter().copied())]), "round {round}");
        assert_eq!(answer.header("connection"), None);
    }
    assert_eq!(node.connections(), 1);
    node.stop();
}

#[test]
fn pipelined_large_bodies() {
    let node = node();
    let mut connection = node.http().connect();
    let mut reader = BufReader::new(connection.try_clone().unwrap());
    let sizes = [2 * MIB, 5, 3 * MIB + 1, MIB + 1, 0, 2 * MIB];
    let writer = thread::spawn(move || {
        for size in sizes {
            connection.write_all(&[head(size, "").into_bytes(), pattern(size)].concat()).unwrap();
        }
        connection
    });
    for size in sizes {
        let answer;
        (answer, reader) = Stream::read(reader).whole_then();
        assert_eq!(answer.json()["result"], json!([size, crc32(pattern(size).iter().copied())]));
    }
    drop(writer.join().unwrap());
    node.stop();
}

#[test]
fn a_connection_goes_on_behind_any_whole_answer_to_a_whole_body_and_behind_no_other() {
    let node = node();
    for (how, goes_on) in [("fails", true), ("streams", true), ("close", false), ("early", false), ("breaks", false)] {
        let mut connection = node.http().connect();
        let reader = BufReader::new(connection.try_clone().unwrap());
        let more = match how {
            "close" => "connection: close\r\n".to_owned(),
            how => format!("x-how: {how}\r\n"),
        };
        let size = if how == "early" { 32 * MIB } else { 2 * MIB };
        let mut sending = connection.try_clone().unwrap();
        let writer = thread::spawn(move || {
            sending.write_all(head(size, &more).as_bytes()).unwrap();
            let _ = sending.write_all(&pattern(size)); // an early answer may end it
        });
        if how == "breaks" {
            let answer = rest(reader);
            let text = String::from_utf8_lossy(&answer);
            assert!(text.matches("HTTP/1.1 ").count() == 1 && !text.ends_with("0\r\n\r\n"), "{text}");
            writer.join().unwrap();
            continue;
        }
        let (answer, reader) = Stream::read(reader).whole_then();
        assert_eq!(answer.status, if how == "fails" { 500 } else { 200 }, "{how}: {}", answer.text());
        writer.join().unwrap();
        assert_eq!(answer.header("connection"), (!goes_on).then_some("close"), "{how}");
        if goes_on {
            connection.write_all(head(1, "").as_bytes()).unwrap();
            connection.write_all(b"x").unwrap();
            assert_eq!(Stream::read(reader).whole().json()["result"][0], 1, "{how}");
        } else {
            assert_eq!(rest(reader), b"", "{how}");
        }
    }
    node.stop();
}

/// Behind a body the next head has its time, as behind every answer; and a connection of HTTP/1.1 stays one.
#[test]
fn a_connection_behind_a_large_body_has_the_bounds_of_any_other() {
    let config = "[server]\nheader-timeout = \"1s\"\n";
    let node = Node::builder()
        .model("measure", &[("model.py", MEASURE), ("omni.toml", "[limits]\nbody = \"64MiB\"\n")])
        .config(config)
        .start();
    for behind in ["", "POST / HTTP/1.1\r\nhost", "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"] {
        let mut connection = node.http().connect();
        let reader = BufReader::new(connection.try_clone().unwrap());
        connection.write_all(&[head(2 * MIB, "").into_bytes(), pattern(2 * MIB)].concat()).unwrap();
        let (answer, reader) = Stream::read(reader).whole_then();
        assert_eq!(answer.status, 200);
        connection.write_all(behind.as_bytes()).unwrap();
        let last = rest(reader);
        let text = String::from_utf8_lossy(&last);
        assert!(text.is_empty() || text.starts_with("HTTP/1.1 4"), "{behind:?}: {text}");
    }
    wait_for("the end of all connections", PATIENCE, || (node.connections() == 0).then_some(()));
    node.stop();
}

/// The successor gets the connection like any other that is between two requests.
#[test]
fn a_connection_behind_a_large_body_is_handed_over_to_a_successor() {
    let mut node = node();
    let mut connection = node.http().connect();
    let reader = BufReader::new(connection.try_clone().unwrap());
    connection.write_all(&[head(2 * MIB, "").into_bytes(), pattern(2 * MIB)].concat()).unwrap();
    let (answer, reader) = Stream::read(reader).whole_then();
    assert_eq!(answer.status, 200);
    node.upgrade();
    connection.write_all(&[head(2 * MIB, "").into_bytes(), pattern(2 * MIB)].concat()).unwrap();
    let (answer, _reader) = Stream::read(reader).whole_then();
    assert_eq!((answer.status, answer.header("connection")), (200, None));
    node.stop();
}
