//! Requests for chat completions.

use crate::chat::message::ChatMessage;
use crate::chat::tool::{ToolChoiceForm, ToolDefinition, ToolForm, read_choice, read_tools};
use crate::chat::{ResponseFormatForm, read_format};
use crate::harmless::{Harmless, StreamOptions};
use omni_codec::body::{self, Unsupported};
use omni_codec::sampling::{self, LogitBias, MOST_CHOICES};
use omni_codec::{Object, RawMembers, TextOr, bounds};
use omni_generation::{Chat, GenerationRequest, InvalidRequest, Message, Prompt, Role, Sampling, TemplateOptions};
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::value::RawValue;
use std::sync::Arc;

/// Most messages of a conversation.
const MOST_MESSAGES: usize = 16_384;
/// Most alternatives for a token.
const MOST_TOP_LOGPROBS: u8 = 20;

/// Parameters of the API, and of servers that extend it, that cannot be honoured.
pub const UNSUPPORTED: Unsupported = &[
    ("allowed_token_ids", "use `logit_bias`"),
    ("audio", "no model here answers with sound"),
    ("bad_words", "use `logit_bias`"),
    ("best_of", "use `n`"),
    ("cache_salt", "caches of prompts belong to the model"),
    ("chat_template", "a request cannot bring its own template"),
    ("echo", "it belongs to `/v1/completions`"),
    ("enable_thinking", "send it in `chat_template_kwargs`"),
    ("file", "send the text of the file"),
    ("function_call", "use `tool_choice`"),
    ("functions", "use `tools`"),
    ("guided_choice", "use `response_format` with an `enum` in its schema"),
    ("guided_grammar", "use `response_format`"),
    ("guided_json", "use `response_format`"),
    ("guided_regex", "use `response_format` with a `pattern` in its schema"),
    ("include_stop_str_in_output", "stop strings never appear in the answer"),
    ("length_penalty", "there is no beam search"),
    ("moderation", "there is no moderation here"),
    ("prediction", "no model here takes predicted output"),
    ("prompt_cache_options", "caches of prompts belong to the model"),
    ("prompt_logprobs", "log probabilities are those of the answer"),
    ("skip_special_tokens", "special tokens never appear in the answer"),
    ("stop_token_ids", "use `stop`"),
    ("structured_outputs", "use `response_format`"),
    ("thinking", "use `reasoning_effort`, or send it in `chat_template_kwargs`"),
    ("truncate_prompt_tokens", "prompts are never cut"),
    ("use_beam_search", "use `n`"),
    ("video_url", "no model here takes videos"),
    ("web_search_options", "the node does not search the web"),
];

/// Body of a request.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ChatRequest {
    /// Model.
    model: String,
    /// Conversation, oldest message first.
    #[schemars(length(min = 1))]
    messages: Vec<ChatMessage>,
    /// Most tokens of the answer.
    #[schemars(range(min = 1))]
    max_tokens: Option<u32>,
    /// `max_tokens` by its newer name.
    #[schemars(range(min = 1))]
    max_completion_tokens: Option<u32>,
    /// Fewest tokens of the answer.
    min_tokens: Option<u32>,
    /// 0 is greedy.
    #[schemars(range(min = 0.0, max = 2.0))]
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
    /// Number of answers.
    #[schemars(range(min = 1, max = 16))]
    n: Option<u32>,
    /// Log probabilities of the answer's tokens.
    logprobs: Option<bool>,
    /// Number of alternatives for each token.
    #[schemars(range(min = 0, max = 20))]
    top_logprobs: Option<u8>,
    /// Form of the answer.
    response_format: Option<ResponseFormatForm>,
    /// Tools.
    #[schemars(with = "Option<Vec<ToolDefinition>>")]
    tools: Option<Vec<Object>>,
    /// Choice between text and tools.
    tool_choice: Option<ToolChoiceForm>,
    /// More than one call in an answer.
    parallel_tool_calls: Option<bool>,
    /// Streamed answer.
    stream: Option<bool>,
    /// Options of the stream.
    stream_options: Option<StreamOptions>,
    /// Effort of reasoning.
    #[schemars(extend("enum" = ["none", "minimal", "low", "medium", "high", "xhigh", "max", null]))]
    reasoning_effort: Option<String>,
    /// Variables of the chat template.
    chat_template_kwargs: Option<RawMembers>,
    /// Documents, for templates that print them.
    documents: Option<Vec<Object>>,
    /// Continuation of the last message, which is the assistant's.
    continue_final_message: Option<bool>,
    /// `false` only with `continue_final_message`.
    add_generation_prompt: Option<bool>,
    /// Session: requests of one session go to one instance of the model.
    prompt_cache_key: Option<String>,
    /// Session, where `prompt_cache_key` is absent.
    user: Option<String>,
    /// `text` alone.
    #[schemars(extend("items" = { "const": "text" }))]
    modalities: Option<Vec<String>>,
    /// Accepted without effect.
    metadata: Option<Object>,
    /// Accepted without effect if `in_memory`.
    #[schemars(extend("enum" = ["in_memory", null]))]
    prompt_cache_retention: Option<String>,
    /// Accepted without effect.
    #[serde(rename = "safety_identifier")]
    _safety_identifier: Option<String>,
    /// Accepted without effect if `auto` or `default`.
    #[schemars(extend("enum" = ["auto", "default", null]))]
    service_tier: Option<String>,
    /// Accepted if `false`.
    store: Option<bool>,
    /// Accepted if `medium`.
    verbosity: Option<String>,
}

/// Reads the body of a request.
///
/// # Errors
/// A body that is not of the form, or a parameter that cannot be honoured.
pub fn chat_request(json: &[u8]) -> Result<GenerationRequest, InvalidRequest> {
    body::parse::<ChatRequest>(json, UNSUPPORTED)?.into_generation()
}

impl ChatRequest {
    fn into_generation(mut self) -> Result<GenerationRequest, InvalidRequest> {
        bounds::length("model", &self.model, 256)?;
        self.harmless().check()?;
        let sampling = self.sampling()?;
        let choices = bounds::within("n", self.n, 1..=MOST_CHOICES)?.unwrap_or(1);
        let logprobs = self.logprobs()?;
        let stream = self.stream.unwrap_or(false);
        let stream_usage = StreamOptions::usage(self.stream_options.as_ref(), stream)?;
        let session =
            sampling::session([("prompt_cache_key", self.prompt_cache_key.take()), ("user", self.user.take())])?;
        let stop = sampling::stop("stop", self.stop.take().map(TextOr::into_vec).unwrap_or_default())?;
        let format = read_format(self.response_format.take())?;
        Ok(GenerationRequest {
            model: std::mem::take(&mut self.model),
            choices,
            sampling,
            stop,
            format,
            logprobs,
            echo: false,
            stream,
            stream_usage,
            session,
            prompts: vec![Prompt::Chat(Arc::new(self.into_chat()?))],
        })
    }

    fn harmless(&self) -> Harmless<'_> {
        Harmless {
            metadata: self.metadata.as_ref(),
            modalities: self.modalities.as_deref(),
            prompt_cache_retention: self.prompt_cache_retention.as_deref(),
            service_tier: self.service_tier.as_deref(),
            store: self.store,
            verbosity: self.verbosity.as_deref(),
        }
    }

    fn sampling(&mut self) -> Result<Sampling, InvalidRequest> {
        bounds::within("max_completion_tokens", self.max_completion_tokens, 1..=u32::MAX)?;
        let max_tokens = match (self.max_completion_tokens, self.max_tokens) {
            (Some(new), Some(old)) if new != old => {
                let message = "`max_tokens` and `max_completion_tokens` differ: send one of them";
                return Err(InvalidRequest::new("max_tokens", message));
            }
            (new, old) => new.or(old),
        };
        let sampling = Sampling {
            max_tokens,
            min_tokens: self.min_tokens,
            temperature: self.temperature,
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
        Ok(sampling)
    }

    fn logprobs(&self) -> Result<Option<u8>, InvalidRequest> {
        let top = bounds::within("top_logprobs", self.top_logprobs, 0..=MOST_TOP_LOGPROBS)?;
        match (self.logprobs.unwrap_or(false), top) {
            (true, top) => Ok(Some(top.unwrap_or(0))),
            (false, None | Some(0)) => Ok(None),
            (false, Some(_)) => {
                Err(InvalidRequest::new("top_logprobs", "`top_logprobs` needs `logprobs` to be `true`"))
            }
        }
    }

    fn into_chat(self) -> Result<Chat, InvalidRequest> {
        let messages = read_messages(self.messages)?;
        let tools = read_tools(self.tools.unwrap_or_default(), ToolForm::Wrapped, "tools")?;
        let tool_choice = read_choice(self.tool_choice, &tools)?;
        let continues = self.continue_final_message.unwrap_or(false);
        check_continuation(continues, self.add_generation_prompt, &messages)?;
        let mut variables = self.chat_template_kwargs.unwrap_or_default().0;
        check_variables(&variables)?;
        if let Some(documents) = self.documents {
            variables.push(("documents".to_owned(), array(&documents)));
        }
        let template = TemplateOptions {
            variables,
            reasoning_effort: sampling::effort("reasoning_effort", self.reasoning_effort)?,
            continue_final_message: continues,
        };
        let parallel_tool_calls = self.parallel_tool_calls.unwrap_or(true);
        Ok(Chat { messages, tools, tool_choice, parallel_tool_calls, template })
    }
}

/// Reads the messages of a conversation.
///
/// # Errors
/// No message, too many, or one that is not valid.
pub fn read_messages(messages: Vec<ChatMessage>) -> Result<Vec<Message>, InvalidRequest> {
    bounds::count("messages", messages.len(), 1..=MOST_MESSAGES)?;
    let messages = messages.into_iter().enumerate();
    messages.map(|(index, message)| message.into_message(&format!("messages[{index}]"))).collect()
}

/// Checks the variables that a client sets for the template.
///
/// # Errors
/// A template, or a variable that is a parameter of its own.
pub fn check_variables(variables: &[(String, Box<RawValue>)]) -> Result<(), InvalidRequest> {
    const TAKEN: [&str; 6] =
        ["add_generation_prompt", "chat_template", "continue_final_message", "messages", "tokenize", "tools"];
    match variables.iter().find(|(name, _)| TAKEN.contains(&name.as_str())) {
        None => Ok(()),
        Some((name, _)) => {
            let message = format!("`{name}` cannot be set by `chat_template_kwargs`");
            Err(InvalidRequest::unsupported(format!("chat_template_kwargs.{name}"), message))
        }
    }
}

fn check_continuation(continues: bool, adds: Option<bool>, messages: &[Message]) -> Result<(), InvalidRequest> {
    let last_is_assistant = messages.last().is_some_and(|message| message.role == Role::Assistant);
    match (continues, adds) {
        (true, Some(true)) => {
            let message = "`add_generation_prompt` and `continue_final_message` exclude each other";
            Err(InvalidRequest::new("add_generation_prompt", message))
        }
        (true, _) if !last_is_assistant => {
            let message = "`continue_final_message` needs a last message of the assistant";
            Err(InvalidRequest::new("continue_final_message", message))
        }
        (false, Some(false)) => {
            let message = "`add_generation_prompt` may be `false` only with `continue_final_message`";
            Err(InvalidRequest::unsupported("add_generation_prompt", message))
        }
        _ => Ok(()),
    }
}

fn array(objects: &[Object]) -> Box<RawValue> {
    let text = format!("[{}]", objects.iter().map(Object::get).collect::<Vec<_>>().join(", "));
    RawValue::from_string(text).unwrap_or_default()
}
