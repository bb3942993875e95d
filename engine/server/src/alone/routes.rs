//! Routes: the OpenAI API of one model, health, metrics.

use super::answer::{AnswerBody, collect};
use super::embeddings::embed;
use super::service::{Service, now};
use super::submission::submit;
use bytes::Bytes;
use hyper::body::Incoming;
use hyper::header::{CACHE_CONTROL, CONTENT_TYPE, HeaderValue};
use hyper::{Method, Request, Response};
use omni_body::BodyPermit;
use omni_generation::{GenerationRequest, ResponseEncoder};
use omni_ingress::{BodyUnread, ResponseBody, receive_whole};
use omni_openai::{
    AnswerHead, ChatEncoder, CompletionEncoder, Model, ResponsesEncoder, Route, chat_request, completion_request,
    embedding_request, error_response, model_answer, model_list_answer, responses_request,
};
use omni_request_error::Failure;
use omni_sampler::fresh_seed;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Longest body, in bytes.
const LONGEST_BODY: u64 = 32 << 20;
/// Time for a body to arrive.
const BODY_TIME: Duration = Duration::from_secs(60);
/// Time after which a client may ask an engine again that hangs.
const HANG_RETRY: Duration = Duration::from_secs(60);

/// Response to a request.
pub(super) type Answered = Response<ResponseBody<AnswerBody>>;

/// Answers a request.
pub(super) async fn respond(service: Arc<Service>, request: Request<Incoming>) -> Answered {
    match (request.method(), request.uri().path()) {
        (&Method::GET, "/health") => health(&service),
        (&Method::GET, "/metrics") => {
            let text = service.front.render(&service.engine.status());
            document(text.into(), "application/openmetrics-text; version=1.0.0; charset=utf-8")
        }
        _ => match read(&service, request).await {
            Ok(read) => answer(&service, read).await.unwrap_or_else(|failure| failed(&failure)),
            Err(failure) => {
                let mut response = failed(&failure);
                response.extensions_mut().insert(BodyUnread);
                response
            }
        },
    }
}

fn failed(failure: &Failure) -> Answered {
    error_response(failure).map(ResponseBody::full)
}

fn health(service: &Service) -> Answered {
    match service.engine.status().hung {
        None => document(Bytes::from_static(b"{\"status\":\"ok\"}"), "application/json"),
        Some(stalled) => {
            tracing::warn!(seconds = stalled.as_secs(), "the engine's step does not end");
            failed(&Failure::CannotStart { retry_after: HANG_RETRY })
        }
    }
}

/// Request to the API whose body was read.
struct Read {
    route: Route,
    body: Bytes,
    /// Memory of the body.
    _permit: BodyPermit,
}

async fn read(service: &Service, request: Request<Incoming>) -> Result<Read, Failure> {
    let (parts, body) = request.into_parts();
    let route = omni_openai::route(&parts.method, parts.uri.path()).unwrap_or(Err(Failure::NoSuchRoute))?;
    let deadline = Instant::now() + BODY_TIME;
    let (body, permit) = receive_whole(&parts, body, LONGEST_BODY, &service.bodies, deadline).await?;
    Ok(Read { route, body, _permit: permit })
}
async fn answer(service: &Arc<Service>, Read { route, body, _permit }: Read) -> Result<Answered, Failure> {
    let name = &service.facts.name;
    let model = || Model::new(name.clone(), service.created);
    let head = || AnswerHead {
        id: format!("{:016x}{:016x}", fresh_seed(), fresh_seed()),
        created: now(),
        model: name.clone(),
    };
    match route {
        Route::Models => Ok(json(model_list_answer(vec![model()]))),
        Route::Model(asked) if *asked.as_str() == **name => Ok(json(model_answer(&model()))),
        Route::Model(_) => Err(Failure::NoSuchModel),
        Route::Embeddings => Ok(json(embed(service, embedding_request(&body)?).await?)),
        Route::ChatCompletions => {
            let request = chat_request(&body)?;
            let encoder = Box::new(ChatEncoder::new(head(), &request));
            generate(service, request, encoder).await
        }
        Route::Completions => {
            let request = completion_request(&body)?;
            let encoder = Box::new(CompletionEncoder::new(head(), &request));
            generate(service, request, encoder).await
        }
        Route::Responses => {
            let (request, echo) = responses_request(&body)?;
            generate(service, request, Box::new(ResponsesEncoder::new(head(), echo))).await
        }
        Route::Rerank
        | Route::Transcriptions
        | Route::Translations
        | Route::Speech
        | Route::ImageGenerations
        | Route::Jobs(_) => Err(Failure::NoSuchRoute),
    }
}

async fn generate(
    service: &Arc<Service>,
    request: GenerationRequest,
    encoder: Box<dyn ResponseEncoder>,
) -> Result<Answered, Failure> {
    let streamed = request.stream;
    let mut generation = submit(service, request).await?;
    generation.begin().await?;
    if !streamed {
        return Ok(json(collect(generation, encoder).await?));
    }
    let mut response = Response::new(ResponseBody::Stream(AnswerBody::new(generation, encoder)));
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("text/event-stream"));
    response.headers_mut().insert(CACHE_CONTROL, HeaderValue::from_static("no-cache"));
    Ok(response)
}

fn json(bytes: Bytes) -> Answered {
    document(bytes, "application/json")
}

fn document(bytes: Bytes, media_type: &'static str) -> Answered {
    let mut response = Response::new(ResponseBody::full(bytes));
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(media_type));
    response
}
