//! Requests of a client, from the first byte to the model's view of them: through the listener's own hyper, the routes,
//! and all headers that mean something to the node.

use crate::scheduler::{RUNTIME, content};
use bytes::Bytes;
use hyper::body::Incoming;
use hyper::header::HeaderMap;
use hyper::http::request::Parts;
use hyper::rt::ReadBufCursor;
use hyper::service::service_fn;
use hyper::{Method, Request, Response, Version};
use omni_body::{BodyBudget, BodyMetrics, BudgetShare, RequestBody};
use omni_engine_protocol::frame::RequestHead;
use omni_inference::answer::AnswerBody;
use omni_inference::answer::json_body;
use omni_inference::head::{head, priority, request_id, session, timeout};
use omni_ingress::body::{self, BodyLimits, STREAM_FROM, bypass_length, is_json};
use omni_ingress::{ConnectionLimits, http_builder};
use omni_request_error::Failure;
use omni_supervisor::model::content::Content;
use omni_workers_ai::{error_response, model_of};
use serde_json::Value;
use std::convert::Infallible;
use std::io;
use std::path::{Component, Path};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

/// Limits of the model.
const MANIFEST: &str = "[limits]\nbody = \"1KiB\"\n[timeouts]\nrequest = \"20s\"\n[scaling]\npriority = 5\n";
const LIMIT: usize = 1024;
/// Budget of the node for bodies.
const BUDGET: u64 = 4096;
/// As the listener has them.
const HEADERS: usize = 100;
/// No client can have a connection do anything for so long, once it has said all.
const ENDS_WITHIN: Duration = Duration::from_secs(20);
/// Some headers that no model gets.
const WITHHELD: [&str; 5] = ["authorization", "proxy-authorization", "cookie", "x-auth-key", "transfer-encoding"];

/// A client that has sent everything, and reads nothing.
struct Client {
    said: Bytes,
}

/// Context in which every request of a connection is checked.
struct World {
    content: Arc<Content>,
    budget: Arc<BodyBudget>,
    room: Arc<BudgetShare>,
    /// The runtime keeps a panic within its task.
    is_broken: AtomicBool,
}

/// Serves a connection with these bytes.
///
/// # Panics
///
/// The connection does not end, a request is misread, or the model gets a header that it must not get.
pub fn holds(data: &[u8]) {
    let budget = BodyBudget::new(BUDGET, 8, BodyMetrics::default());
    let world =
        Arc::new(World { content: content(MANIFEST), room: budget.share(), budget, is_broken: AtomicBool::new(false) });
    RUNTIME.with(|runtime| {
        runtime.block_on(async {
            let header_timeout = Duration::from_secs(5);
            let limits = ConnectionLimits { connections: 1, connections_per_address: None, header_timeout };
            let asked = Arc::clone(&world);
            let service = service_fn(move |request| {
                let world = Arc::clone(&asked);
                async move { Ok::<_, Infallible>(serve(&world, request).await) }
            });
            let client = Client { said: Bytes::copy_from_slice(data) };
            let builder = http_builder(limits);
            let connection = builder.serve_connection(client, service);
            // Errors of the protocol are between hyper and the client.
            let _ = tokio::time::timeout(ENDS_WITHIN, connection).await.expect("the connection ends with its client");
            tokio::task::yield_now().await;
        });
    });
    assert!(!world.is_broken.load(Ordering::Relaxed), "a request broke a property: see above");
}

async fn serve(world: &World, request: Request<Incoming>) -> Response<AnswerBody> {
    let _witness = Witness(&world.is_broken);
    if let Some(length) = bypass_length(&request) {
        assert!(length > STREAM_FROM && request.version() == Version::HTTP_11 && !is_json(request.headers()));
    }
    let (parts, body) = request.into_parts();
    assert!(parts.version == Version::HTTP_2 || parts.headers.len() <= HEADERS);
    let id = request_id(&parts.headers);
    assert!((1..=128).contains(&id.len()) && id.as_bytes().iter().all(u8::is_ascii_graphic), "{id:?}");
    let (path, method) = (parts.uri.path(), &parts.method);
    let name = match model_of(method, path) {
        Ok(name) => name,
        Err(failure) => {
            let response = error_response(&failure).map(AnswerBody::full);
            let is_allowed_elsewhere = response.headers().get("allow").is_some_and(|allowed| allowed == "POST");
            assert_eq!(
                (response.status() == 405, is_allowed_elsewhere),
                (method != Method::POST && is_route(path), response.status() == 405)
            );
            return refused(response);
        }
    };
    assert!(method == Method::POST && is_route(path), "{method} {path}");
    assert_eq!(decoded(path).as_deref(), Some(name.as_str().as_bytes()), "{path}");
    assert!(Path::new(name.as_str()).components().all(|part| matches!(part, Component::Normal(_))), "{name}");
    let time = match terms(&parts.headers, &world.content) {
        Ok(time) => time,
        Err(failure) => return refused(error_response(&failure).map(AnswerBody::full)),
    };
    let deadline = Instant::now() + time;
    let limits = &world.content.manifest.limits;
    let limits = BodyLimits { bytes: limits.body.bytes(), hand_over: limits.body_handover };
    let taken = match body::receive(&parts, None, body, limits, &world.room, deadline).await {
        Ok(taken) => taken,
        Err(failure) => return refused(error_response(&failure).map(AnswerBody::full)),
    };
    match &taken.body {
        RequestBody::Collected(_, bytes) => {
            let held = taken.permit.as_ref().map_or(0, |held| held.bytes());
            assert!(bytes.len() <= LIMIT && held >= bytes.len() as u64 && world.budget.reserved() <= BUDGET);
        }
        RequestBody::Streamed(_) => assert!(!is_json(&parts.headers) && taken.length.is_none_or(|l| l > STREAM_FROM)),
    }
    told(&parts, id.as_bytes(), taken.length);
    Response::new(json_body(200, Bytes::from(serde_json::to_vec(&name).expect("a name is a text")), false))
}

/// A failure is never taken for a success: not by its status, nor by its body.
fn refused(response: Response<AnswerBody>) -> Response<AnswerBody> {
    assert!(response.status().is_client_error() || response.status().is_server_error());
    let body: Value = serde_json::from_slice(&response.body().bytes().expect("all of it")).expect("JSON");
    assert!(body["success"] == false && body["errors"][0]["code"].is_u64() && body["errors"][0]["message"].is_string());
    response
}

/// Terms that a client may choose: within what the manifest allows, exactly as sent where that is a whole number, refused
/// where it is none. Returns the time for the request.
fn terms(headers: &HeaderMap, content: &Content) -> Result<Duration, Failure> {
    let (most, highest) = (content.manifest.timeouts.request, content.manifest.scaling.priority);
    let asked = timeout(headers, content);
    match said(headers, "x-omni-timeout-ms") {
        Some(None) => assert!(asked.is_err()),
        Some(Some(ms)) => assert_eq!(asked, Ok(Duration::from_millis(ms.max(1)).min(most))),
        None => assert_eq!(asked, Ok(most)),
    }
    let level = priority(headers, content);
    match said(headers, "x-omni-priority") {
        Some(None) => assert!(level.is_err()),
        Some(Some(said)) => assert_eq!(level, Ok(u8::try_from(said).unwrap_or(u8::MAX).min(highest))),
        None => assert_eq!(level, Ok(0)),
    }
    assert_eq!(session(headers).is_some(), headers.contains_key("x-session-affinity"));
    level.and(asked)
}

/// The whole number in a header, the largest for one beyond that. `Some(None)`: it is no number, or there are two.
fn said(headers: &HeaderMap, name: &str) -> Option<Option<u64>> {
    let text = String::from_utf8_lossy(headers.get(name)?.as_bytes()).into_owned();
    if headers.get_all(name).iter().count() > 1 {
        return Some(None);
    }
    let digits = text.trim_matches(|letter: char| letter.is_ascii_whitespace());
    let is_number = !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit());
    Some(is_number.then(|| digits.parse().unwrap_or(u64::MAX)))
}

/// The model's head is readable, repeats the client's values, and has no credentials in it.
fn told(parts: &Parts, id: &[u8], length: Option<u64>) {
    let json = serde_json::to_vec(&head(parts, id, length, false)).expect("JSON");
    let head: RequestHead = serde_json::from_slice(&json).expect("a head");
    assert_eq!((head.id.as_bytes(), head.method.as_str(), head.timeout_ms), (id, parts.method.as_str(), 0));
    assert_eq!((head.body_length, head.body_handed), (length, false));
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    assert_eq!(head.session, parts.headers.get("x-session-affinity").map(|name| text(name.as_bytes())));
    for (name, value) in &head.headers {
        assert!(!WITHHELD.contains(&name.as_str()), "{name}");
        let all: Vec<&[u8]> = parts.headers.get_all(name).iter().map(|value| value.as_bytes()).collect();
        assert!(!all.is_empty() && *value == text(&all.join(&b", "[..])), "{name}: {value:?}");
    }
}

/// Returns true if one of the two routes begins the path, with a name behind it.
fn is_route(path: &str) -> bool {
    let Some((before, tail)) = path.split_once("/ai/run/") else { return false };
    let account = before.strip_prefix("/client/v4/accounts/");
    !tail.is_empty() && (before.is_empty() || account.is_some_and(|name| !name.is_empty() && !name.contains('/')))
}

/// The rest behind the route, with each `%` and two digits decoded, once.
fn decoded(path: &str) -> Option<Vec<u8>> {
    let (_, tail) = path.split_once("/ai/run/")?;
    let mut parts = tail.split('%');
    let mut bytes = parts.next()?.as_bytes().to_vec();
    for part in parts {
        let digits = part.get(..2).filter(|digits| digits.bytes().all(|digit| digit.is_ascii_hexdigit()))?;
        bytes.push(u8::from_str_radix(digits, 16).ok()?);
        bytes.extend_from_slice(&part.as_bytes()[2..]);
    }
    Some(bytes)
}

/// Tells of a panic on the way to its end.
struct Witness<'a>(&'a AtomicBool);

impl Drop for Witness<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.store(true, Ordering::Relaxed);
        }
    }
}

impl hyper::rt::Read for Client {
    fn poll_read(mut self: Pin<&mut Self>, _: &mut Context<'_>, mut into: ReadBufCursor<'_>) -> Poll<io::Result<()>> {
        let count = self.said.len().min(into.remaining());
        into.put_slice(&self.said.split_to(count));
        Poll::Ready(Ok(()))
    }
}

impl hyper::rt::Write for Client {
    fn poll_write(self: Pin<&mut Self>, _: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Poll::Ready(Ok(bytes.len()))
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }
}
