//! Response objects, which stand in events and are the whole answer.

use crate::chat::TokenLogprob;
use crate::head::AnswerHead;
use omni_codec::Object;
use omni_generation::{Choice, Completion, FinishReason, TokenInfo, Usage as Tokens};
use schemars::JsonSchema;
use serde::Serialize;
use serde_json::value::RawValue;

/// Parameters of a request that its answer repeats.
#[derive(Debug, Clone, JsonSchema, Serialize)]
pub struct ResponseEcho {
    /// Model.
    pub(crate) model: String,
    /// Instructions.
    pub(crate) instructions: Option<String>,
    /// Most tokens.
    pub(crate) max_output_tokens: Option<u32>,
    /// The client's own facts.
    #[serde(serialize_with = "object_or_empty")]
    pub(crate) metadata: Option<Object>,
    /// More than one call in an answer.
    pub(crate) parallel_tool_calls: bool,
    /// Reasoning.
    pub(crate) reasoning: Option<Object>,
    /// Temperature.
    pub(crate) temperature: Option<f32>,
    /// Form of the answer.
    pub(crate) text: Option<Object>,
    /// Choice between text and tools.
    #[serde(serialize_with = "choice_or_auto")]
    pub(crate) tool_choice: Option<Box<RawValue>>,
    /// Tools.
    pub(crate) tools: Vec<Object>,
    /// Number of alternatives.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) top_logprobs: Option<u8>,
    /// Share of probability.
    pub(crate) top_p: Option<f32>,
    /// Session.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) prompt_cache_key: Option<String>,
    /// The client's user.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) safety_identifier: Option<String>,
    /// The client's user.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) user: Option<String>,
}

fn object_or_empty<S: serde::Serializer>(object: &Option<Object>, serializer: S) -> Result<S::Ok, S::Error> {
    match object {
        Some(object) => object.serialize(serializer),
        None => serde_json::json!({}).serialize(serializer),
    }
}

fn choice_or_auto<S: serde::Serializer>(choice: &Option<Box<RawValue>>, serializer: S) -> Result<S::Ok, S::Error> {
    match choice {
        Some(choice) => choice.serialize(serializer),
        None => serializer.serialize_str("auto"),
    }
}

/// Response.
#[derive(Debug, Serialize, JsonSchema)]
pub struct Response<'a> {
    /// Id.
    id: String,
    /// `response`.
    object: &'static str,
    /// Time, in seconds since 1970.
    created_at: u64,
    /// `in_progress`, `completed`, `incomplete` or `failed`.
    status: &'static str,
    /// Error of a response that has failed.
    error: Option<ResponseError<'a>>,
    /// Why a response is incomplete.
    incomplete_details: Option<IncompleteDetails>,
    /// Items.
    output: Vec<OutputItem<'a>>,
    /// Tokens, at the end.
    usage: Option<ResponseUsage>,
    /// `false`.
    background: bool,
    /// `null`.
    previous_response_id: Option<()>,
    /// `default`.
    service_tier: &'static str,
    /// `false`.
    store: bool,
    /// `disabled`.
    truncation: &'static str,
    /// Parameters of the request.
    #[serde(flatten)]
    echo: &'a ResponseEcho,
}

/// Error of a response.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct ResponseError<'a> {
    /// Code.
    pub(crate) code: &'static str,
    /// Cause.
    pub(crate) message: &'a str,
}

/// Why a response is incomplete.
#[derive(Debug, Serialize, JsonSchema)]
struct IncompleteDetails {
    /// `max_output_tokens` or `content_filter`.
    reason: &'static str,
}

/// Item of a response.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(tag = "type", rename_all = "snake_case")]
pub(crate) enum OutputItem<'a> {
    /// Reasoning.
    Reasoning {
        /// Id.
        id: String,
        /// Empty: reasoning is in the content.
        summary: [(); 0],
        /// Parts.
        content: Vec<OutputPart<'a>>,
        /// `in_progress`, `completed` or `incomplete`.
        status: &'static str,
    },
    /// Text.
    Message {
        /// Id.
        id: String,
        /// `assistant`.
        role: &'static str,
        /// Parts.
        content: Vec<OutputPart<'a>>,
        /// `in_progress`, `completed` or `incomplete`.
        status: &'static str,
    },
    /// Call of a function.
    FunctionCall {
        /// Id of the item.
        id: String,
        /// Id of the call.
        call_id: &'a str,
        /// Function.
        name: &'a str,
        /// Arguments: JSON text.
        arguments: &'a str,
        /// `in_progress`, `completed` or `incomplete`.
        status: &'static str,
    },
}

/// Part of an item.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(tag = "type", rename_all = "snake_case")]
pub(crate) enum OutputPart<'a> {
    /// Reasoning.
    ReasoningText {
        /// Text.
        text: &'a str,
    },
    /// Text.
    OutputText {
        /// Text.
        text: &'a str,
        /// Empty.
        annotations: [(); 0],
        /// Log probabilities, if they were asked for.
        logprobs: Vec<TokenLogprob<'a>>,
    },
}

/// Tokens of a response.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct ResponseUsage {
    input_tokens: u64,
    input_tokens_details: InputTokensDetails,
    output_tokens: u64,
    output_tokens_details: OutputTokensDetails,
    total_tokens: u64,
}

/// Parts of the input's tokens.
#[derive(Debug, Serialize, JsonSchema)]
struct InputTokensDetails {
    cached_tokens: u64,
    cache_write_tokens: u64,
}

/// Parts of the answer's tokens.
#[derive(Debug, Serialize, JsonSchema)]
struct OutputTokensDetails {
    reasoning_tokens: u64,
}

impl From<&Tokens> for ResponseUsage {
    fn from(tokens: &Tokens) -> Self {
        Self {
            input_tokens: tokens.prompt_tokens,
            input_tokens_details: InputTokensDetails { cached_tokens: tokens.cached_tokens, cache_write_tokens: 0 },
            output_tokens: tokens.completion_tokens,
            output_tokens_details: OutputTokensDetails { reasoning_tokens: tokens.reasoning_tokens },
            total_tokens: tokens.total(),
        }
    }
}

/// An item that is complete or has been broken off.
#[derive(Debug, Clone)]
pub(crate) enum Item {
    /// Reasoning.
    Reasoning {
        /// Text.
        text: String,
    },
    /// Text.
    Message {
        /// Text.
        text: String,
        /// Tokens with log probabilities.
        tokens: Vec<TokenInfo>,
    },
    /// Call of a function.
    Call {
        /// Id of the call.
        id: String,
        /// Function.
        name: String,
        /// Arguments.
        arguments: String,
    },
}

impl Item {
    /// Bytes of the item in its wire form, roughly.
    pub(crate) fn length(&self) -> usize {
        128 + match self {
            Self::Reasoning { text } => text.len(),
            Self::Message { text, tokens } => {
                text.len() + 64 * tokens.iter().map(|token| 1 + token.top.len()).sum::<usize>()
            }
            Self::Call { id, name, arguments } => id.len() + name.len() + arguments.len(),
        }
    }

    /// The item in its wire form; `index` is its place in the output.
    pub(crate) fn output(&self, head: &AnswerHead, index: usize, status: &'static str) -> OutputItem<'_> {
        let id = self.id(head, index);
        match self {
            Self::Reasoning { .. } => {
                OutputItem::Reasoning { id, summary: [], content: self.part().into_iter().collect(), status }
            }
            Self::Message { .. } => {
                let content = self.part().into_iter().collect();
                OutputItem::Message { id, role: "assistant", content, status }
            }
            Self::Call { id: call_id, name, arguments } => {
                OutputItem::FunctionCall { id, call_id, name, arguments, status }
            }
        }
    }

    /// The item before its first part.
    pub(crate) fn begun(&self, head: &AnswerHead, index: usize) -> OutputItem<'_> {
        match self.output(head, index, "in_progress") {
            OutputItem::Reasoning { id, summary, content: _, status } => {
                OutputItem::Reasoning { id, summary, content: Vec::new(), status }
            }
            OutputItem::Message { id, role, content: _, status } => {
                OutputItem::Message { id, role, content: Vec::new(), status }
            }
            call @ OutputItem::FunctionCall { .. } => call,
        }
    }

    /// The part of the item; calls have none.
    pub(crate) fn part(&self) -> Option<OutputPart<'_>> {
        match self {
            Self::Reasoning { text } => Some(OutputPart::ReasoningText { text }),
            Self::Message { text, tokens } => {
                let logprobs = tokens.iter().map(TokenLogprob::new).collect();
                Some(OutputPart::OutputText { text, annotations: [], logprobs })
            }
            Self::Call { .. } => None,
        }
    }

    /// Id of the item.
    pub(crate) fn id(&self, head: &AnswerHead, index: usize) -> String {
        let kind = match self {
            Self::Reasoning { .. } => "rs",
            Self::Message { .. } => "msg",
            Self::Call { .. } => "fc",
        };
        format!("{kind}_{}{index:02x}", head.id)
    }
}

/// The items of a whole answer.
pub(crate) fn items(choice: &Choice) -> Vec<Item> {
    let mut items = Vec::new();
    if !choice.reasoning.is_empty() {
        items.push(Item::Reasoning { text: choice.reasoning.clone() });
    }
    if !choice.content.is_empty() {
        items.push(Item::Message { text: choice.content.clone(), tokens: choice.tokens.clone() });
    }
    items.extend(choice.calls.iter().map(|call| Item::Call {
        id: call.id.clone().unwrap_or_default(),
        name: call.name.clone(),
        arguments: if call.arguments.is_empty() { "{}".to_owned() } else { call.arguments.clone() },
    }));
    items
}

/// State of a response.
#[derive(Debug, Clone, Copy)]
pub(crate) enum State<'a> {
    /// Parts may follow.
    InProgress,
    /// The model has ended.
    Ended {
        /// Reason.
        reason: &'a FinishReason,
        /// Tokens.
        usage: &'a Tokens,
    },
    /// The answer was broken off.
    Failed {
        /// The last item is incomplete.
        open: bool,
        /// Code of the cause.
        code: &'static str,
        /// Message.
        message: &'a str,
    },
}

/// Status of the last item, and of the response.
pub(crate) fn status(reason: &FinishReason) -> &'static str {
    match reason {
        FinishReason::Stop { .. } | FinishReason::ToolCalls => "completed",
        FinishReason::Length | FinishReason::ContentFilter => "incomplete",
    }
}

impl<'a> Response<'a> {
    /// The response with these items.
    pub(crate) fn new(head: &AnswerHead, echo: &'a ResponseEcho, items: &'a [Item], state: State<'a>) -> Self {
        let last = match state {
            State::Failed { open: true, .. } => "incomplete",
            State::InProgress | State::Failed { open: false, .. } => "completed",
            State::Ended { reason, .. } => status(reason),
        };
        let output = items.iter().enumerate().map(|(index, item)| {
            let status = if index + 1 == items.len() { last } else { "completed" };
            item.output(head, index, status)
        });
        let mut response = Self {
            id: format!("resp_{}", head.id),
            object: "response",
            created_at: head.created,
            status: "in_progress",
            error: None,
            incomplete_details: None,
            output: output.collect(),
            usage: None,
            background: false,
            previous_response_id: None,
            service_tier: "default",
            store: false,
            truncation: "disabled",
            echo,
        };
        match state {
            State::InProgress => {}
            State::Ended { reason, usage } => {
                response.status = status(reason);
                response.usage = Some(ResponseUsage::from(usage));
                response.incomplete_details = match reason {
                    FinishReason::Length => Some(IncompleteDetails { reason: "max_output_tokens" }),
                    FinishReason::ContentFilter => Some(IncompleteDetails { reason: "content_filter" }),
                    FinishReason::Stop { .. } | FinishReason::ToolCalls => None,
                };
            }
            State::Failed { open: _, code, message } => {
                response.status = "failed";
                response.error = Some(ResponseError { code, message });
            }
        }
        response
    }
}

/// The reason of a whole answer's end.
pub(crate) fn reason(completion: &Completion) -> FinishReason {
    let finish = completion.choices.first().and_then(|choice| choice.finish.as_ref());
    finish.map_or(FinishReason::Stop { sequence: None }, |finish| finish.reason.clone())
}
