//! A planned takeover: a new scheduler, and a new launcher, under load, without a failed request.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a failed step of a test is a failed test")]

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::signal::Signal;
use nix::sys::socket::{AddressFamily, Backlog, MsgFlags, SockFlag, SockType, UnixAddr, bind, listen, send, socket};
use nix::unistd::Pid;
use omni_control_api::State;
use omni_tests::process::is_alive;
use omni_tests::{Answer, Client, Node, PATIENCE, SERIAL, SetOnDrop, Stream, rounds, wait_for};
use serde_json::{Value, json};
use std::fs::{self, Permissions};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixListener;
use std::process::Stdio;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

/// As many events as asked for, one each 50 ms; 0: an answer at once.
const CONCURRENT: &[(&str, &str)] = &[
    (
        "model.py",
        "import asyncio\nasync def handle_request(request, context):\n    for number in range(request.body.json):\n        yield str(number)\n        await asyncio.sleep(0.05)\n",
    ),
    ("omni.toml", "schema = 1\n[scaling]\nconcurrency = 8\n"),
];
/// How many bytes a streamed body has.
const LENGTH: &[(&str, &str)] = &[(
    "model.py",
    "def handle_request(request, context):\n    return sum(len(piece) for piece in request.body.stream())\n",
)];
/// Between two requests of one client: the load is bounded.
const PAUSE: Duration = Duration::from_millis(20);

/// A client that keeps its connection until told to close it.
struct KeepAlive {
    http: Client,
    connection: Option<BufReader<TcpStream>>,
    connects: usize,
}

impl KeepAlive {
    fn new(http: Client) -> Self {
        Self { http, connection: None, connects: 0 }
    }

    fn post(&mut self, model: &str, body: &Value) -> Answer {
        let mut connection = self.connection.take().unwrap_or_else(|| {
            self.connects += 1;
            BufReader::new(self.http.connect())
        });
        let body = body.to_string();
        let head =
            format!("POST /ai/run/{model} HTTP/1.1\r\nhost: localhost\r\ncontent-length: {}\r\n\r\n", body.len());
        connection.get_mut().write_all(format!("{head}{body}").as_bytes()).expect("the request is sent");
        let (answer, connection) = Stream::read(connection).whole_then();
        self.connection = (answer.header("connection") != Some("close")).then_some(connection);
        answer
    }
}

/// Requests over one HTTP/2 connection after the other, as a client makes them that keeps to the protocol. Returns how
/// many there were, and how many connections.
async fn over_http2(address: std::net::SocketAddr, stop: &AtomicBool) -> (usize, usize) {
    use http_body_util::{BodyExt, Full};
    use hyper_util::rt::{TokioExecutor, TokioIo};
    let (mut asked, mut connects) = (0, 0);
    let mut sender: Option<hyper::client::conn::http2::SendRequest<Full<bytes::Bytes>>> = None;
    while !stop.load(Ordering::Relaxed) {
        if sender.as_ref().is_none_or(|sender| sender.is_closed()) {
            let stream = tokio::net::TcpStream::connect(address).await.expect("a connection to the node");
            let (fresh, connection) =
                hyper::client::conn::http2::handshake(TokioExecutor::new(), TokioIo::new(stream)).await.unwrap();
            tokio::spawn(connection);
            connects += 1;
            sender = Some(fresh);
        }
        let sending = sender.as_mut().unwrap();
        if sending.ready().await.is_err() {
            sender = None; // GOAWAY before there was a request
            continue;
        }
        let request = hyper::Request::post(format!("http://{address}/ai/run/serial")).body(Full::from("0")).unwrap();
        match sending.send_request(request).await {
            Ok(answer) => {
                assert_eq!(answer.status(), 200);
                answer.into_body().collect().await.expect("a whole answer");
                asked += 1;
            }
            // Not processed, as the other side has said: asked again, as the protocol wants it.
            Err(error) if error.is_canceled() => sender = None,
            Err(error) => panic!("{error:?}"),
        }
        tokio::time::sleep(PAUSE).await;
    }
    (asked, connects)
}

/// Processes of every model: workers and engines survive any change of scheduler.
fn engines(node: &Node) -> Vec<Pid> {
    ["serial", "concurrent", "length"].map(|model| node.engine(model).expect("a process")).into()
}

/// Requests over a new connection each.
fn ask_anew(http: Client, model: &str, stop: &AtomicBool, done: &AtomicUsize) {
    while !stop.load(Ordering::Relaxed) {
        let answer = http.run(model, &json!(0));
        assert_eq!(answer.status, 200, "{}", answer.text());
        done.fetch_add(1, Ordering::Relaxed);
        thread::sleep(PAUSE);
    }
}

/// Requests over a kept connection; returns how often it had to connect.
fn ask_over_one_connection(http: Client, stop: &AtomicBool, done: &AtomicUsize) -> usize {
    let mut client = KeepAlive::new(http);
    while !stop.load(Ordering::Relaxed) {
        let answer = client.post("serial", &json!(0));
        assert_eq!(answer.status, 200, "{}", answer.text());
        done.fetch_add(1, Ordering::Relaxed);
        thread::sleep(PAUSE);
    }
    client.connects
}

/// Bodies that take a second each, piece by piece.
fn send_slowly(http: Client, stop: &AtomicBool) {
    while !stop.load(Ordering::Relaxed) {
        let mut connection = http.connect();
        let head = "POST /ai/run/length HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\ncontent-type: application/octet-stream\r\ntransfer-encoding: chunked\r\n\r\n";
        connection.write_all(head.as_bytes()).unwrap();
        for _ in 0..10 {
            connection.write_all(b"3\r\nabc\r\n").unwrap();
            thread::sleep(Duration::from_millis(100));
        }
        connection.write_all(b"0\r\n\r\n").unwrap();
        let answer = Stream::read(BufReader::new(connection)).whole();
        assert_eq!(answer.json()["result"], json!(30), "{}", answer.text());
    }
}

#[test]
fn scheduler_and_launcher_are_replaced_under_load_without_a_failed_request() {
    let mut node =
        Node::builder().model("serial", SERIAL).model("concurrent", CONCURRENT).model("length", LENGTH).start();
    let http = node.http();
    for model in ["serial", "concurrent"] {
        assert_eq!(http.run(model, &json!(0)).status, 200);
    }
    let octets = [("content-type", "application/octet-stream")];
    assert!(http.request("POST", "/ai/run/length", &octets, b"abc").text().contains(":3,"));
    let before = engines(&node);
    let mut idle = KeepAlive::new(http);
    assert_eq!(idle.post("serial", &json!(0)).status, 200);
    let mut never_used = BufReader::new(http.connect());
    let (stop, done) = (AtomicBool::new(false), AtomicUsize::new(0));
    let upgrades = rounds(20).max(3);
    let (asked, streams, connects) = thread::scope(|scope| {
        let stopping = SetOnDrop(&stop);
        let (stop, done) = (&stop, &done);
        let fresh = |model: &'static str| scope.spawn(move || ask_anew(http, model, stop, done));
        let kept = scope.spawn(move || ask_over_one_connection(http, stop, done));
        let address = node.data_address();
        let multiplexed = scope.spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            runtime.block_on(over_http2(address, stop))
        });
        let streaming = scope.spawn(move || {
            let mut streams = 0;
            while !stop.load(Ordering::Relaxed) {
                let events = http.stream("concurrent", &json!(20)).events();
                assert_eq!((events.len(), events.last().map(String::as_str)), (21, Some("[DONE]")), "{events:?}");
                streams += 1;
            }
            streams
        });
        let sending = scope.spawn(move || send_slowly(http, stop));
        let fresh = [fresh("serial"), fresh("concurrent"), fresh("serial")];
        for round in 0..upgrades {
            let asked = done.load(Ordering::Relaxed);
            wait_for("load on the node", PATIENCE, || (done.load(Ordering::Relaxed) > asked + 50).then_some(()));
            // Longer than a takeover takes: it is in work when the old scheduler lets go of the model.
            let slow = scope.spawn(move || http.run("serial", &json!(0.5)));
            wait_for("the slow request to be in work", PATIENCE, || (node.model("serial").in_flight > 0).then_some(()));
            let (old, new) = (node.pid(), node.upgrade());
            assert_ne!(old, new);
            let answer = slow.join().unwrap();
            assert_eq!(answer.status, 200, "{}", answer.text());
            wait_for("the old scheduler to end", PATIENCE, || (!is_alive(old)).then_some(()));
            assert_eq!(engines(&node), before, "the same processes\n{}", node.log());
            if round % 2 == 0 {
                node.replace_launcher(Signal::SIGUSR2);
            }
        }
        drop(stopping);
        fresh.into_iter().for_each(|fresh| fresh.join().unwrap());
        let connects = kept.join().unwrap();
        let (multiplexed, sessions) = multiplexed.join().unwrap();
        sending.join().unwrap();
        assert!(sessions > upgrades, "each takeover says GOAWAY: {sessions} connections");
        (done.load(Ordering::Relaxed) + multiplexed, streaming.join().unwrap(), connects)
    });
    assert_eq!(connects, 1, "a kept connection is handed over, and never closed");
    assert_eq!(idle.post("serial", &json!(0)).status, 200, "also one that nobody used meanwhile");
    assert_eq!(idle.connects, 1);
    never_used.get_mut().write_all(b"GET / HTTP/1.1\r\nhost: localhost\r\n\r\n").unwrap();
    assert_eq!(Stream::read(never_used).status, 404);
    for model in ["serial", "concurrent", "length"] {
        let model = node.model(model);
        assert_eq!((model.state, model.restarts, &model.last_exit), (State::Ready, 0, &None), "{}", node.log());
    }
    assert_eq!(engines(&node), before);
    println!("{upgrades} takeovers, {asked} requests and {streams} streams, 0 failed");
    node.stop();
}

#[test]
fn a_successor_that_cannot_serve_changes_nothing() {
    let mut node = Node::builder().model("serial", SERIAL).start();
    let http = node.http();
    assert_eq!(http.run("serial", &json!(0)).status, 200);
    let (engine, scheduler) = (node.engine("serial"), node.pid());
    node.configure("[server]\nno-such-key = 1\n");
    let said = node.omnictl(["upgrade"]);
    assert!(said.code == 1 && said.stderr.contains("no-such-key"), "{said:?}");
    assert_eq!(http.run("serial", &json!(0)).status, 200);
    assert_eq!((node.pid(), node.engine("serial")), (scheduler, engine));
    node.configure("");
    node.upgrade();
    assert_eq!(http.run("serial", &json!(0)).status, 200);
    assert_eq!(node.engine("serial"), engine);
    node.stop();
}

#[test]
fn requests_that_wait_for_a_cold_model_are_passed_to_the_successor() {
    const SLOW_START: &[(&str, &str)] = &[(
        "model.py",
        "import time\ndef setup(context):\n    time.sleep(2)\ndef handle_request(request, context):\n    return request.body.json\n",
    )];
    let mut node = Node::builder().model("cold", SLOW_START).start();
    let http = node.http();
    thread::scope(|scope| {
        let waiting: Vec<_> = (0..5).map(|number| scope.spawn(move || http.run("cold", &json!(number)))).collect();
        wait_for("the model to be started", PATIENCE, || (node.model("cold").queued == 5).then_some(()));
        node.upgrade();
        for (number, waiting) in waiting.into_iter().enumerate() {
            let answer = waiting.join().unwrap();
            assert_eq!((answer.status, &answer.json()["result"]), (200, &json!(number)), "{}", node.log());
        }
    });
    assert_eq!(node.model("cold").instances.len(), 1, "the instance that was being started is the one that serves");
    node.stop();
}

#[test]
fn the_old_scheduler_finishes_requests_of_the_control_socket() {
    let code = "import time\ndef handle_request(request, context):\n    print('a line', flush=True)\n    time.sleep(request.body.json)\n    return 'well'\n";
    let mut node = Node::builder().model("serial", &[("model.py", code)]).start();
    assert_eq!(node.http().run("serial", &json!(0)).status, 200);
    let omnictl = |arguments: &[&str]| {
        let mut command = node.omnictl_command();
        command.args(arguments).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
    };
    let mut follower = omnictl(&["logs", "serial", "--follow"]);
    let mut lines = BufReader::new(follower.stdout.take().unwrap());
    lines.read_line(&mut String::new()).unwrap();
    let slow = omnictl(&["run", "serial", "5"]);
    wait_for("the slow request to be in work", PATIENCE, || (node.model("serial").in_flight == 1).then_some(()));
    let waiting = omnictl(&["run", "serial", "0"]);
    wait_for("a request in the queue", PATIENCE, || (node.model("serial").queued == 1).then_some(()));
    let (old, _) = (node.pid(), node.upgrade());
    for run in [slow, waiting] {
        let said = run.wait_with_output().unwrap();
        assert!(said.status.success() && said.stdout == b"well\n", "{said:?}\n{}", node.log());
    }
    assert!(follower.wait().unwrap().success(), "the log of the old one ends");
    wait_for("the old scheduler to end", PATIENCE, || (!is_alive(old)).then_some(()));
    node.stop();
}

#[test]
fn the_rest_of_a_body_is_not_a_request_to_the_successor() {
    let mut node = Node::builder().model("serial", SERIAL).start();
    let http = node.http();
    assert_eq!(http.run("serial", &json!(0)).status, 200);
    let smuggled = "POST /ai/run/serial HTTP/1.1\r\nhost: localhost\r\ncontent-length: 1\r\n\r\n0";
    let late = format!(
        "POST /ai/run/serial HTTP/1.1\r\nhost: localhost\r\nx-omni-timeout-ms: 3000\r\ncontent-length: {}\r\n\r\n",
        smuggled.len() + 1
    );
    let mut client = http.connect();
    client.write_all(format!("{late}1").as_bytes()).unwrap();
    let reader = BufReader::new(client.try_clone().unwrap());
    // The body is still coming in when the successor takes over, and is refused by the old scheduler at its deadline.
    let old = node.pid();
    node.upgrade();
    let (refused, mut reader) = Stream::read(reader).whole_then();
    assert_eq!(refused.status, 408, "{}", refused.text());
    let _ = client.write_all(smuggled.as_bytes()); // it may be closed already
    let mut rest = Vec::new();
    let _ = reader.read_to_end(&mut rest); // or reset
    assert_eq!(String::from_utf8_lossy(&rest), "");
    wait_for("the old scheduler to end", PATIENCE, || (!is_alive(old)).then_some(()));
    assert_eq!(http.run("serial", &json!(0)).status, 200);
    node.stop();
}

/// Takes the place of an instance's worker, with a protocol version that is no longer supported. Signals when it was
/// asked.
fn speak_of_old(node: &Node, model: &str) -> mpsc::Receiver<()> {
    let id = node.instance(model).expect("an instance").id;
    let socket_path = node.worker_socket(&id);
    fs::remove_file(&socket_path).unwrap();
    let listener = socket(AddressFamily::Unix, SockType::SeqPacket, SockFlag::SOCK_CLOEXEC, None).unwrap();
    bind(listener.as_raw_fd(), &UnixAddr::new(&socket_path).unwrap()).unwrap();
    listen(&listener, Backlog::new(1).unwrap()).unwrap();
    fs::set_permissions(&socket_path, Permissions::from_mode(0o666)).unwrap();
    let welcome = json!({
        "type": "welcome", "protocol": 0, "instance": id, "model": model, "snapshot": "0".repeat(64), "note": "",
        "engine_pid": null, "started_unix_ms": 0, "ready": null, "exited": null,
    });
    let (asked, was_asked) = mpsc::sync_channel(1);
    thread::spawn(move || {
        let scheduler = UnixListener::from(listener).accept().unwrap().0;
        send(scheduler.as_raw_fd(), welcome.to_string().as_bytes(), MsgFlags::MSG_NOSIGNAL).unwrap();
        let _ = asked.send(());
        let _ = poll(&mut [PollFd::new(scheduler.as_fd(), PollFlags::POLLHUP)], PollTimeout::NONE);
    });
    was_asked
}

#[test]
fn a_worker_of_an_unknown_protocol_finishes_and_is_replaced() {
    let code =
        "import time\ndef handle_request(request, context):\n    time.sleep(request.body.json)\n    return 'well'\n";
    let mut node = Node::builder().model("idle", &[("model.py", code)]).model("busy", &[("model.py", code)]).start();
    for model in ["idle", "busy"] {
        assert_eq!(node.http().run(model, &json!(0)).status, 200);
    }
    let before = ["idle", "busy"].map(|model| node.engine(model).unwrap());
    let old = ["idle", "busy"].map(|model| speak_of_old(&node, model));
    let slow = node.http().send("busy", &json!(4));
    wait_for("the slow one to be at work", PATIENCE, || (node.model("busy").in_flight == 1).then_some(()));
    node.upgrade();
    old.iter().for_each(|asked| asked.recv_timeout(PATIENCE).expect("the new scheduler asks"));
    for model in ["idle", "busy"] {
        assert_eq!(node.http().run(model, &json!(0)).json()["result"], "well", "{model}\n{}", node.log());
    }
    let after = ["idle", "busy"].map(|model| node.engine(model).unwrap());
    assert!(before.iter().all(|pid| !after.contains(pid)), "{before:?} {after:?}");
    let answer = Stream::read(slow).whole();
    assert_eq!((answer.status, &answer.json()["result"]), (200, &json!("well")), "{}", node.log());
    for pid in before {
        wait_for("the old ones to be gone", PATIENCE, || (!is_alive(pid)).then_some(()));
    }
    node.stop();
}

#[test]
fn an_instance_that_streams_for_the_previous_scheduler_serves_the_next_one_too() {
    let threads = "import time\ndef handle_request(request, context):\n    for number in range(request.body.json):\n        \
                   yield str(number)\n        time.sleep(0.05)\n";
    let manifest = CONCURRENT[1];
    let single = [CONCURRENT[0], ("omni.toml", "schema = 1\n[scaling]\nconcurrency = 1\n")];
    let builder = Node::builder().model("tasks", CONCURRENT).model("threads", &[("model.py", threads), manifest]);
    let pair = [CONCURRENT[0], ("omni.toml", "schema = 1\n[scaling]\nconcurrency = 2\n")];
    let mut node = builder.model("single", &single).model("pair", &pair).start();
    let events = |model: &str, count: usize| node.http().stream(model, &json!(count));
    let mut long = ["tasks", "threads", "single", "pair", "pair"].map(|model| events(model, 100));
    long.iter_mut().for_each(|stream| assert!(stream.chunk().unwrap().is_some()));
    let engines = ["tasks", "threads"].map(|model| node.engine(model).unwrap());
    let before = node.pid();
    node.upgrade();
    for model in ["tasks", "threads"] {
        assert_eq!(
            node.http().stream(model, &json!(2)).events(),
            ["{\"response\":\"0\"}", "{\"response\":\"1\"}", "[DONE]"]
        );
    }
    // An instance that takes one request at a time gets none yet: another instance could take it.
    let waiting = node.http().send("single", &json!(0));
    wait_for("a request in the queue", PATIENCE, || (node.model("single").queued == 1).then_some(()));
    // Nor is one that has as many of the old one's as it takes. When one of them ends, it is.
    let behind = node.http().send("pair", &json!(0));
    wait_for("a request in the queue", PATIENCE, || (node.model("pair").queued == 1).then_some(()));
    let [tasks, threads, single, pair, given_up] = long;
    drop(given_up);
    assert_eq!(Stream::read(behind).whole().status, 200);
    assert!(is_alive(before), "it streams still");
    assert_eq!(["tasks", "threads"].map(|model| node.engine(model).unwrap()), engines);
    for stream in [tasks, threads, single, pair] {
        assert_eq!(stream.events().last().map(String::as_str), Some("[DONE]"));
    }
    assert_eq!(Stream::read(waiting).whole().status, 200);
    wait_for("the scheduler before to end", PATIENCE, || (!is_alive(before)).then_some(()));
    node.stop();
}
