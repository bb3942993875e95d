//! Requests to the servers of a source: connections to addresses that were checked, and redirects that were.
//!
//! Invariant: the address that is connected is the one that was checked. A host is resolved once for each connection, here,
//! and nothing below resolves it again.

use crate::failure::{Failure, Refuser};
use crate::pace::Progress;
use crate::resolver::Resolver;
use crate::rules::Rules;
use crate::signature::Signer;
use crate::url::{Origin, Url};
use bytes::Bytes;
use http_body_util::{BodyExt, Empty, LengthLimitError, Limited};
use hyper::body::Incoming;
use hyper::client::conn::http1::{self, SendRequest};
use hyper::header::{ACCEPT_ENCODING, AUTHORIZATION, HOST, HeaderName, HeaderValue, LINK, LOCATION, USER_AGENT};
use hyper::{Method, Request, Response};
use hyper_util::rt::TokioIo;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_rustls::TlsConnector;
use tokio_rustls::rustls::pki_types::ServerName;

/// Time for a connection with TLS.
const CONNECT: Duration = Duration::from_secs(20);
/// Time for its addresses, divided among them: one that does not answer leaves the others theirs.
const ADDRESSES: Duration = Duration::from_secs(10);
/// Time for the head of a response, and between two pieces of its body.
pub(crate) const SILENCE: Duration = Duration::from_secs(60);
/// Redirects of one request.
const REDIRECTS: usize = 5;
/// Bytes that a connection reads at a time: those of all connections stay in the processor's cache until they are written.
const BUFFER: usize = 64 << 10;
/// Connections that a task keeps: to the source's server, and to one that it redirects to.
const KEPT: usize = 2;

/// Client of one source.
pub(crate) struct Client {
    pub(crate) rules: Rules,
    pub(crate) tls: TlsConnector,
    pub(crate) resolver: Arc<dyn Resolver>,
    pub(crate) access: Access,
    /// Name of the credential in `access`.
    pub(crate) credential: Option<String>,
    pub(crate) traffic: Traffic,
}

/// Traffic of a client since its beginning.
#[derive(Debug, Default)]
pub(crate) struct Traffic {
    received: AtomicU64,
    responses: AtomicU64,
}

impl Traffic {
    /// Counts bytes of a body.
    pub(crate) fn receive(&self, bytes: usize) {
        self.received.fetch_add(bytes as u64, Ordering::Relaxed);
    }

    /// Progress of the run, with what digests cover.
    pub(crate) fn progress(&self, hashed: u64) -> Progress {
        let (received, responses) = (self.received.load(Ordering::Relaxed), self.responses.load(Ordering::Relaxed));
        Progress { received, responses, hashed }
    }
}

/// How requests to the source's own server are authorised. Servers that it redirects to get nothing of it.
pub(crate) enum Access {
    Anyone,
    Bearer(HeaderValue),
    Signed(Signer),
}

/// Connections of a task, kept for its next request.
pub(crate) struct Connections {
    client: Arc<Client>,
    kept: Vec<(Origin, SendRequest<Empty<Bytes>>)>,
}

/// Request for a URL.
#[derive(Debug, Clone)]
pub(crate) struct Get<'a> {
    pub(crate) url: &'a Url,
    /// Value of `Range`.
    pub(crate) range: Option<String>,
    /// Value of `If-Match`, for the server that gave it.
    pub(crate) if_match: Option<(&'a Origin, &'a str)>,
}

/// Response, and the server that gave it.
pub(crate) struct Answer {
    pub(crate) response: Response<Incoming>,
    pub(crate) origin: Origin,
}

impl Answer {
    pub(crate) fn status(&self) -> u16 {
        self.response.status().as_u16()
    }

    /// Value of a field of its head.
    pub(crate) fn field(&self, name: &HeaderName) -> Option<&str> {
        self.response.headers().get(name).and_then(|value| value.to_str().ok())
    }
}

impl Client {
    fn request(&self, get: &Get<'_>, url: &Url) -> Result<Request<Empty<Bytes>>, Failure> {
        let is_own = url.origin == self.rules.own;
        let mut builder = Request::builder().method(Method::GET).uri(&url.path);
        builder = builder.header(HOST, url.origin.authority()).header(ACCEPT_ENCODING, "identity");
        builder = builder.header(USER_AGENT, concat!("omni-weights/", env!("CARGO_PKG_VERSION")));
        if let Some(range) = &get.range {
            builder = builder.header(hyper::header::RANGE, range);
        }
        if let Some((_, etag)) = get.if_match.filter(|(origin, _)| **origin == url.origin) {
            builder = builder.header(hyper::header::IF_MATCH, etag);
        }
        match &self.access {
            Access::Bearer(token) if is_own => builder = builder.header(AUTHORIZATION, token),
            Access::Signed(signer) if is_own => {
                for (name, value) in signer.fields(url) {
                    let value = HeaderValue::from_str(&value);
                    let value = value.map_err(|_| Failure::odd(url, "a signature that is no text"))?;
                    builder = builder.header(HeaderName::from_static(name), value);
                }
            }
            Access::Bearer(_) | Access::Signed(_) | Access::Anyone => {}
        }
        builder.body(Empty::new()).map_err(|_| Failure::odd(url, "a path that cannot be asked for"))
    }

    /// Connects to an address of the host that was checked.
    async fn connect(&self, url: &Url) -> Result<SendRequest<Empty<Bytes>>, Failure> {
        let host = &url.origin.host;
        let addresses = match host.parse::<IpAddr>() {
            Ok(address) => vec![address],
            Err(_) => self.resolver.resolve(host).await.map_err(|error| Failure::network(url, error.to_string()))?,
        };
        self.rules.addresses(host, &addresses)?;
        let mut last = io::Error::from(io::ErrorKind::NotFound);
        let each = ADDRESSES / u32::try_from(addresses.len()).unwrap_or(u32::MAX).max(1);
        for address in addresses {
            match timeout(each, TcpStream::connect(SocketAddr::new(address, url.origin.port))).await {
                Ok(Ok(stream)) => {
                    let _ = stream.set_nodelay(true);
                    return self.begin(url, stream).await;
                }
                Ok(Err(error)) => last = error,
                Err(_) => last = io::Error::from(io::ErrorKind::TimedOut),
            }
        }
        Err(Failure::network(url, last.to_string()))
    }

    async fn begin(&self, url: &Url, stream: TcpStream) -> Result<SendRequest<Empty<Bytes>>, Failure> {
        let spoken = if url.origin.is_plain {
            speak(stream).await
        } else {
            let name = ServerName::try_from(url.origin.host.clone());
            let name = name.map_err(|error| Failure::network(url, error.to_string()))?;
            let stream = self.tls.connect(name, stream).await;
            speak(stream.map_err(|error| Failure::network(url, format!("TLS: {error}")))?).await
        };
        spoken.map_err(|error| Failure::network(url, chain(&error)))
    }
}

impl Connections {
    /// Without a connection.
    pub(crate) fn new(client: Arc<Client>) -> Self {
        Self { client, kept: Vec::new() }
    }

    /// Traffic of their client.
    pub(crate) fn traffic(&self) -> &Traffic {
        &self.client.traffic
    }

    /// Sends a request and follows redirects.
    pub(crate) async fn get(&mut self, get: &Get<'_>) -> Result<Answer, Failure> {
        let mut url = get.url.clone();
        for _ in 0..=REDIRECTS {
            let request = self.client.request(get, &url)?;
            let response = self.send(&url, request).await?;
            let answer = Answer { response, origin: url.origin.clone() };
            if !matches!(answer.status(), 301 | 302 | 303 | 307 | 308) {
                return Ok(answer);
            }
            let location = answer.field(&LOCATION).ok_or_else(|| Failure::odd(&url, "a redirect without a place"))?;
            let next = url.join(location).map_err(|_| Failure::odd(&url, "a redirect to what is no URL"))?;
            self.client.rules.redirect(&url, &next)?;
            // The rest of the body is small: the connection can be used again.
            let _ = timeout(SILENCE, Limited::new(answer.response.into_body(), 64 << 10).collect()).await;
            url = next;
        }
        Err(Failure::odd(get.url, format!("more than {REDIRECTS} redirects")))
    }

    /// Failure of an answer without what was asked for.
    pub(crate) fn failure(&self, url: &Url, answer: &Answer) -> Failure {
        let status = answer.status();
        if !matches!(status, 401 | 403) {
            return Failure::status(url, status);
        }
        let by = if answer.origin == self.client.rules.own {
            self.client.credential.clone().map_or(Refuser::OwnWithoutCredential, Refuser::Own)
        } else {
            Refuser::Other(answer.origin.clone())
        };
        Failure::Forbidden { url: url.to_string(), status, by }
    }

    /// The body of a response of status 200, of so many bytes at most, and its field `Link`.
    pub(crate) async fn text(&mut self, url: &Url, most: usize) -> Result<(Bytes, Option<String>), Failure> {
        let answer = self.get(&Get { url, range: None, if_match: None }).await?;
        if answer.status() != 200 {
            return Err(self.failure(url, &answer));
        }
        let link = answer.field(&LINK).map(str::to_owned);
        let body = timeout(SILENCE, Limited::new(answer.response.into_body(), most).collect()).await;
        let body = body.map_err(|_| Failure::network(url, "no more comes"))?;
        let body = body.map_err(|error| match error.is::<LengthLimitError>() {
            true => Failure::odd(url, format!("a list of more than {} MiB", most >> 20)),
            false => Failure::network(url, error.to_string()),
        })?;
        let body = body.to_bytes();
        self.client.traffic.receive(body.len());
        Ok((body, link))
    }

    async fn send(&mut self, url: &Url, request: Request<Empty<Bytes>>) -> Result<Response<Incoming>, Failure> {
        let mut sender = match self.take(&url.origin).await {
            Some(sender) => sender,
            None => {
                let connected = timeout(CONNECT, self.client.connect(url)).await;
                connected.map_err(|_| Failure::network(url, "no connection in time"))??
            }
        };
        let sent = timeout(SILENCE, sender.send_request(request)).await;
        let response = sent.map_err(|_| Failure::network(url, "no response in time"))?;
        let response = response.map_err(|error| Failure::network(url, chain(&error)))?;
        self.client.traffic.responses.fetch_add(1, Ordering::Relaxed);
        self.kept.push((url.origin.clone(), sender));
        Ok(response)
    }

    /// A connection to the server whose last response has been read.
    async fn take(&mut self, origin: &Origin) -> Option<SendRequest<Empty<Bytes>>> {
        self.kept.retain(|(_, sender)| !sender.is_closed());
        if self.kept.len() > KEPT {
            self.kept.remove(0);
        }
        let at = self.kept.iter().position(|(known, _)| known == origin)?;
        let (_, mut sender) = self.kept.remove(at);
        // A connection whose response is not read to its end is closed instead.
        let is_ready = timeout(Duration::from_secs(1), sender.ready()).await;
        is_ready.is_ok_and(|ready| ready.is_ok()).then_some(sender)
    }

    /// Closes all of them: a body is not read to its end.
    pub(crate) fn close(&mut self) {
        self.kept.clear();
    }
}

async fn speak(
    stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
) -> Result<SendRequest<Empty<Bytes>>, hyper::Error> {
    let (sender, connection) = http1::Builder::new().max_buf_size(BUFFER).handshake(TokioIo::new(stream)).await?;
    tokio::spawn(connection); // ends with its sender; an error is the sender's, too
    Ok(sender)
}

/// An error with its causes.
pub(crate) fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        text = format!("{text}: {cause}");
        source = cause.source();
    }
    text
}
