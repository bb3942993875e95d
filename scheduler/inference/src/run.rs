//! Run API: one request to one model.

use crate::admission::{BatchItem, ItemFailure};
use crate::answer::{AnswerBody, complete};
use crate::api::call::{Call, ModelInput};
use crate::api::embeddings::native_embeddings;
use crate::api::images::native_images;
use crate::api::jobs::queue;
use crate::api::rerank::native_rerank;
use crate::api::speech::native_speech;
use crate::api::text::TextRequest;
use crate::api::transcription::native_transcription;
use crate::api::{TextCodec, request_name};
use crate::forward::Listener;
use crate::head::{request_id, timeout};
use crate::outcome::count_failure;
use crate::state::RunApi;
use crate::submission::Caller;
use crate::trace::RequestTrace;
use hyper::body::Incoming;
use hyper::{Request, Response};
use omni_auth::TokenHolder;
use omni_body::RequestBody;
use omni_config::manifest::Kind;
use omni_ingress::RawBodyHandoff;
use omni_ingress::body::{self, BodyLimits, IncomingBody, ReceivedBody};
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
    /// Serves one request to the model `name`, which is decoded already. `holder`: that of the client's token.
    pub async fn run(
        &self,
        listener: Listener,
        target: (&str, Option<&Arc<TokenHolder>>),
        request: Request<Incoming>,
    ) -> Response<AnswerBody> {
        let trace = RequestTrace::begin(self.tracer(), request.headers(), || request_name(&request));
        trace.on_response(self.run_traced(listener, target, request, &trace).await)
    }

    /// Serves a request whose trace has begun.
    pub(crate) async fn run_traced(
        &self,
        listener: Listener,
        (name, holder): (&str, Option<&Arc<TokenHolder>>),
        request: Request<Incoming>,
        trace: &RequestTrace,
    ) -> Response<AnswerBody> {
        let (parts, body) = request.into_parts();
        let id = request_id(&parts.headers);
        let mut body = IncomingBody::Unread(body);
        let refused = |failure: Failure| {
            let mut response = error_response(&failure).map(AnswerBody::full);
            if parts.extensions.get::<BatchItem>().is_some() {
                response.extensions_mut().insert(ItemFailure(failure));
            }
            response
        };
        let response = match self.find(name).await {
            Err(failure) => refused(failure),
            Ok(model) => {
                trace.on_model(model.name.as_str());
                let (parts, id, arrived) = (&parts, id.as_bytes(), Instant::now());
                let caller = Caller { listener, parts, id, arrived, holder, usage: &self.usage, trace };
                let request = ModelRequest { api: self, caller, model: &model };
                match request.serve(&mut body).await {
                    Ok(response) => response,
                    Err(failure) => {
                        count_failure(&model, Api::WorkersAi, &failure, id);
                        refused(failure)
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
        let deadline = self.caller.arrived + timeout(&self.caller.parts.headers, &content)?;
        let received = self.receive(incoming, &content, deadline).await?;
        let Self { api, caller, model } = *self;
        if let Some(response) = queue::serve(api, &caller, model.name.as_str(), &received.body).await? {
            return Ok(response);
        }
        let kind = content.manifest.model.kind;
        let mut call = Call {
            api,
            caller,
            model,
            content: &content,
            deadline,
            label: Api::WorkersAi,
            original: None,
            incoming: Some(incoming),
        };
        if kind == Kind::Custom {
            return call.any(ModelInput::as_received(received)).await;
        }
        if kind == Kind::SpeechToText {
            return native_transcription(call, received).await;
        }
        let ReceivedBody { body: RequestBody::Collected(_, body), permit, .. } = received else {
            return Err(Failure::BadRequest("this model takes a body of JSON".to_owned()));
        };
        call.original = Some(body.clone());
        match kind {
            Kind::Embeddings => native_embeddings(call, &body, permit).await,
            Kind::Rerank => native_rerank(call, &body, permit).await,
            Kind::TextToSpeech => native_speech(call, &body, permit).await,
            Kind::TextToImage => native_images(call, &body, permit).await,
            Kind::TextGeneration | Kind::SpeechToText | Kind::Custom => {
                let request = omni_workers_ai::text_request(model.name.as_str(), &body)?;
                let (codec, original, content) = (TextCodec::Native, body, Arc::clone(&content));
                TextRequest { api, caller, model, content, request, codec, original, permit, deadline }.serve().await
            }
        }
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
}
