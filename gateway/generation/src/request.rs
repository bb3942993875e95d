//! Requests for generated text, as every codec reads them.

use crate::message::{Message, Tool, ToolChoice};
use serde_json::value::RawValue;
use std::sync::Arc;

/// A request of any API.
#[derive(Debug, Clone)]
pub struct GenerationRequest {
    /// Model, by the name that the client sent.
    pub model: String,
    /// Inputs; each is answered [`GenerationRequest::choices`] times. One, except in the completions API.
    pub prompts: Vec<Prompt>,
    /// Number of answers for each prompt.
    pub choices: u32,
    /// Sampling.
    pub sampling: Sampling,
    /// Texts that end an answer and do not appear in it.
    pub stop: Vec<String>,
    /// Form that the answer must have.
    pub format: ResponseFormat,
    /// Number of alternatives for each token's log probability; `None`: no log probabilities.
    pub logprobs: Option<u8>,
    /// Repetition of the prompt before the answer (completions API).
    pub echo: bool,
    /// Streamed answer.
    pub stream: bool,
    /// Usage at the end of a stream.
    pub stream_usage: bool,
    /// Name of a session, whose requests go to one instance.
    pub session: Option<String>,
}

impl GenerationRequest {
    /// Returns whether the engine has to repeat the tokens of a prompt: for their log probabilities, or for the text of
    /// token ids. Any other repetition is made of the client's own text.
    #[must_use]
    pub fn repeats_tokens(&self, prompt: &Prompt) -> bool {
        self.echo && (self.logprobs.is_some() || matches!(prompt, Prompt::Tokens(_)))
    }
}

/// Input of a generation.
#[derive(Debug, Clone)]
pub enum Prompt {
    /// Conversation.
    Chat(Arc<Chat>),
    /// Text as it is.
    Text(String),
    /// Tokens of the model's own vocabulary.
    Tokens(Vec<u32>),
}

/// Conversation with the tools that are offered.
#[derive(Debug, Clone)]
pub struct Chat {
    /// Messages, oldest first; at least one.
    pub messages: Vec<Message>,
    /// Tools; without duplicates.
    pub tools: Vec<Tool>,
    /// Choice between text and calls. A named tool is among the tools.
    pub tool_choice: ToolChoice,
    /// More than one call in an answer.
    pub parallel_tool_calls: bool,
    /// Options of the chat template.
    pub template: TemplateOptions,
}

impl Chat {
    /// Returns whether the model may call tools in its answer.
    #[must_use]
    pub fn offers_tools(&self) -> bool {
        !self.tools.is_empty() && self.tool_choice != ToolChoice::None
    }
}

/// Options of the chat template that a client may set.
#[derive(Debug, Clone, Default)]
pub struct TemplateOptions {
    /// `chat_template_kwargs`: variables of the template.
    pub variables: Vec<(String, Box<RawValue>)>,
    /// Effort of reasoning, such as `low`.
    pub reasoning_effort: Option<String>,
    /// Continuation of the last message, which is the assistant's, instead of a new one.
    pub continue_final_message: bool,
}

/// Sampling parameters; `None`: the engine's default.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Sampling {
    /// Most tokens of the answer.
    pub max_tokens: Option<u32>,
    /// Fewest tokens of the answer.
    pub min_tokens: Option<u32>,
    /// 0 to 2; 0 is greedy.
    pub temperature: Option<f32>,
    /// Share of probability that is sampled from, above 0 and up to 1.
    pub top_p: Option<f32>,
    /// Number of tokens that is sampled from.
    pub top_k: Option<u32>,
    /// Least probability relative to the most probable token, 0 to 1.
    pub min_p: Option<f32>,
    /// -2 to 2.
    pub frequency_penalty: Option<f32>,
    /// -2 to 2.
    pub presence_penalty: Option<f32>,
    /// Above 0; 1 is none.
    pub repetition_penalty: Option<f32>,
    /// Seed of the random numbers.
    pub seed: Option<i64>,
    /// Bias of tokens, -100 to 100.
    pub logit_bias: Vec<(u32, f32)>,
    /// Generation beyond end tokens, up to `max_tokens`.
    pub ignore_eos: bool,
}

/// Form of an answer.
#[derive(Debug, Clone, Default)]
pub enum ResponseFormat {
    /// Any text.
    #[default]
    Text,
    /// A JSON object.
    JsonObject,
    /// JSON that a schema accepts.
    JsonSchema {
        /// Name of the schema, for error messages.
        name: String,
        /// JSON Schema.
        schema: Box<RawValue>,
    },
}
