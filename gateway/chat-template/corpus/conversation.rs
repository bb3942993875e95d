//! Conversations of the OpenAI API, read as a codec reads them.

use omni_generation::{Chat, Content, Message, Part, Role, TemplateOptions, Tool, ToolCall, ToolChoice};
use serde::Deserialize;
use serde_json::Value;
use serde_json::value::RawValue;

#[derive(Deserialize)]
struct Request {
    messages: Vec<Wire>,
    tools: Option<Vec<Box<RawValue>>>,
}

#[derive(Deserialize)]
struct Wire {
    role: String,
    #[serde(default)]
    content: Value,
    name: Option<String>,
    tool_call_id: Option<String>,
    tool_calls: Option<Vec<Call>>,
    reasoning_content: Option<String>,
    reasoning: Option<String>,
    thinking: Option<String>,
}

#[derive(Deserialize)]
struct Call {
    id: Option<String>,
    function: Function,
}

#[derive(Deserialize)]
struct Function {
    name: String,
    arguments: Box<RawValue>,
}

/// Conversation of a request.
pub(crate) fn chat(variables: &str) -> Chat {
    let request: Request = serde_json::from_str(variables).expect("a conversation");
    let tool = |definition: Box<RawValue>| Tool { name: String::new(), parameters: None, definition };
    Chat {
        messages: request.messages.into_iter().map(message).collect(),
        tools: request.tools.unwrap_or_default().into_iter().map(tool).collect(),
        tool_choice: ToolChoice::Auto,
        parallel_tool_calls: true,
        template: TemplateOptions::default(),
    }
}

fn message(wire: Wire) -> Message {
    let role = match wire.role.as_str() {
        "system" => Role::System,
        "developer" => Role::Developer,
        "user" => Role::User,
        "tool" => Role::Tool,
        _ => Role::Assistant,
    };
    let mut message = Message::text(role, "");
    message.content = match wire.content {
        Value::String(text) => Content::Text(text),
        Value::Array(parts) => Content::Parts(parts.iter().map(part).collect()),
        _ => Content::Absent,
    };
    message.name = wire.name;
    message.tool_call_id = wire.tool_call_id;
    message.reasoning = wire.reasoning_content.or(wire.reasoning).or(wire.thinking);
    message.tool_calls = wire.tool_calls.unwrap_or_default().into_iter().map(call).collect();
    message
}

fn part(part: &Value) -> Part {
    Part::Text(part.get("text").and_then(Value::as_str).unwrap_or("").to_owned())
}

fn call(call: Call) -> ToolCall {
    let raw = call.function.arguments.get();
    let arguments = serde_json::from_str::<String>(raw).unwrap_or_else(|_| raw.to_owned());
    ToolCall { id: call.id, name: call.function.name, arguments }
}
