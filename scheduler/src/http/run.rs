//! The run API: one request to one model.

use super::answer::{AnswerBody, respond, server_timing};
use super::body::{self, Pump, Taken};
use super::failure::workers_ai;
use crate::failure::Failure;
use crate::model::Model;
use crate::model::content::Content;
use crate::model::requests::Submission;
use crate::node::Node;
use crate::policy::dispatch::{RequestId, Ticket};
use crate::wire::reply::Answer;
use hyper::body::Incoming;
use hyper::header::{HeaderMap, HeaderName, HeaderValue};
use hyper::http::request::Parts;
use hyper::{Request, Response};
use omni_ipc::frame::{CancelReason, INITIAL_CREDIT};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io::Write;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};
use tokio::sync::{OwnedSemaphorePermit, oneshot};

const REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");
const MODEL_VERSION: HeaderName = HeaderName::from_static("x-omni-model-version");
const SERVER_TIMING: HeaderName = HeaderName::from_static("server-timing");
const TIMEOUT: HeaderName = HeaderName::from_static("x-omni-timeout-ms");
const SESSION: HeaderName = HeaderName::from_static("x-session-affinity");
const PRIORITY: HeaderName = HeaderName::from_static("x-omni-priority");
/// Longest request id that is taken over from a client.
const LONGEST_ID: usize = 128;
/// Credentials and what belongs to one connection: models do not see these.
const WITHHELD: [&str; 10] = [
    "authorization",
    "connection",
    "cookie",
    "expect",
    "keep-alive",
    "proxy-authorization",
    "te",
    "transfer-encoding",
    "upgrade",
    "x-auth-key",
];

static NEXT_ID: AtomicU64 = AtomicU64::new(1);

/// A client that waits for an answer. Dropped before the end, it cancels the request.
#[derive(Debug)]
pub struct Waiter {
    model: Arc<Model>,
    id: RequestId,
    arrived: Instant,
    deadline: Instant,
    /// Set until the request's end is known.
    reason: Option<CancelReason>,
    unacknowledged: usize,
    _permit: Option<OwnedSemaphorePermit>,
}

impl Waiter {
    /// The client took that much of a stream; the model gets it back in portions.
    pub fn consumed(&mut self, cost: usize) {
        self.unacknowledged += cost;
        if self.unacknowledged >= INITIAL_CREDIT / 4 {
            self.model.signals.credit(self.id, u32::try_from(self.unacknowledged).unwrap_or(u32::MAX));
            self.unacknowledged = 0;
        }
    }

    /// The last of it is here.
    fn finished(&mut self) {
        self.reason = None;
    }

    /// The last of a stream is here, or the word that there will be none.
    pub fn streamed(&mut self, complete: bool) {
        self.finished();
        let metrics = &self.model.metrics;
        if complete {
            metrics.outcomes.ok.inc()
        } else {
            metrics.outcomes.error.inc()
        };
        metrics.whole.observe(self.arrived.elapsed().as_secs_f64());
    }

    /// Nobody waits any more, for a reason that is counted as another outcome.
    fn give_up(&mut self) {
        if let Some(reason) = self.reason.take() {
            self.model.signals.cancel(self.id, reason);
        }
    }

    /// The model took too long.
    pub fn deadline_passed(&mut self) {
        self.reason = Some(CancelReason::Deadline);
    }

    /// When the client stops waiting.
    #[must_use]
    pub fn deadline(&self) -> Instant {
        self.deadline
    }
}

impl Drop for Waiter {
    fn drop(&mut self) {
        if let Some(reason) = self.reason {
            self.model.signals.cancel(self.id, reason);
            self.model.metrics.outcomes.cancelled.inc();
        }
    }
}

/// A refusal of a request that is for no model, with an id as every answer has one.
pub fn refuse(headers: &HeaderMap, failure: &Failure) -> Response<AnswerBody> {
    let mut response = workers_ai(failure);
    response.headers_mut().insert(REQUEST_ID, request_id(headers));
    response
}

/// Serves one request to `name`, which is decoded already.
pub async fn run(node: &Node, name: &str, request: Request<Incoming>) -> Response<AnswerBody> {
    let (parts, body) = request.into_parts();
    let id = request_id(&parts.headers);
    let mut response = match find(node, name).await {
        Err(failure) => workers_ai(&failure),
        Ok(model) => {
            let arrived = Instant::now();
            match serve(node, &model, &parts, body, id.as_bytes(), arrived).await {
                Ok(response) => {
                    if !matches!(response.body(), AnswerBody::Stream(_)) {
                        model.metrics.outcomes.ok.inc();
                        model.metrics.whole.observe(arrived.elapsed().as_secs_f64());
                    }
                    response
                }
                Err(failure) => {
                    count(&model, &failure);
                    workers_ai(&failure)
                }
            }
        }
    };
    response.headers_mut().insert(REQUEST_ID, id);
    response
}

/// The model; while the node reads its models folder for the first time, once it has.
async fn find(node: &Node, name: &str) -> Result<Arc<Model>, Failure> {
    if let Some(model) = node.find(name) {
        return Ok(model);
    }
    if !node.first_scan().await {
        return Err(Failure::CannotStart { retry_after: Duration::from_secs(1) });
    }
    node.find(name).ok_or(Failure::NoSuchModel)
}

async fn serve(
    node: &Node,
    model: &Arc<Model>,
    parts: &Parts,
    body: Incoming,
    request_id: &[u8],
    arrived: Instant,
) -> Result<Response<AnswerBody>, Failure> {
    if node.draining() {
        return Err(Failure::ShuttingDown);
    }
    let front = model.first_front().await;
    if let Some(failure) = front.refusing {
        // A model that is being started again by this request would have no failure here.
        return Err(failure);
    }
    let Some(content) = front.content else { return Err(Failure::CannotStart { retry_after: Duration::from_secs(1) }) };
    let limit = content.manifest.limits.body.bytes();
    let deadline = arrived + timeout(&parts.headers, &content);
    let Taken { body, length, permit, pump } =
        body::take(&parts.headers, body, limit, &node.context.body_budget, deadline).await?;
    let id = NEXT_ID.fetch_add(1, Ordering::Relaxed);
    let (reply, answer) = oneshot::channel();
    let head = head(parts, request_id, length);
    let ticket = Ticket { id, priority: priority(&parts.headers, &content), session: session(&parts.headers) };
    let submission = Submission { ticket, head, body, deadline, reply };
    let mut waiter = Waiter {
        model: Arc::clone(model),
        id,
        arrived,
        deadline,
        reason: Some(CancelReason::ClientGone),
        unacknowledged: 0,
        _permit: permit,
    };
    let submitted = Instant::now();
    if let Err(failure) = model.submit(Box::new(submission)) {
        waiter.finished();
        return Err(failure);
    }
    let answer = match tokio::time::timeout_at(deadline.into(), wait(answer, pump)).await {
        Ok(Ok(Ok(answer))) => answer,
        Ok(Ok(Err(failure))) => {
            waiter.finished();
            return Err(failure);
        }
        Ok(Err(broken_off)) => {
            waiter.give_up();
            return Err(broken_off);
        }
        Err(_) => {
            waiter.deadline_passed();
            return Err(Failure::Deadline);
        }
    };
    let queued = answer.sent_at.saturating_duration_since(submitted);
    let worked = answer.sent_at.elapsed();
    let swap = answer.swap.map(|swap| swap.met_by(submitted)).filter(|time| !time.is_zero());
    model.metrics.waited(queued);
    model.metrics.model_time.observe(worked.as_secs_f64());
    model.metrics.first_byte.observe(arrived.elapsed().as_secs_f64());
    if !matches!(answer.body, crate::wire::reply::Body::Stream(_)) {
        waiter.finished();
    }
    let version = HeaderValue::from_str(answer.content.short_version());
    let mut response = respond(answer, waiter);
    let headers = response.headers_mut();
    if let Ok(version) = version {
        headers.insert(MODEL_VERSION, version);
    }
    if let Ok(timing) = HeaderValue::from_str(&server_timing(queued, swap, worked)) {
        headers.insert(SERVER_TIMING, timing);
    }
    Ok(response)
}

/// The answer, while a streamed body is being copied. A body that breaks off ends the request: the outer failure.
async fn wait(
    mut answer: oneshot::Receiver<Result<Answer, Failure>>,
    pump: Option<Pump>,
) -> Result<Result<Answer, Failure>, Failure> {
    if let Some(pump) = pump {
        tokio::select! {
            biased;
            answer = &mut answer => return Ok(answer.unwrap_or(Err(Failure::Died))),
            pumped = pump.run() => pumped?,
        }
    }
    Ok(answer.await.unwrap_or(Err(Failure::Died)))
}

fn count(model: &Model, failure: &Failure) {
    let outcomes = &model.metrics.outcomes;
    match failure {
        Failure::Died | Failure::Raised | Failure::Handler { .. } | Failure::Cancelled => outcomes.error.inc(),
        Failure::Deadline => 0, // counted as cancelled where the waiter is dropped
        Failure::NoSuchRoute
        | Failure::MethodNotAllowed { .. }
        | Failure::NoSuchModel
        | Failure::BadRequest(_)
        | Failure::BodyTimeout
        | Failure::BodyTooLarge { .. }
        | Failure::QueueFull { .. }
        | Failure::NodeBusy
        | Failure::CannotStart { .. }
        | Failure::NoRoom { .. }
        | Failure::NeverRoom
        | Failure::NoGpuMemory { .. }
        | Failure::NoFittingGpu
        | Failure::ShuttingDown => outcomes.refused.inc(),
    };
}

/// The client may ask for less time than the manifest gives.
fn timeout(headers: &HeaderMap, content: &Content) -> Duration {
    let most = content.manifest.timeouts.request;
    let asked = headers.get(TIMEOUT).and_then(|value| value.to_str().ok()).and_then(|text| text.trim().parse().ok());
    asked.map_or(most, |ms: u64| Duration::from_millis(ms.max(1)).min(most))
}

/// What the client asks for, up to what the manifest allows.
fn priority(headers: &HeaderMap, content: &Content) -> u8 {
    let asked = headers.get(PRIORITY).and_then(|value| value.to_str().ok()).and_then(|text| text.trim().parse().ok());
    asked.map_or(0, |level: u8| level.min(content.manifest.scaling.priority))
}

/// The session's name as a number.
fn session(headers: &HeaderMap) -> Option<u64> {
    let name = headers.get(SESSION)?;
    let mut hasher = DefaultHasher::new();
    name.as_bytes().hash(&mut hasher);
    Some(hasher.finish())
}

/// The client's id when it is sound, else a fresh UUIDv7.
fn request_id(headers: &HeaderMap) -> HeaderValue {
    let sound = |value: &&HeaderValue| {
        (1..=LONGEST_ID).contains(&value.len()) && value.as_bytes().iter().all(u8::is_ascii_graphic)
    };
    if let Some(given) = headers.get(REQUEST_ID).filter(sound) {
        return given.clone();
    }
    let since_epoch = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
    let mut random = [0_u8; 10];
    fastrand::fill(&mut random);
    let millis = u64::try_from(since_epoch.as_millis()).unwrap_or_default();
    let id = uuid::Builder::from_unix_timestamp_millis(millis, &random).into_uuid();
    let mut text = uuid::Uuid::encode_buffer();
    let text = id.hyphenated().encode_lower(&mut text);
    HeaderValue::from_str(text).unwrap_or(HeaderValue::from_static("-"))
}

/// JSON of a `RequestHead` without its end: `timeout_ms` is added when the request is sent.
fn head(parts: &Parts, request_id: &[u8], length: Option<u64>) -> Vec<u8> {
    let mut head = Vec::with_capacity(512);
    head.extend_from_slice(b"{\"id\":");
    string(&mut head, request_id);
    head.extend_from_slice(b",\"method\":");
    string(&mut head, parts.method.as_str().as_bytes());
    if let Some(session) = parts.headers.get(SESSION) {
        head.extend_from_slice(b",\"session\":");
        string(&mut head, session.as_bytes());
    }
    if let Some(length) = length {
        let _ = write!(head, ",\"body_length\":{length}"); // writing to memory does not fail
    }
    head.extend_from_slice(b",\"headers\":[");
    let mut first = true;
    for name in parts.headers.keys().filter(|name| !WITHHELD.contains(&name.as_str())) {
        head.extend_from_slice(if first { b"[" } else { b",[" });
        first = false;
        string(&mut head, name.as_str().as_bytes());
        head.push(b',');
        let mut values = parts.headers.get_all(name).iter();
        match (values.next(), values.next()) {
            (Some(only), None) => string(&mut head, only.as_bytes()),
            _ => {
                let all: Vec<&[u8]> = parts.headers.get_all(name).iter().map(HeaderValue::as_bytes).collect();
                string(&mut head, &all.join(&b", "[..]));
            }
        }
        head.push(b']');
    }
    head.push(b']');
    head
}

/// A JSON string; bytes that are no UTF-8 are replaced.
fn string(out: &mut Vec<u8>, text: &[u8]) {
    let _ = serde_json::to_writer(out, &String::from_utf8_lossy(text)); // writing to memory does not fail
}

#[cfg(test)]
mod tests {
    use super::*;
    use omni_ipc::frame::RequestHead;

    #[test]
    fn the_head_is_a_request_head_once_it_is_closed() {
        let (parts, ()) = Request::post("/ai/run/x")
            .header("X-Odd", &b"\xffq\"uote"[..])
            .header("accept", "a")
            .header("accept", "b")
            .header("authorization", "Bearer secret")
            .header("x-session-affinity", "s1")
            .body(())
            .unwrap()
            .into_parts();
        let mut json = head(&parts, b"id-1", Some(9));
        json.extend_from_slice(b",\"timeout_ms\":5}");
        let head: RequestHead = serde_json::from_slice(&json).unwrap();
        assert_eq!(
            head,
            RequestHead {
                id: "id-1".into(),
                method: "POST".into(),
                timeout_ms: 5,
                session: Some("s1".into()),
                headers: vec![
                    ("x-odd".into(), "\u{fffd}q\"uote".into()),
                    ("accept".into(), "a, b".into()),
                    ("x-session-affinity".into(), "s1".into()),
                ],
                body_length: Some(9),
            }
        );
    }

    #[test]
    fn a_priority_is_what_was_asked_for_up_to_what_the_manifest_allows() {
        let content = |text: &str| {
            let name = omni_config::name::ModelName::try_from("m".to_owned()).unwrap();
            let snapshot = omni_ipc::id::SnapshotDigest::parse(&"0".repeat(64)).unwrap();
            Content::parse(&name, snapshot, Some(text.to_owned()), &omni_config::node::NodeConfig::default()).unwrap()
        };
        let (none, some) = (content(""), content("[scaling]\npriority = 5\n"));
        for (asked, allowed) in [("3", 3), ("9", 5), ("300", 0), ("-1", 0), ("high", 0)] {
            let mut headers = HeaderMap::new();
            headers.insert(PRIORITY, HeaderValue::from_static(asked));
            assert_eq!((priority(&headers, &none), priority(&headers, &some)), (0, allowed), "{asked}");
        }
        assert_eq!(priority(&HeaderMap::new(), &some), 0);
    }

    #[test]
    fn request_ids_are_echoed_when_sound() {
        let id = |text: &str| {
            let mut headers = HeaderMap::new();
            headers.insert(REQUEST_ID, HeaderValue::from_str(text).unwrap());
            request_id(&headers).to_str().unwrap().to_owned()
        };
        assert_eq!(id("abc-1"), "abc-1");
        for bad in ["", "with space", &"x".repeat(200)] {
            assert_eq!(id(bad).len(), 36, "{bad:?}");
        }
        assert_eq!(uuid::Uuid::parse_str(&id("")).unwrap().get_version_num(), 7);
    }
}
