//! Run API: one request to one model.

use crate::answer::{AnswerBody, reserve, respond, server_timing};
use crate::forward::{Forwarder, Listener};
use crate::head::{REQUEST_ID, head, priority, request_id, session, timeout};
use crate::in_flight::InFlightRequest;
use hyper::body::Incoming;
use hyper::header::{HeaderName, HeaderValue};
use hyper::http::request::Parts;
use hyper::{Request, Response};
use omni_engine_client::{Answer, AnswerContent, Request as EngineRequest, Unanswered};
use omni_ingress::body::{self, BodyLimits, IncomingBody, ReceivedBody, RunningUpload, Upload};
use omni_ingress::{BodyUnread, RawBodyHandoff, response_headers};
use omni_policy::dispatch::{RequestId, Ticket};
use omni_request_error::Failure;
use omni_supervisor::clock::unix_ms;
use omni_supervisor::metrics::Api;
use omni_supervisor::model::content::Content;
use omni_supervisor::model::{Model, Submission};
use omni_supervisor::node::{Node, NotFound};
use omni_workers_ai::error_response;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};
use tokio::sync::oneshot;

const MODEL_VERSION: HeaderName = HeaderName::from_static("x-omni-model-version");
/// API of all requests here.
const API: Api = Api::WorkersAi;
const SERVER_TIMING: HeaderName = HeaderName::from_static("server-timing");
/// Advice of a refusal while a model's content is unknown.
const RETRY_AFTER: Duration = Duration::from_secs(1);

static NEXT_ID: AtomicU64 = AtomicU64::new(1);

/// The run API over the models of a node.
#[derive(Debug)]
pub struct RunApi {
    node: Arc<Node>,
    forwarder: Forwarder,
}

/// Request to a model, as it came.
struct ModelRequest<'a> {
    api: &'a RunApi,
    listener: Listener,
    model: &'a Arc<Model>,
    parts: &'a Parts,
    /// Request id, as the response has it.
    id: &'a [u8],
    arrived: Instant,
}

/// Request that was submitted to its model.
struct Submitted {
    request: InFlightRequest,
    reply: oneshot::Receiver<Result<Answer, Unanswered>>,
    /// Time of the submission.
    at: Instant,
}

impl RunApi {
    /// The API over these models; `forwarder` sends requests to the successor once there is one.
    #[must_use]
    pub fn new(node: Arc<Node>, forwarder: Forwarder) -> Self {
        Self { node, forwarder }
    }

    /// The node.
    #[must_use]
    pub fn node(&self) -> &Arc<Node> {
        &self.node
    }

    pub(crate) fn forwarder(&self) -> &Forwarder {
        &self.forwarder
    }

    /// Serves one request to the model `name`, which is decoded already.
    pub async fn run(&self, listener: Listener, name: &str, request: Request<Incoming>) -> Response<AnswerBody> {
        let (parts, body) = request.into_parts();
        let id = request_id(&parts.headers);
        let mut body = IncomingBody::Unread(body);
        let mut response = match self.find(name).await {
            Err(failure) => error_response(&failure).map(AnswerBody::full),
            Ok(model) => {
                let (parts, id, arrived) = (&parts, id.as_bytes(), Instant::now());
                let request = ModelRequest { api: self, listener, model: &model, parts, id, arrived };
                match request.serve(&mut body).await {
                    Ok(response) => response,
                    Err(failure) => {
                        count_failure(&model, &failure);
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

    async fn find(&self, name: &str) -> Result<Arc<Model>, Failure> {
        self.node.look_up(name).await.map_err(|why| match why {
            NotFound::NotRead => Failure::CannotStart { retry_after: RETRY_AFTER },
            NotFound::NoSuchModel => Failure::NoSuchModel,
        })
    }
}

impl ModelRequest<'_> {
    /// Serves the request. Afterwards `incoming` tells how far its body was read.
    async fn serve(&self, incoming: &mut IncomingBody) -> Result<Response<AnswerBody>, Failure> {
        let content = self.content().await?;
        let deadline = self.arrived + timeout(&self.parts.headers, &content);
        let mut received = self.receive(incoming, &content, deadline).await?;
        let mut upload = received.upload.take().map(Upload::begin);
        let Submitted { mut request, reply, at: submitted } = self.submit(received, &content, deadline)?;
        let answer = match tokio::time::timeout_at(deadline.into(), await_answer(reply, &mut upload)).await {
            Ok(Ok(Ok(answer))) => answer,
            Ok(Ok(Err(Unanswered::Failed(failure)))) => {
                request.on_end();
                if failure == Failure::Died {
                    self.log_for_author(&failure);
                }
                return Err(failure);
            }
            Ok(Ok(Err(Unanswered::NotSent(body)))) => {
                request.on_end();
                let body = (body, upload);
                let forwarder = &self.api.forwarder;
                return forwarder.received(self.listener, self.parts, body, self.id, deadline).await;
            }
            Ok(Err(broken_off)) => {
                request.cancel_uncounted();
                return Err(broken_off);
            }
            Err(_) => {
                request.on_deadline();
                let build = self.model.admission().build;
                return Err(build.map_or(Failure::Deadline, |build| Failure::DeadlineBuilding { build }));
            }
        };
        if let Some(Err(failure)) = answer.head.as_ref().map(|head| response_headers::check(&head.headers)) {
            self.log_for_author(&failure);
            request.cancel_uncounted();
            return Err(failure);
        }
        if upload.is_none() {
            *incoming = IncomingBody::Complete;
        }
        self.respond(answer, request, upload, submitted)
    }

    /// The content that the model serves, unless requests are refused now.
    async fn content(&self) -> Result<Arc<Content>, Failure> {
        if self.api.node.draining() {
            return Err(Failure::ShuttingDown);
        }
        let admission = self.model.first_admission().await;
        match admission.refusing {
            // There is none for a model that this request starts again.
            Some(failure) => Err(failure),
            None => admission.content.ok_or(Failure::CannotStart { retry_after: RETRY_AFTER }),
        }
    }

    /// Receives the body, or begins to stream it.
    async fn receive(
        &self,
        incoming: &mut IncomingBody,
        content: &Content,
        deadline: Instant,
    ) -> Result<ReceivedBody, Failure> {
        let handoff = self.parts.extensions.get::<Arc<RawBodyHandoff>>().cloned();
        let unread = incoming.take()?;
        let limits = &content.manifest.limits;
        let limits = BodyLimits { bytes: limits.body.bytes(), hand_over: limits.body_handover };
        let received = body::receive(self.parts, handoff, unread, limits, &self.model.body_budget, deadline).await?;
        if received.upload.is_none() {
            *incoming = IncomingBody::Complete;
        }
        Ok(received)
    }

    /// Submits the request to the model.
    fn submit(&self, received: ReceivedBody, content: &Content, deadline: Instant) -> Result<Submitted, Failure> {
        let Self { model, parts, arrived, .. } = *self;
        let ReceivedBody { body, length, handed_over, permit, upload: _ } = received;
        let id = RequestId(NEXT_ID.fetch_add(1, Ordering::Relaxed));
        let (sender, reply) = oneshot::channel();
        let head = head(parts, self.id, length, handed_over);
        let ticket = Ticket { id, priority: priority(&parts.headers, content), session: session(&parts.headers) };
        let submission = Submission { ticket, request: EngineRequest { head, body, deadline, reply: sender } };
        let mut request = InFlightRequest::new(model, (API, id), arrived, deadline, permit);
        let at = Instant::now();
        if let Err(failure) = model.submit(Box::new(submission)) {
            request.on_end();
            return Err(failure);
        }
        Ok(Submitted { request, reply, at })
    }

    /// The response to an answer, with its times, which are observed here.
    fn respond(
        &self,
        mut answer: Answer,
        mut request: InFlightRequest,
        upload: Option<RunningUpload>,
        submitted: Instant,
    ) -> Result<Response<AnswerBody>, Failure> {
        let metrics = &self.model.metrics;
        let answered = Instant::now();
        let queued = answer.sent_at.saturating_duration_since(submitted);
        let worked = answered.saturating_duration_since(answer.sent_at);
        let took = answered.saturating_duration_since(self.arrived).as_secs_f64();
        let swap = answer.swap.map(|swap| swap.overlap_since(submitted)).filter(|time| !time.is_zero());
        metrics.observe_wait(queued);
        metrics.model_time.observe(worked.as_secs_f64());
        metrics.first_byte.observe(took);
        let is_whole = !matches!(answer.content, AnswerContent::Stream(_));
        if is_whole {
            request.on_end();
            request.release_body();
        }
        let permit = reserve(&mut answer, self.parts.version, &self.model.body_budget)?;
        if is_whole {
            metrics.outcomes(API).ok.inc();
            metrics.total_time.observe(took);
        }
        let version = HeaderValue::from_str(&answer.version);
        let mut response = respond(answer, request, upload, permit);
        let headers = response.headers_mut();
        if let Ok(version) = version {
            headers.insert(MODEL_VERSION, version);
        }
        if let Ok(timing) = HeaderValue::from_str(&server_timing(queued, swap, worked)) {
            headers.insert(SERVER_TIMING, timing);
        }
        Ok(response)
    }

    /// Adds a failure to the model's log, where its author sees it.
    fn log_for_author(&self, failure: &Failure) {
        let (unix_ms, stream, text) = (unix_ms(), "node".to_owned(), failure.to_string());
        let request_id = Some(String::from_utf8_lossy(self.id).into_owned());
        let entry = omni_control_api::LogEntry { unix_ms, instance: String::new(), stream, request_id, text };
        self.model.logs.push(entry);
    }
}

/// Waits for the answer, and polls the upload of the request's body meanwhile. The outer failure is that of the upload, which ends
/// the request.
async fn await_answer(
    mut reply: oneshot::Receiver<Result<Answer, Unanswered>>,
    upload: &mut Option<RunningUpload>,
) -> Result<Result<Answer, Unanswered>, Failure> {
    if let Some(uploading) = upload {
        tokio::select! {
            biased;
            answer = &mut reply => return Ok(answer.unwrap_or(Err(Failure::Died.into()))),
            uploaded = uploading => uploaded?,
        }
        *upload = None;
    }
    Ok(reply.await.unwrap_or(Err(Failure::Died.into())))
}

/// Counts the outcome of a request that failed.
fn count_failure(model: &Model, failure: &Failure) {
    let outcomes = model.metrics.outcomes(API);
    match failure {
        Failure::Died
        | Failure::SuccessorDied
        | Failure::Raised
        | Failure::AnswerNotSendable(_)
        | Failure::Handler { .. }
        | Failure::Cancelled => outcomes.error.inc(),
        Failure::Deadline | Failure::DeadlineBuilding { .. } => 0, // counted as cancelled when the request is dropped
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
        | Failure::InvalidRequest(_)
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
