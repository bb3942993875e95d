//! The run API: one request to one model.

use super::answer::{AnswerBody, keep, respond, server_timing};
use super::forward::{Listener, forward_received};
use super::head::{REQUEST_ID, head, priority, request_id, session, timeout};
use crate::machine;
use crate::model::Model;
use crate::model::Submission;
use crate::node::{Node, NotFound};
use crate::policy::dispatch::{RequestId, Ticket};
use bytes::Bytes;
use hyper::body::Incoming;
use hyper::header::{HeaderMap, HeaderName, HeaderValue};
use hyper::http::request::Parts;
use hyper::{Request, Response};
use omni_body::BodyPermit;
use omni_engine_client::{Answer, AnswerContent, Request as EngineRequest, Unanswered};
use omni_engine_protocol::frame::{CancelReason, INITIAL_CREDIT};
use omni_ingress::body::{self, BodyLimits, IncomingBody, ReceivedBody, RunningUpload, Upload};
use omni_ingress::{BodyUnread, RawBodyHandoff, response_headers};
use omni_request_error::Failure;
use omni_workers_ai::error_response;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};
use tokio::sync::oneshot;

const MODEL_VERSION: HeaderName = HeaderName::from_static("x-omni-model-version");
const SERVER_TIMING: HeaderName = HeaderName::from_static("server-timing");

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
    /// Room for the request's body.
    permit: Option<BodyPermit>,
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

/// A refusal of a request that is for no model, with an id as every answer has one. Its body is left.
pub fn refuse(headers: &HeaderMap, failure: &Failure) -> Response<Bytes> {
    let mut response = error_response(failure);
    response.headers_mut().insert(REQUEST_ID, request_id(headers));
    response.extensions_mut().insert(BodyUnread);
    response
}

/// The same, where the connection can go on if the body is small and comes at once.
pub(super) async fn refuse_whole(request: Request<Incoming>, failure: &Failure) -> Response<AnswerBody> {
    let (parts, body) = request.into_parts();
    let mut response = refuse(&parts.headers, failure);
    if !IncomingBody::Unread(body).stays_unread(&parts).await {
        response.extensions_mut().remove::<BodyUnread>();
    }
    response.map(AnswerBody::full)
}

/// Serves one request to `name`, which is decoded already.
pub(super) async fn run(node: &Node, by: Listener, name: &str, request: Request<Incoming>) -> Response<AnswerBody> {
    let (parts, body) = request.into_parts();
    let id = request_id(&parts.headers);
    let mut body = IncomingBody::Unread(body);
    let mut response = match find(node, name).await {
        Err(failure) => error_response(&failure).map(AnswerBody::full),
        Ok(model) => {
            let arrived = Instant::now();
            match serve(node, by, &model, &parts, &mut body, id.as_bytes(), arrived).await {
                Ok(response) => response,
                Err(failure) => {
                    count(&model, &failure);
                    error_response(&failure).map(AnswerBody::full)
                }
            }
        }
    };
    response.headers_mut().insert(REQUEST_ID, id);
    if body.stays_unread(&parts).await {
        response.extensions_mut().insert(BodyUnread);
    }
    response
}

async fn find(node: &Node, name: &str) -> Result<Arc<Model>, Failure> {
    node.look_up(name).await.map_err(|why| match why {
        NotFound::NotRead => Failure::CannotStart { retry_after: Duration::from_secs(1) },
        NotFound::NoSuchModel => Failure::NoSuchModel,
    })
}

async fn serve(
    node: &Node,
    by: Listener,
    model: &Arc<Model>,
    parts: &Parts,
    arriving: &mut IncomingBody,
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
    let deadline = arrived + timeout(&parts.headers, &content);
    let handoff = parts.extensions.get::<Arc<RawBodyHandoff>>().cloned();
    let incoming = arriving.take()?;
    let limits = &content.manifest.limits;
    let limits = BodyLimits { bytes: limits.body.bytes(), hand_over: limits.body_handover };
    let ReceivedBody { body, length, handed_over, permit, upload } =
        body::receive(parts, handoff, incoming, limits, &model.room, deadline).await?;
    if upload.is_none() {
        *arriving = IncomingBody::Complete;
    }
    let mut upload = upload.map(Upload::begin);
    let id = RequestId(NEXT_ID.fetch_add(1, Ordering::Relaxed));
    let (reply, answer) = oneshot::channel();
    let head = head(parts, request_id, length, handed_over);
    let ticket = Ticket { id, priority: priority(&parts.headers, &content), session: session(&parts.headers) };
    let submission = Submission { ticket, request: EngineRequest { head, body, deadline, reply } };
    let mut waiter = Waiter {
        model: Arc::clone(model),
        id,
        arrived,
        deadline,
        reason: Some(CancelReason::ClientGone),
        unacknowledged: 0,
        permit,
    };
    let submitted = Instant::now();
    if let Err(failure) = model.submit(Box::new(submission)) {
        waiter.finished();
        return Err(failure);
    }
    let mut answer = match tokio::time::timeout_at(deadline.into(), wait(answer, &mut upload)).await {
        Ok(Ok(Ok(answer))) => answer,
        Ok(Ok(Err(Unanswered::Failed(failure)))) => {
            waiter.finished();
            if failure == Failure::Died {
                note(model, request_id, &failure);
            }
            return Err(failure);
        }
        Ok(Ok(Err(Unanswered::NotSent(body)))) => {
            waiter.finished();
            return forward_received(node, by, parts, (body, upload), request_id, deadline).await;
        }
        Ok(Err(broken_off)) => {
            waiter.give_up();
            return Err(broken_off);
        }
        Err(_) => {
            waiter.deadline_passed();
            let build = model.front().build;
            return Err(build.map_or(Failure::Deadline, |build| Failure::DeadlineBuilding { build }));
        }
    };
    if let Some(Err(failure)) = answer.head.as_ref().map(|head| response_headers::check(&head.headers)) {
        note(model, request_id, &failure);
        waiter.give_up();
        return Err(failure);
    }
    let answered = Instant::now();
    let queued = answer.sent_at.saturating_duration_since(submitted);
    let worked = answered.saturating_duration_since(answer.sent_at);
    let took = answered.saturating_duration_since(arrived).as_secs_f64();
    let swap = answer.swap.map(|swap| swap.overlap_since(submitted)).filter(|time| !time.is_zero());
    model.metrics.waited(queued);
    model.metrics.model_time.observe(worked.as_secs_f64());
    model.metrics.first_byte.observe(took);
    let is_whole = !matches!(answer.content, AnswerContent::Stream(_));
    if is_whole {
        waiter.finished();
        waiter.permit = None; // nor can the request be sent again
    }
    if upload.is_none() {
        *arriving = IncomingBody::Complete;
    }
    let untaken = keep(&mut answer, parts.version, &model.room)?;
    if is_whole {
        model.metrics.outcomes.ok.inc();
        model.metrics.whole.observe(took);
    }
    let version = HeaderValue::from_str(&answer.version);
    let mut response = respond(answer, waiter, upload, untaken);
    let headers = response.headers_mut();
    if let Ok(version) = version {
        headers.insert(MODEL_VERSION, version);
    }
    if let Ok(timing) = HeaderValue::from_str(&server_timing(queued, swap, worked)) {
        headers.insert(SERVER_TIMING, timing);
    }
    Ok(response)
}

/// Tells the model's author what became of an answer.
fn note(model: &Model, request_id: &[u8], failure: &Failure) {
    let (unix_ms, stream, text) = (machine::unix_ms(), "node".to_owned(), failure.to_string());
    let request_id = Some(String::from_utf8_lossy(request_id).into_owned());
    model.logs.push(omni_control_api::LogEntry { unix_ms, instance: String::new(), stream, request_id, text });
}

/// The answer, while a body is being uploaded. A body that breaks off ends the request: the outer failure.
async fn wait(
    mut answer: oneshot::Receiver<Result<Answer, Unanswered>>,
    upload: &mut Option<RunningUpload>,
) -> Result<Result<Answer, Unanswered>, Failure> {
    if let Some(uploading) = upload {
        tokio::select! {
            biased;
            answer = &mut answer => return Ok(answer.unwrap_or(Err(Failure::Died.into()))),
            uploaded = uploading => uploaded?,
        }
        *upload = None;
    }
    Ok(answer.await.unwrap_or(Err(Failure::Died.into())))
}

fn count(model: &Model, failure: &Failure) {
    let outcomes = &model.metrics.outcomes;
    match failure {
        Failure::Died
        | Failure::SuccessorDied
        | Failure::Raised
        | Failure::AnswerNotSendable(_)
        | Failure::Handler { .. }
        | Failure::Cancelled => outcomes.error.inc(),
        Failure::Deadline | Failure::DeadlineBuilding { .. } => 0, // counted as cancelled where the waiter is dropped
        Failure::NoHost
        | Failure::UnknownHost { .. }
        | Failure::OtherSite
        | Failure::HeadTooLarge
        | Failure::NoSuchRoute
        | Failure::MethodNotAllowed { .. }
        | Failure::NoSuchModel
        | Failure::Unauthorized
        | Failure::ModelNotAllowed
        | Failure::TooManyRequests { .. }
        | Failure::BadRequest(_)
        | Failure::BodyTimeout
        | Failure::BodyEncoded { .. }
        | Failure::BodyTooLarge { .. }
        | Failure::QueueFull { .. }
        | Failure::NodeBusy
        | Failure::AnswerNotKept
        | Failure::CannotStart { .. }
        | Failure::NoRoom { .. }
        | Failure::NeverRoom
        | Failure::NoGpuMemory { .. }
        | Failure::NoFittingGpu
        | Failure::ShuttingDown => outcomes.refused.inc(),
    };
}
