//! `/v1/embeddings`: vectors of texts.

use super::{ApiRequest, Target, json_body};
use crate::answer::{AnswerBody, kept_json_response, timing_headers};
use crate::generation::BYTES_PER_TOKEN;
use crate::head;
use crate::in_flight::InFlightRequest;
use crate::state::RunApi;
use crate::submission::{Caller, Outcome};
use bytes::{Bytes, BytesMut};
use hyper::Response;
use omni_body::{BodyKind, BodyPermit, RequestBody, StreamKind};
use omni_config::manifest::Kind;
use omni_engine_client::{AnswerContent, StreamEnd, StreamRead, StreamReader};
use omni_engine_protocol::frame::RequestKind;
use omni_engine_protocol::task::{EmbeddingsAnswer, EmbeddingsInput};
use omni_generation::InvalidRequest;
use omni_ingress::body::IncomingBody;
use omni_openai::{EmbeddingRequest, Input, embedding_answer, embedding_request};
use omni_policy::dispatch::hash_name;
use omni_request_error::Failure;
use omni_supervisor::metrics::Api;
use omni_supervisor::model::Model;
use omni_supervisor::model::content::Content;
use std::sync::Arc;
use std::time::Instant;

/// Longest answer, in bytes: that of any other answer.
const LONGEST_ANSWER: u64 = 64 * 1024 * 1024;
/// Bytes of an answer that are reserved at once.
const STEP: u64 = 64 * 1024;

/// Form of the answer.
#[derive(Debug)]
enum Form {
    /// OpenAI.
    OpenAi(EmbeddingRequest),
    /// Run API of Workers AI.
    Native(Vec<String>),
}

/// Request for embeddings to one model.
struct EmbeddingCall<'a> {
    api: &'a RunApi,
    caller: Caller<'a>,
    model: &'a Arc<Model>,
    content: &'a Content,
    deadline: Instant,
    form: Form,
    /// Body as it came, for a scheduler that has to serve it in this one's place.
    original: Bytes,
}

impl ApiRequest<'_> {
    pub(super) async fn embeddings(&self, incoming: &mut IncomingBody) -> Result<Response<AnswerBody>, Failure> {
        let received = self.receive(incoming).await?;
        let (original, permit) = json_body(received)?;
        let request = embedding_request(&original)?;
        let (name, length) = (request.model.clone(), original.len());
        let embed = async |target: Target<'_>| {
            let Target { model, content, deadline } = target;
            let kind = content.manifest.model.kind;
            if kind != Kind::Embeddings {
                let why = format!("`{}` makes no embeddings: its kind is {:?}", model.name, kind.name());
                return Err(InvalidRequest::unsupported("model", why).into());
            }
            let (api, caller, form) = (self.api, self.caller(), Form::OpenAi(request));
            EmbeddingCall { api, caller, model, content, deadline, form, original }.serve(permit).await
        };
        self.with_model(&name, Api::OpenAi, length, embed).await
    }
}

/// Serves a request for embeddings in the native form of the run API.
pub(crate) async fn native_embeddings(
    api: &RunApi,
    caller: Caller<'_>,
    model: &Arc<Model>,
    (original, permit): (Bytes, Option<BodyPermit>),
    (content, deadline): (&Content, Instant),
) -> Result<Response<AnswerBody>, Failure> {
    let form = Form::Native(omni_workers_ai::embedding_texts(&original)?);
    EmbeddingCall { api, caller, model, content, deadline, form, original }.serve(permit).await
}

impl EmbeddingCall<'_> {
    async fn serve(self, permit: Option<BodyPermit>) -> Result<Response<AnswerBody>, Failure> {
        let Caller { parts, id, .. } = self.caller;
        let mut head = head::head(parts, id, None, false);
        head.kind = Some(RequestKind::Embeddings);
        let (api, session) = match &self.form {
            Form::OpenAi(request) => (Api::OpenAi, request.session.as_deref()),
            Form::Native(_) => (Api::WorkersAi, None),
        };
        let session = session.map(|session| hash_name(session.as_bytes()));
        let body = RequestBody::Collected(BodyKind::Json, self.form.input()?);
        let target = (self.content, self.deadline);
        let submitted = self.caller.submit(self.model, (api, session), (head, body), permit, target)?;
        let at = submitted.at;
        let (answer, mut in_flight) = match submitted.wait(self.model, &mut None, self.deadline).await? {
            Outcome::Answer(answer, in_flight) => (*answer, in_flight),
            Outcome::NotSent(_) => return self.api.forward(self.caller, self.original, self.deadline).await,
        };
        let collected = match answer.content {
            AnswerContent::Bytes(bytes) => {
                in_flight.on_end();
                Ok(bytes)
            }
            // Long answers come in chunks.
            AnswerContent::Stream(reader) if reader.kind() == StreamKind::Bytes => {
                self.collect(reader, &mut in_flight).await
            }
            AnswerContent::Json(_) | AnswerContent::Stream(_) => {
                Err(Failure::AnswerNotSendable("it is no list of embeddings".to_owned()))
            }
        };
        let bytes = collected.inspect_err(|_| in_flight.cancel_uncounted())?;
        let json = self.form.render(&bytes)?;
        in_flight.on_stream_end(true);
        let share = &self.model.body_budget;
        let mut response = kept_json_response(json, answer.permit, parts.version, share, self.deadline)?;
        let (version, now) = (&answer.version, Instant::now());
        timing_headers(response.headers_mut(), (version, at), answer.sent_at, answer.swap, now);
        Ok(response)
    }
}

impl EmbeddingCall<'_> {
    /// Collects an answer that comes in chunks.
    async fn collect(&self, mut reader: StreamReader, in_flight: &mut InFlightRequest) -> Result<Bytes, Failure> {
        let (mut all, mut permit) = (BytesMut::new(), self.model.body_budget.body());
        let deadline = tokio::time::sleep_until(self.deadline.into());
        tokio::pin!(deadline);
        loop {
            let read = tokio::select! {
                biased;
                read = std::future::poll_fn(|context| reader.poll_read(context)) => read,
                () = &mut deadline => {
                    in_flight.on_deadline();
                    return Err(Failure::Deadline);
                }
            };
            match read {
                StreamRead::Chunks(chunks) => {
                    in_flight.on_consumed(chunks.cost());
                    let Ok(bytes) = chunks.into_bytes() else { return Err(Failure::Died) }; // a stream of bytes has no other
                    let length = (all.len() + bytes.len()) as u64;
                    if length > LONGEST_ANSWER {
                        let why = format!("its embeddings are longer than {LONGEST_ANSWER} bytes");
                        return Err(Failure::AnswerNotSendable(why));
                    }
                    if length > permit.bytes() && !permit.grow(length.max(STEP) - permit.bytes(), Instant::now()) {
                        return Err(Failure::AnswerNotKept);
                    }
                    all.extend_from_slice(&bytes);
                }
                StreamRead::End(StreamEnd::Complete) => return Ok(all.freeze()),
                StreamRead::End(StreamEnd::Failed(failure)) => return Err(failure),
            }
        }
    }
}

impl Form {
    /// Body for the model.
    fn input(&self) -> Result<Bytes, Failure> {
        let input = match self {
            Self::OpenAi(request) => input(request),
            Self::Native(texts) => EmbeddingsInput { texts: Some(texts.clone()), ..EmbeddingsInput::default() },
        };
        let bytes = serde_json::to_vec(&input).map_err(|error| Failure::BadRequest(error.to_string()))?;
        Ok(bytes.into())
    }

    /// Answer for the client.
    fn render(&self, bytes: &[u8]) -> Result<Bytes, Failure> {
        let answer = EmbeddingsAnswer::parse(bytes).map_err(|error| Failure::AnswerNotSendable(error.to_string()))?;
        let given = answer.header.count;
        let asked = match self {
            Self::OpenAi(request) => request.inputs.len(),
            Self::Native(texts) => texts.len(),
        };
        if given != asked {
            return Err(Failure::AnswerNotSendable(format!("it has {given} embeddings for {asked} inputs")));
        }
        let vectors: Vec<Vec<f32>> = (0..given).map(|at| answer.embedding(at).collect()).collect();
        Ok(match self {
            Self::Native(_) => omni_workers_ai::embedding_answer(&vectors),
            Self::OpenAi(request) => {
                let tokens = answer.header.usage.map_or_else(|| estimate(request), |usage| usage.prompt_tokens);
                embedding_answer(request, answer.numbers, answer.header.dimensions, tokens)
            }
        })
    }
}

fn input(request: &EmbeddingRequest) -> EmbeddingsInput {
    let text = |input: &Input| match input {
        Input::Text(text) => Some(text.clone()),
        Input::Tokens(_) => None,
    };
    let tokens = |input: &Input| match input {
        Input::Tokens(tokens) => Some(tokens.clone()),
        Input::Text(_) => None,
    };
    let texts: Option<Vec<String>> = request.inputs.iter().map(text).collect();
    let tokens = if texts.is_none() { request.inputs.iter().map(tokens).collect() } else { None };
    EmbeddingsInput { texts, tokens, dimensions: request.dimensions }
}

fn estimate(request: &EmbeddingRequest) -> u64 {
    let tokens = request.inputs.iter().map(|input| match input {
        Input::Text(text) => (text.len() as u64).div_ceil(BYTES_PER_TOKEN),
        Input::Tokens(tokens) => tokens.len() as u64,
    });
    tokens.sum()
}
