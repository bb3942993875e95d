//! Events during a takeover: another takeover, the successor's end, a stop.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a failed step of a test is a failed test")]

use nix::sys::signal::{Signal, kill};
use nix::sys::stat::Mode;
use nix::unistd::{Pid, mkfifo};
use omni_tests::process::{self, is_alive};
use omni_tests::{Node, PATIENCE, SERIAL, Stream, wait_for};
use serde_json::{Value, json};
use std::fs::{self, Permissions};
use std::io::{BufReader, Write};
use std::net::TcpStream;
use std::os::unix::fs::PermissionsExt;
use std::process::{Child, Output, Stdio};
use std::thread;

/// As many events as asked for, one each 50 ms; 0: an answer at once.
const EVENTS: &[(&str, &str)] = &[
    (
        "model.py",
        "import asyncio\nasync def handle_request(request, context):\n    for number in range(request.body.json):\n        yield str(number)\n        await asyncio.sleep(0.05)\n",
    ),
    ("omni.toml", "schema = 1\n[scaling]\nconcurrency = 8\n"),
];

/// Two answers that have begun, a short one and a long one.
fn two_streams(node: &Node) -> [Stream; 2] {
    let mut streams = [40, 120].map(|count: usize| node.http().stream("events", &json!(count)));
    streams.iter_mut().for_each(|stream| assert!(stream.chunk().unwrap().is_some()));
    streams
}

fn assert_whole(stream: Stream, node: &Node) {
    assert_eq!(stream.events().last().map(String::as_str), Some("[DONE]"), "{}", node.log());
}

fn upgrade(node: &Node) -> Child {
    let mut command = node.omnictl_command();
    command.args(["upgrade", "-o", "json"]).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
}

/// The process that serves, by the output of a successful upgrade.
fn successor(said: &Output, node: &Node) -> Pid {
    let answer: Value = serde_json::from_slice(&said.stdout).unwrap_or_else(|_| panic!("{said:?}\n{}", node.log()));
    Pid::from_raw(answer["pid"].as_i64().unwrap().try_into().unwrap())
}

fn await_end(scheduler: Pid) {
    wait_for("a scheduler's end", PATIENCE, || (!is_alive(scheduler)).then_some(()));
}

#[test]
fn a_second_takeover_waits_for_the_end_of_the_first() {
    let mut node = Node::builder().model("events", EVENTS).start();
    let [short, long] = two_streams(&node);
    let (first, second) = (node.pid(), node.upgrade());
    let again = upgrade(&node);
    assert_whole(short, &node);
    assert_whole(long, &node);
    let third = successor(&again.wait_with_output().unwrap(), &node);
    node.succeeded(third);
    await_end(first);
    await_end(second);
    let log = node.log();
    let at = |line: &str| log.rfind(line).unwrap_or_else(|| panic!("no `{line}`\n{log}"));
    assert!(log.find("the predecessor has ended") < Some(at("handing over")), "{log}");
    assert_eq!(node.http().stream("events", &json!(1)).events().len(), 2);
    node.stop();
}

/// The successor has as many connections as it may, and more that were handed over.
#[test]
fn a_busy_successor_still_answers_its_predecessor() {
    let mut node = Node::builder().config("[server]\nconnections = 200\n").model("serial", SERIAL).start();
    let http = node.http();
    assert_eq!(http.run("serial", &json!(0)).status, 200);
    let idle: Vec<BufReader<TcpStream>> = (0..150)
        .map(|_| {
            let mut connection = BufReader::new(http.connect());
            connection.get_mut().write_all(b"GET / HTTP/1.1\r\nhost: localhost\r\n\r\n").unwrap();
            let (answer, connection) = Stream::read(connection).whole_then();
            assert_eq!(answer.status, 404);
            connection
        })
        .collect();
    let slow = http.send("serial", &json!(2));
    wait_for("the slow request to be in work", PATIENCE, || (node.model("serial").in_flight == 1).then_some(()));
    let waiting = http.send("serial", &json!(0));
    wait_for("a request in the queue", PATIENCE, || (node.model("serial").queued == 1).then_some(()));
    node.configure("[server]\nconnections = 10\n");
    node.upgrade();
    let said = node.omnictl(["run", "serial", "0"]);
    assert_eq!(said.code, 0, "the instance is free again: {said:?}\n{}", node.log());
    for request in [slow, waiting] {
        assert_eq!(Stream::read(request).whole().status, 200, "{}", node.log());
    }
    drop(idle);
    assert_eq!(http.run("serial", &json!(0)).status, 200);
    node.stop();
}

#[test]
fn a_takeover_during_a_takeover_is_refused_at_once() {
    let mut node = Node::builder().model("serial", SERIAL).start();
    let first = node.pid();
    // The successor waits until its configuration is written.
    let config = node.folder().with_file_name("node.toml");
    fs::remove_file(&config).unwrap();
    mkfifo(&config, Mode::S_IRWXU).unwrap();
    fs::set_permissions(&config, Permissions::from_mode(0o644)).unwrap();
    let succeeds = upgrade(&node);
    wait_for("a successor", PATIENCE, || {
        let line = |pid: &Pid| fs::read_to_string(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        node.processes().iter().any(|pid| line(pid).contains("--succeed")).then_some(())
    });
    // The first waits for its turn, the second is refused at once.
    let mut late = vec![upgrade(&node), upgrade(&node)];
    let refused =
        wait_for("a refusal", PATIENCE, || late.iter_mut().position(|late| late.try_wait().unwrap().is_some()));
    let refused = late.swap_remove(refused).wait_with_output().unwrap();
    node.configure("");
    let second = successor(&succeeds.wait_with_output().unwrap(), &node);
    node.succeeded(second);
    for said in [refused, late.remove(0).wait_with_output().unwrap()] {
        let why = String::from_utf8_lossy(&said.stderr);
        assert!(said.status.code() == Some(1) && why.contains("is being taken over already"), "{said:?}");
    }
    await_end(first);
    node.stop();
}

#[test]
fn a_scheduler_that_lost_its_successor_finishes_and_blocks_nothing() {
    let mut node = Node::builder().model("events", EVENTS).start();
    let [short, long] = two_streams(&node);
    let engine = node.engine("events");
    let (first, second) = (node.pid(), node.upgrade());
    kill(second, Signal::SIGKILL).unwrap();
    await_end(second);
    node.start_again();
    assert_eq!(node.http().stream("events", &json!(1)).events().len(), 2);
    assert_eq!(node.engine("events"), engine);
    assert!(is_alive(first), "it streams still");
    assert_whole(short, &node);
    assert_whole(long, &node);
    await_end(first);
    node.stop();
}

/// The first scheduler asks again what no instance had, and the second dies before an instance has it.
#[test]
fn requests_passed_to_a_successor_that_died_fail_with_an_answer() {
    const NEVER_READY: &[(&str, &str)] = &[(
        "model.py",
        "import time\ndef setup(context):\n    time.sleep(3600)\ndef handle_request(request, context):\n    pass\n",
    )];
    const CLIENTS: u64 = 5;
    let mut node = Node::builder().model("cold", NEVER_READY).model("serial", SERIAL).start();
    let http = node.http();
    thread::scope(|scope| {
        let waiting: Vec<_> = (0..CLIENTS).map(|_| scope.spawn(|| http.run("cold", &json!(null)))).collect();
        let queued =
            |node: &Node| wait_for("a queue", PATIENCE, || (node.model("cold").queued == CLIENTS).then_some(()));
        queued(&node);
        let (first, second) = (node.pid(), node.upgrade());
        queued(&node);
        kill(second, Signal::SIGKILL).unwrap();
        for client in waiting {
            let answer = client.join().unwrap();
            assert_eq!(answer.status, 502, "{}", answer.text());
            assert!(
                answer.text().contains("the node's new scheduler died while it had this request"),
                "{}",
                answer.text()
            );
            assert_eq!(answer.header("x-should-retry"), Some("false"), "a model may have begun it");
        }
        await_end(first);
        await_end(second);
    });
    node.start_again();
    assert_eq!(node.http().run("serial", &json!(0)).status, 200);
    node.stop();
}

#[test]
fn a_stop_during_a_hand_over_is_passed_on() {
    let mut node = Node::builder().model("serial", SERIAL).start();
    assert_eq!(node.http().run("serial", &json!(0)).status, 200);
    let first = node.pid();
    let worker = node.worker(node.engine("serial").unwrap()).unwrap();
    // The successor asks it and waits for its answer: for as long as it takes to stop the successor, too.
    process::stop(worker);
    let asked = upgrade(&node);
    let second = wait_for("a successor that takes over", PATIENCE, || {
        let log = node.log();
        let line: Value = log.lines().find(|line| line.contains("handing over")).map(serde_json::from_str)?.ok()?;
        Some(Pid::from_raw(line["successor"].as_i64()?.try_into().ok()?))
    });
    process::stop(second);
    assert!(!node.log().contains("the successor serves"), "the machine is too slow for this test\n{}", node.log());
    kill(first, Signal::SIGTERM).unwrap();
    wait_for("the signal", PATIENCE, || {
        node.log().contains("the scheduler that gets the models is stopped").then_some(())
    });
    kill(worker, Signal::SIGCONT).unwrap();
    kill(second, Signal::SIGCONT).unwrap();
    assert_eq!(successor(&asked.wait_with_output().unwrap(), &node), second);
    node.succeeded(second);
    await_end(first);
    await_end(second);
}

/// The error is found while the previous scheduler still serves.
#[test]
fn a_successor_that_cannot_store_its_state_changes_nothing() {
    let mut node = Node::builder().model("events", EVENTS).start();
    let scheduler = node.pid();
    let own_state = node.folder().with_file_name("state").join("scheduler");
    let aside = own_state.with_file_name("aside");
    fs::rename(&own_state, &aside).unwrap();
    fs::write(&own_state, "").unwrap();
    let said = node.omnictl(["upgrade"]);
    assert!(said.code == 1 && said.stderr.contains("state/scheduler"), "{said:?}");
    assert_eq!((node.http().run("events", &json!(0)).status, node.pid()), (200, scheduler));
    fs::remove_file(&own_state).unwrap();
    fs::rename(&aside, &own_state).unwrap();
    node.upgrade();
    assert_eq!(node.http().run("events", &json!(0)).status, 200);
    node.stop();
}
