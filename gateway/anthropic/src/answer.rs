//! Whole answers.

use crate::AnswerHead;
use bytes::Bytes;
use omni_generation::{Choice, Completion, FinishReason, ToolCall, Usage as Tokens};
use schemars::JsonSchema;
use serde::Serialize;
use serde_json::value::RawValue;
use std::borrow::Cow;

/// Whole answer.
#[derive(Debug, Serialize, JsonSchema)]
pub struct Message<'a> {
    /// Id.
    id: String,
    /// `message`.
    r#type: &'static str,
    /// `assistant`.
    role: &'static str,
    /// Model.
    model: &'a str,
    /// Blocks.
    content: Vec<Block<'a>>,
    /// Reason of the end; `null` at the beginning of a stream.
    stop_reason: Option<&'static str>,
    /// Stop sequence that ended the answer.
    stop_sequence: Option<&'a str>,
    /// Tokens.
    usage: Usage,
}

/// Block of an answer.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(tag = "type", rename_all = "snake_case")]
enum Block<'a> {
    /// Reasoning.
    Thinking {
        /// Text.
        thinking: &'a str,
        /// Empty: reasoning is not signed.
        signature: &'static str,
    },
    /// Text.
    Text {
        /// Text.
        text: &'a str,
    },
    /// Call of a tool.
    ToolUse {
        /// Id.
        id: &'a str,
        /// Name.
        name: &'a str,
        /// Arguments.
        input: Cow<'a, RawValue>,
    },
}

/// Tokens of an answer.
#[derive(Debug, Clone, Copy, Default, Serialize, JsonSchema)]
#[schemars(rename = "MessageUsage")]
pub(crate) struct Usage {
    /// Tokens of the input that came from no cache.
    pub(crate) input_tokens: u64,
    /// 0: the cache is the model's own.
    pub(crate) cache_creation_input_tokens: u64,
    /// Tokens of the input from a cache.
    pub(crate) cache_read_input_tokens: u64,
    /// Tokens of the answer.
    pub(crate) output_tokens: u64,
}

impl From<&Tokens> for Usage {
    fn from(tokens: &Tokens) -> Self {
        Self {
            input_tokens: tokens.prompt_tokens.saturating_sub(tokens.cached_tokens),
            cache_creation_input_tokens: 0,
            cache_read_input_tokens: tokens.cached_tokens,
            output_tokens: tokens.completion_tokens,
        }
    }
}

impl<'a> Message<'a> {
    /// The answer; the API has one choice.
    pub(crate) fn new(head: &'a AnswerHead, completion: &'a Completion) -> Self {
        let choice = completion.choices.first();
        let reason = choice.and_then(|choice| choice.finish.as_ref()).map(|finish| &finish.reason);
        Self {
            content: choice.map(blocks).unwrap_or_default(),
            stop_reason: Some(reason.map_or("end_turn", stop_reason)),
            stop_sequence: reason.and_then(stop_sequence),
            usage: Usage::from(&completion.usage),
            ..Self::empty(head, 0)
        }
    }

    /// The answer before its first block.
    pub(crate) fn empty(head: &'a AnswerHead, input_tokens: u64) -> Self {
        Self {
            id: format!("msg_{}", head.id),
            r#type: "message",
            role: "assistant",
            model: &head.model,
            content: Vec::new(),
            stop_reason: None,
            stop_sequence: None,
            usage: Usage { input_tokens, ..Usage::default() },
        }
    }
}

fn blocks(choice: &Choice) -> Vec<Block<'_>> {
    let mut blocks = Vec::new();
    if !choice.reasoning.is_empty() {
        blocks.push(Block::Thinking { thinking: &choice.reasoning, signature: "" });
    }
    if !choice.content.is_empty() {
        blocks.push(Block::Text { text: &choice.content });
    }
    blocks.extend(choice.calls.iter().map(|call| Block::ToolUse {
        id: call.id.as_deref().unwrap_or_default(),
        name: &call.name,
        input: input(call),
    }));
    blocks
}

/// Arguments of a call as an object. Text that is none becomes a member of one, as the API has it.
fn input(call: &ToolCall) -> Cow<'_, RawValue> {
    let arguments = call.arguments.trim();
    match serde_json::from_str::<&RawValue>(arguments) {
        Ok(raw) if arguments.starts_with('{') => Cow::Borrowed(raw),
        _ if arguments.is_empty() => Cow::Owned(raw("{}".to_owned())),
        _ => Cow::Owned(raw(serde_json::json!({ "INVALID_JSON": call.arguments }).to_string())),
    }
}

fn raw(json: String) -> Box<RawValue> {
    RawValue::from_string(json).unwrap_or_default()
}

/// The reason of an end.
pub(crate) fn stop_reason(reason: &FinishReason) -> &'static str {
    match reason {
        FinishReason::Stop { sequence: None } => "end_turn",
        FinishReason::Stop { sequence: Some(_) } => "stop_sequence",
        FinishReason::Length => "max_tokens",
        FinishReason::ToolCalls => "tool_use",
        FinishReason::ContentFilter => "refusal",
    }
}

/// The stop sequence of an end.
pub(crate) fn stop_sequence(reason: &FinishReason) -> Option<&str> {
    match reason {
        FinishReason::Stop { sequence } => sequence.as_deref(),
        FinishReason::Length | FinishReason::ToolCalls | FinishReason::ContentFilter => None,
    }
}

/// Answer of the route that counts tokens.
#[derive(Debug, Clone, Copy, Serialize, JsonSchema)]
pub struct TokenCount {
    /// Tokens of the input.
    pub input_tokens: u64,
}

/// The answer of the route that counts tokens.
#[must_use]
pub fn token_count_answer(input_tokens: u64) -> Bytes {
    Bytes::from(serde_json::to_vec(&TokenCount { input_tokens }).unwrap_or_default())
}
