//! Certificates for tests, a node's folder with them, and clients with TLS.

use http_body_util::{BodyExt, Full};
use hyper_util::rt::{TokioExecutor, TokioIo};
use omni_tests::{Answer, Node, Stream};
use rcgen::{CertificateParams, KeyPair, date_time_ymd};
use serde_json::Value;
use std::fs::{self, Permissions};
use std::io::{BufReader, Write};
use std::net::TcpStream;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::sync::Arc;
use tempfile::TempDir;
use tokio_rustls::TlsConnector;
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::CertificateDer;
use tokio_rustls::rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned};

pub(crate) const NAME: &str = "node.test";

pub(crate) type Connection = BufReader<StreamOwned<ClientConnection, TcpStream>>;

pub(crate) struct Certificate {
    pub(crate) pem: String,
    pub(crate) key: String,
    pub(crate) der: CertificateDer<'static>,
}

impl Certificate {
    pub(crate) fn new() -> Self {
        Self::of(&CertificateParams::new([NAME.to_owned()]).unwrap())
    }

    pub(crate) fn expired() -> Self {
        Self::until(2001)
    }

    /// A certificate that expires with the beginning of this year.
    pub(crate) fn until(year: i32) -> Self {
        let mut params = CertificateParams::new([NAME.to_owned()]).unwrap();
        (params.not_before, params.not_after) = (date_time_ymd(2000, 1, 1), date_time_ymd(year, 1, 1));
        Self::of(&params)
    }

    pub(crate) fn of(params: &CertificateParams) -> Self {
        let key = KeyPair::generate().unwrap();
        let certificate = params.self_signed(&key).unwrap();
        Self { pem: certificate.pem(), key: key.serialize_pem(), der: certificate.der().clone() }
    }
}

/// Where a node finds certificate, key and tokens.
pub(crate) struct Folder(TempDir);

impl Folder {
    pub(crate) fn new(certificate: &Certificate) -> Self {
        let folder = TempDir::with_prefix("omni-tls").unwrap();
        fs::set_permissions(folder.path(), Permissions::from_mode(0o755)).unwrap();
        let folder = Self(folder);
        folder.write("certificate.pem", &certificate.pem);
        folder.write("key.pem", &certificate.key);
        folder
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    pub(crate) fn write(&self, name: &str, text: &str) {
        fs::write(self.path(name), text).unwrap();
    }

    pub(crate) fn config(&self) -> String {
        let (certificate, key) = (self.path("certificate.pem"), self.path("key.pem"));
        format!("[tls]\ncertificate = \"{}\"\nkey = \"{}\"\n", certificate.display(), key.display())
    }
}

pub(crate) fn client(trusted: &[&Certificate], alpn: &[&str]) -> Arc<ClientConfig> {
    let mut roots = RootCertStore::empty();
    trusted.iter().for_each(|certificate| roots.add(certificate.der.clone()).unwrap());
    let builder = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()));
    let builder = builder.with_safe_default_protocol_versions().unwrap();
    let mut config = builder.with_root_certificates(roots).with_no_client_auth();
    config.alpn_protocols = alpn.iter().map(|name| name.as_bytes().to_vec()).collect();
    Arc::new(config)
}

/// A connection for HTTP/1.1 after its TLS handshake.
pub(crate) fn connect(node: &Node, trusted: &[&Certificate], alpn: &[&str]) -> Connection {
    let mut socket = node.http().connect();
    let mut tls = ClientConnection::new(client(trusted, alpn), NAME.try_into().unwrap()).unwrap();
    while tls.is_handshaking() {
        tls.complete_io(&mut socket).expect("TLS");
    }
    BufReader::new(StreamOwned::new(tls, socket))
}

/// Which certificate it shows.
pub(crate) fn shown(connection: &Connection) -> &CertificateDer<'static> {
    &connection.get_ref().conn.peer_certificates().expect("a certificate")[0]
}

pub(crate) fn send(connection: &mut Connection, model: &str, headers: &str, body: &[u8]) {
    let head =
        format!("POST /ai/run/{model} HTTP/1.1\r\nhost: {NAME}\r\n{headers}content-length: {}\r\n\r\n", body.len());
    // In one write: a refusal before the body has come closes the connection.
    connection.get_mut().write_all(&[head.as_bytes(), body].concat()).unwrap();
}

/// A request, its answer, and the connection for more.
pub(crate) fn ask(mut connection: Connection, model: &str, body: &Value) -> (Answer, Connection) {
    send(&mut connection, model, "", body.to_string().as_bytes());
    Stream::read(connection).whole_then()
}

/// A request over HTTP/2, and its answer's status and text.
pub(crate) async fn over_http2(
    node: &Node,
    trusted: &Certificate,
    model: &str,
    media: &str,
    body: Vec<u8>,
) -> (u16, String) {
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

pub(crate) fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap()
}
