//! Body of a request for generated text.

use serde::{Serialize, Serializer};
use serde_json::value::RawValue;

/// Body of a request for generated text. Exactly one of `prompt`, `prompt_tokens` and `messages` is present.
#[derive(Debug, Clone, Serialize)]
pub struct GenerationInput<'a> {
    /// Rendered prompt.
    pub prompt: Option<&'a str>,
    /// Tokens of the model's own vocabulary.
    pub prompt_tokens: Option<&'a [u32]>,
    /// Ranges of bytes of `prompt`, start and end, that are plain text: no special token is to be read in them. In order,
    /// without overlaps.
    #[serde(skip_serializing_if = "<[_]>::is_empty")]
    pub literals: &'a [(usize, usize)],
    /// Messages in the form of the OpenAI API, for models that render them; arguments of tool calls are text.
    pub messages: Option<&'a RawValue>,
    /// Tools in the form of the OpenAI API.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub tools: Vec<&'a RawValue>,
    /// Choice between text and tool calls.
    pub tool_choice: ToolChoiceInput<'a>,
    /// More than one call in an answer.
    #[serde(skip_serializing_if = "is_true")]
    pub parallel_tool_calls: bool,
    /// Variables of the template, for models that render the messages.
    #[serde(serialize_with = "as_map", skip_serializing_if = "<[_]>::is_empty")]
    pub template_variables: &'a [(String, Box<RawValue>)],
    /// Effort of reasoning, for models that render the messages.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reasoning_effort: Option<&'a str>,
    /// Continuation of the last message, for models that render the messages.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub continue_final_message: bool,
    /// Sampling.
    pub sampling: SamplingInput<'a>,
    /// Texts that end the answer. The node cuts the answer at them in any case.
    #[serde(skip_serializing_if = "<[_]>::is_empty")]
    pub stop: &'a [String],
    /// Form of the answer, for engines that can keep it.
    pub response_format: Option<ResponseFormatInput<'a>>,
    /// Number of alternatives for each token; `None`: no log probabilities.
    pub logprobs: Option<u8>,
    /// Repetition of the prompt's tokens before the answer, with their log probabilities if `logprobs` asks for some. Only
    /// for engines with that capability, and instances that know it.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub echo: bool,
    /// Streamed answer.
    pub stream: bool,
}

impl Default for GenerationInput<'_> {
    fn default() -> Self {
        Self {
            prompt: None,
            prompt_tokens: None,
            literals: &[],
            messages: None,
            tools: Vec::new(),
            tool_choice: ToolChoiceInput::default(),
            parallel_tool_calls: true,
            template_variables: &[],
            reasoning_effort: None,
            continue_final_message: false,
            sampling: SamplingInput::default(),
            stop: &[],
            response_format: None,
            logprobs: None,
            echo: false,
            stream: false,
        }
    }
}

#[allow(clippy::trivially_copy_pass_by_ref, reason = "serde's form of a condition")]
fn is_true(value: &bool) -> bool {
    *value
}

fn as_map<S: Serializer>(pairs: &[(String, Box<RawValue>)], serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_map(pairs.iter().map(|(name, value)| (name, value)))
}

/// Choice between text and tool calls, in the form of the OpenAI API.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum ToolChoiceInput<'a> {
    /// `"auto"`: the model decides.
    #[default]
    Auto,
    /// `"none"`: no calls.
    None,
    /// `"required"`: at least one call.
    Required,
    /// `{"type": "function", "function": {"name": …}}`: a call of this function.
    Named(&'a str),
}

#[derive(Serialize)]
struct NamedTool<'a> {
    r#type: &'static str,
    function: FunctionName<'a>,
}

#[derive(Serialize)]
struct FunctionName<'a> {
    name: &'a str,
}

impl Serialize for ToolChoiceInput<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match *self {
            Self::Auto => serializer.serialize_str("auto"),
            Self::None => serializer.serialize_str("none"),
            Self::Required => serializer.serialize_str("required"),
            Self::Named(name) => {
                NamedTool { r#type: "function", function: FunctionName { name } }.serialize(serializer)
            }
        }
    }
}

/// Sampling parameters. Absent ones are the engine's own defaults.
#[derive(Debug, Clone, PartialEq, Default, Serialize)]
pub struct SamplingInput<'a> {
    /// Most tokens of the answer.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_tokens: Option<u32>,
    /// Fewest tokens of the answer.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub min_tokens: Option<u32>,
    /// 0 to 2; 0 is greedy.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub temperature: Option<f32>,
    /// Share of probability that is sampled from, above 0 and up to 1.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub top_p: Option<f32>,
    /// Number of tokens that is sampled from.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub top_k: Option<u32>,
    /// Least probability relative to the most probable token, 0 to 1.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub min_p: Option<f32>,
    /// -2 to 2.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub frequency_penalty: Option<f32>,
    /// -2 to 2.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub presence_penalty: Option<f32>,
    /// Above 0; 1 is none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub repetition_penalty: Option<f32>,
    /// Seed of the random numbers.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub seed: Option<i64>,
    /// Bias of tokens, -100 to 100.
    #[serde(skip_serializing_if = "<[_]>::is_empty")]
    pub logit_bias: &'a [(u32, f32)],
    /// Generation beyond end tokens, up to `max_tokens`.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub ignore_eos: bool,
}

/// Form of an answer that is not any text.
#[derive(Debug, Clone, Copy, Serialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum ResponseFormatInput<'a> {
    /// A JSON object.
    JsonObject,
    /// JSON that a schema accepts.
    JsonSchema {
        /// JSON Schema.
        schema: &'a RawValue,
    },
}
