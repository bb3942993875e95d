//! Submission of a request to a model, and the wait for its answer.

use crate::admission::BatchItem;
use crate::attempt::Attempt;
use crate::batch::batch_cost;
use crate::forward::Listener;
use crate::head::{self, priority};
use crate::in_flight::InFlightRequest;
use crate::trace::RequestTrace;
use bytes::Bytes;
use hyper::http::request::Parts;
use omni_auth::TokenHolder;
use omni_body::{BodyKind, BodyPermit, RequestBody};
use omni_engine_client::{Answer, AnswerContent, Execution, NewerParameter, Request as EngineRequest, Unanswered};
use omni_engine_protocol::frame::RequestHead;
use omni_ingress::body::RunningUpload;
use omni_policy::dispatch::RequestId;
use omni_request_error::Failure;
use omni_supervisor::metrics::Api;
use omni_supervisor::model::content::Content;
use omni_supervisor::model::{Model, Submission};
use omni_usage::UsageRecorder;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;
use tokio::sync::oneshot;

static NEXT_ID: AtomicU64 = AtomicU64::new(1);

/// Client's request.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Caller<'a> {
    pub(crate) listener: Listener,
    pub(crate) parts: &'a Parts,
    /// Request id, as the response has it.
    pub(crate) id: &'a [u8],
    pub(crate) arrived: Instant,
    /// Holder of the client's token.
    pub(crate) holder: Option<&'a Arc<TokenHolder>>,
    /// Takes the record of the request's usage.
    pub(crate) usage: &'a Arc<UsageRecorder>,
    pub(crate) trace: &'a RequestTrace,
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
    /// Turn of a request that waited for that alone.
    Turn,
}

impl Caller<'_> {
    /// Submits a request to a model: API, name of the operation and hash of the session's name, head and body, the
    /// permit of its memory, content and deadline. From now on the memory counts as the model's.
    ///
    /// # Errors
    /// There is no memory for another body of this model, the client's priority is no number, or the model takes no
    /// requests.
    pub(crate) fn submit(
        &self,
        model: &Arc<Model>,
        (api, operation, session): (Api, &'static str, Option<u64>),
        (head, body): (RequestHead, RequestBody),
        mut permit: Option<BodyPermit>,
        (content, deadline): (&Content, Instant),
    ) -> Result<Submitted, Failure> {
        if permit.as_mut().is_some_and(|permit| !permit.move_to(&model.body_budget, Instant::now())) {
            return Err(Failure::NodeBusy);
        }
        let call = (api, operation, session);
        self.submit_request(model, call, (head, body), (false, None), permit, (content, deadline))
    }

    /// Submits a request of which an instance of an earlier release may not know a parameter. The memory of its body is the
    /// caller's to count.
    ///
    /// # Errors
    /// As [`Caller::submit`].
    pub(crate) fn submit_newer(
        &self,
        model: &Arc<Model>,
        call: (Api, &'static str, Option<u64>),
        request: (RequestHead, RequestBody),
        newer: Option<NewerParameter>,
        target: (&Content, Instant),
    ) -> Result<Submitted, Failure> {
        self.submit_request(model, call, request, (false, newer), None, target)
    }

    /// Submits a request whose body can be made only once an instance has a place for it, and waits for that: in the queue, as
    /// every other one, with its failures. Returns `false` if the model was handed over meanwhile. The caller counts the outcome.
    ///
    /// # Errors
    /// The failure of a request that no instance gets.
    pub(crate) async fn wait_for_turn(
        &self,
        model: &Arc<Model>,
        call: (Api, &'static str, Option<u64>),
        target: (&Content, Instant),
    ) -> Result<bool, Failure> {
        let head = head::head(self.parts, self.id, None, false);
        let body = RequestBody::Collected(BodyKind::Json, Bytes::new());
        let mut submitted = self.submit_request(model, call, (head, body), (true, None), None, target)?;
        submitted.request.leave_outcome();
        match submitted.wait(model, &mut None, target.1).await? {
            Outcome::Turn => Ok(true),
            Outcome::NotSent(_) => Ok(false),
            Outcome::Answer(_, mut request) => {
                request.cancel_uncounted(); // no instance got it
                Err(Failure::Died)
            }
        }
    }

    fn submit_request(
        &self,
        model: &Arc<Model>,
        (api, operation, session): (Api, &'static str, Option<u64>),
        (mut head, body): (RequestHead, RequestBody),
        (awaits_turn, newer): (bool, Option<NewerParameter>),
        permit: Option<BodyPermit>,
        (content, deadline): (&Content, Instant),
    ) -> Result<Submitted, Failure> {
        if self.usage.refuses() {
            return Err(Failure::UsageNotKept);
        }
        let id = RequestId(NEXT_ID.fetch_add(1, Ordering::Relaxed));
        let (sender, reply) = oneshot::channel();
        let session = session.or_else(|| head::session(&self.parts.headers));
        let (priority, cost) = (priority(&self.parts.headers, content)?, batch_cost(content, &head, &body));
        let (execution, has_gpu) = (Execution::default(), content.manifest.resources.gpu_memory.bytes() > 0);
        let bytes_in = match &body {
            RequestBody::Collected(_, bytes) => bytes.len() as u64,
            RequestBody::Streamed(_) => head.body_length.unwrap_or(0),
        };
        let spans = self.trace.attempt(operation);
        self.trace.add_headers(&mut head.headers, spans.as_ref());
        let at = Instant::now();
        let (caller, trace) = ((self.id, self.holder), (self.trace.id(), spans));
        let attempt = Attempt::new(self.usage, caller, trace, (at, execution.clone()), (has_gpu, bytes_in));
        let request = EngineRequest { head, body, awaits_turn, newer, deadline, reply: sender, execution };
        let submission = Submission { id, priority, session, cost, request };
        let is_item = self.parts.extensions.get::<BatchItem>().is_some();
        let attempt = (attempt, is_item);
        let mut request = InFlightRequest::new(model, (api, id), self.arrived, deadline, permit, attempt);
        if let Err(failure) = model.submit(Box::new(submission)) {
            request.on_not_sent();
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
            Ok(Ok(Ok(answer))) => {
                if let AnswerContent::Json(bytes) | AnswerContent::Bytes(bytes) = &answer.content {
                    request.on_bytes(bytes.len());
                }
                Ok(Outcome::Answer(Box::new(answer), request))
            }
            Ok(Ok(Err(Unanswered::Failed(failure)))) => {
                request.on_failed_end(&failure);
                Err(failure)
            }
            Ok(Ok(Err(Unanswered::NotSent(body)))) => {
                request.on_not_sent();
                Ok(Outcome::NotSent(body))
            }
            Ok(Ok(Err(Unanswered::Turn))) => {
                request.on_not_sent();
                Ok(Outcome::Turn)
            }
            Ok(Err(broken_off)) => {
                request.cancel_uncounted();
                Err(broken_off)
            }
            Err(_) => {
                request.on_deadline();
                request.cancel_uncounted();
                let build = model.admission().build;
                Err(build.map_or(Failure::Deadline, |build| Failure::DeadlineBuilding { build }))
            }
        }
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
