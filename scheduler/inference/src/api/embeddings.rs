//! `/v1/embeddings`: vectors of texts.

use super::{ApiRequest, guarded, json_body, model_name};
use crate::answer::{AnswerBody, keep_response, timing_headers};
use crate::forward::Listener;
use crate::head::{self, timeout};
use crate::run::{Caller, Outcome};
use bytes::Bytes;
use hyper::Response;
use hyper::header::{CONTENT_TYPE, HeaderValue};
use omni_body::{BodyKind, RequestBody};
use omni_config::manifest::Kind;
use omni_engine_client::AnswerContent;
use omni_engine_protocol::frame::RequestKind;
use omni_engine_protocol::task::{EmbeddingsAnswer, EmbeddingsInput};
use omni_generation::InvalidRequest;
use omni_ingress::body::IncomingBody;
use omni_openai::{EmbeddingRequest, Input, embedding_answer, embedding_request};
use omni_policy::dispatch::hash_name;
use omni_request_error::Failure;
use omni_supervisor::metrics::Api;
use std::time::Instant;

/// Bytes of text that count as one token where the model does not count.
const BYTES_PER_TOKEN: u64 = 4;

impl ApiRequest<'_> {
    pub(super) async fn embeddings(&self, incoming: &mut IncomingBody) -> Result<Response<AnswerBody>, Failure> {
        let received = self.receive(incoming).await?;
        let (original, permit) = json_body(received)?;
        let request = embedding_request(&original)?;
        let name = model_name(&request.model)?;
        let guard = self.admit(&name)?;
        let model = self.api.find(name.as_str()).await?;
        let served = async {
            let content = self.api.content(&model).await?;
            let manifest = &content.manifest;
            if manifest.model.kind != Kind::Embeddings {
                let why = format!("`{name}` makes no embeddings: its kind is {:?}", manifest.model.kind.name());
                return Err(InvalidRequest::unsupported("model", why).into());
            }
            let limit = manifest.limits.body.bytes();
            if original.len() as u64 > limit {
                return Err(Failure::BodyTooLarge { limit });
            }
            let deadline = self.arrived + timeout(&self.parts.headers, &content);
            let caller = Caller { listener: Listener::Data, parts: self.parts, id: self.id, arrived: self.arrived };
            let mut head = head::head(self.parts, self.id, None, false);
            head.kind = Some(RequestKind::Embeddings);
            let session = request.session.as_deref().map(|session| hash_name(session.as_bytes()));
            let body = RequestBody::Collected(BodyKind::Json, input(&request)?);
            let call = (head, body);
            let submitted = caller.submit(&model, (Api::OpenAi, session), call, permit, (&content, deadline))?;
            let at = submitted.at;
            match submitted.wait(&model, &mut None, deadline).await? {
                Outcome::NotSent(_) => {
                    let body = (RequestBody::Collected(BodyKind::Json, original.clone()), None);
                    self.api.forwarder().received(Listener::Data, self.parts, body, self.id, deadline).await
                }
                Outcome::Answer(answer, mut in_flight) => {
                    let (AnswerContent::Bytes(bytes), sent_at, swap) = (answer.content, answer.sent_at, answer.swap)
                    else {
                        return Err(Failure::AnswerNotSendable("it is no list of embeddings".to_owned()));
                    };
                    let mut json = render(&request, &bytes)?;
                    in_flight.on_stream_end(true);
                    let share = &model.body_budget;
                    let kept = keep_response(&mut json, answer.permit, self.parts.version, share, deadline)?;
                    let mut response = Response::new(AnswerBody::full(json));
                    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
                    if let Some(kept) = kept {
                        response.extensions_mut().insert(kept);
                    }
                    timing_headers(response.headers_mut(), (&answer.version, at), sent_at, swap, Instant::now());
                    Ok(response)
                }
            }
        };
        let served = served.await.inspect_err(|failure| self.api.count_failure(&model, Api::OpenAi, failure, self.id));
        Ok(guarded(served?, guard))
    }
}

/// Body for the model.
fn input(request: &EmbeddingRequest) -> Result<Bytes, Failure> {
    let mut input = EmbeddingsInput { dimensions: request.dimensions, ..EmbeddingsInput::default() };
    let texts = request.inputs.iter().map(|input| match input {
        Input::Text(text) => Some(text.clone()),
        Input::Tokens(_) => None,
    });
    let tokens = request.inputs.iter().map(|input| match input {
        Input::Tokens(tokens) => Some(tokens.clone()),
        Input::Text(_) => None,
    });
    input.texts = texts.collect();
    if input.texts.is_none() {
        input.tokens = tokens.collect();
    }
    let bytes = serde_json::to_vec(&input).map_err(|error| Failure::BadRequest(error.to_string()))?;
    Ok(bytes.into())
}

/// Answer for the client.
fn render(request: &EmbeddingRequest, bytes: &[u8]) -> Result<Bytes, Failure> {
    let answer = EmbeddingsAnswer::parse(bytes).map_err(|error| Failure::AnswerNotSendable(error.to_string()))?;
    let (given, asked) = (answer.header.count, request.inputs.len());
    if given != asked {
        return Err(Failure::AnswerNotSendable(format!("it has {given} embeddings for {asked} inputs")));
    }
    let vectors: Vec<Vec<f32>> = (0..given).map(|at| answer.embedding(at).collect()).collect();
    let tokens = answer.header.usage.map_or_else(|| estimate(request), |usage| usage.prompt_tokens);
    Ok(embedding_answer(request, &vectors, tokens))
}

fn estimate(request: &EmbeddingRequest) -> u64 {
    let tokens = request.inputs.iter().map(|input| match input {
        Input::Text(text) => (text.len() as u64).div_ceil(BYTES_PER_TOKEN),
        Input::Tokens(tokens) => tokens.len() as u64,
    });
    tokens.sum()
}
