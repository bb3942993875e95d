//! Requests for generated text: a prompt, or messages. Messages, tools and formats may have the form of the OpenAI API too.

use omni_codec::body::{self, Unsupported};
use omni_codec::sampling::{self, LogitBias};
use omni_codec::{Object, RawMembers, TextOr, bounds};
use omni_generation::{
    Chat, GenerationRequest, InvalidRequest, Message, Prompt, Role, Sampling, TemplateOptions, ToolChoice,
};
use omni_openai::chat::{
    ChatMessage, ResponseFormatForm, ToolChoiceForm, ToolDefinition, ToolForm, check_variables, read_choice,
    read_format, read_messages, read_tools,
};
use schemars::JsonSchema;
use serde::{Deserialize, Deserializer};
use std::sync::Arc;

/// Parameters of the API, and of the OpenAI API, that cannot be honoured.
const UNSUPPORTED: Unsupported = &[
    ("audio", "no model here answers with sound"),
    ("chat_template", "a request cannot bring its own template"),
    ("function_call", "use `tool_choice`"),
    ("guided_json", "use `response_format`"),
    ("image", "send it in a message, as a part of the type `image_url`"),
    ("input", "it belongs to `/v1/responses`"),
    ("logprobs", "this form of an answer has no place for them: use `/v1/chat/completions`"),
    ("lora", "adapters are models of their own"),
    ("top_logprobs", "this form of an answer has no place for them: use `/v1/chat/completions`"),
    ("video_url", "no model here takes videos"),
];

/// Body of a request.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct TextRequest {
    /// Text of the user. Either this or `messages`.
    prompt: Option<String>,
    /// The prompt goes to the model as it is, without a template.
    raw: Option<bool>,
    /// Conversation, oldest message first.
    messages: Option<Vec<ChatMessage>>,
    /// Most tokens of the answer.
    #[schemars(range(min = 1))]
    max_tokens: Option<u32>,
    /// `max_tokens` by its name in the OpenAI API.
    #[schemars(range(min = 1))]
    max_completion_tokens: Option<u32>,
    /// Fewest tokens of the answer.
    min_tokens: Option<u32>,
    /// 0 is greedy.
    #[schemars(range(min = 0.0, max = 5.0))]
    temperature: Option<f32>,
    /// Share of probability that is sampled from.
    #[schemars(range(max = 1.0), extend("exclusiveMinimum" = 0))]
    top_p: Option<f32>,
    /// Number of tokens that is sampled from; 0 and -1: all.
    #[schemars(range(min = -1, max = 4_294_967_295_i64))]
    top_k: Option<i64>,
    /// Least probability relative to the most probable token.
    #[schemars(range(min = 0.0, max = 1.0))]
    min_p: Option<f32>,
    /// Penalty of frequent tokens.
    #[schemars(range(min = -2.0, max = 2.0))]
    frequency_penalty: Option<f32>,
    /// Penalty of tokens that have appeared.
    #[schemars(range(min = -2.0, max = 2.0))]
    presence_penalty: Option<f32>,
    /// Factor against repetition.
    #[schemars(range(max = 10.0), extend("exclusiveMinimum" = 0))]
    repetition_penalty: Option<f32>,
    /// Bias of tokens, by their ids.
    logit_bias: Option<LogitBias>,
    /// Seed of the random numbers.
    seed: Option<i64>,
    /// Generation beyond end tokens.
    ignore_eos: Option<bool>,
    /// Texts that end the answer.
    #[schemars(extend("minLength" = 1, "maxItems" = 16))]
    stop: Option<TextOr<Vec<String>>>,
    /// 1.
    n: Option<u32>,
    /// Form of the answer.
    response_format: Option<ResponseFormatForm>,
    /// Tools, or functions alone.
    #[schemars(with = "Option<Vec<ToolDefinition>>")]
    tools: Option<Vec<Object>>,
    /// Functions, where `tools` is absent.
    #[schemars(with = "Option<Vec<ToolDefinition>>")]
    functions: Option<Vec<Object>>,
    /// Choice between text and tools.
    tool_choice: Option<ToolChoiceForm>,
    /// More than one call in an answer.
    parallel_tool_calls: Option<bool>,
    /// Streamed answer.
    stream: Option<bool>,
    /// Accepted without effect: usage is always sent.
    #[serde(rename = "stream_options")]
    _stream_options: Option<Object>,
    /// Effort of reasoning; `null`: none.
    #[serde(default, deserialize_with = "present")]
    #[schemars(with = "Option<String>")]
    reasoning_effort: Option<Option<String>>,
    /// Variables of the chat template.
    chat_template_kwargs: Option<RawMembers>,
    /// Session: requests of one session go to one instance of the model.
    prompt_cache_key: Option<String>,
    /// Session, where `prompt_cache_key` is absent.
    user: Option<String>,
    /// Accepted without effect: the path names the model.
    #[serde(rename = "model")]
    _model: Option<String>,
    /// Accepted without effect.
    #[serde(rename = "metadata")]
    _metadata: Option<Object>,
}

/// A value that is there, `null` included.
fn present<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Option<String>>, D::Error> {
    Option::deserialize(deserializer).map(Some)
}

/// Reads the body of a request to a model.
///
/// # Errors
/// A body that is not of the form, or a parameter that cannot be honoured.
pub fn text_request(model: &str, json: &[u8]) -> Result<GenerationRequest, InvalidRequest> {
    body::parse::<TextRequest>(json, UNSUPPORTED)?.into_generation(model)
}

impl TextRequest {
    fn into_generation(mut self, model: &str) -> Result<GenerationRequest, InvalidRequest> {
        let sampling = self.sampling()?;
        bounds::within("n", self.n, 1..=1)?;
        let stop = sampling::stop("stop", self.stop.take().map(TextOr::into_vec).unwrap_or_default())?;
        let session =
            sampling::session([("prompt_cache_key", self.prompt_cache_key.take()), ("user", self.user.take())])?;
        Ok(GenerationRequest {
            model: model.to_owned(),
            choices: 1,
            sampling,
            stop,
            format: read_format(self.response_format.take())?,
            logprobs: None,
            echo: false,
            stream: self.stream.unwrap_or(false),
            stream_usage: true,
            session,
            prompts: vec![self.into_prompt()?],
        })
    }

    fn sampling(&mut self) -> Result<Sampling, InvalidRequest> {
        let mut sampling = Sampling {
            max_tokens: self.max_completion_tokens.or(self.max_tokens),
            min_tokens: self.min_tokens,
            temperature: None,
            top_p: self.top_p,
            top_k: sampling::top_k(self.top_k)?,
            min_p: self.min_p,
            frequency_penalty: self.frequency_penalty,
            presence_penalty: self.presence_penalty,
            repetition_penalty: self.repetition_penalty,
            seed: self.seed,
            logit_bias: self.logit_bias.take().unwrap_or_default().0,
            ignore_eos: self.ignore_eos.unwrap_or(false),
        };
        sampling::check(&sampling)?;
        // Higher temperatures are allowed here than in the other APIs.
        sampling.temperature = bounds::within("temperature", self.temperature, 0.0..=5.0)?;
        Ok(sampling)
    }

    fn into_prompt(self) -> Result<Prompt, InvalidRequest> {
        let raw = self.raw.unwrap_or(false);
        let messages = match (self.prompt, self.messages) {
            (Some(_), Some(_)) => {
                return Err(InvalidRequest::new("prompt", "`prompt` and `messages` exclude each other"));
            }
            (None, None) => return Err(InvalidRequest::missing("messages")),
            (Some(prompt), None) if raw => return Ok(Prompt::Text(prompt)),
            (None, Some(_)) if raw => return Err(InvalidRequest::new("raw", "`raw` needs `prompt`")),
            (Some(prompt), None) => vec![Message::text(Role::User, prompt)],
            (None, Some(messages)) => read_messages(messages)?,
        };
        let (tools, at) = match (self.tools, self.functions) {
            (Some(tools), None) => (tools, "tools"),
            (None, functions) => (functions.unwrap_or_default(), "functions"),
            (Some(_), Some(_)) => {
                return Err(InvalidRequest::new("functions", "`tools` and `functions` exclude each other"));
            }
        };
        let tools = read_tools(tools, ToolForm::Any, at)?;
        let idle = |choice: &ToolChoiceForm| matches!(choice, TextOr::Text(word) if word == "auto" || word == "none");
        let tool_choice = match self.tool_choice {
            Some(choice) if tools.is_empty() && idle(&choice) => ToolChoice::Auto,
            choice => read_choice(choice, &tools)?,
        };
        let variables = self.chat_template_kwargs.unwrap_or_default().0;
        check_variables(&variables)?;
        let effort = self.reasoning_effort.map(|effort| effort.unwrap_or_else(|| "none".to_owned()));
        let reasoning_effort = sampling::effort("reasoning_effort", effort)?;
        let template = TemplateOptions { variables, reasoning_effort, continue_final_message: false };
        let parallel_tool_calls = self.parallel_tool_calls.unwrap_or(true);
        Ok(Prompt::Chat(Arc::new(Chat { messages, tools, tool_choice, parallel_tool_calls, template })))
    }
}
