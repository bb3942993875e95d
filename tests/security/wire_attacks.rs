//! Models that attack the engine's own sockets: at worst they lose their instance, and never more than their own requests.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a failed step of a test is a failed test")]

use omni_control_api::State;
use omni_tests::neighbour::{self, post, with_neighbour};
use omni_tests::process::{descriptors, peak_resident};
use omni_tests::{PATIENCE, Stream, wait_for};
use serde_json::json;
use std::time::Instant;

const SHORT: &str = "schema = 1\n[timeouts]\nrequest = \"1s\"\ncancel-grace = \"300ms\"\n";
/// Buffers that a scheduler may allocate while a model floods it.
const BUFFERS: u64 = 24 << 20;

/// Shared code of models that attack their own sockets: the engine's data socket, and the number of the request.
const SOCKETS: &str = r#"
import array, ctypes, os, socket, struct, sys, time

def sockets(kind):
    found = []
    for name in os.listdir("/proc/self/fd"):
        try:
            sock = socket.socket(fileno=os.dup(int(name)))
        except OSError:
            continue
        if sock.type & 0xF == kind:
            found.append(sock)
        else:
            sock.close()
    return found

def data():
    return sockets(socket.SOCK_STREAM)[0]

def number():
    frame = sys._getframe()
    while "number" not in frame.f_locals:
        frame = frame.f_back
    return frame.f_locals["number"]

def frame(kind, flags, code, length, payload=b""):
    return struct.pack("<IBBHQ", length, kind, flags, code, number()) + payload
"#;

#[test]
fn handlers_that_break_their_process_lose_it() {
    let model = SOCKETS.to_owned()
        + r#"
def handle_request(request, context):
    how = request.body.json
    if how == "exit":
        os._exit(0)
    if how == "closes all":
        os.closerange(0, 1 << 16)
    if how == "closes data":
        data().shutdown(socket.SHUT_RDWR)
    if how == "garbage":
        data().sendall(b"\xff" * 4096)
    if how == "a native fork writes":
        if ctypes.CDLL(None).fork() == 0:
            data().sendall(b"GET / HTTP/1.1\r\n\r\n")
            os._exit(0)
        time.sleep(3600)
    if how == "control":
        for sock in sockets(socket.SOCK_SEQPACKET):
            sock.send(b"{]")
        time.sleep(3600)
    if how == "no such kind":
        data().sendall(frame(99, 0, 0, 0))
    if how == "a frame of 4 GiB":
        data().sendall(frame(16, 0, 200, 0xFFFFFFFF))
    if how == "a request of its own":
        data().sendall(frame(1, 0, 0, 4, b"\0\0\0\0"))
    if how == "a chunk without a stream":
        data().sendall(frame(18, 0, 0, 2, b"{}"))
    if how == "an answer after what is none":
        data().sendall(frame(18, 0, 0, 2, b"{}") + frame(16, 0, 200, 2, b'"well"'))
    if how == "usage without end":
        while True:
            data().sendall(frame(21, 0, 0, 8, b'{"a": 1}') * 100)
    if how == "usage of 64 KiB":
        data().sendall(frame(21, 0, 0, 65536, b" " * 65536))
    if how == "kills itself":
        os.kill(os.getpid(), 9)
    return how
"#;
    let node = with_neighbour().model("breaks", &[("model.py", &model)]).start();
    assert_eq!(post(&node, "breaks", &json!("well")).json()["result"], "well");
    let ways = [
        "exit",
        "closes all",
        "closes data",
        "garbage",
        "a native fork writes",
        "control",
        "no such kind",
        "a frame of 4 GiB",
        "a request of its own",
        "a chunk without a stream",
        "an answer after what is none",
        "usage without end",
        "usage of 64 KiB",
        "kills itself",
    ];
    for (deaths, way) in (1..).zip(ways) {
        let engine = node.engine("breaks").expect("a process");
        let answer = post(&node, "breaks", &json!(way));
        assert_eq!((answer.status, answer.error_code()), (502, Some(3050)), "{way}: {}\n{}", answer.text(), node.log());
        assert_eq!(answer.header("x-should-retry"), Some("false"), "{way}");
        neighbour::is_well(&node, way);
        wait_for("the next instance", PATIENCE, || {
            let model = node.model("breaks");
            (model.state == State::Ready && model.restarts == deaths).then_some(())
        });
        assert_ne!(node.engine("breaks"), Some(engine), "{way}");
        assert_eq!(post(&node, "breaks", &json!("well")).json()["result"], "well", "after {way}");
        assert_eq!(node.omnictl(["start", "breaks", "--wait"]).code, 0);
    }
    node.stop();
}

#[test]
fn handlers_that_misuse_the_wire_hurt_only_themselves() {
    let model = SOCKETS.to_owned()
        + r#"
from omni._engine import wire

def handle_request(request, context):
    how = request.body.json
    if how == "descriptors":
        sock = data()
        usage = wire.usage(number(), {"tokens": 50})
        for at in range(len(usage)):
            socket.send_fds(sock, [usage[at:at + 1]], [0, 1, 2] * 50)
    if how == "fork returns":
        os.fork()
        return os.getpid()
    if how == "fork stays":
        if os.fork() == 0:
            time.sleep(3600)
    if how == "answers twice":
        data().sendall(wire.json_response(number(), b'"first"'))
    if how == "half a frame":
        data().sendall(frame(16, 0, 200, 10_000_000))
    if how == "no credit":
        sock = data()
        sock.sendall(frame(17, 3, 200, 0))
        while True:
            sock.sendall(frame(18, 2, 0, 65536, b"x" * 65536))
    return how
"#;
    let node = with_neighbour().model("odd", &[("model.py", &model), ("omni.toml", SHORT)]).start();
    assert_eq!(post(&node, "odd", &json!("well")).json()["result"], "well");
    let (engine, open) = (node.engine("odd"), descriptors(node.pid()).len());

    // Descriptors beside the frames are dropped; the frames count.
    assert_eq!(post(&node, "odd", &json!("descriptors")).json()["result"], "descriptors", "{}", node.log());
    assert!(node.admin().get("/metrics").text().contains("omni_usage_total{model=\"odd\",unit=\"tokens\"} 50"));
    wait_for("no descriptor more", PATIENCE, || (descriptors(node.pid()).len() <= open).then_some(()));
    // The copy cannot answer; the engine is the process after the init.
    for _ in 0..3 {
        assert_eq!(post(&node, "odd", &json!("fork returns")).json()["result"], 2, "{}", node.log());
    }
    assert_eq!(post(&node, "odd", &json!("fork stays")).json()["result"], "fork stays");
    assert_eq!(post(&node, "odd", &json!("well")).json()["result"], "well");
    assert_eq!(node.engine("odd"), engine, "{}", node.log());

    let peak = peak_resident(node.pid()).unwrap();
    for (way, status) in [("answers twice", 200), ("half a frame", 504), ("no credit", 200)] {
        let engine = node.engine("odd");
        let answer = node.http().open(
            "POST",
            "/ai/run/odd",
            &[("content-type", "application/json")],
            json!(way).to_string().as_bytes(),
        );
        assert_eq!(answer.status, status, "{way}\n{}", node.log());
        match way {
            "answers twice" => assert_eq!(answer.whole().json()["result"], "first"),
            "no credit" => assert!(answer.events().last().is_some_and(|event| event.contains("\"error\""))),
            _ => {}
        }
        neighbour::is_well(&node, way);
        wait_for("the next instance", PATIENCE, || {
            (node.engine("odd").is_some_and(|next| Some(next) != engine) && node.model("odd").state == State::Ready)
                .then_some(())
        });
        assert_eq!(post(&node, "odd", &json!("well")).json()["result"], "well", "after {way}");
        assert_eq!(node.omnictl(["start", "odd", "--wait"]).code, 0);
    }
    let grown = peak_resident(node.pid()).unwrap() - peak;
    assert!(grown < BUFFERS, "the scheduler grew by {grown} bytes");
    node.stop();
}

/// Frames that are allowed: pieces of one byte of a stream that its client reads as fast as it can.
#[test]
fn a_flood_of_frames_is_read_no_faster_than_its_share() {
    let model = SOCKETS.to_owned()
        + r#"
def handle_request(request, context):
    sock, piece, credit = data(), frame(18, 1, 0, 1, b"x"), 256 << 10
    sock.setblocking(True)
    sock.sendall(frame(17, 1, 200, 0))
    end = time.monotonic() + request.body.json
    while time.monotonic() < end:
        sock.sendall(piece * (credit // len(piece)))
        credit %= len(piece)
        while credit < len(piece):
            # Header and sum of what may be sent further.
            credit += struct.unpack("<IBBHQI", sock.recv(20, socket.MSG_WAITALL))[5]
    sock.sendall(frame(19, 0, 0, 0))
    os._exit(0)
"#;
    const SECONDS: f64 = 3.0;
    let node = with_neighbour().model("floods", &[("model.py", &model)]).start();
    let headers = [("content-type", "application/json")];
    let begun = Instant::now();
    let answer = node.http().open("POST", "/ai/run/floods", &headers, SECONDS.to_string().as_bytes());
    let pieces = answer.whole().body.len() as f64;
    // The share since the request came, an idle instance's savings, and the content of its socket.
    let share = 250_000.0 * (begun.elapsed().as_secs_f64() + 0.25) + 65_536.0;
    assert!(pieces > 100_000.0, "{pieces} pieces");
    assert!(pieces <= share, "{pieces} pieces instead of {share}");
    neighbour::is_well(&node, "beside a flood of frames");
    let pauses = node.metric("omni_instance_input_pauses_total{model=\"floods\"}");
    assert!(pauses.is_some_and(|pauses| pauses != 0.0), "{pauses:?}\n{}", node.log());
    node.stop();
}

/// The client has all of the announced bytes, and the handler still runs.
#[test]
fn an_answer_whose_end_does_not_come_is_cancelled_at_its_deadline() {
    let model = SOCKETS.to_owned()
        + r#"
from omni._engine import answer, wire

def handle_request(request, context):
    how = request.body.json
    if how == "well":
        return "well"
    head = answer._head({"length": 0 if how == "nothing" else 5})
    sent = wire.frame(wire.STREAM, wire.BYTES, 200, number(), head)
    if how == "no end":
        sent += frame(18, wire.BYTES, 0, 5, b"hello")
    if how == "more":
        sent += frame(18, wire.BYTES, 0, 8, b"hello...")
    data().sendall(sent)
    time.sleep(3600)
"#;
    let node = with_neighbour().model("endless", &[("model.py", &model), ("omni.toml", SHORT)]).start();
    assert_eq!(post(&node, "endless", &json!("well")).json()["result"], "well");
    for (way, whole) in [("no end", "hello"), ("more", "hello"), ("nothing", "")] {
        let answer = post(&node, "endless", &json!(way));
        assert_eq!((answer.status, answer.text().as_str()), (200, whole), "{way}\n{}", node.log());
        // The handler is the only one at a time: its place is free only once it has ended.
        let well = || (post(&node, "endless", &json!("well")).status == 200).then_some(());
        wait_for("the next request to be answered", PATIENCE, well);
    }
    let [ok, error, ..] = node.outcomes("endless", "run");
    assert_eq!((ok, error), (7, 0), "each client has a whole answer");
    node.stop();
}

/// The announced size is room that others cannot have, and a second answer without room is refused at once.
#[test]
fn an_incomplete_answer_counts_from_its_beginning() {
    let model = SOCKETS.to_owned()
        + r#"
def handle_request(request, context):
    data().sendall(frame(16, 0, 200, 10_000_000) + b"[")
    time.sleep(3600)
"#;
    let manifest = "schema = 1\n[timeouts]\nrequest = \"8s\"\ncancel-grace = \"300ms\"\n[scaling]\nmax-instances = 2\n";
    let node = with_neighbour()
        .config("[server]\nbuffered-bytes = \"32MiB\"\n")
        .model("half", &[("model.py", &model), ("omni.toml", manifest)])
        .start();
    let held = || node.metric("omni_bodies_held_bytes").unwrap() as u64;
    let first = node.http().send("half", &json!(1));
    wait_for("its room", PATIENCE, || (held() >= 10_000_000).then_some(()));
    let second = post(&node, "half", &json!(2));
    assert_eq!((second.status, second.error_code()), (503, Some(3040)), "{}", second.text());
    assert_eq!(second.header("x-should-retry"), Some("false"), "the handler ran");
    neighbour::is_well(&node, "half an answer");
    assert_eq!(Stream::read(first).whole().status, 504);
    wait_for("the room to be given back", PATIENCE, || (held() == 0).then_some(()));
    node.stop();
}

/// A refused answer that ends costs its instance nothing; one that does not end costs the instance: its next request
/// goes to another one.
#[test]
fn an_answer_that_is_refused_costs_no_other_request_its_time() {
    let model = SOCKETS.to_owned()
        + r#"
BORN = os.urandom(8).hex()

def handle_request(request, context):
    how = request.body.json
    if how == "half":
        data().sendall(frame(16, 0, 200, 10_000_000) + b"[")
        time.sleep(3600)
    return "x" * 10_000_000 if how == "whole" else BORN
"#;
    let manifest = "schema = 1\n[timeouts]\nrequest = \"60s\"\ncancel-grace = \"300ms\"\n";
    let node = with_neighbour()
        .config("[server]\nbuffered-bytes = \"8MiB\"\n")
        .model("large", &[("model.py", &model), ("omni.toml", manifest)])
        .start();
    let refused = |how: &str| {
        let answer = post(&node, "large", &json!(how));
        assert_eq!((answer.status, answer.error_code()), (503, Some(3040)), "{how}: {}", answer.text());
    };
    let who = || {
        let answer = post(&node, "large", &json!("who"));
        assert_eq!(answer.status, 200, "{}\n{}", answer.text(), node.log());
        answer.text()
    };
    let born = who();
    refused("whole");
    assert_eq!(who(), born, "it had come to its end");
    refused("half");
    assert_ne!(who(), born, "an instance that is in the middle of an answer has no time");
    neighbour::is_well(&node, "half an answer that was refused");
    node.stop();
}
