//! TLS of the data listener: who is served and how, what costs only itself, and what a reload and a takeover change.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a failed step of a test is a failed test")]

use http_body_util::{BodyExt, Full};
use hyper_util::rt::{TokioExecutor, TokioIo};
use nix::unistd::Pid;
use omni_tests::process::is_alive;
use omni_tests::{Answer, Node, NodeBuilder, PATIENCE, Stream, program, wait_for};
use rcgen::{CertificateParams, KeyPair, date_time_ymd};
use serde_json::{Value, json};
use std::fs::{self, Permissions};
use std::io::{BufReader, Read, Write};
use std::net::TcpStream;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::process::Command;
use std::sync::Arc;
use std::thread;
use tempfile::TempDir;
use tokio_rustls::TlsConnector;
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::CertificateDer;
use tokio_rustls::rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned};

/// Answers at once, or after so many seconds.
const SERIAL: &[(&str, &str)] = &[(
    "model.py",
    "import time\ndef handle_request(request, context):\n    time.sleep(request.body.json or 0)\n    return context.model\n",
)];
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
const NAME: &str = "node.test";
/// SHA-256 of `one`.
const ONE: &str = "7692c3ad3540bb803c020b3aee66cd8887123234ea0c6e7143c0add73ff431ed";

type Connection = BufReader<StreamOwned<ClientConnection, TcpStream>>;

struct Certificate {
    pem: String,
    key: String,
    der: CertificateDer<'static>,
}

impl Certificate {
    fn new() -> Self {
        Self::of(CertificateParams::new([NAME.to_owned()]).unwrap())
    }

    fn expired() -> Self {
        let mut params = CertificateParams::new([NAME.to_owned()]).unwrap();
        (params.not_before, params.not_after) = (date_time_ymd(2000, 1, 1), date_time_ymd(2001, 1, 1));
        Self::of(params)
    }

    fn of(params: CertificateParams) -> Self {
        let key = KeyPair::generate().unwrap();
        let certificate = params.self_signed(&key).unwrap();
        Self { pem: certificate.pem(), key: key.serialize_pem(), der: certificate.der().clone() }
    }
}

/// Where a node finds certificate, key and tokens.
struct Folder(TempDir);

impl Folder {
    fn new(certificate: &Certificate) -> Self {
        let folder = TempDir::with_prefix("omni-tls").unwrap();
        fs::set_permissions(folder.path(), Permissions::from_mode(0o755)).unwrap();
        let folder = Self(folder);
        folder.write("certificate.pem", &certificate.pem);
        folder.write("key.pem", &certificate.key);
        folder
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn write(&self, name: &str, text: &str) {
        fs::write(self.path(name), text).unwrap();
    }

    fn config(&self) -> String {
        let (certificate, key) = (self.path("certificate.pem"), self.path("key.pem"));
        format!("[tls]\ncertificate = \"{}\"\nkey = \"{}\"\n", certificate.display(), key.display())
    }
}

fn client(trusted: &[&Certificate], alpn: &[&str]) -> Arc<ClientConfig> {
    let mut roots = RootCertStore::empty();
    trusted.iter().for_each(|certificate| roots.add(certificate.der.clone()).unwrap());
    let builder = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()));
    let builder = builder.with_safe_default_protocol_versions().unwrap();
    let mut config = builder.with_root_certificates(roots).with_no_client_auth();
    config.alpn_protocols = alpn.iter().map(|name| name.as_bytes().to_vec()).collect();
    Arc::new(config)
}

/// A connection for HTTP/1.1 on which TLS is spoken already.
fn connect(node: &Node, trusted: &[&Certificate], alpn: &[&str]) -> Connection {
    let mut socket = node.http().connect();
    let mut tls = ClientConnection::new(client(trusted, alpn), NAME.try_into().unwrap()).unwrap();
    while tls.is_handshaking() {
        tls.complete_io(&mut socket).expect("TLS");
    }
    BufReader::new(StreamOwned::new(tls, socket))
}

/// Which certificate it shows.
fn shown(connection: &Connection) -> &CertificateDer<'static> {
    &connection.get_ref().conn.peer_certificates().expect("a certificate")[0]
}

fn send(connection: &mut Connection, model: &str, headers: &str, body: &[u8]) {
    let head =
        format!("POST /ai/run/{model} HTTP/1.1\r\nhost: {NAME}\r\n{headers}content-length: {}\r\n\r\n", body.len());
    connection.get_mut().write_all(head.as_bytes()).unwrap();
    connection.get_mut().write_all(body).unwrap();
}

/// A request, its answer, and the connection for more.
fn ask(mut connection: Connection, model: &str, body: &Value) -> (Answer, Connection) {
    send(&mut connection, model, "", body.to_string().as_bytes());
    Stream::read(connection).whole_then()
}

/// A request over HTTP/2, and its answer's status and text.
async fn over_http2(node: &Node, trusted: &Certificate, model: &str, media: &str, body: Vec<u8>) -> (u16, String) {
    let socket = tokio::net::TcpStream::connect(node.data_address()).await.unwrap();
    let connector = TlsConnector::from(client(&[trusted], &["http/1.1", "h2"]));
    let stream = connector.connect(NAME.try_into().unwrap(), socket).await.expect("TLS");
    assert_eq!(stream.get_ref().1.alpn_protocol(), Some(&b"h2"[..]), "the node prefers it");
    let (mut sender, connection) =
        hyper::client::conn::http2::handshake(TokioExecutor::new(), TokioIo::new(stream)).await.unwrap();
    tokio::spawn(connection);
    let request = hyper::Request::post(format!("https://{NAME}/ai/run/{model}"));
    let request = request.header("content-type", media).header("authorization", "Bearer one");
    let answer =
        sender.send_request(request.body(Full::new(bytes::Bytes::from(body))).unwrap()).await.expect("an answer");
    let status = answer.status().as_u16();
    let body = answer.into_body().collect().await.expect("a whole answer").to_bytes();
    (status, String::from_utf8(body.into()).unwrap())
}

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap()
}

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

/// What `omnictl upgrade` says when it succeeds.
fn upgrade(node: &mut Node) -> Value {
    let said = node.omnictl(["upgrade", "-o", "json"]);
    let answer: Value = serde_json::from_str(&said.stdout).unwrap_or_else(|_| panic!("{said:?}\n{}", node.log()));
    node.succeeded(Pid::from_raw(answer["pid"].as_i64().unwrap().try_into().unwrap()));
    answer
}

#[test]
fn clients_get_what_they_get_without() {
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

    // One that we did not write, in both versions of TLS that there are.
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
fn who_does_not_speak_tls_costs_only_its_own_connection() {
    let certificate = Certificate::new();
    let folder = Folder::new(&certificate);
    let bounds = "connections = 4\nheader-timeout = \"1s\"\n";
    let node = builder(&format!("{TRUSTED}{bounds}{}", folder.config())).start();
    let served = || {
        let (answer, _) = ask(connect(&node, &[&certificate], &["http/1.1"]), "serial", &json!(0));
        assert_eq!(answer.status, 200, "{}", answer.text());
    };
    served();
    let plain = node.http().raw(b"POST /ai/run/serial HTTP/1.1\r\nhost: x\r\ncontent-length: 1\r\n\r\n0", false);
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
    // What is spoken on a connection cannot go to another process: it serves once more, and says so.
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
fn tls_is_begun_and_ended_by_a_reload() {
    let certificate = Certificate::new();
    let folder = Folder::new(&certificate);
    let mut node = builder(TRUSTED).start();
    let post = b"POST /ai/run/serial HTTP/1.1\r\nhost: x\r\ncontent-length: 1\r\n\r\n0";
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
