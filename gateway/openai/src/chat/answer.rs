//! Whole answers of chat completions.

use crate::chat::logprobs::ChatLogprobs;
use crate::head::{AnswerHead, Usage};
use omni_generation::{Choice, Completion, FinishReason, ToolCall};
use schemars::JsonSchema;
use serde::Serialize;

/// Whole answer.
#[derive(Debug, Serialize, JsonSchema)]
pub struct ChatCompletion<'a> {
    /// Id.
    id: String,
    /// `chat.completion`.
    object: &'static str,
    /// Time, in seconds since 1970.
    created: u64,
    /// Model.
    model: &'a str,
    /// Answers.
    choices: Vec<ChatChoice<'a>>,
    /// Tokens.
    usage: Usage,
}

/// An answer.
#[derive(Debug, Serialize, JsonSchema)]
struct ChatChoice<'a> {
    /// Number.
    index: usize,
    /// Message.
    message: AnswerMessage<'a>,
    /// Log probabilities, if they were asked for.
    logprobs: Option<ChatLogprobs<'a>>,
    /// `stop`, `length`, `tool_calls` or `content_filter`.
    finish_reason: &'static str,
}

/// The message of an answer.
#[derive(Debug, Serialize, JsonSchema)]
struct AnswerMessage<'a> {
    /// `assistant`.
    role: &'static str,
    /// Text; `null` beside calls alone.
    content: Option<&'a str>,
    /// Reasoning.
    #[serde(skip_serializing_if = "str::is_empty")]
    reasoning_content: &'a str,
    /// Reasoning, by its other name.
    #[serde(skip_serializing_if = "str::is_empty")]
    reasoning: &'a str,
    /// `null`.
    refusal: Option<()>,
    /// Calls.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    tool_calls: Vec<AnswerCall<'a>>,
}

/// A call in an answer.
#[derive(Debug, Serialize, JsonSchema)]
struct AnswerCall<'a> {
    /// Id.
    id: &'a str,
    /// `function`.
    r#type: &'static str,
    /// Function.
    function: AnswerFunction<'a>,
}

/// Function of a call.
#[derive(Debug, Serialize, JsonSchema)]
struct AnswerFunction<'a> {
    /// Name.
    name: &'a str,
    /// Arguments: JSON text.
    arguments: &'a str,
}

impl<'a> ChatCompletion<'a> {
    /// The answer. `named`: the client chose a function by its name.
    pub(crate) fn new(head: &'a AnswerHead, named: bool, completion: &'a Completion) -> Self {
        let choices = completion.choices.iter().enumerate();
        Self {
            id: format!("chatcmpl-{}", head.id),
            object: "chat.completion",
            created: head.created,
            model: &head.model,
            choices: choices.map(|(index, choice)| ChatChoice::new(index, choice, named)).collect(),
            usage: Usage::from(&completion.usage),
        }
    }
}

impl<'a> ChatChoice<'a> {
    fn new(index: usize, choice: &'a Choice, named: bool) -> Self {
        let message = AnswerMessage {
            role: "assistant",
            content: (!choice.content.is_empty() || choice.calls.is_empty()).then_some(choice.content.as_str()),
            reasoning_content: &choice.reasoning,
            reasoning: &choice.reasoning,
            refusal: None,
            tool_calls: choice.calls.iter().map(AnswerCall::new).collect(),
        };
        let reason = choice.finish.as_ref().map(|finish| &finish.reason);
        let finish_reason = reason.map_or("stop", |reason| finish_reason(reason, named));
        Self { index, message, logprobs: ChatLogprobs::new(&choice.tokens), finish_reason }
    }
}

impl<'a> AnswerCall<'a> {
    fn new(call: &'a ToolCall) -> Self {
        let arguments = if call.arguments.is_empty() { "{}" } else { &call.arguments };
        let function = AnswerFunction { name: &call.name, arguments };
        Self { id: call.id.as_deref().unwrap_or_default(), r#type: "function", function }
    }
}

/// The reason of an end. A call of a function that the client named ends with `stop` (vllm#25054).
pub(crate) fn finish_reason(reason: &FinishReason, named: bool) -> &'static str {
    match reason {
        FinishReason::Stop { .. } => "stop",
        FinishReason::Length => "length",
        FinishReason::ToolCalls if named => "stop",
        FinishReason::ToolCalls => "tool_calls",
        FinishReason::ContentFilter => "content_filter",
    }
}
