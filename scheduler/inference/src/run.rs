//! Run API: one request to one model.

use crate::answer::{AnswerBody, reserve, respond, timing_headers};
use crate::api::TextCodec;
use crate::api::embeddings::native_embeddings;
use crate::forward::{Forwarder, Listener};
use crate::generation::request::TextRequest;
use crate::head::{self, REQUEST_ID, priority, request_id, timeout};
use crate::in_flight::InFlightRequest;
use crate::templates::Templates;
use hyper::body::Incoming;
use hyper::http::request::Parts;
use hyper::{Request, Response};
use omni_body::{BodyPermit, BudgetShare, RequestBody};
use omni_config::manifest::Kind;
use omni_engine_client::{Answer, AnswerContent, Request as EngineRequest, Unanswered};
use omni_engine_protocol::frame::RequestHead;
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

/// Advice of a refusal while a model's content is unknown.
const RETRY_AFTER: Duration = Duration::from_secs(1);

static NEXT_ID: AtomicU64 = AtomicU64::new(1);

/// The APIs over the models of a node; its own is the run API.
#[derive(Debug)]
pub struct RunApi {
    node: Arc<Node>,
    forwarder: Forwarder,
    pub(crate) templates: Templates,
    /// Share of the memory for bodies whose model is not known yet.
    pub(crate) bodies: Arc<BudgetShare>,
    /// Start of this API, in seconds since 1970.
    pub(crate) since: u64,
}

/// Client's request.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Caller<'a> {
    pub(crate) listener: Listener,
    pub(crate) parts: &'a Parts,
    /// Request id, as the response has it.
    pub(crate) id: &'a [u8],
    pub(crate) arrived: Instant,
}

/// Request to a model, as it came.
struct ModelRequest<'a> {
    api: &'a RunApi,
    caller: Caller<'a>,
    model: &'a Arc<Model>,
}

/// Request that was submitted to its model.
pub(crate) struct Submitted {
    pub(crate) request: InFlightRequest,
    pub(crate) reply: oneshot::Receiver<Result<Answer, Unanswered>>,
    /// Time of the submission.
    pub(crate) at: Instant,
}

/// Outcome of a request that was submitted.
pub(crate) enum Outcome {
    /// The answer, or its beginning.
    Answer(Box<Answer>, InFlightRequest),
    /// No instance got it before the model was handed over.
    NotSent(RequestBody),
}

impl RunApi {
    /// The API over these models; `forwarder` sends requests to the successor once there is one.
    #[must_use]
    pub fn new(node: Arc<Node>, forwarder: Forwarder, bodies: Arc<BudgetShare>) -> Self {
        let templates = Templates::new(node.launcher.clone());
        Self { node, forwarder, templates, bodies, since: unix_ms() / 1000 }
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
                let caller = Caller { listener, parts, id, arrived };
                let request = ModelRequest { api: self, caller, model: &model };
                match request.serve(&mut body).await {
                    Ok(response) => response,
                    Err(failure) => {
                        self.count_failure(&model, Api::WorkersAi, &failure, id);
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

    pub(crate) async fn find(&self, name: &str) -> Result<Arc<Model>, Failure> {
        self.node.look_up(name).await.map_err(|why| match why {
            NotFound::NotRead => Failure::CannotStart { retry_after: RETRY_AFTER },
            NotFound::NoSuchModel => Failure::NoSuchModel,
        })
    }

    /// The content that a model serves, unless requests are refused now.
    pub(crate) async fn content(&self, model: &Model) -> Result<Arc<Content>, Failure> {
        if self.node.draining() {
            return Err(Failure::ShuttingDown);
        }
        let admission = model.first_admission().await;
        match admission.refusing {
            // There is none for a model that this request starts again.
            Some(failure) => Err(failure),
            None => admission.content.ok_or(Failure::CannotStart { retry_after: RETRY_AFTER }),
        }
    }

    /// Counts a request that failed. A failure of the model is in its log, where its author sees it.
    pub(crate) fn count_failure(&self, model: &Model, api: Api, failure: &Failure, id: &[u8]) {
        count_failure(model, api, failure);
        if matches!(failure, Failure::Died | Failure::AnswerNotSendable(_)) {
            log_for_author(model, failure, id);
        }
    }
}

impl Caller<'_> {
    /// Submits a request to a model: `(api, session)` with the hash of the session's name, head and body, the permit of its memory,
    /// content and deadline.
    pub(crate) fn submit(
        &self,
        model: &Arc<Model>,
        (api, session): (Api, Option<u64>),
        (head, body): (RequestHead, RequestBody),
        permit: Option<BodyPermit>,
        (content, deadline): (&Content, Instant),
    ) -> Result<Submitted, Failure> {
        let id = RequestId(NEXT_ID.fetch_add(1, Ordering::Relaxed));
        let (sender, reply) = oneshot::channel();
        let session = session.or_else(|| head::session(&self.parts.headers));
        let ticket = Ticket { id, priority: priority(&self.parts.headers, content), session };
        let submission = Submission { ticket, request: EngineRequest { head, body, deadline, reply: sender } };
        let mut request = InFlightRequest::new(model, (api, id), self.arrived, deadline, permit);
        let at = Instant::now();
        if let Err(failure) = model.submit(Box::new(submission)) {
            request.on_end();
            return Err(failure);
        }
        Ok(Submitted { request, reply, at })
    }
}

impl Submitted {
    /// Waits for the answer, or its beginning, and polls the upload of the request's body meanwhile.
    pub(crate) async fn wait(
        self,
        model: &Model,
        upload: &mut Option<RunningUpload>,
        deadline: Instant,
    ) -> Result<Outcome, Failure> {
        let Self { mut request, reply, at: _ } = self;
        match tokio::time::timeout_at(deadline.into(), await_answer(reply, upload)).await {
            Ok(Ok(Ok(answer))) => Ok(Outcome::Answer(Box::new(answer), request)),
            Ok(Ok(Err(Unanswered::Failed(failure)))) => {
                request.on_end();
                Err(failure)
            }
            Ok(Ok(Err(Unanswered::NotSent(body)))) => {
                request.on_end();
                Ok(Outcome::NotSent(body))
            }
            Ok(Err(broken_off)) => {
                request.cancel_uncounted();
                Err(broken_off)
            }
            Err(_) => {
                request.on_deadline();
                let build = model.admission().build;
                Err(build.map_or(Failure::Deadline, |build| Failure::DeadlineBuilding { build }))
            }
        }
    }
}

impl ModelRequest<'_> {
    /// Serves the request. Afterwards `incoming` tells how far its body was read.
    async fn serve(&self, incoming: &mut IncomingBody) -> Result<Response<AnswerBody>, Failure> {
        let content = self.api.content(self.model).await?;
        let deadline = self.caller.arrived + timeout(&self.caller.parts.headers, &content);
        let mut received = self.receive(incoming, &content, deadline).await?;
        if let Some(response) = self.typed(&mut received, &content, deadline).await {
            return response;
        }
        let mut upload = received.upload.take().map(Upload::begin);
        let ReceivedBody { body, length, handed_over, permit, upload: _ } = received;
        let head = head::head(self.caller.parts, self.caller.id, length, handed_over);
        let target = (&*content, deadline);
        let submitted = self.caller.submit(self.model, (Api::WorkersAi, None), (head, body), permit, target)?;
        let at = submitted.at;
        let (answer, mut request) = match submitted.wait(self.model, &mut upload, deadline).await? {
            Outcome::Answer(answer, request) => (*answer, request),
            Outcome::NotSent(body) => {
                let Caller { listener, parts, id, .. } = self.caller;
                return self.api.forwarder.received(listener, parts, (body, upload), id, deadline).await;
            }
        };
        if let Some(Err(failure)) = answer.head.as_ref().map(|head| response_headers::check(&head.headers)) {
            request.cancel_uncounted();
            return Err(failure);
        }
        if upload.is_none() {
            *incoming = IncomingBody::Complete;
        }
        self.respond(answer, request, upload, at)
    }

    /// Serves a request to a model of a kind whose requests the node reads, in the native form of the API. `None`: the model gets
    /// the body as it is.
    async fn typed(
        &self,
        received: &mut ReceivedBody,
        content: &Content,
        deadline: Instant,
    ) -> Option<Result<Response<AnswerBody>, Failure>> {
        let kind = content.manifest.model.kind;
        if !matches!(kind, Kind::TextGeneration | Kind::Embeddings) {
            return None;
        }
        let RequestBody::Collected(_, original) = &received.body else {
            return Some(Err(Failure::BadRequest("this model takes a body of JSON".to_owned())));
        };
        let (original, permit) = (original.clone(), received.permit.take());
        let Self { api, caller, model } = *self;
        if kind == Kind::Embeddings {
            return Some(native_embeddings(api, caller, model, (original, permit), (content, deadline)).await);
        }
        let codec = TextCodec::Native;
        let request = match omni_workers_ai::text_request(model.name.as_str(), &original) {
            Ok(request) => request,
            Err(invalid) => return Some(Err(invalid.into())),
        };
        Some(TextRequest { api, caller, model, content, request, codec, original, permit, deadline }.serve().await)
    }

    /// Receives the body, or begins to stream it.
    async fn receive(
        &self,
        incoming: &mut IncomingBody,
        content: &Content,
        deadline: Instant,
    ) -> Result<ReceivedBody, Failure> {
        let handoff = self.caller.parts.extensions.get::<Arc<RawBodyHandoff>>().cloned();
        let unread = incoming.take()?;
        let limits = &content.manifest.limits;
        let limits = BodyLimits { bytes: limits.body.bytes(), hand_over: limits.body_handover };
        let received =
            body::receive(self.caller.parts, handoff, unread, limits, &self.model.body_budget, deadline).await?;
        if received.upload.is_none() {
            *incoming = IncomingBody::Complete;
        }
        Ok(received)
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
        let took = answered.saturating_duration_since(self.caller.arrived).as_secs_f64();
        metrics.observe_wait(queued);
        metrics.model_time.observe(worked.as_secs_f64());
        metrics.first_byte.observe(took);
        let is_whole = !matches!(answer.content, AnswerContent::Stream(_));
        if is_whole {
            request.on_end();
            request.release_body();
        }
        let permit = reserve(&mut answer, self.caller.parts.version, &self.model.body_budget)?;
        if is_whole {
            metrics.outcomes(Api::WorkersAi).ok.inc();
            metrics.total_time.observe(took);
        }
        let (version, sent_at, swap) = (Arc::clone(&answer.version), answer.sent_at, answer.swap);
        let mut response = respond(answer, request, upload, permit);
        timing_headers(response.headers_mut(), (&version, submitted), sent_at, swap, answered);
        Ok(response)
    }
}

/// Adds a failure to the model's log, where its author sees it.
fn log_for_author(model: &Model, failure: &Failure, id: &[u8]) {
    let (unix_ms, stream, text) = (unix_ms(), "node".to_owned(), failure.to_string());
    let request_id = Some(String::from_utf8_lossy(id).into_owned());
    let entry = omni_control_api::LogEntry { unix_ms, instance: String::new(), stream, request_id, text };
    model.logs.push(entry);
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
fn count_failure(model: &Model, api: Api, failure: &Failure) {
    let outcomes = model.metrics.outcomes(api);
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
