//! Messages of a request, as clients send them back and forth.

use crate::chat::content::ContentPart;
use omni_codec::raw::check_depth;
use omni_codec::{TextOr, body};
use omni_generation::{Content, InvalidCode, InvalidRequest, Message, Role, ToolCall};
use schemars::{JsonSchema, Schema, SchemaGenerator};
use serde::Deserialize;
use serde::de::{Deserializer, Error, MapAccess, Visitor};
use serde_json::value::RawValue;
use std::borrow::Cow;
use std::fmt;

/// Most fields of a message.
const MOST_FIELDS: usize = 64;
/// Most calls in one message.
const MOST_CALLS: usize = 256;
/// A message. Fields that are `null` are absent.
#[derive(Debug, Default)]
pub struct ChatMessage {
    role: Option<String>,
    content: Option<TextOr<Vec<ContentPart>>>,
    name: Option<String>,
    refusal: Option<String>,
    reasoning: Option<String>,
    tool_calls: Vec<HistoryCall>,
    tool_call_id: Option<String>,
    /// Fields that cannot be honoured.
    unsupported: Option<&'static str>,
    extra: Vec<(String, Box<RawValue>)>,
}

/// A call that the assistant made: `{"id", "type", "function": {"name", "arguments"}}`, or `{"name", "arguments"}`.
#[derive(Debug, Deserialize)]
struct HistoryCall {
    id: Option<String>,
    r#type: Option<String>,
    function: Option<HistoryFunction>,
    name: Option<String>,
    arguments: Option<Box<RawValue>>,
}

#[derive(Debug, Deserialize)]
struct HistoryFunction {
    name: String,
    arguments: Option<Box<RawValue>>,
}

impl<'de> Deserialize<'de> for ChatMessage {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(MessageVisitor)
    }
}

struct MessageVisitor;

impl<'de> Visitor<'de> for MessageVisitor {
    type Value = ChatMessage;

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("a map")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<ChatMessage, A::Error> {
        let mut message = ChatMessage::default();
        let mut names = Vec::<String>::new();
        while let Some(name) = map.next_key::<String>()? {
            if names.contains(&name) {
                return Err(A::Error::custom("a field appears twice"));
            }
            if names.len() == MOST_FIELDS {
                return Err(A::Error::custom(format_args!("it has more than {MOST_FIELDS} fields")));
            }
            message.read_field(&name, &mut map)?;
            names.push(name);
        }
        Ok(message)
    }
}

impl ChatMessage {
    fn read_field<'de, A: MapAccess<'de>>(&mut self, name: &str, map: &mut A) -> Result<(), A::Error> {
        match name {
            "role" => self.role = map.next_value()?,
            "content" => self.content = map.next_value()?,
            "name" => self.name = map.next_value()?,
            "refusal" => self.refusal = map.next_value()?,
            "tool_call_id" => self.tool_call_id = map.next_value()?,
            "tool_calls" => self.tool_calls = map.next_value::<Option<_>>()?.unwrap_or_default(),
            "reasoning_content" | "reasoning" | "thinking" => {
                let reasoning: Option<String> = map.next_value()?;
                self.reasoning = reasoning.filter(|text| !text.is_empty()).or(self.reasoning.take());
            }
            _ => {
                let value: Box<RawValue> = map.next_value()?;
                check_depth(&value)?;
                match name {
                    _ if value.get() == "null" => {}
                    "annotations" => {}
                    "audio" => self.unsupported = Some("audio"),
                    "function_call" => self.unsupported = Some("function_call"),
                    _ => self.extra.push((name.to_owned(), value)),
                }
            }
        }
        Ok(())
    }

    /// Checks the message and turns it into the one that templates render; `at` is its path.
    ///
    /// # Errors
    /// An unknown role, or content that a message of its role cannot have.
    pub fn into_message(self, at: &str) -> Result<Message, InvalidRequest> {
        let role = self.role(at)?;
        if let Some(name) = self.unsupported {
            let reason = if name == "audio" { "no model here has answered with sound" } else { "use `tool_calls`" };
            return Err(InvalidRequest::unsupported(
                body::join(at, name),
                format!("`{name}` is not supported in a message: {reason}"),
            ));
        }
        let content = match self.content {
            None => Content::Absent,
            Some(TextOr::Text(text)) => Content::Text(text),
            Some(TextOr::Other(parts)) => ContentPart::into_content(parts, role, at)?,
        };
        let content = match (content, self.refusal) {
            (Content::Absent, Some(refusal)) => Content::Text(refusal),
            (content, _) => content,
        };
        if content == Content::Absent && role != Role::Assistant {
            return Err(InvalidRequest::missing(&body::join(at, "content")));
        }
        if role != Role::Assistant && !self.tool_calls.is_empty() {
            let at = body::join(at, "tool_calls");
            return Err(InvalidRequest::new(at, "only messages of the assistant have `tool_calls`"));
        }
        let calls_at = body::join(at, "tool_calls");
        omni_codec::bounds::count(&calls_at, self.tool_calls.len(), 0..=MOST_CALLS)?;
        let calls = self.tool_calls.into_iter().enumerate();
        let tool_calls = calls.map(|(index, call)| call.into_call(&format!("{calls_at}[{index}]")));
        Ok(Message {
            role,
            content,
            name: self.name,
            reasoning: self.reasoning,
            tool_calls: tool_calls.collect::<Result<_, _>>()?,
            tool_call_id: self.tool_call_id,
            extra: self.extra,
        })
    }

    fn role(&self, at: &str) -> Result<Role, InvalidRequest> {
        let at = body::join(at, "role");
        match self.role.as_deref() {
            None => Err(InvalidRequest::missing(&at)),
            Some("system") => Ok(Role::System),
            Some("developer") => Ok(Role::Developer),
            Some("user") => Ok(Role::User),
            Some("assistant") => Ok(Role::Assistant),
            Some("tool") => Ok(Role::Tool),
            Some("function") => {
                let message = "messages of the role `function` are not supported: use `tool` with a `tool_call_id`";
                Err(InvalidRequest::unsupported(at, message))
            }
            Some(_) => {
                Err(InvalidRequest::new(at, "the role has to be `system`, `developer`, `user`, `assistant` or `tool`"))
            }
        }
    }
}

impl HistoryCall {
    fn into_call(self, at: &str) -> Result<ToolCall, InvalidRequest> {
        if let Some(kind) = self.r#type.filter(|kind| kind != "function") {
            let kind = kind.get(..kind.floor_char_boundary(32)).unwrap_or_default();
            let message = format!("calls of the type `{kind}` are not supported: the type has to be `function`");
            return Err(InvalidRequest::unsupported(body::join(at, "type"), message));
        }
        let (name, arguments) = match (self.function, self.name) {
            (Some(function), _) => (function.name, function.arguments),
            (None, Some(name)) => (name, self.arguments),
            (None, None) => return Err(InvalidRequest::missing(&body::join(at, "function"))),
        };
        let at = body::join(at, "function.arguments");
        let arguments = match arguments.as_deref().map(RawValue::get) {
            None | Some("null") => "{}".to_owned(),
            // Objects are the form of the Workers AI API.
            Some(object) if object.starts_with('{') => object.to_owned(),
            Some(text) => serde_json::from_str(text).map_err(|_| {
                InvalidRequest::new(&at, format!("`{at}` has to be a string")).with_code(InvalidCode::Type)
            })?,
        };
        Ok(ToolCall { id: self.id, name, arguments })
    }
}

impl JsonSchema for ChatMessage {
    fn schema_name() -> Cow<'static, str> {
        "ChatMessage".into()
    }

    fn json_schema(generator: &mut SchemaGenerator) -> Schema {
        let content = generator.subschema_for::<Option<TextOr<Vec<ContentPart>>>>();
        let text = generator.subschema_for::<Option<String>>();
        let function = schemars::json_schema!({
            "type": "object",
            "required": ["name"],
            "properties": { "name": { "type": "string" }, "arguments": { "type": "string" } },
        });
        let call = schemars::json_schema!({
            "type": "object",
            "required": ["function"],
            "properties": { "id": text, "type": { "const": "function" }, "function": function },
        });
        schemars::json_schema!({
            "type": "object",
            "required": ["role"],
            "properties": {
                "role": { "enum": ["system", "developer", "user", "assistant", "tool"] },
                "content": content,
                "name": text,
                "refusal": text,
                "reasoning": text,
                "reasoning_content": text,
                "tool_call_id": text,
                "tool_calls": { "type": ["array", "null"], "items": call, "maxItems": MOST_CALLS },
            },
        })
    }
}
