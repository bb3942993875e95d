//! Messages in the form of the chat completions API, for models that render their prompts themselves.

use omni_generation::{Content, Message, Part, ToolCall};
use serde::ser::SerializeMap;
use serde::{Serialize, Serializer};
use serde_json::value::RawValue;

/// The messages as a JSON array. Arguments of calls are text.
#[must_use]
pub fn message_list(messages: &[Message]) -> Box<RawValue> {
    let list: Vec<History<'_>> = messages.iter().map(History).collect();
    serde_json::value::to_raw_value(&list).unwrap_or_default()
}

struct History<'a>(&'a Message);

#[derive(Serialize)]
#[serde(tag = "type", rename_all = "snake_case")]
enum HistoryPart<'a> {
    Text { text: &'a str },
    ImageUrl { image_url: ImageUrl<'a> },
    InputAudio { input_audio: InputAudio<'a> },
}

#[derive(Serialize)]
struct ImageUrl<'a> {
    url: &'a str,
}

#[derive(Serialize)]
struct InputAudio<'a> {
    data: &'a str,
    format: &'a str,
}

#[derive(Serialize)]
struct Call<'a> {
    id: Option<&'a str>,
    r#type: &'static str,
    function: Function<'a>,
}

#[derive(Serialize)]
struct Function<'a> {
    name: &'a str,
    arguments: &'a str,
}

impl Serialize for History<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let message = self.0;
        let mut map = serializer.serialize_map(None)?;
        map.serialize_entry("role", message.role.name())?;
        match &message.content {
            Content::Absent => map.serialize_entry("content", &())?,
            Content::Text(text) => map.serialize_entry("content", text)?,
            Content::Parts(parts) => map.serialize_entry("content", &parts.iter().map(part).collect::<Vec<_>>())?,
        }
        if let Some(name) = &message.name {
            map.serialize_entry("name", name)?;
        }
        if let Some(reasoning) = &message.reasoning {
            map.serialize_entry("reasoning_content", reasoning)?;
        }
        if !message.tool_calls.is_empty() {
            map.serialize_entry("tool_calls", &message.tool_calls.iter().map(call).collect::<Vec<_>>())?;
        }
        if let Some(id) = &message.tool_call_id {
            map.serialize_entry("tool_call_id", id)?;
        }
        for (name, value) in &message.extra {
            map.serialize_entry(name, value)?;
        }
        map.end()
    }
}

fn part(part: &Part) -> HistoryPart<'_> {
    match part {
        Part::Text(text) => HistoryPart::Text { text },
        Part::Image { url } => HistoryPart::ImageUrl { image_url: ImageUrl { url } },
        Part::Audio { data, format } => HistoryPart::InputAudio { input_audio: InputAudio { data, format } },
    }
}

fn call(call: &ToolCall) -> Call<'_> {
    let function = Function { name: &call.name, arguments: &call.arguments };
    Call { id: call.id.as_deref(), r#type: "function", function }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::chat_request;
    use omni_generation::Prompt;

    #[test]
    fn messages_are_written_as_they_were_read() {
        let messages = concat!(
            r#"[{"role":"developer","content":"short"},"#,
            r#"{"role":"user","content":[{"type":"text","text":"what?"},{"type":"image_url","image_url":{"url":"data:image/png;base64,AA=="}}]},"#,
            r#"{"role":"assistant","content":null,"reasoning_content":"hm","tool_calls":[{"id":"c1","type":"function","function":{"name":"f","arguments":"{\"a\": 1}"}}]},"#,
            r#"{"role":"tool","content":"2","tool_call_id":"c1"}]"#,
        );
        let request = chat_request(format!(r#"{{"model": "m", "messages": {messages}}}"#).as_bytes()).unwrap();
        let [Prompt::Chat(chat)] = request.prompts.as_slice() else { panic!("one conversation") };
        assert_eq!(message_list(&chat.messages).get(), messages);
    }
}
