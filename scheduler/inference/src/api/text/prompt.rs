//! Prompts as an engine gets them: rendered by the model's chat template, or as messages.

use crate::generation::BYTES_PER_TOKEN;
use crate::templates::TextModel;
use bytes::Bytes;
use omni_chat_template::RenderError;
use omni_config::manifest::Render;
use omni_engine_protocol::generation::{GenerationInput, ResponseFormatInput, SamplingInput, ToolChoiceInput};
use omni_generation::{Chat, GenerationRequest, InvalidRequest, Prompt, ResponseFormat, ToolChoice};
use omni_openai::chat::message_list;
use omni_request_error::Failure;
use std::borrow::Cow;
use std::ops::Range;

/// Bytes of an input beside its prompt, roughly.
const PARAMETERS: usize = 512;

/// Prompt of one generation.
#[derive(Debug)]
pub(super) struct PreparedPrompt {
    /// Body of the request to the engine.
    pub(super) body: Bytes,
    /// Tokens of the prompt, as the node estimates them.
    pub(super) tokens: u64,
    /// The answer begins inside of reasoning.
    pub(super) in_reasoning: bool,
}

/// Prepares one prompt of a request. `literal_ranges`: the engine can encode ranges of the prompt as plain text; otherwise control
/// tokens in a client's text are broken by an invisible character.
///
/// # Errors
/// The conversation cannot be rendered: by the client's fault, or by the template's.
pub(super) async fn prepare(
    model: &TextModel,
    (render, literal_ranges): (Render, bool),
    request: &GenerationRequest,
    prompt: &Prompt,
    now: i64,
) -> Result<PreparedPrompt, Failure> {
    match (prompt, render) {
        (Prompt::Text(text), _) => Ok(input(request, Source::Text(text, &[]), None, false)),
        (Prompt::Tokens(tokens), _) => Ok(input(request, Source::Tokens(tokens), None, false)),
        (Prompt::Chat(chat), Render::Model) => Ok(input(request, Source::Messages(chat), Some(chat), false)),
        (Prompt::Chat(chat), Render::Node) => {
            let Some(template) = model.template.clone() else {
                let why = "the model has no chat template: send a `prompt` to `/v1/completions`, or to `/ai/run` with `raw: true`";
                return Err(InvalidRequest::unsupported("messages", why).into());
            };
            let rendered = model.render(&template, chat, now).await.map_err(|error| failure(&error))?;
            let safe = if literal_ranges { Cow::Borrowed(&*rendered.prompt) } else { template.neutralised(&rendered) };
            let ranges: &[_] = if literal_ranges { &rendered.literals } else { &[] };
            Ok(input(request, Source::Text(&safe, ranges), Some(chat), rendered.reasoning_open))
        }
    }
}

/// Input of the engine.
enum Source<'a> {
    /// Text, and ranges of it that are no control tokens.
    Text(&'a str, &'a [Range<usize>]),
    Tokens(&'a [u32]),
    Messages(&'a Chat),
}

fn failure(error: &RenderError) -> Failure {
    match error {
        RenderError::Refused { message, line: _ } => InvalidRequest::new("messages", message).into(),
        RenderError::Invalid(invalid) => invalid.clone().into(),
        RenderError::Template { .. } | RenderError::OutOfFuel { .. } | RenderError::TooLong { .. } => {
            tracing::warn!(error = omni_log::chain(error), "a conversation cannot be rendered");
            Failure::Raised
        }
    }
}

#[allow(clippy::needless_pass_by_value, reason = "made for this call alone")]
fn input(request: &GenerationRequest, source: Source<'_>, chat: Option<&Chat>, in_reasoning: bool) -> PreparedPrompt {
    let sampling = &request.sampling;
    let mut input = GenerationInput {
        sampling: SamplingInput {
            max_tokens: sampling.max_tokens,
            min_tokens: sampling.min_tokens,
            temperature: sampling.temperature,
            top_p: sampling.top_p,
            top_k: sampling.top_k,
            min_p: sampling.min_p,
            frequency_penalty: sampling.frequency_penalty,
            presence_penalty: sampling.presence_penalty,
            repetition_penalty: sampling.repetition_penalty,
            seed: sampling.seed,
            logit_bias: &sampling.logit_bias,
            ignore_eos: sampling.ignore_eos,
        },
        stop: &request.stop,
        response_format: match &request.format {
            ResponseFormat::Text => None,
            ResponseFormat::JsonObject => Some(ResponseFormatInput::JsonObject),
            ResponseFormat::JsonSchema { schema, .. } => Some(ResponseFormatInput::JsonSchema { schema }),
        },
        logprobs: request.logprobs,
        stream: request.stream,
        ..GenerationInput::default()
    };
    if let Some(chat) = chat {
        input.tools = chat.tools.iter().map(|tool| &*tool.definition).collect();
        input.tool_choice = match &chat.tool_choice {
            ToolChoice::Auto => ToolChoiceInput::Auto,
            ToolChoice::None => ToolChoiceInput::None,
            ToolChoice::Required => ToolChoiceInput::Required,
            ToolChoice::Named(name) => ToolChoiceInput::Named(name),
        };
    }
    let (ranges, messages): (Vec<(usize, usize)>, _);
    let tokens = match source {
        Source::Text(text, literals) => {
            ranges = literals.iter().map(|range| (range.start, range.end)).collect();
            input.prompt = Some(text);
            input.literals = &ranges;
            (text.len() as u64).div_ceil(BYTES_PER_TOKEN)
        }
        Source::Tokens(tokens) => {
            input.prompt_tokens = Some(tokens);
            tokens.len() as u64
        }
        Source::Messages(chat) => {
            messages = message_list(&chat.messages);
            input.messages = Some(&messages);
            (messages.get().len() as u64).div_ceil(BYTES_PER_TOKEN)
        }
    };
    let text = input.prompt.map_or(0, str::len);
    let mut body = Vec::with_capacity(text + text / 8 + PARAMETERS);
    let _ = serde_json::to_writer(&mut body, &input); // texts and numbers are always JSON
    PreparedPrompt { body: body.into(), tokens, in_reasoning }
}
