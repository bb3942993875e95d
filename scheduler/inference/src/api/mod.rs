//! APIs beside the run API: OpenAI's and Anthropic's. The model of a request is named in its body.

pub(crate) mod call;
mod count;
pub(crate) mod embeddings;
pub(crate) mod images;
pub(crate) mod jobs;
mod models;
pub(crate) mod rerank;
mod route_name;
pub(crate) mod speech;
pub(crate) mod text;
pub(crate) mod transcription;

use crate::admission::{BatchItem, ItemFailure, admit};
use crate::answer::{AnswerBody, complete};
use crate::api_kind::ApiKind;
use crate::forward::Listener;
use crate::head::{request_id, timeout};
use crate::outcome::count_failure;
use crate::state::RunApi;
use crate::submission::Caller;
use crate::trace::RequestTrace;
use bytes::Bytes;
use call::{Call, check_kind};
use hyper::body::Incoming;
use hyper::http::request::Parts;
use hyper::{Method, Request, Response};
use omni_anthropic::AnthropicEncoder;
use omni_auth::TokenHolder;
use omni_body::BodyPermit;
use omni_codec::openapi;
use omni_config::manifest::Kind;
use omni_config::name::ModelName;
use omni_generation::{GenerationRequest, InvalidRequest, ResponseEncoder};
use omni_ingress::body::{self, IncomingBody};
use omni_ingress::{ResponseGuard, receive_whole};
use omni_openai::{ChatEncoder, CompletionEncoder, ResponseEcho, ResponsesEncoder};
use omni_request_error::Failure;
use omni_supervisor::clock::unix_ms;
use omni_supervisor::metrics::Api;
use omni_supervisor::model::Model;
use omni_supervisor::model::content::Content;
use omni_workers_ai::NativeEncoder;
use std::sync::Arc;
use std::time::{Duration, Instant};
use text::TextRequest;

pub(crate) use route_name::request_name;

/// APIs of the data listener.
pub const APIS: [&openapi::Api; 3] = [&omni_openai::API, &omni_anthropic::API, &omni_workers_ai::API];
/// Longest body before its model is known; afterwards the model's own limit counts.
const LONGEST_BODY: u64 = 64 * 1024 * 1024;
/// Time for a body to arrive before its model is known.
const BODY_TIME: Duration = Duration::from_secs(60);

/// Route of an API whose models are named in bodies.
#[derive(Debug, Clone)]
pub(crate) enum ApiRoute {
    /// OpenAI.
    OpenAi(omni_openai::Route),
    /// Anthropic.
    Anthropic(omni_anthropic::Route),
}

/// Form of requests for generated text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum TextForm {
    /// Chat completions of OpenAI.
    Chat,
    /// Completions of OpenAI.
    Completion,
    /// Responses of OpenAI.
    Responses,
    /// Messages of Anthropic.
    Messages,
}

/// Codec of the answer to one request for generated text.
#[derive(Debug)]
pub(crate) enum TextCodec {
    /// Chat completions of OpenAI.
    Chat,
    /// Completions of OpenAI.
    Completion,
    /// Responses of OpenAI, which repeat a part of their request.
    Responses(Box<ResponseEcho>),
    /// Messages of Anthropic.
    Messages,
    /// Run API of Workers AI.
    Native,
}

impl TextCodec {
    /// API of the codec.
    pub(crate) fn label(&self) -> Api {
        match self {
            Self::Chat | Self::Completion | Self::Responses(_) => Api::OpenAi,
            Self::Messages => Api::Anthropic,
            Self::Native => Api::WorkersAi,
        }
    }

    /// Returns whether an answer can have tool calls.
    pub(crate) fn has_calls(&self) -> bool {
        match self {
            Self::Completion => false,
            Self::Chat | Self::Responses(_) | Self::Messages | Self::Native => true,
        }
    }

    /// Bytes of a request's body, of this length, that its answer repeats.
    pub(crate) fn repeats(&self, request: &GenerationRequest, length: usize) -> u64 {
        match self {
            Self::Completion if !request.echo => 0,
            Self::Completion => (length as u64).saturating_mul(request.choices.into()),
            Self::Responses(_) => length as u64,
            Self::Chat | Self::Messages | Self::Native => 0,
        }
    }

    /// Encoder of the answer to a request. `id`: that of the request; `created`: seconds since 1970.
    pub(crate) fn encoder(self, request: &GenerationRequest, id: &[u8], created: u64) -> Box<dyn ResponseEncoder> {
        let (id, model) = (answer_id(id), request.model.clone());
        match self {
            Self::Chat => Box::new(ChatEncoder::new(omni_openai::AnswerHead { id, created, model }, request)),
            Self::Completion => {
                Box::new(CompletionEncoder::new(omni_openai::AnswerHead { id, created, model }, request))
            }
            Self::Responses(echo) => {
                Box::new(ResponsesEncoder::new(omni_openai::AnswerHead { id, created, model }, *echo))
            }
            Self::Messages => Box::new(AnthropicEncoder::new(omni_anthropic::AnswerHead { id, model }, 0)),
            Self::Native => Box::new(NativeEncoder::new(request)),
        }
    }
}

/// Id of an answer by that of its request: letters and digits.
fn answer_id(request_id: &[u8]) -> String {
    let mut id = String::with_capacity(request_id.len());
    id.extend(request_id.iter().filter(|byte| byte.is_ascii_alphanumeric()).map(|byte| char::from(*byte)));
    id
}

/// Head of an answer in the OpenAI API.
fn openai_head(request_id: &[u8], model: &str) -> omni_openai::AnswerHead {
    omni_openai::AnswerHead { id: answer_id(request_id), created: unix_ms() / 1000, model: model.to_owned() }
}

impl TextForm {
    fn api(self) -> Api {
        match self {
            Self::Chat | Self::Completion | Self::Responses => Api::OpenAi,
            Self::Messages => Api::Anthropic,
        }
    }

    fn read(self, json: &[u8]) -> Result<(GenerationRequest, TextCodec), InvalidRequest> {
        Ok(match self {
            Self::Chat => (omni_openai::chat_request(json)?, TextCodec::Chat),
            Self::Completion => (omni_openai::completion_request(json)?, TextCodec::Completion),
            Self::Responses => {
                let (request, echo) = omni_openai::responses_request(json)?;
                (request, TextCodec::Responses(Box::new(echo)))
            }
            Self::Messages => (omni_anthropic::message_request(json)?, TextCodec::Messages),
        })
    }
}

impl ApiRoute {
    /// The route of a request; `None`: the path is none of these APIs.
    pub(crate) fn of(method: &Method, path: &str) -> Option<Result<Self, Failure>> {
        let openai = || Some(omni_openai::route(method, path)?.map(Self::OpenAi));
        let anthropic = || Some(omni_anthropic::route(method, path)?.map(Self::Anthropic));
        openai().or_else(anthropic)
    }

    fn kind(&self) -> ApiKind {
        match self {
            Self::OpenAi(_) => ApiKind::OpenAi,
            Self::Anthropic(_) => ApiKind::Anthropic,
        }
    }
}

/// Model of a request, and the end of the client's wait.
struct Target<'a> {
    model: &'a Arc<Model>,
    content: &'a Arc<Content>,
    deadline: Instant,
}

/// A request of one of these APIs.
pub(crate) struct ApiRequest<'a> {
    api: &'a RunApi,
    parts: &'a Parts,
    id: &'a [u8],
    arrived: Instant,
    holder: Option<&'a Arc<TokenHolder>>,
    trace: &'a RequestTrace,
}

/// Serves a request of one of these APIs. `holder`: that of the client's token.
pub(crate) async fn serve(
    api: &RunApi,
    route: ApiRoute,
    (holder, trace): (Option<&Arc<TokenHolder>>, &RequestTrace),
    request: Request<Incoming>,
) -> Response<AnswerBody> {
    let (parts, body) = request.into_parts();
    let id = request_id(&parts.headers);
    let mut body = IncomingBody::Unread(body);
    let (parts_of, arrived) = (&parts, Instant::now());
    let request = ApiRequest { api, parts: parts_of, id: id.as_bytes(), arrived, holder, trace };
    let kind = route.kind();
    let response = match request.serve(route, &mut body).await {
        Ok(response) => response,
        Err(failure) => {
            let mut response = kind.error(&failure, id.as_bytes()).map(AnswerBody::full);
            if parts.extensions.get::<BatchItem>().is_some() {
                response.extensions_mut().insert(ItemFailure(failure));
            }
            response
        }
    };
    complete(kind.named(response, &id), id, body, &parts).await
}

impl ApiRequest<'_> {
    async fn serve(&self, route: ApiRoute, body: &mut IncomingBody) -> Result<Response<AnswerBody>, Failure> {
        use omni_anthropic::Route as Anthropic;
        use omni_openai::Route as OpenAi;
        match route {
            ApiRoute::OpenAi(OpenAi::Models) => Ok(self.models()),
            ApiRoute::OpenAi(OpenAi::Model(name)) => self.model(&name),
            ApiRoute::OpenAi(OpenAi::ChatCompletions) => self.text(TextForm::Chat, body).await,
            ApiRoute::OpenAi(OpenAi::Completions) => self.text(TextForm::Completion, body).await,
            ApiRoute::OpenAi(OpenAi::Responses) => self.text(TextForm::Responses, body).await,
            ApiRoute::Anthropic(Anthropic::Messages) => self.text(TextForm::Messages, body).await,
            ApiRoute::Anthropic(Anthropic::CountTokens) => self.count_tokens(body).await,
            ApiRoute::OpenAi(OpenAi::Embeddings) => self.embeddings(body).await,
            ApiRoute::OpenAi(OpenAi::Rerank) => self.rerank(body).await,
            ApiRoute::OpenAi(OpenAi::Transcriptions) => self.transcription(body, false).await,
            ApiRoute::OpenAi(OpenAi::Translations) => self.transcription(body, true).await,
            ApiRoute::OpenAi(OpenAi::Speech) => self.speech(body).await,
            ApiRoute::OpenAi(OpenAi::ImageGenerations) => self.images(body).await,
            ApiRoute::OpenAi(OpenAi::Jobs(route)) => self.jobs(route, body).await,
        }
    }

    async fn text(&self, form: TextForm, incoming: &mut IncomingBody) -> Result<Response<AnswerBody>, Failure> {
        let (original, permit) = self.receive_json(incoming).await?;
        let (request, codec) = form.read(&original)?;
        let (name, length) = (request.model.clone(), original.len());
        let serve = async |target: Target<'_>| {
            let Target { model, content, deadline } = target;
            let (api, caller, content) = (self.api, self.caller(), Arc::clone(content));
            TextRequest { api, caller, model, content, request, codec, original, permit, deadline }.serve().await
        };
        self.with_model(&name, form.api(), length, serve).await
    }

    /// Finds and admits the model of a request with a body of this length, and counts a failure of `serve`.
    async fn with_model(
        &self,
        name: &str,
        api: Api,
        length: usize,
        serve: impl AsyncFnOnce(Target<'_>) -> Result<Response<AnswerBody>, Failure>,
    ) -> Result<Response<AnswerBody>, Failure> {
        let name = ModelName::try_from(name.to_owned()).map_err(|_| Failure::NoSuchModel)?;
        let guard = self.admit(&name)?;
        let model = self.api.find(name.as_str()).await?;
        self.trace.on_model(name.as_str());
        let served = async {
            let content = self.api.content(&model).await?;
            let limit = content.manifest.limits.body.bytes();
            if length as u64 > limit {
                return Err(Failure::BodyTooLarge { limit });
            }
            let deadline = self.arrived + timeout(&self.parts.headers, &content)?;
            serve(Target { model: &model, content: &content, deadline }).await
        };
        let served = served.await.inspect_err(|failure| count_failure(&model, api, failure, self.id));
        Ok(guarded(served?, guard))
    }

    fn caller(&self) -> Caller<'_> {
        let Self { api, parts, id, arrived, holder, trace } = *self;
        Caller { listener: Listener::Data, parts, id, arrived, holder, usage: &api.usage, trace }
    }

    /// Finds and admits the model of a request of the OpenAI API, which has to be of this kind. `original`: the body as it came.
    async fn with_call(
        &self,
        name: &str,
        kind: Kind,
        original: Bytes,
        serve: impl AsyncFnOnce(Call<'_>) -> Result<Response<AnswerBody>, Failure>,
    ) -> Result<Response<AnswerBody>, Failure> {
        let (label, length) = (Api::OpenAi, original.len());
        let serve = async |target: Target<'_>| {
            let Target { model, content, deadline } = target;
            check_kind(model, content, kind)?;
            let (api, caller, original) = (self.api, self.caller(), Some(original));
            serve(Call { api, caller, model, content, deadline, label, original, incoming: None }).await
        };
        self.with_model(name, label, length, serve).await
    }

    /// Receives a body of JSON.
    async fn receive_json(&self, incoming: &mut IncomingBody) -> Result<(Bytes, Option<BodyPermit>), Failure> {
        if !body::is_json(&self.parts.headers) {
            return Err(Failure::BadRequest("this route takes JSON: send `content-type: application/json`".to_owned()));
        }
        let (bytes, permit) = self.receive_whole(incoming).await?;
        Ok((bytes, Some(permit)))
    }

    /// Receives the whole body.
    async fn receive_whole(&self, incoming: &mut IncomingBody) -> Result<(Bytes, BodyPermit), Failure> {
        let (unread, deadline) = (incoming.take()?, self.arrived + BODY_TIME);
        let share = self.api.arrivals.share(self.holder.map(|holder| &**holder));
        let received = receive_whole(self.parts, unread, LONGEST_BODY, &share, deadline).await?;
        *incoming = IncomingBody::Complete;
        Ok(received)
    }

    /// Admits the request to a model within the quota of its token.
    fn admit(&self, name: &ModelName) -> Result<Option<ResponseGuard>, Failure> {
        self.holder.map_or(Ok(None), |holder| admit(holder, name, &self.parts.extensions))
    }
}

/// A response with the guard of its token's quota, until it was written.
fn guarded(mut response: Response<AnswerBody>, guard: Option<ResponseGuard>) -> Response<AnswerBody> {
    if let Some(guard) = guard {
        response.extensions_mut().insert(guard);
    }
    response
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_operation_is_a_route() {
        for api in APIS {
            let prefix = if api.servers == openapi::V1 { "/v1" } else { "/ai" };
            for operation in api.operations {
                let path = format!("{prefix}{}", operation.path().replace("{model}", "m"));
                let method = operation.method().parse().unwrap();
                let routed = matches!(ApiRoute::of(&method, &path), Some(Ok(_)));
                assert!(routed || omni_workers_ai::model_of(&method, &path).is_ok(), "{path}");
            }
        }
    }
}
