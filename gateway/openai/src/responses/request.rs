//! Requests for responses.

use crate::chat::{ToolChoiceForm, ToolDefinition, ToolForm, named_format, read_choice, read_tools};
use crate::harmless::{Harmless, StreamOptions};
use crate::responses::answer::ResponseEcho;
use crate::responses::item::{InputItem, read_items};
use omni_codec::body::{self, Unsupported};
use omni_codec::{Object, TextOr, bounds, sampling};
use omni_generation::{
    Chat, GenerationRequest, InvalidRequest, Message, Prompt, ResponseFormat, Role, Sampling, TemplateOptions,
};
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::value::RawValue;
use std::sync::Arc;

/// Parameters of the API that cannot be honoured.
const UNSUPPORTED: Unsupported = &[
    ("access_programs", "models here have none"),
    ("background_options", "answers are not stored"),
    ("context_management", "the node does not edit conversations"),
    ("image", "images are taken as they are"),
    ("messages", "they belong to `/v1/chat/completions`: use `input`"),
    ("moderation", "there is no moderation here"),
    ("prompt_cache_options", "caches of prompts belong to the model"),
    ("response_format", "use `text.format`"),
];

/// Body of a request.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ResponsesRequest {
    /// Model.
    model: String,
    /// Text of the user, or items of a conversation.
    input: TextOr<Vec<InputItem>>,
    /// Instructions for the whole conversation.
    instructions: Option<String>,
    /// Most tokens of the answer.
    #[schemars(range(min = 1))]
    max_output_tokens: Option<u32>,
    /// 0 is greedy.
    #[schemars(range(min = 0.0, max = 2.0))]
    temperature: Option<f32>,
    /// Share of probability that is sampled from.
    #[schemars(range(max = 1.0), extend("exclusiveMinimum" = 0))]
    top_p: Option<f32>,
    /// Number of alternatives for each token; needs `message.output_text.logprobs` in `include`.
    #[schemars(range(min = 0, max = 20))]
    top_logprobs: Option<u8>,
    /// `message.output_text.logprobs`; `reasoning.encrypted_content` is accepted: reasoning is in the answer as it is.
    #[schemars(extend("items" = { "enum": ["message.output_text.logprobs", "reasoning.encrypted_content"] }))]
    include: Option<Vec<String>>,
    /// Tools: functions.
    #[schemars(with = "Option<Vec<ToolDefinition>>")]
    tools: Option<Vec<Object>>,
    /// Choice between text and tools.
    #[schemars(with = "Option<ToolChoiceForm>")]
    tool_choice: Option<Box<RawValue>>,
    /// More than one call in an answer.
    parallel_tool_calls: Option<bool>,
    /// Form of the answer.
    #[schemars(with = "Option<TextConfig>")]
    text: Option<Object>,
    /// Reasoning.
    #[schemars(with = "Option<ReasoningConfig>")]
    reasoning: Option<Object>,
    /// Streamed answer.
    stream: Option<bool>,
    /// Options of the stream.
    stream_options: Option<StreamOptions>,
    /// Session: requests of one session go to one instance of the model.
    prompt_cache_key: Option<String>,
    /// Session, where `prompt_cache_key` is absent.
    user: Option<String>,
    /// Returned in the answer.
    metadata: Option<Object>,
    /// Returned in the answer.
    safety_identifier: Option<String>,
    /// Accepted if `false`.
    store: Option<bool>,
    /// Accepted if `false`.
    background: Option<bool>,
    /// Accepted if `disabled`.
    #[schemars(extend("enum" = ["disabled", null]))]
    truncation: Option<String>,
    /// Accepted without effect if `auto` or `default`.
    #[schemars(extend("enum" = ["auto", "default", null]))]
    service_tier: Option<String>,
    /// Accepted without effect if `in_memory`.
    #[schemars(extend("enum" = ["in_memory", null]))]
    prompt_cache_retention: Option<String>,
    /// `null`.
    previous_response_id: Option<Unstored>,
    /// `null`.
    conversation: Option<Unstored>,
    /// `null`.
    prompt: Option<Unstored>,
    /// `null`.
    max_tool_calls: Option<Unstored>,
}

/// Value of a parameter that may be `null` alone.
#[derive(Debug)]
struct Unstored;

impl<'de> Deserialize<'de> for Unstored {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        serde::de::IgnoredAny::deserialize(deserializer).map(|_| Self)
    }
}

impl JsonSchema for Unstored {
    fn schema_name() -> std::borrow::Cow<'static, str> {
        "Unstored".into()
    }

    fn json_schema(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
        schemars::json_schema!({ "type": "null" })
    }
}

/// Form of the answer.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct TextConfig {
    /// Form.
    format: Option<TextFormat>,
    /// Accepted if `medium`.
    verbosity: Option<String>,
}

/// Form of the answer: its type, and a schema where the type needs one.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct TextFormat {
    /// `text`, `json_object` or `json_schema`.
    r#type: String,
    /// Name of the schema.
    name: Option<String>,
    /// JSON Schema.
    schema: Option<Object>,
    /// Accepted without effect: schemas are always kept.
    #[serde(rename = "strict")]
    _strict: Option<bool>,
    /// Accepted without effect.
    #[serde(rename = "description")]
    _description: Option<String>,
}

/// Reasoning.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct ReasoningConfig {
    /// Effort.
    #[schemars(extend("enum" = ["none", "minimal", "low", "medium", "high", "xhigh", "max", null]))]
    effort: Option<String>,
    /// Accepted without effect: reasoning is in the answer as it is.
    #[serde(rename = "summary")]
    _summary: Option<String>,
    /// The same.
    #[serde(rename = "generate_summary")]
    _generate_summary: Option<String>,
}

/// Reads the body of a request: the request, and the parameters that its answer repeats.
///
/// # Errors
/// A body that is not of the form, or a parameter that cannot be honoured.
pub fn responses_request(json: &[u8]) -> Result<(GenerationRequest, ResponseEcho), InvalidRequest> {
    body::parse::<ResponsesRequest>(json, UNSUPPORTED)?.into_generation()
}

impl ResponsesRequest {
    fn into_generation(self) -> Result<(GenerationRequest, ResponseEcho), InvalidRequest> {
        bounds::length("model", &self.model, 256)?;
        let text: TextConfig = part(self.text.as_ref(), "text")?;
        let reasoning: ReasoningConfig = part(self.reasoning.as_ref(), "reasoning")?;
        self.check_harmless(&text)?;
        bounds::within("max_output_tokens", self.max_output_tokens, 1..=u32::MAX)?;
        let sampling = Sampling {
            max_tokens: self.max_output_tokens,
            temperature: self.temperature,
            top_p: self.top_p,
            ..Sampling::default()
        };
        sampling::check(&sampling)?;
        let logprobs = self.logprobs()?;
        let stream = self.stream.unwrap_or(false);
        StreamOptions::usage(self.stream_options.as_ref(), stream)?;
        let user = self.user.clone();
        let session = sampling::session([("prompt_cache_key", self.prompt_cache_key.clone()), ("user", user)])?;
        let effort = sampling::effort("reasoning.effort", reasoning.effort)?;
        let format = read_text_format(text.format)?;
        let (echo, input, choice) = self.into_echo();
        let tools = read_tools(echo.tools.clone(), ToolForm::Flat, "tools")?;
        let choice =
            choice.map(|choice| body::parse_part::<ToolChoiceForm>(&choice, "tool_choice", &[])).transpose()?;
        let tool_choice = read_choice(choice.filter(|choice| !is_idle(choice) || !tools.is_empty()), &tools)?;
        let chat = Chat {
            messages: messages(echo.instructions.as_deref(), input)?,
            tools,
            tool_choice,
            parallel_tool_calls: echo.parallel_tool_calls,
            template: TemplateOptions { reasoning_effort: effort, ..TemplateOptions::default() },
        };
        let request = GenerationRequest {
            model: echo.model.clone(),
            prompts: vec![Prompt::Chat(Arc::new(chat))],
            choices: 1,
            sampling,
            stop: Vec::new(),
            format,
            logprobs,
            echo: false,
            stream,
            stream_usage: true,
            session,
        };
        Ok((request, echo))
    }

    fn check_harmless(&self, text: &TextConfig) -> Result<(), InvalidRequest> {
        let harmless = Harmless {
            metadata: self.metadata.as_ref(),
            modalities: None,
            prompt_cache_retention: self.prompt_cache_retention.as_deref(),
            service_tier: self.service_tier.as_deref(),
            store: self.store,
            verbosity: text.verbosity.as_deref(),
        };
        harmless.check()?;
        let stored = "answers are not stored: send the whole conversation as `input`";
        let unsupported = [
            (self.previous_response_id.is_some(), "previous_response_id", stored),
            (self.conversation.is_some(), "conversation", stored),
            (self.prompt.is_some(), "prompt", "prompts are not stored"),
            (self.max_tool_calls.is_some(), "max_tool_calls", "tools are called by the client"),
        ];
        if let Some((_, name, reason)) = unsupported.into_iter().find(|(is_sent, ..)| *is_sent) {
            return Err(InvalidRequest::unsupported(name, format!("`{name}` is not supported: {reason}")));
        }
        if self.background == Some(true) {
            let message = "answers are not stored: send `false`, or leave `background` out";
            return Err(InvalidRequest::unsupported("background", message));
        }
        if !matches!(self.truncation.as_deref(), None | Some("disabled")) {
            let message = "conversations are never cut: send `disabled`, or leave `truncation` out";
            return Err(InvalidRequest::unsupported("truncation", message));
        }
        Ok(())
    }

    fn logprobs(&self) -> Result<Option<u8>, InvalidRequest> {
        let mut asked = false;
        for (index, include) in self.include.iter().flatten().enumerate() {
            match include.as_str() {
                "message.output_text.logprobs" => asked = true,
                "reasoning.encrypted_content" => {}
                _ => {
                    let message =
                        "only `message.output_text.logprobs` and `reasoning.encrypted_content` can be included";
                    return Err(InvalidRequest::unsupported(format!("include[{index}]"), message));
                }
            }
        }
        match bounds::within("top_logprobs", self.top_logprobs, 0..=20)? {
            Some(top) if top > 0 && !asked => {
                let message = "`top_logprobs` needs `message.output_text.logprobs` in `include`";
                Err(InvalidRequest::new("top_logprobs", message))
            }
            top => Ok(asked.then_some(top.unwrap_or(0))),
        }
    }

    /// Parameters that the answer repeats, the input, and the choice of a tool.
    fn into_echo(self) -> (ResponseEcho, TextOr<Vec<InputItem>>, Option<Box<RawValue>>) {
        let echo = ResponseEcho {
            model: self.model,
            instructions: self.instructions,
            max_output_tokens: self.max_output_tokens,
            metadata: self.metadata,
            parallel_tool_calls: self.parallel_tool_calls.unwrap_or(true),
            reasoning: self.reasoning,
            temperature: self.temperature,
            text: self.text,
            tool_choice: self.tool_choice.clone(),
            tools: self.tools.unwrap_or_default(),
            top_logprobs: self.top_logprobs,
            top_p: self.top_p,
            prompt_cache_key: self.prompt_cache_key,
            safety_identifier: self.safety_identifier,
            user: self.user,
        };
        (echo, self.input, self.tool_choice)
    }
}

/// A choice that changes nothing where there are no tools; agents send it with each request.
fn is_idle(choice: &ToolChoiceForm) -> bool {
    matches!(choice, TextOr::Text(word) if word == "auto" || word == "none")
}

fn part<T: Default + for<'de> Deserialize<'de>>(object: Option<&Object>, at: &str) -> Result<T, InvalidRequest> {
    object.map_or(Ok(T::default()), |object| body::parse_part(object.raw(), at, &[]))
}

fn messages(instructions: Option<&str>, input: TextOr<Vec<InputItem>>) -> Result<Vec<Message>, InvalidRequest> {
    let mut messages = Vec::new();
    messages.extend(instructions.map(|text| Message::text(Role::System, text)));
    match input {
        TextOr::Text(text) => messages.push(Message::text(Role::User, text)),
        TextOr::Other(items) => read_items(items, &mut messages)?,
    }
    Ok(messages)
}

fn read_text_format(format: Option<TextFormat>) -> Result<ResponseFormat, InvalidRequest> {
    const AT: &str = "text.format.schema";
    let Some(format) = format else { return Ok(ResponseFormat::Text) };
    match (format.r#type.as_str(), format.schema) {
        ("text", None) => Ok(ResponseFormat::Text),
        ("json_object", None) => Ok(ResponseFormat::JsonObject),
        ("json_schema", Some(schema)) => named_format(format.name, schema.into_raw()),
        ("json_schema", None) => Err(InvalidRequest::missing(AT)),
        ("text" | "json_object", Some(_)) => {
            Err(InvalidRequest::new(AT, format!("`{AT}` needs `text.format.type` to be `json_schema`")))
        }
        _ => {
            let message = "the type of the format has to be `text`, `json_object` or `json_schema`";
            Err(InvalidRequest::new("text.format.type", message))
        }
    }
}
