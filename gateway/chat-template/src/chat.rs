//! Conversations in the form that a template takes: variables of a render.

use crate::control::ControlTokens;
use crate::control::mark::{END, mark};
use crate::engine::time::strftime_now;
use crate::facts::{Absent, Arguments, CallIds, Contents, Facts};
use crate::json;
use crate::syntax::rewrite::GUARD;
use minijinja::value::Value;
use omni_generation::{Chat, Content, InvalidRequest, Message, Part, Role, ToolCall};
use serde_json::value::RawValue;
use std::collections::{BTreeMap, BTreeSet};

/// Variables that are not a client's.
const RESERVED: &[&str] =
    &["chat_template", "continue_final_message", "messages", GUARD, "raise_exception", "strftime_now", "tools"];

/// Variable of documents that the answer is to be based on. Unlike other variables, they are a part of the conversation.
pub(crate) const DOCUMENTS: &str = "documents";

/// Fields of a message that have their own place in [`Message`].
const FIELDS: &[&str] = &["content", "name", "role", "tool_call_id", "tool_calls"];

/// Everything about a template that its variables depend on.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Form<'a> {
    /// Facts.
    pub(crate) facts: &'a Facts,
    /// Control tokens.
    pub(crate) tokens: &'a ControlTokens,
    /// Texts that the template searches for.
    pub(crate) searched: &'a BTreeSet<String>,
    /// Special tokens by name.
    pub(crate) special: &'a [(String, String)],
    /// Time, in seconds since 1970, for `strftime_now`.
    pub(crate) now: i64,
}

/// Variables of a render.
#[derive(Debug)]
pub(crate) struct Variables {
    /// All of them.
    pub(crate) root: Value,
    /// Size of the input in bytes.
    pub(crate) size: usize,
    /// Parameter of the first arguments that are no JSON object.
    pub(crate) unparsed: Option<String>,
}

struct Builder<'a> {
    form: Form<'a>,
    size: usize,
    unparsed: Option<String>,
}

/// Makes the variables of a conversation.
pub(crate) fn variables(form: Form<'_>, chat: &Chat) -> Result<Variables, InvalidRequest> {
    let mut builder = Builder { form, size: 0, unparsed: None };
    let mut root: Vec<(Value, Value)> = Vec::with_capacity(16);
    for (name, token) in form.special {
        root.push((Value::from(name), Value::from(token)));
    }
    root.push(("strftime_now".into(), strftime_now(form.now)));
    root.push(("messages".into(), builder.messages(chat)?));
    let tools = if chat.offers_tools() { builder.tools(chat)? } else { Value::from(()) };
    root.push(("tools".into(), tools));
    root.push((DOCUMENTS.into(), Value::from(())));
    root.push(("add_generation_prompt".into(), Value::from(!chat.template.continue_final_message)));
    if let Some(effort) = &chat.template.reasoning_effort {
        root.push(("reasoning_effort".into(), builder.text(effort, false)));
        if effort == "none" {
            root.push(("enable_thinking".into(), Value::from(false)));
            root.push(("thinking".into(), Value::from(false)));
        }
    }
    for (name, value) in &chat.template.variables {
        let parameter = format!("chat_template_kwargs.{name}");
        if RESERVED.contains(&name.as_str()) || form.special.iter().any(|(special, _)| special == name) {
            return Err(InvalidRequest::new(parameter, format!("`{name}` cannot be set by a request")));
        }
        let value = builder.json(value, &parameter)?;
        if name == DOCUMENTS && value.is_true() && !form.facts.reads_documents {
            let message = "the chat template of this model has no place for documents: send them in a message";
            return Err(InvalidRequest::unsupported(DOCUMENTS, message));
        }
        root.push((Value::from(name), value));
    }
    Ok(Variables { root: Value::from_pairs(root), size: builder.size, unparsed: builder.unparsed })
}

impl Builder<'_> {
    /// A client's text. `assistant`: the content of its message, in which tokens that the template searches for stay as they are.
    fn text(&mut self, text: &str, assistant: bool) -> Value {
        self.size += text.len() + 16;
        let searched = assistant.then_some(self.form.searched);
        Value::from(mark(self.form.tokens, text, searched))
    }

    fn json(&mut self, raw: &RawValue, parameter: &str) -> Result<Value, InvalidRequest> {
        let parsed = json::parse(raw.get(), &mut |text| self.text(text, false));
        self.size += raw.get().len();
        parsed.map_err(|_| {
            InvalidRequest::new(
                parameter,
                format!("`{parameter}` is nested too deep, or has a broken text or a number out of range"),
            )
        })
    }

    fn tools(&mut self, chat: &Chat) -> Result<Value, InvalidRequest> {
        let tools = chat.tools.iter().enumerate();
        tools.map(|(at, tool)| self.json(&tool.definition, &format!("tools[{at}]"))).collect()
    }

    fn messages(&mut self, chat: &Chat) -> Result<Value, InvalidRequest> {
        let mut called = BTreeMap::new();
        let mut values = Vec::with_capacity(chat.messages.len());
        for (at, message) in chat.messages.iter().enumerate() {
            let last = chat.template.continue_final_message && at + 1 == chat.messages.len();
            for call in &message.tool_calls {
                if let Some(id) = &call.id {
                    called.insert(id.as_str(), call.name.as_str());
                }
            }
            values.push(self.message(message, at, last, &called)?);
        }
        Ok(Value::from(values))
    }

    fn message(
        &mut self,
        message: &Message,
        at: usize,
        continued: bool,
        called: &BTreeMap<&str, &str>,
    ) -> Result<Value, InvalidRequest> {
        let facts = self.form.facts;
        let role = match message.role {
            Role::Developer if !facts.renders_developer => Role::System,
            role => role,
        };
        let mut fields: Vec<(Value, Value)> = Vec::with_capacity(8);
        fields.push(("role".into(), role.name().into()));
        if let Some(content) = self.content(message, role, at, continued)? {
            fields.push(("content".into(), content));
        }
        let result_of = || message.tool_call_id.as_deref().and_then(|id| called.get(id).copied());
        let known = || if facts.needs_tool_name && role == Role::Tool { result_of() } else { None };
        if let Some(name) = message.name.as_deref().or_else(known) {
            fields.push(("name".into(), self.text(name, false)));
        }
        if let Some(reasoning) = &message.reasoning {
            for field in &facts.reasoning {
                fields.push(((*field).into(), self.text(reasoning, false)));
            }
        }
        if !message.tool_calls.is_empty() {
            let calls = message.tool_calls.iter().enumerate();
            let calls: Vec<Value> = calls.map(|(call_at, call)| self.call(call, at, call_at)).collect();
            fields.push(("tool_calls".into(), Value::from(calls)));
        }
        if let Some(id) = &message.tool_call_id {
            fields.push(("tool_call_id".into(), self.call_id(id)));
        }
        for (name, value) in &message.extra {
            if value.get() != "null" && !FIELDS.contains(&name.as_str()) {
                fields.push((Value::from(name), self.json(value, &format!("messages[{at}].{name}"))?));
            }
        }
        Ok(Value::from_pairs(fields))
    }

    fn content(
        &mut self,
        message: &Message,
        role: Role,
        at: usize,
        continued: bool,
    ) -> Result<Option<Value>, InvalidRequest> {
        let form = self.form.facts.contents(role);
        let parameter = || format!("messages[{at}].content");
        let assistant = role == Role::Assistant;
        let facts = self.form.facts;
        let absent = if message.tool_calls.is_empty() { facts.absent_alone } else { facts.absent };
        match &message.content {
            Content::Absent if continued => Err(nothing_to_continue()),
            Content::Absent if form == Contents::Parts => Ok(Some(Value::from(vec![text_part(Value::from(""))]))),
            Content::Absent => Ok(match absent {
                Absent::Omitted => None,
                Absent::Empty => Some(Value::from("")),
                Absent::Null => Some(Value::from(())),
            }),
            Content::Text(text) => {
                let value = self.last_text(text, assistant, continued);
                Ok(Some(if form == Contents::Parts { Value::from(vec![text_part(value)]) } else { value }))
            }
            Content::Parts(parts) if form == Contents::Text => {
                let mut joined = String::new();
                for (part_at, part) in parts.iter().enumerate() {
                    let Part::Text(text) = part else {
                        let message = "the chat template of this model takes text alone";
                        return Err(InvalidRequest::new(format!("{}[{part_at}]", parameter()), message));
                    };
                    if part_at > 0 {
                        joined.push('\n');
                    }
                    joined.push_str(text);
                }
                Ok(Some(self.last_text(&joined, assistant, continued)))
            }
            Content::Parts(parts) => {
                let count = parts.len();
                if continued && !matches!(parts.last(), Some(Part::Text(_))) {
                    return Err(nothing_to_continue());
                }
                let parts = parts.iter().enumerate();
                let parts = parts.map(|(at, part)| self.part(part, assistant, continued && at + 1 == count));
                Ok(Some(parts.collect()))
            }
        }
    }

    /// Text with the mark of its end, if it is the one that is continued.
    fn last_text(&mut self, text: &str, assistant: bool, continued: bool) -> Value {
        let value = self.text(text, assistant);
        if continued { Value::from(format!("{value}{END}")) } else { value }
    }

    fn part(&mut self, part: &Part, assistant: bool, continued: bool) -> Value {
        match part {
            Part::Text(text) => text_part(self.last_text(text, assistant, continued)),
            Part::Image { url } => {
                let url = self.text(url, false);
                Value::from_pairs([("type", Value::from("image")), ("image", url)])
            }
            Part::Audio { data, format } => {
                let (data, format) = (self.text(data, false), self.text(format, false));
                Value::from_pairs([("type", Value::from("audio")), ("audio", data), ("format", format)])
            }
        }
    }

    fn call(&mut self, call: &ToolCall, at: usize, call_at: usize) -> Value {
        let arguments = match self.form.facts.arguments {
            Arguments::Text => None,
            Arguments::Object if call.arguments.trim().is_empty() => {
                Some(json::parse("{}", &mut |text| Value::from(text)))
            }
            Arguments::Object => Some(json::parse(&call.arguments, &mut |text| self.text(text, false))),
        };
        let arguments = match arguments {
            Some(Ok(value)) if value.kind() == minijinja::value::ValueKind::Map => value,
            None => self.text(&call.arguments, false),
            Some(_) => {
                let parameter = || format!("messages[{at}].tool_calls[{call_at}].function.arguments");
                self.unparsed.get_or_insert_with(parameter);
                self.text(&call.arguments, false)
            }
        };
        let name = self.text(&call.name, false);
        let function = Value::from_pairs([("name", name), ("arguments", arguments)]);
        let mut fields: Vec<(Value, Value)> = Vec::with_capacity(3);
        if let Some(id) = &call.id {
            fields.push(("id".into(), self.call_id(id)));
        }
        fields.push(("type".into(), "function".into()));
        fields.push(("function".into(), function));
        Value::from_pairs(fields)
    }

    fn call_id(&mut self, id: &str) -> Value {
        match self.form.facts.call_ids {
            CallIds::Any => self.text(id, false),
            CallIds::NineCharacters => Value::from(nine_characters(id)),
        }
    }
}

fn text_part(text: Value) -> Value {
    Value::from_pairs([("type", Value::from("text")), ("text", text)])
}

fn nothing_to_continue() -> InvalidRequest {
    InvalidRequest::new("continue_final_message", "the last message has no text that could be continued")
}

/// Id of nine letters and digits: the same for the same id.
fn nine_characters(id: &str) -> String {
    if id.len() == 9 && id.bytes().all(|byte| byte.is_ascii_alphanumeric()) {
        return id.to_owned();
    }
    // FNV-1a.
    let mut hash = id
        .bytes()
        .fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3));
    let mut out = String::with_capacity(9);
    for _ in 0..9 {
        let digit = u32::try_from(hash % 36).unwrap_or(0);
        out.push(char::from_digit(digit, 36).unwrap_or('0'));
        hash /= 36;
    }
    out
}
