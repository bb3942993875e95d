//! Run API: one request to one model.

use crate::answer::{AnswerBody, complete, reserve, respond, timing_headers};
use crate::api::TextCodec;
use crate::api::embeddings::native_embeddings;
use crate::api::text::TextRequest;
use crate::forward::Listener;
use crate::head::{self, request_id, timeout};
use crate::in_flight::InFlightRequest;
use crate::outcome::count_failure;
use crate::state::RunApi;
use crate::submission::{Caller, Outcome};
use hyper::body::Incoming;
use hyper::{Request, Response};
use omni_body::{RequestBody, StreamKind};
use omni_config::manifest::Kind;
use omni_engine_client::{Answer, AnswerContent};
use omni_ingress::body::{self, BodyLimits, IncomingBody, ReceivedBody, RunningUpload, Upload};
use omni_ingress::{RawBodyHandoff, response_headers};
use omni_request_error::Failure;
use omni_supervisor::metrics::Api;
use omni_supervisor::model::Model;
use omni_supervisor::model::content::Content;
use omni_workers_ai::error_response;
use std::sync::Arc;
use std::time::Instant;

/// Request to a model, as it came.
struct ModelRequest<'a> {
    api: &'a RunApi,
    caller: Caller<'a>,
    model: &'a Arc<Model>,
}

impl RunApi {
    /// Serves one request to the model `name`, which is decoded already.
    pub async fn run(&self, listener: Listener, name: &str, request: Request<Incoming>) -> Response<AnswerBody> {
        let (parts, body) = request.into_parts();
        let id = request_id(&parts.headers);
        let mut body = IncomingBody::Unread(body);
        let response = match self.find(name).await {
            Err(failure) => error_response(&failure).map(AnswerBody::full),
            Ok(model) => {
                let (parts, id, arrived) = (&parts, id.as_bytes(), Instant::now());
                let caller = Caller { listener, parts, id, arrived };
                let request = ModelRequest { api: self, caller, model: &model };
                match request.serve(&mut body).await {
                    Ok(response) => response,
                    Err(failure) => {
                        count_failure(&model, Api::WorkersAi, &failure, id);
                        error_response(&failure).map(AnswerBody::full)
                    }
                }
            }
        };
        complete(response, id, body, &parts).await
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
                return self.api.forwarder().received(listener, parts, (body, upload), id, deadline).await;
            }
        };
        if let Some(Err(failure)) = answer.head.as_ref().map(|head| response_headers::check(&head.headers)) {
            request.cancel_uncounted();
            return Err(failure);
        }
        if matches!(&answer.content, AnswerContent::Stream(reader) if reader.kind() == StreamKind::Generation) {
            request.cancel_uncounted();
            return Err(Failure::AnswerNotSendable("generated text was not asked for".to_owned()));
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
