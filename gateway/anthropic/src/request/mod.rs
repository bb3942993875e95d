//! Bodies of requests: messages, and the count of their tokens.

mod block;
mod message;
mod tool;

use message::InputMessage;
use omni_codec::body::{self, Unsupported};
use omni_codec::{Object, TextOr, bounds, sampling};
use omni_generation::{
    Chat, Content, GenerationRequest, InvalidRequest, Message, Part, Prompt, ResponseFormat, Role, Sampling,
    TemplateOptions,
};
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::value::RawValue;
use std::sync::Arc;
use tool::{InputTool, ToolChoiceForm};

/// Parameters of the API that cannot be honoured.
const UNSUPPORTED: Unsupported = &[
    ("betas", "they belong to a header"),
    ("compaction", "the node does not edit conversations"),
    ("container", "there are no containers"),
    ("diagnostics", "there are none"),
    ("fallbacks", "a request names one model"),
    ("inference_geo", "the node is where it is"),
    ("mcp_servers", "the client has to call tools itself"),
    ("output_format", "use `output_config.format`"),
    ("prefill", "end `messages` with a message of the assistant"),
    ("speed", "there is one speed"),
    ("thread", "conversations are not stored"),
    ("user_profile_id", "use `metadata.user_id`"),
];

/// Body of a request.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct MessageRequest {
    /// Model.
    model: String,
    /// Conversation, oldest message first. An answer continues a last message of the assistant.
    #[schemars(length(min = 1))]
    messages: Vec<InputMessage>,
    /// Most tokens of the answer.
    #[schemars(range(min = 1))]
    max_tokens: Option<u32>,
    /// Instructions for the whole conversation.
    system: Option<TextOr<Vec<SystemBlock>>>,
    /// 0 is greedy.
    #[schemars(range(min = 0.0, max = 1.0))]
    temperature: Option<f32>,
    /// Share of probability that is sampled from.
    #[schemars(range(max = 1.0), extend("exclusiveMinimum" = 0))]
    top_p: Option<f32>,
    /// Number of tokens that is sampled from.
    #[schemars(range(min = 0, max = 4_294_967_295_i64))]
    top_k: Option<i64>,
    /// Texts that end the answer.
    #[schemars(extend("minLength" = 1, "maxItems" = 16))]
    stop_sequences: Option<Vec<String>>,
    /// Streamed answer.
    stream: Option<bool>,
    /// Tools.
    tools: Option<Vec<InputTool>>,
    /// Choice between text and tools.
    tool_choice: Option<ToolChoiceForm>,
    /// Reasoning: the variables `enable_thinking`, `thinking` and `thinking_budget` of the template.
    thinking: Option<Thinking>,
    /// Effort of reasoning, and form of the answer.
    output_config: Option<OutputConfig>,
    /// Session.
    metadata: Option<Metadata>,
    /// Accepted without effect.
    service_tier: Option<String>,
    /// Accepted without effect: caches are the model's own.
    #[serde(rename = "cache_control")]
    _cache_control: Option<Object>,
    /// Accepted without edits.
    context_management: Option<ContextManagement>,
}

/// Block of the instructions.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct SystemBlock {
    /// `text`.
    #[schemars(extend("const" = "text"))]
    r#type: String,
    /// Text.
    text: String,
    /// Accepted without effect.
    #[serde(rename = "cache_control")]
    _cache_control: Option<Object>,
    /// `null`.
    #[serde(rename = "citations")]
    _citations: Option<()>,
}

/// Reasoning.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Thinking {
    /// `enabled`, `disabled` or `adaptive`.
    #[schemars(extend("enum" = ["enabled", "disabled", "adaptive"]))]
    r#type: String,
    /// Tokens for reasoning, below `max_tokens`.
    budget_tokens: Option<u32>,
    /// `summarized`: reasoning is sent as it is.
    display: Option<String>,
}

/// Effort of reasoning, and form of the answer.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct OutputConfig {
    /// `low`, `medium`, `high`, `xhigh` or `max`.
    #[schemars(extend("enum" = ["none", "minimal", "low", "medium", "high", "xhigh", "max", null]))]
    effort: Option<String>,
    /// Form of the answer.
    format: Option<OutputFormat>,
}

/// Form of the answer.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct OutputFormat {
    /// `json_schema`.
    r#type: String,
    /// JSON Schema.
    schema: Object,
}

/// Facts about the request.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Metadata {
    /// Session: requests of one session go to one instance of the model.
    user_id: Option<String>,
}

/// Edits of the conversation by the server.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct ContextManagement {
    /// Empty.
    edits: Option<Vec<Object>>,
}

/// Reads the body of a request for a message.
///
/// # Errors
/// A body that is not of the form, or a parameter that cannot be honoured.
pub fn message_request(json: &[u8]) -> Result<GenerationRequest, InvalidRequest> {
    let request: MessageRequest = body::parse(json, UNSUPPORTED)?;
    if request.max_tokens.is_none() {
        return Err(InvalidRequest::missing("max_tokens"));
    }
    request.into_generation()
}

/// Reads the body of a request for the count of a message's tokens: the same form, without what concerns the answer.
///
/// # Errors
/// Those of [`message_request`], but for `max_tokens`, which may be absent.
pub fn count_request(json: &[u8]) -> Result<GenerationRequest, InvalidRequest> {
    body::parse::<MessageRequest>(json, UNSUPPORTED)?.into_generation()
}

impl MessageRequest {
    fn into_generation(self) -> Result<GenerationRequest, InvalidRequest> {
        bounds::length("model", &self.model, 256)?;
        self.check_harmless()?;
        let sampling = Sampling {
            max_tokens: self.max_tokens,
            temperature: bounds::within("temperature", self.temperature, 0.0..=1.0)?,
            top_p: self.top_p,
            top_k: sampling::top_k(self.top_k)?,
            ..Sampling::default()
        };
        sampling::check(&sampling)?;
        let stop = sampling::stop("stop_sequences", self.stop_sequences.unwrap_or_default())?;
        let session = self.metadata.and_then(|metadata| metadata.user_id);
        let session = sampling::session([("metadata.user_id", session), ("metadata.user_id", None)])?;
        let (effort, format) = output(self.output_config)?;
        let off = self.thinking.as_ref().is_some_and(|thinking| thinking.r#type == "disabled");
        let effort = if off { Some("none".to_owned()) } else { effort };
        let variables = self.thinking.map_or(Ok(Vec::new()), |thinking| thinking.variables(self.max_tokens))?;
        let tools = tool::read_tools(self.tools.unwrap_or_default())?;
        let (tool_choice, parallel_tool_calls) = tool::read_choice(self.tool_choice, &tools)?;
        let mut messages = system(self.system)?;
        let before = messages.len();
        messages.extend(message::read_messages(self.messages)?);
        let continues = messages.len() > before
            && messages.last().is_some_and(|last| last.role == Role::Assistant && last.tool_calls.is_empty());
        let template = TemplateOptions { variables, reasoning_effort: effort, continue_final_message: continues };
        Ok(GenerationRequest {
            model: self.model,
            prompts: vec![Prompt::Chat(Arc::new(Chat { messages, tools, tool_choice, parallel_tool_calls, template }))],
            choices: 1,
            sampling,
            stop,
            format,
            logprobs: None,
            echo: false,
            stream: self.stream.unwrap_or(false),
            stream_usage: true,
            session,
        })
    }

    fn check_harmless(&self) -> Result<(), InvalidRequest> {
        if !matches!(self.service_tier.as_deref(), None | Some("auto" | "standard_only")) {
            let message = "`service_tier` has to be `auto` or `standard_only`";
            return Err(InvalidRequest::unsupported("service_tier", message));
        }
        let edits = self.context_management.as_ref().and_then(|management| management.edits.as_ref());
        if edits.is_some_and(|edits| !edits.is_empty()) {
            let message = "the node does not edit conversations: leave `context_management` out";
            return Err(InvalidRequest::unsupported("context_management.edits", message));
        }
        Ok(())
    }
}

fn system(system: Option<TextOr<Vec<SystemBlock>>>) -> Result<Vec<Message>, InvalidRequest> {
    let blocks = match system {
        None => return Ok(Vec::new()),
        Some(TextOr::Text(text)) => return Ok(vec![Message::text(Role::System, text)]),
        Some(TextOr::Other(blocks)) => blocks,
    };
    if let Some(index) = blocks.iter().position(|block| block.r#type != "text") {
        return Err(InvalidRequest::new(format!("system[{index}].type"), "blocks of `system` have the type `text`"));
    }
    if blocks.is_empty() {
        return Ok(Vec::new());
    }
    let parts = blocks.into_iter().map(|block| Part::Text(block.text)).collect();
    Ok(vec![Message { content: Content::Parts(parts), ..Message::text(Role::System, "") }])
}

fn output(config: Option<OutputConfig>) -> Result<(Option<String>, ResponseFormat), InvalidRequest> {
    let Some(OutputConfig { effort, format }) = config else { return Ok((None, ResponseFormat::Text)) };
    let effort = sampling::effort("output_config.effort", effort)?;
    match format {
        None => Ok((effort, ResponseFormat::Text)),
        Some(format) if format.r#type == "json_schema" => {
            let schema = format.schema.into_raw();
            Ok((effort, ResponseFormat::JsonSchema { name: "response".to_owned(), schema }))
        }
        Some(_) => {
            let message = "the type of the format has to be `json_schema`";
            Err(InvalidRequest::new("output_config.format.type", message))
        }
    }
}

impl Thinking {
    /// Variables of the template.
    fn variables(self, max_tokens: Option<u32>) -> Result<Vec<(String, Box<RawValue>)>, InvalidRequest> {
        const BUDGET: &str = "thinking.budget_tokens";
        if !matches!(self.display.as_deref(), None | Some("summarized")) {
            let message = "`thinking.display` has to be `summarized`: reasoning is sent as it is";
            return Err(InvalidRequest::unsupported("thinking.display", message));
        }
        match self.r#type.as_str() {
            "enabled" => {}
            "disabled" | "adaptive" => return Ok(Vec::new()),
            _ => {
                let message = "`thinking.type` has to be `enabled`, `disabled` or `adaptive`";
                return Err(InvalidRequest::new("thinking.type", message));
            }
        }
        match bounds::within(BUDGET, self.budget_tokens, 1024..=u32::MAX)? {
            None => Err(InvalidRequest::missing(BUDGET)),
            Some(budget) if max_tokens.is_some_and(|most| budget >= most) => {
                Err(InvalidRequest::new(BUDGET, format!("`{BUDGET}` has to be below `max_tokens`")))
            }
            Some(budget) => Ok(vec![
                ("enable_thinking".to_owned(), raw("true".to_owned())),
                ("thinking".to_owned(), raw("true".to_owned())),
                ("thinking_budget".to_owned(), raw(budget.to_string())),
            ]),
        }
    }
}

fn raw(json: String) -> Box<RawValue> {
    RawValue::from_string(json).unwrap_or_default()
}
