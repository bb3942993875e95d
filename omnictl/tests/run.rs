//! `omnictl run`: what reaches the daemon, and what becomes of each kind of answer.

#![allow(clippy::unwrap_used, reason = "a helper of tests fails as a test does")]

mod common;

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::process::Stdio;

use common::{Canned, Daemon};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::{Value, json};

const ROUTE: &str = "POST /v1/models/m/run";

fn envelope(result: &Value) -> Canned {
    Canned::json(&json!({"result": result, "success": true, "errors": [], "messages": []}))
}

fn stream(text: &'static str) -> Canned {
    Canned::of(200, "text/event-stream", text)
}

/// A daemon that says one thing to every request of model `m`.
fn saying(answer: Canned) -> Daemon {
    let daemon = Daemon::start();
    daemon.on(ROUTE, answer);
    daemon
}

#[test]
fn the_body_is_what_the_command_line_says() {
    let daemon = saying(envelope(&json!("ok")));
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("cat.jpg");
    let bytes: Vec<u8> = (0..300_000_u32).map(|number| number as u8).collect();
    fs::write(&file, &bytes).unwrap();
    let file = file.to_str().unwrap();
    for (arguments, media_type, body) in [
        (&["run", "m"][..], "application/json", b"{}".to_vec()),
        (&["run", "m", "{\"z\": 1.50, \"a\": 2}"], "application/json", b"{\"z\": 1.50, \"a\": 2}".to_vec()),
        (
            &["run", "m", "{\"a\":1}", "--field", "b=two", "--field", "c:=[3]", "--stream"],
            "application/json",
            br#"{"a":1,"b":"two","c":[3],"stream":true}"#.to_vec(),
        ),
        (&["run", "m", "--file", file], "application/octet-stream", bytes.clone()),
        (&["run", "m", "--file", file, "-H", "content-type: image/jpeg"], "image/jpeg", bytes.clone()),
    ] {
        let said = daemon.run(arguments);
        assert!(said.starts_with("exit 0\n--- stdout\nok\n"), "{said}");
        let received = daemon.requests().pop().unwrap();
        assert_eq!(
            (received.headers["content-type"].as_str(), received.body == body),
            (media_type, true),
            "{arguments:?}"
        );
    }
    daemon.run(&["run", "m", "--timeout", "1500ms", "-H", "X-Thumbnail-Size: 64"]);
    let headers = daemon.requests().pop().unwrap().headers;
    assert_eq!((headers["x-omni-timeout-ms"].as_str(), headers["x-thumbnail-size"].as_str()), ("1500", "64"));
}

#[test]
fn standard_input_is_a_body_too() {
    let daemon = saying(envelope(&json!("ok")));
    for (arguments, input) in
        [(&["run", "m", "-"][..], "{\"from\": \"stdin\"}"), (&["run", "m", "--file", "-"], "bytes")]
    {
        let mut child = daemon.command(arguments).stdin(Stdio::piped()).stdout(Stdio::null()).spawn().unwrap();
        child.stdin.take().unwrap().write_all(input.as_bytes()).unwrap();
        assert!(child.wait().unwrap().success());
        assert_eq!(daemon.requests().pop().unwrap().body, input.as_bytes());
    }
}

#[test]
fn answers_are_printed_in_the_way_of_their_type() {
    let object = json!({"shape": [1, 2], "data": [[0.5, 1e-9]], "empty": {}});
    let raw = "{\"result\":{\"z\":12345678901234567890123,\"a\":1.50},\"success\":true,\"errors\":[],\"messages\":[]}";
    for (name, answer) in [
        ("text", envelope(&json!("  ____\n< hi >\n  ----\n"))),
        ("object", envelope(&object)),
        ("null", envelope(&Value::Null)),
        ("digits", Canned::of(200, "application/json; charset=utf-8", raw)),
        ("own_json", Canned::of(200, "application/json", "{\"own\":true}")),
        ("plain_text", Canned::of(200, "text/plain; charset=utf-8", "as it is")),
        (
            "stream_text",
            stream(
                "data: {\"response\": \"one \"}\n\n: ping\n\ndata: {\"response\": \"two\"}\n\ndata: {\"usage\": 2}\n\ndata: [DONE]\n\n",
            ),
        ),
        ("stream_values", stream("data: {\"n\": 1}\n\ndata: [2]\n\ndata: [DONE]\n\n")),
        (
            "stream_failed",
            stream(
                "data: {\"response\": \"one \"}\n\ndata: {\"error\": {\"message\": \"the instance died\", \"code\": 3050}}\n\n",
            ),
        ),
        ("stream_cut", stream("data: {\"n\": 1}\n\n")),
    ] {
        let daemon = saying(answer);
        let both =
            format!("{}\n--- with -o json: {}", daemon.run(&["run", "m"]), daemon.run(&["run", "m", "-o", "json"]));
        insta::assert_snapshot!(format!("run_{name}"), both);
    }
}

#[test]
fn failures_of_a_request_say_what_to_do() {
    let envelope = |code: u32, message: &str| {
        json!({"result": null, "success": false, "errors": [{"code": code, "message": message}], "messages": []})
            .to_string()
    };
    let mut said = String::new();
    for (status, code, message) in [
        (400, 5004, "text is missing: 'text'"),
        (413, 3006, "the body is larger than 10MiB"),
        (429, 3040, "the queue is full"),
        (500, 3043, "the handler raised"),
        (502, 3050, "the instance died"),
        (503, 3040, "in back-off"),
        (504, 3007, "the deadline passed"),
    ] {
        let daemon = saying(Canned::of(status, "application/json", envelope(code, message)));
        said.push_str(&format!("{status}: {}\n", daemon.run(&["run", "m"])));
    }
    insta::assert_snapshot!("run_failures", said);
}

#[test]
fn bytes_go_to_files_and_pipes() {
    let png: Vec<u8> = (0..200_000_u32).map(|number| (number * 7) as u8).collect();
    let daemon = saying(Canned::of(200, "image/png", png.clone()));
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("cat.png");
    let said = daemon.run(&["run", "m", "--out", file.to_str().unwrap()]);
    assert_eq!(said, "exit 0\n--- stdout\n--- stderr\n");
    assert!(fs::read(&file).unwrap() == png);
    assert!(daemon.command(&["run", "m"]).output().unwrap().stdout == png);

    let said = daemon.run(&["run", "m", "--out", "/nonexistent/cat.png"]);
    assert!(said.starts_with("exit 1\n") && said.contains("error: cannot create /nonexistent/cat.png\n"), "{said}");
}

#[test]
fn bytes_never_reach_a_terminal_unasked() {
    let daemon = saying(Canned::of(200, "image/png", vec![0x89, b'P', b'N', b'G']));
    for (arguments, code, reaches) in [(&["run", "m"][..], 1, false), (&["run", "m", "-O", "-"], 0, true)] {
        let terminal = nix::pty::openpty(None, None).unwrap();
        let mut child =
            daemon.command(arguments).stdout(Stdio::from(terminal.slave)).stderr(Stdio::piped()).spawn().unwrap();
        let mut error = String::new();
        child.stderr.take().unwrap().read_to_string(&mut error).unwrap();
        assert_eq!(child.wait().unwrap().code(), Some(code));
        let mut shown = Vec::new();
        // With no slave left, a terminal ends with an error (EIO) behind what was written.
        let _ = fs::File::from(terminal.master).read_to_end(&mut shown);
        assert_eq!(shown.windows(3).any(|window| window == b"PNG"), reaches, "{arguments:?}");
        assert_eq!(error.contains("hint: write it to a file with `--out FILE`"), !reaches, "{error}");
    }
}

#[test]
fn a_stream_is_printed_as_it_arrives_and_ctrl_c_ends_it() {
    let daemon = saying(stream("data: {\"response\": \"now\\n\"}\n\n").hanging());
    let mut child = daemon.command(&["run", "m"]).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut stdout = BufReader::new(child.stdout.take().unwrap());
    let mut line = String::new();
    // The answer never ends, so a line that comes was not held back.
    stdout.read_line(&mut line).unwrap();
    assert_eq!(line, "now\n");
    kill(Pid::from_raw(child.id().try_into().unwrap()), Signal::SIGINT).unwrap();
    let output = child.wait_with_output().unwrap();
    assert_eq!((output.status.code(), output.stderr.as_slice()), (Some(130), &b""[..]));
}

#[test]
fn a_reader_that_goes_away_ends_the_program_quietly() {
    let events = "data: {\"response\": \"line\\n\"}\n\n".repeat(20_000) + "data: [DONE]\n\n";
    let daemon = saying(Canned::of(200, "text/event-stream", events));
    let mut child = daemon.command(&["run", "m"]).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut line = String::new();
    BufReader::with_capacity(16, child.stdout.take().unwrap()).read_line(&mut line).unwrap();
    assert_eq!(line, "line\n");
    let output = child.wait_with_output().unwrap();
    assert_eq!((output.status.code(), output.stderr.as_slice()), (Some(0), &b""[..]));
}

#[test]
fn a_daemon_that_ends_in_mid_answer_is_reported() {
    let daemon = saying(stream("data: {\"response\": \"now\\n\"}\n\n").hanging());
    let mut child = daemon.command(&["run", "m"]).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut line = String::new();
    let mut stdout = BufReader::new(child.stdout.take().unwrap());
    stdout.read_line(&mut line).unwrap();
    drop(daemon);
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(5));
    let error = String::from_utf8(output.stderr).unwrap();
    assert!(error.starts_with("error: the connection to the daemon broke\n"), "{error}");
}

#[test]
fn nothing_is_sent_when_the_input_is_wrong() {
    let daemon = saying(envelope(&json!("ok")));
    for arguments in [
        &["run", "m", "{text: hi}"][..],
        &["run", "m", "[1]", "--stream"],
        &["run", "m", "--field", "x"],
        &["run", "m", "-H", "no colon"],
        &["run", "m", "--file", "/nonexistent/file"],
        &["run", "m", "--file", "/"],
    ] {
        let output = daemon.command(arguments).output().unwrap();
        assert!(matches!(output.status.code(), Some(1 | 2)), "{arguments:?}");
        assert!(output.stderr.starts_with(b"error: "), "{arguments:?}");
    }
    assert_eq!(daemon.requests(), []);
}
