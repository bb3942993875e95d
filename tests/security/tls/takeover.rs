//! TLS over a reload and a takeover: what changes, and that nothing is lost.

use crate::client::{Certificate, Connection, Folder, ask, connect, over_http2, runtime, send, shown};
use crate::{TRUSTED, body, builder, sum};
use nix::unistd::Pid;
use omni_tests::process::is_alive;
use omni_tests::{Node, PATIENCE, Stream, wait_for};
use serde_json::{Value, json};
use std::io::{BufReader, Read, Write};
use std::net::TcpStream;
use std::thread;

/// Runs `omnictl upgrade` and returns its output.
fn upgrade(node: &mut Node) -> Value {
    let said = node.omnictl(["upgrade", "-o", "json"]);
    let answer: Value = serde_json::from_str(&said.stdout).unwrap_or_else(|_| panic!("{said:?}\n{}", node.log()));
    node.succeeded(Pid::from_raw(answer["pid"].as_i64().unwrap().try_into().unwrap()));
    answer
}

#[test]
fn a_reload_shows_a_new_certificate_and_refuses_a_wrong_one() {
    let (first, second) = (Certificate::new(), Certificate::new());
    let both = &[&first, &second];
    let folder = Folder::new(&first);
    let mut node = builder(&format!("{TRUSTED}{}", folder.config())).start();
    let shows = |node: &Node, certificate: &Certificate| {
        let connection = connect(node, both, &["http/1.1"]);
        assert_eq!(shown(&connection), &certificate.der);
        let (answer, connection) = ask(connection, "serial", &json!(0));
        assert_eq!(answer.status, 200, "{}", answer.text());
        connection
    };
    shows(&node, &first);

    folder.write("key.pem", &second.key);
    let said = node.omnictl(["upgrade"]);
    assert!(said.code == 1 && said.stderr.contains("is not that of the certificate"), "{said:?}");
    let kept = shows(&node, &first);

    folder.write("certificate.pem", &second.pem);
    let said = upgrade(&mut node);
    let change = said["changes"][0].as_str().unwrap_or_default();
    assert!(change.starts_with("tls.sha256 = \"") && change.contains(", was \""), "{said}");
    shows(&node, &second);
    // An encrypted connection cannot move to another process: it serves once more, and closes.
    let (answer, _) = ask(kept, "serial", &json!(0));
    assert_eq!((answer.status, answer.header("connection")), (200, Some("close")), "{}", answer.text());
    node.stop();
}

#[test]
fn a_takeover_loses_nothing() {
    let certificate = Certificate::new();
    let folder = Folder::new(&certificate);
    let mut node = builder(&format!("{TRUSTED}{}", folder.config())).start();
    let trusted = &[&certificate];
    let open = || connect(&node, trusted, &["http/1.1"]);
    let (_, idle) = ask(open(), "serial", &json!(0));
    let (_, idle_too) = ask(open(), "count", &json!(0));
    let never_used = open();
    let octets = "content-type: application/octet-stream\r\n";
    let large = body(3 << 20);
    let old = node.pid();
    // Behind the slow one they lie in the queue when the old scheduler lets go, and are asked again.
    let mut slow = open();
    send(&mut slow, "serial", "", b"2");
    wait_for("the slow request to be in work", PATIENCE, || (node.model("serial").in_flight > 0).then_some(()));
    let quick: Vec<Connection> = (0..8)
        .map(|_| {
            let mut connection = open();
            send(&mut connection, "serial", "", b"0");
            connection
        })
        .collect();
    wait_for("the quick ones to wait", PATIENCE, || (node.model("serial").queued > 0).then_some(()));
    upgrade(&mut node);
    assert!(is_alive(old), "the slow one is not answered yet");
    for connection in [never_used, idle] {
        let (answer, mut connection) = ask(connection, "serial", &json!(0));
        assert_eq!((answer.status, answer.header("connection")), (200, Some("close")), "{}", answer.text());
        assert_eq!(connection.read_to_end(&mut Vec::new()).unwrap(), 0, "and ends as TLS does");
    }
    let mut late = idle_too;
    send(&mut late, "sum", octets, &large);
    let answer = Stream::read(late).whole();
    assert_eq!(answer.json()["result"], sum(&large), "{}", answer.text());
    for connection in std::iter::once(slow).chain(quick) {
        let answer = Stream::read(connection).whole();
        assert_eq!((answer.status, &answer.json()["result"]), (200, &json!("serial")), "{}", node.log());
    }
    wait_for("the old scheduler to end", PATIENCE, || (!is_alive(old)).then_some(()));
    runtime().block_on(async {
        let (status, text) = over_http2(&node, &certificate, "serial", "application/json", b"0".to_vec()).await;
        assert_eq!(status, 200, "{text}");
    });
    node.stop();
}

#[test]
fn a_reload_turns_tls_on_and_off() {
    let certificate = Certificate::new();
    let folder = Folder::new(&certificate);
    let mut node = builder(TRUSTED).start();
    let post = b"POST /ai/run/serial HTTP/1.1\r\nhost: localhost\r\ncontent-length: 1\r\n\r\n0";
    let on_plain = |mut connection: BufReader<TcpStream>| {
        connection.get_mut().write_all(post).unwrap();
        Stream::read(connection).whole_then()
    };
    let (answer, plain) = on_plain(BufReader::new(node.http().connect()));
    assert_eq!((answer.status, answer.header("connection")), (200, None));

    node.configure(&format!("{TRUSTED}{}", folder.config()));
    upgrade(&mut node);
    let (answer, _) = on_plain(plain);
    assert_eq!((answer.status, answer.header("connection")), (200, Some("close")), "{}", answer.text());
    assert!(!node.http().raw(post, false).starts_with(b"HTTP"));
    let (answer, tls) = ask(connect(&node, &[&certificate], &[]), "serial", &json!(0));
    assert_eq!(answer.status, 200);

    node.configure(TRUSTED);
    upgrade(&mut node);
    let (answer, _) = ask(tls, "serial", &json!(0));
    assert_eq!((answer.status, answer.header("connection")), (200, Some("close")), "{}", answer.text());
    let threads: Vec<_> = (0..4)
        .map(|_| {
            let http = node.http();
            thread::spawn(move || http.run("serial", &json!(0)).status)
        })
        .collect();
    threads.into_iter().for_each(|thread| assert_eq!(thread.join().unwrap(), 200));
    node.stop();
}
