//! Prompts as an engine gets them: rendered by the model's chat template, or as messages.

use super::memory::RequestMemory;
use crate::generation::tokens_of;
use crate::text_model::TextModel;
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
    /// Bodies of the requests to the engine, one for each choice.
    pub(super) choices: Vec<Bytes>,
    /// Tokens of the prompt, as the node estimates them.
    pub(super) tokens: u64,
    /// The answer begins inside of reasoning.
    pub(super) in_reasoning: bool,
}

/// Prepares one prompt of a request. `literal_ranges`: the engine can encode ranges of the prompt as plain text; otherwise control
/// tokens in a client's text are broken by an invisible character. `tools_by_handler`: the handler reads the tools itself.
/// `memory`: that of the request. `on_fault` gets a message for the model's author when it is the template's fault.
///
/// # Errors
/// The conversation cannot be rendered, by the client's fault or by the template's; or there is no memory for its
/// choices.
pub(super) async fn prepare(
    model: &TextModel,
    (render, literal_ranges, tools_by_handler): (Render, bool, bool),
    (request, memory): (&GenerationRequest, &mut RequestMemory),
    prompt: &Prompt,
    (now, on_fault): (i64, impl FnOnce(String)),
) -> Result<PreparedPrompt, Failure> {
    let repeats_tokens = request.repeats_tokens(prompt);
    let mut input = |source, chat, in_reasoning| input((request, memory), (source, repeats_tokens), chat, in_reasoning);
    match (prompt, render) {
        (Prompt::Text(text), _) => input(Source::Text(text, &[]), None, false),
        (Prompt::Tokens(tokens), _) => input(Source::Tokens(tokens), None, false),
        (Prompt::Chat(chat), Render::Model) => input(Source::Messages(chat), Some(chat), false),
        (Prompt::Chat(chat), Render::Node) => {
            let Some(template) = model.template.clone() else {
                let why = "the model has no chat template: send a `prompt` to `/v1/completions`, or to `/ai/run` with `raw: true`";
                return Err(InvalidRequest::unsupported("messages", why).into());
            };
            if chat.offers_tools() && !tools_by_handler && !template.facts(chat).reads_tools {
                let why = "the chat template of this model has no place for tools: it does not call functions";
                return Err(InvalidRequest::unsupported("tools", why).into());
            }
            let rendered = model.render(&template, chat, now).await.map_err(|error| failure(&error, on_fault))?;
            let safe = if literal_ranges { Cow::Borrowed(&*rendered.prompt) } else { template.neutralised(&rendered) };
            let ranges: &[_] = if literal_ranges { &rendered.literals } else { &[] };
            input(Source::Text(&safe, ranges), Some(chat), rendered.reasoning_open)
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

fn failure(error: &RenderError, on_fault: impl FnOnce(String)) -> Failure {
    match error {
        RenderError::Refused { message, line: _ } => InvalidRequest::new("messages", message).into(),
        RenderError::Invalid(invalid) => invalid.clone().into(),
        RenderError::Template { .. } | RenderError::OutOfFuel { .. } | RenderError::TooLong { .. } => {
            on_fault(format!("the conversation cannot be rendered: {}", omni_log::chain(error)));
            Failure::Raised
        }
    }
}

#[allow(clippy::needless_pass_by_value, reason = "made for this call alone")]
fn input(
    (request, memory): (&GenerationRequest, &mut RequestMemory),
    (source, repeats_tokens): (Source<'_>, bool),
    chat: Option<&Chat>,
    in_reasoning: bool,
) -> Result<PreparedPrompt, Failure> {
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
        echo: repeats_tokens,
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
            tokens_of(text)
        }
        Source::Tokens(tokens) => {
            input.prompt_tokens = Some(tokens);
            tokens.len() as u64
        }
        Source::Messages(chat) => {
            input.parallel_tool_calls = chat.parallel_tool_calls;
            input.template_variables = &chat.template.variables;
            input.reasoning_effort = chat.template.reasoning_effort.as_deref();
            input.continue_final_message = chat.template.continue_final_message;
            messages = message_list(&chat.messages);
            input.messages = Some(&messages);
            tokens_of(messages.get())
        }
    };
    Ok(PreparedPrompt { choices: choice_bodies(input, request.choices, memory)?, tokens, in_reasoning })
}

/// Bodies of all choices of a prompt. To the client's seed the number of the choice is added: the same seed would give
/// the same text again.
fn choice_bodies(
    mut input: GenerationInput<'_>,
    choices: u32,
    memory: &mut RequestMemory,
) -> Result<Vec<Bytes>, Failure> {
    let first = encode(&input);
    memory.hold(first.len() as u64)?;
    let Some(seed) = input.sampling.seed else {
        return Ok(vec![first; choices as usize]);
    };
    let mut bodies = vec![first];
    for choice in 1..choices {
        input.sampling.seed = Some(seed.wrapping_add(choice.into()));
        let body = encode(&input);
        memory.hold(body.len() as u64)?;
        bodies.push(body);
    }
    Ok(bodies)
}

fn encode(input: &GenerationInput<'_>) -> Bytes {
    let text = input.prompt.map_or(0, str::len);
    let mut body = Vec::with_capacity(text + text / 8 + PARAMETERS);
    let _ = serde_json::to_writer(&mut body, input); // texts and numbers are always JSON
    body.into()
}

#[cfg(test)]
mod tests {
    use super::*;
    use omni_body::{BodyBudget, BodyMetrics};
    use serde_json::Value;

    /// Seeds of the choices of a prompt within so many bytes of memory, and the bytes that are reserved for their bodies.
    fn seeds(choices: u32, seed: Option<i64>, memory: u64) -> Result<(Vec<Value>, u64), Failure> {
        let budget = BodyBudget::new(2 * memory, 1, BodyMetrics::default());
        let mut memory = RequestMemory::new(None, 0, &budget.share())?;
        let mut input = GenerationInput { prompt: Some("moo"), ..GenerationInput::default() };
        input.sampling.seed = seed;
        let bodies = choice_bodies(input, choices, &mut memory)?;
        let inputs: Vec<Value> = bodies.iter().map(|body| serde_json::from_slice(body).unwrap()).collect();
        assert!(inputs.iter().all(|input| input["prompt"] == "moo"), "{inputs:?}");
        Ok((inputs.iter().map(|input| input["sampling"]["seed"].clone()).collect(), budget.reserved()))
    }

    #[test]
    fn each_choice_has_a_seed_of_its_own_and_the_first_that_of_the_client() {
        let (_, one) = seeds(1, Some(7), 1 << 20).unwrap();
        for (choices, seed, expected) in [
            (1, Some(7), vec![7]),
            (3, Some(7), vec![7, 8, 9]),
            (2, Some(-1), vec![-1, 0]),
            (2, Some(i64::MAX), vec![i64::MAX, i64::MIN]),
        ] {
            let (seeds, reserved) = seeds(choices, seed, 1 << 20).unwrap();
            assert_eq!(seeds, expected, "{choices} of {seed:?}");
            assert!(reserved >= u64::from(choices) * one, "{reserved} for {choices} bodies of {one} bytes");
        }
        let (none, reserved) = seeds(3, None, 1 << 20).unwrap();
        assert_eq!(none, vec![Value::Null; 3]);
        assert!(reserved <= one, "choices without seeds share their body: {reserved}");
        assert_eq!(seeds(1, Some(7), one / 2), Err(Failure::NodeBusy));
        assert_eq!(seeds(3, Some(7), 2 * one), Err(Failure::NodeBusy));
    }
}
