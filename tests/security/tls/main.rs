//! TLS of the data listener: service over TLS, failed handshakes, and changes by a reload and a takeover.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a failed step of a test is a failed test")]

mod client;
mod takeover;

use client::{Certificate, Folder, NAME, ask, connect, over_http2, runtime, send};
use omni_tests::{Node, NodeBuilder, SERIAL, Stream, program};
use serde_json::{Value, json};
use std::io::{Read, Write};
use std::net::TcpStream;
use std::process::Command;

/// As many events as asked for.
const COUNT: &[(&str, &str)] = &[(
    "model.py",
    "async def handle_request(request, context):\n    for number in range(request.body.json):\n        yield str(number)\n",
)];
/// How many bytes a streamed body has, and their sum. It would read a plain connection itself.
const SUM: &[(&str, &str)] = &[
    (
        "model.py",
        "def handle_request(request, context):\n    pieces = list(request.body.stream())\n    return [sum(map(len, pieces)), sum(map(sum, pieces))]\n",
    ),
    ("omni.toml", "schema = 1\n[limits]\nbody = \"16MiB\"\nbody-handover = true\n"),
];
/// SHA-256 of `one`.
const ONE: &str = "7692c3ad3540bb803c020b3aee66cd8887123234ea0c6e7143c0add73ff431ed";

/// For a node's configuration: models are trusted with connections.
const TRUSTED: &str = "[server]\nbody-handover = [\"sum\"]\n";

fn builder(config: &str) -> NodeBuilder {
    Node::builder().config(config).model("serial", SERIAL).model("count", COUNT).model("sum", SUM)
}

fn body(length: usize) -> Vec<u8> {
    (0..length).map(|at| (at % 251) as u8).collect()
}

fn sum(body: &[u8]) -> Value {
    json!([body.len(), body.iter().map(|byte| u64::from(*byte)).sum::<u64>()])
}

#[test]
fn clients_are_served_over_tls_as_without() {
    let certificate = Certificate::new();
    let folder = Folder::new(&certificate);
    folder.write("tokens.toml", &format!("[ci]\nsha256 = \"{ONE}\"\n"));
    let tokens = format!("{TRUSTED}tokens = \"{}\"\n", folder.path("tokens.toml").display());
    let node = builder(&format!("{tokens}{}", folder.config())).start();
    let trusted = &[&certificate];

    let connection = connect(&node, trusted, &["http/1.1"]);
    assert_eq!(connection.get_ref().conn.alpn_protocol(), Some(&b"http/1.1"[..]));
    let (answer, mut connection) = ask(connection, "serial", &json!(0));
    assert_eq!(answer.status, 401, "tokens are asked for as well");
    let token = "authorization: Bearer one\r\n";
    for _ in 0..2 {
        send(&mut connection, "serial", token, b"0");
        let (answer, kept) = Stream::read(connection).whole_then();
        assert_eq!((answer.status, &answer.json()["result"]), (200, &json!("serial")), "{}", answer.text());
        connection = kept;
    }
    send(&mut connection, "count", token, b"3");
    let events = Stream::read(connection).events();
    assert_eq!(events.last().map(String::as_str), Some("[DONE]"), "{events:?}");
    assert_eq!(events.len(), 4, "{events:?}");

    // Refused before it is sent: a client that reads only then has its answer all the same.
    let octets = "content-type: application/octet-stream\r\n";
    let large = body(5 << 20);
    let mut connection = connect(&node, trusted, &[]);
    send(&mut connection, "sum", octets, &large);
    let (answer, mut connection) = Stream::read(connection).whole_then();
    assert_eq!(answer.status, 401, "{}", answer.text());
    assert_eq!(connection.read_to_end(&mut Vec::new()).unwrap(), 0);

    // Bodies that would go past the scheduler's memory without TLS: spliced, or read by the model.
    let octets = format!("{token}{octets}");
    let mut connection = connect(&node, trusted, &[]);
    for _ in 0..2 {
        send(&mut connection, "sum", &octets, &large);
        let (answer, kept) = Stream::read(connection).whole_then();
        assert_eq!(answer.json()["result"], sum(&large), "{}", answer.text());
        connection = kept;
    }

    runtime().block_on(async {
        let (status, text) = over_http2(&node, &certificate, "serial", "application/json", b"0".to_vec()).await;
        assert!(status == 200 && text.contains("serial"), "{text}");
        let (_, text) = over_http2(&node, &certificate, "sum", "application/octet-stream", large.clone()).await;
        assert_eq!(serde_json::from_str::<Value>(&text).unwrap()["result"], sum(&large));
        let (_, text) = over_http2(&node, &certificate, "count", "application/json", b"2".to_vec()).await;
        assert!(text.ends_with("data: [DONE]\n\n"), "{text}");
    });

    // A third-party client, in both versions of TLS.
    let script = "\
import http.client, socket, ssl, sys
host, port, certificate, name = sys.argv[1:]
for version in ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3:
    context = ssl.create_default_context(cafile=certificate)
    context.minimum_version = context.maximum_version = version
    client = http.client.HTTPSConnection(name, context=context)
    client.sock = context.wrap_socket(socket.create_connection((host, port)), server_hostname=name)
    client.request('POST', '/ai/run/serial', '0', {'authorization': 'Bearer one'})
    print(client.sock.version(), client.getresponse().status)
";
    let address = node.data_address();
    let python = Command::new("python3")
        .args(["-c", script, &address.ip().to_string(), &address.port().to_string()])
        .args([folder.path("certificate.pem").to_str().unwrap(), NAME])
        .output()
        .unwrap();
    assert_eq!(String::from_utf8_lossy(&python.stdout), "TLSv1.2 200\nTLSv1.3 200\n", "{python:?}");
    let key = certificate.key.lines().nth(1).unwrap();
    assert!(!node.log().contains(key) && !node.omnictl(["status"]).stdout.contains(key));
    node.stop();
}

#[test]
fn a_client_without_tls_costs_only_its_own_connection() {
    let certificate = Certificate::new();
    let folder = Folder::new(&certificate);
    let bounds = "connections = 4\nheader-timeout = \"2s\"\n";
    let node = builder(&format!("{TRUSTED}{bounds}{}", folder.config())).start();
    let served = || {
        let (answer, _) = ask(connect(&node, &[&certificate], &["http/1.1"]), "serial", &json!(0));
        assert_eq!(answer.status, 200, "{}", answer.text());
    };
    served();
    let plain =
        node.http().raw(b"POST /ai/run/serial HTTP/1.1\r\nhost: localhost\r\ncontent-length: 1\r\n\r\n0", false);
    assert!(!plain.starts_with(b"HTTP"), "{:?}", String::from_utf8_lossy(&plain));
    served();
    // As many as there may be: one says nothing, others begin and stop. Whoever comes then waits until they are closed.
    let beginning = b"\x16\x03\x01\x02\x00\x01\x00\x01";
    let stalled: Vec<TcpStream> = (0..4)
        .map(|bytes| {
            let mut connection = node.http().connect();
            connection.write_all(&beginning[..bytes * 2]).unwrap();
            connection
        })
        .collect();
    served();
    for mut connection in stalled {
        let _ = connection.read_to_end(&mut Vec::new()); // a reset is a way to close, too
    }
    served();
    assert_eq!(node.admin().get("/readyz").status, 200, "the admin listener speaks plain HTTP");
    let log = node.log();
    assert!(!log.contains("speak TLS"), "nobody fills the log: {log}");
    node.stop();
}

#[test]
fn the_earliest_expiry_in_the_chain_is_a_metric() {
    let (own, above) = (Certificate::until(2050), Certificate::until(2040));
    let folder = Folder::new(&own);
    folder.write("certificate.pem", &format!("{}{}", own.pem, above.pem));
    let node = Node::builder().config(&folder.config()).start();
    let metrics = node.admin().get("/metrics").text();
    let ends = metrics.lines().find_map(|line| line.strip_prefix("omni_tls_certificate_not_after_seconds "));
    assert_eq!(ends, Some("2208988800"), "{metrics}");
    node.stop();
}

#[test]
fn files_that_cannot_be_used_are_named() {
    let (good, other, expired) = (Certificate::new(), Certificate::new(), Certificate::expired());
    let folder = Folder::new(&good);
    let path = |name: &str| folder.path(name).display().to_string();
    let encrypted = "-----BEGIN ENCRYPTED PRIVATE KEY-----\nAAAA\n-----END ENCRYPTED PRIVATE KEY-----\n";
    folder.write("other.pem", &other.key);
    folder.write("encrypted.pem", encrypted);
    folder.write("empty.pem", "");
    folder.write("cut.pem", &good.pem[..good.pem.len() / 2]);
    folder.write("damaged.pem", "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n");
    folder.write("damaged-key.pem", "-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----\n");
    folder.write("both.pem", &format!("{}{}", good.key, good.pem));
    folder.write("expired.pem", &expired.pem);
    folder.write("expired-key.pem", &expired.key);
    let (certificate, key) = ("certificate.pem", "key.pem");
    for (certificate, key, code, words) in [
        (certificate, key, 0, String::new()),
        ("both.pem", "both.pem", 0, String::new()),
        ("expired.pem", "expired-key.pem", 0, format!("the certificate in {} has expired", path("expired.pem"))),
        ("none.pem", key, 78, format!("cannot read the certificate in {}", path("none.pem"))),
        (certificate, "none.pem", 78, format!("cannot read the private key in {}", path("none.pem"))),
        ("empty.pem", key, 78, format!("there is no certificate in {}", path("empty.pem"))),
        (key, key, 78, format!("there is no certificate in {}", path(key))),
        ("cut.pem", key, 78, format!("the certificate in {} is wrong", path("cut.pem"))),
        ("damaged.pem", key, 78, format!("the certificate in {} is wrong", path("damaged.pem"))),
        (certificate, certificate, 78, format!("there is no private key in {}", path(certificate))),
        (certificate, "encrypted.pem", 78, "one that is not encrypted".to_owned()),
        (certificate, "damaged-key.pem", 78, format!("the private key in {} is wrong", path("damaged-key.pem"))),
        (certificate, "other.pem", 78, format!("is not that of the certificate in {}", path(certificate))),
    ] {
        folder
            .write("omni.toml", &format!("[tls]\ncertificate = \"{}\"\nkey = \"{}\"\n", path(certificate), path(key)));
        let mut command = Command::new(program("omni-scheduler"));
        let ended = command.arg("--check-config").arg("--config").arg(folder.path("omni.toml")).output().unwrap();
        let said = String::from_utf8_lossy(&ended.stderr);
        assert!(ended.status.code() == Some(code) && said.contains(&words), "{certificate} {key}: {ended:?}");
        assert_eq!(said.is_empty(), words.is_empty(), "{said}");
    }
}
