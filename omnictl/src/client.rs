//! HTTP/1.1 over the daemon's control socket: the only way in which `omnictl` reaches a node.
//!
//! Called by the commands. A connection carries one request: dropping an answer closes it and so cancels the request.
//!
//! Invariants: a returned answer has a successful status, and anything else is a [`ClientError`]; memory for collected
//! bodies is bounded; unknown fields in answers are ignored.

use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use bytes::Bytes;
use http_body_util::combinators::BoxBody;
use http_body_util::{BodyExt, Empty, LengthLimitError, Limited};
use hyper::body::Incoming;
use hyper::client::conn::http1;
use hyper::{Method, Request, Response, StatusCode, header};
use hyper_util::rt::TokioIo;
use interprocess::local_socket::tokio::{Stream, prelude::*};
use interprocess::local_socket::{GenericFilePath, ToFsName};
use omni_config::ModelName;
use omni_control_api::Problem;
use serde::Deserialize;
use serde_json::Value;
use serde_json::value::RawValue;

/// Longest answer that is kept in memory.
const ANSWER_LIMIT: usize = 64 << 20;
/// Longest error document that is read.
const PROBLEM_LIMIT: usize = 256 << 10;
/// How long the daemon may take for what it only has to look up.
const LOOKUP_LIMIT: Duration = Duration::from_secs(10);

/// The kind of problem that says that the node does not have the model; a model's own 404 is another.
pub(crate) const NO_SUCH_MODEL: &str = "no-such-model";
/// The one that says that this caller may not ask for that; a model's own 403 is another.
pub(crate) const NOT_ALLOWED: &str = "not-allowed";
/// Kind of a refusal: the daemon does not know yet which models there are.
pub(crate) const MODELS_UNKNOWN: &str = "models-unknown";
/// [`NO_SUCH_MODEL`] in the run API's envelope.
const NO_SUCH_MODEL_CODE: u64 = 5007;
/// Characters of an unknown error document that are shown.
const SHOWN: usize = 2000;

/// Body of a request.
pub(crate) type RequestBody = BoxBody<Bytes, io::Error>;

/// The way to one daemon.
#[derive(Clone, Debug)]
pub(crate) struct Client {
    socket: PathBuf,
}

/// Why there is no answer.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ClientError {
    /// The socket does not exist.
    #[error("there is no daemon at {}", .0.display())]
    NotThere(PathBuf),
    /// The socket may not be opened by this user.
    #[error("no permission to use {}", .0.display())]
    Permission(PathBuf),
    /// The socket is a leftover.
    #[error("nothing listens at {}: the daemon has ended", .0.display())]
    NobodyListens(PathBuf),
    /// Anything else on the way to the socket.
    #[error("cannot connect to {}", .socket.display())]
    Connect {
        /// The socket.
        socket: PathBuf,
        /// The system's error.
        #[source]
        source: io::Error,
    },
    /// The connection ended in the middle, or what came is not HTTP.
    #[error("the connection to the daemon broke")]
    Broken(#[source] hyper::Error),
    /// Connected, and no answer.
    #[error("the daemon took the connection and has not answered for {} seconds", .0.as_secs())]
    Mute(Duration),
    /// The body of an answer ended too early or is too long to be kept.
    #[error("the daemon's answer could not be read to its end")]
    Body(#[source] Box<dyn std::error::Error + Send + Sync>),
    /// An answer that is not what the API says.
    #[error("the daemon's answer to {route} is not understood")]
    Answer {
        /// Route of the request.
        route: String,
        /// Error of the parser.
        #[source]
        source: serde_json::Error,
    },
    /// The daemon refused, with its reason.
    #[error("{}", .0.detail)]
    Refused(Problem),
}

/// A JSON answer, read whole.
#[derive(Debug)]
pub(crate) struct Answer {
    route: String,
    body: Bytes,
}

impl Answer {
    /// The answer, parsed.
    pub(crate) fn value<'a, T: Deserialize<'a>>(&'a self) -> Result<T, ClientError> {
        serde_json::from_slice(&self.body).map_err(|source| ClientError::Answer { route: self.route.clone(), source })
    }

    /// The answer's body, which is JSON.
    pub(crate) fn json(&self) -> Result<&str, ClientError> {
        self.value::<&RawValue>().map(RawValue::get)
    }
}

/// The route of a model, or of something below it: `/v1/models/@cf%2Fmeta%2Fx/logs`.
///
/// The name is one segment; of the characters that a [`ModelName`] can have, only `/` must be escaped for that.
pub(crate) fn model_route(model: &ModelName, below: &str) -> String {
    format!("/v1/models/{}{below}", model.as_str().replace('/', "%2F"))
}

/// A request without a body.
pub(crate) fn empty() -> RequestBody {
    Empty::new().map_err(|never| match never {}).boxed()
}

impl Client {
    /// A client of the daemon at this socket. Connects when something is asked.
    pub(crate) fn new(socket: &Path) -> Self {
        Self { socket: socket.to_owned() }
    }

    /// Asks for a value.
    pub(crate) async fn get(&self, route: &str) -> Result<Answer, ClientError> {
        self.exchange(Method::GET, route, LOOKUP_LIMIT).await
    }

    /// Tells the daemon to do something, without a body.
    pub(crate) async fn post(&self, route: &str) -> Result<Answer, ClientError> {
        self.post_within(LOOKUP_LIMIT, route).await
    }

    /// The same for what takes the daemon longer.
    pub(crate) async fn post_within(&self, limit: Duration, route: &str) -> Result<Answer, ClientError> {
        self.exchange(Method::POST, route, limit).await
    }

    async fn exchange(&self, method: Method, route: &str, limit: Duration) -> Result<Answer, ClientError> {
        let answered = async {
            let answer = self.send(request(method, route, empty())).await?;
            read(route, answer.into_body()).await
        };
        tokio::time::timeout(limit, answered).await.map_err(|_| ClientError::Mute(limit))?
    }

    /// Sends a request and returns the answer as soon as its head is there; the body can be read as it arrives.
    pub(crate) async fn send(&self, request: Request<RequestBody>) -> Result<Response<Incoming>, ClientError> {
        let stream = self.connect().await?;
        let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await.map_err(ClientError::Broken)?;
        // Errors of the connection also reach the reader of the answer.
        tokio::spawn(connection);
        let answer = sender.send_request(request).await.map_err(ClientError::Broken)?;
        if answer.status().is_success() { Ok(answer) } else { Err(refusal(answer).await) }
    }

    async fn connect(&self) -> Result<Stream, ClientError> {
        let connected = match self.socket.as_path().to_fs_name::<GenericFilePath>() {
            Ok(name) => Stream::connect(name).await,
            Err(error) => Err(error),
        };
        let socket = || self.socket.clone();
        connected.map_err(|source| match source.kind() {
            io::ErrorKind::NotFound => ClientError::NotThere(socket()),
            io::ErrorKind::PermissionDenied => ClientError::Permission(socket()),
            io::ErrorKind::ConnectionRefused => ClientError::NobodyListens(socket()),
            _ => ClientError::Connect { socket: socket(), source },
        })
    }
}

/// A request to the control API.
pub(crate) fn request(method: Method, route: &str, body: RequestBody) -> Request<RequestBody> {
    let mut request = Request::new(body);
    *request.method_mut() = method;
    // Routes are made of literals, numbers and `model_route`, all of which are valid.
    *request.uri_mut() = route.parse().unwrap_or_default();
    request.headers_mut().insert(header::HOST, header::HeaderValue::from_static("localhost"));
    request
}

/// Reads a body to its end, up to `limit` bytes.
async fn collect(body: Incoming, limit: usize) -> Result<Bytes, ClientError> {
    Limited::new(body, limit).collect().await.map(|body| body.to_bytes()).map_err(ClientError::Body)
}

/// Reads a JSON answer to its end, as [`Client::get`] does for what it asked.
pub(crate) async fn read(route: &str, body: Incoming) -> Result<Answer, ClientError> {
    Ok(Answer { route: route.to_owned(), body: collect(body, ANSWER_LIMIT).await? })
}

/// The error in an unsuccessful answer.
async fn refusal(answer: Response<Incoming>) -> ClientError {
    let status = answer.status();
    match collect(answer.into_body(), PROBLEM_LIMIT).await {
        Ok(body) => ClientError::Refused(problem(status, &body)),
        Err(ClientError::Body(source)) if source.is::<LengthLimitError>() => ClientError::Refused(problem(status, b"")),
        Err(error) => error,
    }
}

/// The problem document of an answer: as it came, or made from the run API's envelope, or from what there is.
fn problem(status: StatusCode, body: &[u8]) -> Problem {
    if let Ok(problem) = serde_json::from_slice(body) {
        return problem;
    }
    let title = status.canonical_reason().unwrap_or("unknown status").to_owned();
    let envelope: Value = serde_json::from_slice(body).unwrap_or_default();
    let code = envelope.pointer("/errors/0/code").and_then(Value::as_u64);
    let detail = match envelope.pointer("/errors/0/message").and_then(Value::as_str) {
        Some(message) => message.to_owned(),
        None => {
            let shown: String = String::from_utf8_lossy(body).trim().chars().take(SHOWN).collect();
            let gap = if shown.is_empty() { "" } else { ": " };
            format!("status {} {title}{gap}{shown}", status.as_u16())
        }
    };
    let kind = if code == Some(NO_SUCH_MODEL_CODE) { NO_SUCH_MODEL } else { "about:blank" };
    Problem { kind: kind.to_owned(), detail, title, status: status.as_u16() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_with_slashes_is_one_segment_of_a_route() {
        let model: ModelName = "@cf/meta/llama-3.1".parse().unwrap();
        assert_eq!(model_route(&model, "/start"), "/v1/models/@cf%2Fmeta%2Fllama-3.1/start");
        assert_eq!(request(Method::GET, &model_route(&model, ""), empty()).uri(), "/v1/models/@cf%2Fmeta%2Fllama-3.1");
    }

    #[test]
    fn every_kind_of_refusal_becomes_a_problem() {
        let own = br#"{"type":"not-ready","title":"Service Unavailable","status":503,"detail":"why","new":1}"#;
        let envelope =
            br#"{"result":null,"success":false,"errors":[{"code":5004,"message":"not JSON"}],"messages":[]}"#;
        for (status, body, kind, detail) in [
            (503, &own[..], "not-ready", "why"),
            (400, &envelope[..], "about:blank", "not JSON"),
            (404, br#"{"errors":[{"code":5007,"message":"no"}]}"#, "no-such-model", "no"),
            (502, b"<html>\n", "about:blank", "status 502 Bad Gateway: <html>"),
            (422, b"{\"field\": 1}", "about:blank", "status 422 Unprocessable Entity: {\"field\": 1}"),
            (418, b"", "about:blank", "status 418 I'm a teapot"),
        ] {
            let problem = problem(StatusCode::from_u16(status).unwrap(), body);
            assert_eq!((problem.status, problem.kind.as_str(), problem.detail.as_str()), (status, kind, detail));
        }
    }
}
