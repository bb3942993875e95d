//! Bodies of requests in all APIs: the first byte says which, the others are the body. An accepted request is within its bounds, and an
//! answer of generated text is events whose data is JSON.

use bytes::{Bytes, BytesMut};
use omni_anthropic::AnthropicEncoder;
use omni_generation::encoder::StreamFailure;
use omni_generation::{
    Delta, Finish, FinishReason, GenerationRequest, InvalidRequest, Prompt, ResponseEncoder, ToolChoice, Usage,
};
use omni_openai::{AnswerHead, ChatEncoder, CompletionEncoder, ResponsesEncoder};
use omni_request_error::Failure;
use omni_workers_ai::NativeEncoder;
use serde::Deserialize;

/// Definition of a tool. Its other members may have numbers beyond any that Rust has.
#[derive(Deserialize)]
struct Definition {
    function: Function,
}

#[derive(Deserialize)]
struct Function {
    name: String,
}

/// Longest message of an error, and longest path of a parameter.
const LONGEST: usize = 2048;

/// # Panics
/// The property is broken.
pub fn holds(data: &[u8]) {
    let Some((api, body)) = data.split_first() else { return };
    match api % 14 {
        0 => check(omni_openai::chat_request(body), body, |request| ChatEncoder::new(head(request), request)),
        1 => {
            check(omni_openai::completion_request(body), body, |request| {
                CompletionEncoder::new(head(request), request)
            });
        }
        2 => {
            let (request, echo) = match omni_openai::responses_request(body) {
                Ok((request, echo)) => (Ok(request), Some(echo)),
                Err(error) => (Err(error), None),
            };
            check(request, body, |request| ResponsesEncoder::new(head(request), echo.clone().unwrap()));
        }
        3 => check(omni_anthropic::message_request(body), body, |request| {
            AnthropicEncoder::new(omni_anthropic::AnswerHead { id: "1".into(), model: request.model.clone() }, 0)
        }),
        4 => check(omni_workers_ai::text_request("m", body), body, NativeEncoder::new),
        5 => {
            refused(omni_openai::embedding_request(body).map(|request| assert!(!request.inputs.is_empty())));
        }
        6 => {
            refused(omni_openai::rerank_request(body).map(|request| assert!(request.top_n <= request.documents.len())));
        }
        7 => {
            refused(omni_openai::audio::speech_request(body).map(|request| assert!(!request.input.is_empty())));
        }
        8 => {
            refused(omni_openai::image_request(body).map(|request| assert!((1..=10).contains(&request.n))));
        }
        9 => form(body),
        10 => {
            refused(omni_workers_ai::transcription_request(body).map(|request| assert!(!request.audio.is_empty())));
        }
        11 => refused(omni_workers_ai::speech_request(body).map(|request| assert!(!request.text.is_empty()))),
        12 => {
            let has_size = |side: Option<u32>| side.is_none_or(|side| (16..=4096).contains(&side));
            let check =
                |request: omni_workers_ai::ImageRequest| assert!(has_size(request.width) && has_size(request.height));
            refused(omni_workers_ai::image_request(body).map(check));
        }
        _ => {
            refused(
                omni_workers_ai::rerank_request(body)
                    .map(|request| assert!((1..=4096).contains(&request.documents.len()))),
            );
        }
    }
}

/// Checks that the file of a form is a part of the body.
fn form(body: &[u8]) {
    let body = Bytes::copy_from_slice(body);
    let read = omni_openai::audio::transcription_form("multipart/form-data; boundary=b", &body, false);
    refused(read.map(|(request, file)| {
        assert!(!request.model.is_empty() && !file.content.is_empty());
        let (whole, part) = (body.as_ptr_range(), file.content.as_ptr_range());
        assert!(whole.start <= part.start && part.end <= whole.end);
    }));
}

fn head(request: &GenerationRequest) -> AnswerHead {
    AnswerHead { id: "1".into(), created: 1, model: request.model.clone() }
}

/// Checks that a refusal is a sentence, however long the body's names and values are.
fn refused(result: Result<(), InvalidRequest>) {
    if let Err(error) = result {
        assert!(!error.message.is_empty() && error.message.len() < LONGEST, "{error:?}");
        assert!(error.parameter.is_none_or(|parameter| parameter.len() < LONGEST));
    }
}

fn check<E: ResponseEncoder>(
    result: Result<GenerationRequest, InvalidRequest>,
    body: &[u8],
    encoder: impl FnOnce(&GenerationRequest) -> E,
) {
    let request = match result {
        Ok(request) => request,
        Err(error) => return refused(Err(error)),
    };
    within_bounds(&request);
    let text = String::from_utf8_lossy(body.get(..64).unwrap_or(body)).into_owned();
    let mut encoder = encoder(&request);
    let mut out = BytesMut::new();
    encoder.start(&mut out);
    let deltas = [
        Delta::Reasoning(text.clone()),
        Delta::Content(text.clone()),
        Delta::CallStart { call: 0, id: text.clone(), name: text.clone() },
        Delta::CallArguments { call: 0, text: text.clone() },
    ];
    encoder.deltas(0, &deltas, &[], &mut out);
    encoder.finish(0, &Finish { reason: FinishReason::ToolCalls, usage: Usage::default() }, &mut out);
    encoder.end(&Usage::default(), &mut out);
    let failure = Failure::Handler { status: 500, message: text };
    encoder.error(&StreamFailure { failure: &failure, request_id: None }, &mut out);
    are_events(std::str::from_utf8(&out).unwrap());
}

fn within_bounds(request: &GenerationRequest) {
    assert!(!request.prompts.is_empty() && request.choices >= 1);
    assert!(request.prompts.len() * request.choices as usize <= 256);
    assert!(request.stop.iter().all(|stop| !stop.is_empty()));
    assert!(request.sampling.temperature.is_none_or(|temperature| (0.0..=5.0).contains(&temperature)));
    assert!(request.sampling.max_tokens != Some(0));
    for prompt in &request.prompts {
        let Prompt::Chat(chat) = prompt else { continue };
        assert!(!chat.messages.is_empty());
        if let ToolChoice::Named(name) = &chat.tool_choice {
            assert!(chat.tools.iter().any(|tool| tool.name == *name));
        }
        for tool in &chat.tools {
            let Definition { function } = serde_json::from_str(tool.definition.get()).unwrap();
            assert_eq!(function.name, tool.name);
        }
    }
}

/// Checks that a stream is events, each with one line of data that is JSON.
fn are_events(stream: &str) {
    for event in stream.strip_suffix("\n\n").unwrap().split("\n\n") {
        let data = match event.strip_prefix("event: ") {
            Some(named) => named.split_once('\n').unwrap().1,
            None => event,
        };
        let data = data.strip_prefix("data: ").unwrap();
        assert!(!data.contains(['\n', '\r']), "{data:?}");
        assert!(data == "[DONE]" || serde_json::from_str::<serde::de::IgnoredAny>(data).is_ok(), "{data:?}");
    }
}
