//! Messages of a conversation, and the tools that are offered to the model.
//!
//! JSON whose form is the client's own (schemas, unknown fields) stays raw: the order of its keys is part of the prompt.

use serde_json::value::RawValue;

/// Author of a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Role {
    /// Instructions for the whole conversation.
    System,
    /// Instructions, by their newer name in the OpenAI API.
    Developer,
    /// The client's user.
    User,
    /// The model.
    Assistant,
    /// Result of a tool call.
    Tool,
}

impl Role {
    /// Name of the role in all APIs and templates.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::System => "system",
            Self::Developer => "developer",
            Self::User => "user",
            Self::Assistant => "assistant",
            Self::Tool => "tool",
        }
    }
}

/// Message of a conversation.
#[derive(Debug, Clone)]
pub struct Message {
    /// Author.
    pub role: Role,
    /// Content.
    pub content: Content,
    /// Name of the author, or of the tool of a result.
    pub name: Option<String>,
    /// Reasoning of the assistant before its content.
    pub reasoning: Option<String>,
    /// Calls that the assistant made.
    pub tool_calls: Vec<ToolCall>,
    /// Call whose result a tool's message is.
    pub tool_call_id: Option<String>,
    /// Further fields, for templates that read them.
    pub extra: Vec<(String, Box<RawValue>)>,
}

impl Message {
    /// A message of text alone.
    #[must_use]
    pub fn text(role: Role, text: impl Into<String>) -> Self {
        Self {
            role,
            content: Content::Text(text.into()),
            name: None,
            reasoning: None,
            tool_calls: Vec::new(),
            tool_call_id: None,
            extra: Vec::new(),
        }
    }
}

/// Content of a message.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Content {
    /// No content: `null`, or no such field.
    Absent,
    /// Text.
    Text(String),
    /// Parts, in their order.
    Parts(Vec<Part>),
}

/// Part of a content.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Part {
    /// Text.
    Text(String),
    /// Image: a data URL, or an address that the model may fetch.
    Image {
        /// The address.
        url: String,
    },
    /// Sound, in base64.
    Audio {
        /// Base64 of the file.
        data: String,
        /// Format of the file, such as `wav`.
        format: String,
    },
}

/// Call of a tool, as it stands in the history of a conversation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ToolCall {
    /// Id that the result refers to.
    pub id: Option<String>,
    /// Function.
    pub name: String,
    /// Arguments: JSON text, as the client sent it.
    pub arguments: String,
}

/// Function that the model may call.
#[derive(Debug, Clone)]
pub struct Tool {
    /// Name.
    pub name: String,
    /// JSON Schema of its arguments.
    pub parameters: Option<Box<RawValue>>,
    /// The whole tool in the form of the OpenAI API, `{"type": "function", "function": {…}}`, as templates print it.
    pub definition: Box<RawValue>,
}

/// Choice of the client between text and tool calls.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum ToolChoice {
    /// The model decides.
    #[default]
    Auto,
    /// No calls.
    None,
    /// At least one call.
    Required,
    /// A call of this function.
    Named(String),
}
