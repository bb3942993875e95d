//! Number of JSON values in a request: once they are parsed, they take a hundred times the memory of their text.

use crate::request::{GenerationRequest, Prompt};
use omni_request_error::InvalidRequest;

/// Most values in tools, arguments of calls, further fields of messages and variables of the template together. Parsed, they
/// take some 50 MiB at most.
const MOST: usize = 100_000;

/// Checks that what a client has sent as JSON has not too many values.
///
/// # Errors
/// It has; the error names the first parameter beyond the bound.
pub fn check_values(request: &GenerationRequest) -> Result<(), InvalidRequest> {
    let mut total = 0;
    let mut add = |json: &str, parameter: &dyn Fn() -> String| {
        total += values(json);
        if total <= MOST {
            return Ok(());
        }
        Err(InvalidRequest::new(parameter(), format!("the request has more than {MOST} JSON values up to here")))
    };
    for prompt in &request.prompts {
        let Prompt::Chat(chat) = prompt else { continue };
        for (at, tool) in chat.tools.iter().enumerate() {
            add(tool.definition.get(), &|| format!("tools[{at}]"))?;
        }
        for (name, value) in &chat.template.variables {
            add(value.get(), &|| format!("chat_template_kwargs.{name}"))?;
        }
        for (at, message) in chat.messages.iter().enumerate() {
            for (name, value) in &message.extra {
                add(value.get(), &|| format!("messages[{at}].{name}"))?;
            }
            for call in &message.tool_calls {
                add(&call.arguments, &|| format!("messages[{at}].tool_calls"))?;
            }
        }
    }
    Ok(())
}

/// Number of values in a JSON text, or somewhat more.
fn values(json: &str) -> usize {
    let (mut count, mut in_text, mut escaped) = (1, false, false);
    for byte in json.bytes() {
        match byte {
            _ if escaped => escaped = false,
            b'\\' => escaped = in_text,
            b'"' => in_text = !in_text,
            b',' | b'[' | b'{' if !in_text => count += 1,
            _ => {}
        }
    }
    count
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::message::{Message, Role, Tool, ToolCall};
    use crate::request::{Chat, TemplateOptions};
    use serde_json::value::RawValue;
    use std::sync::Arc;

    #[test]
    fn values_are_counted_outside_of_texts() {
        for (json, least, most) in [
            ("1", 1, 1),
            (r#""a, [b, {c""#, 1, 1),
            (r#""\", [" "#, 1, 1),
            ("[1, 2, 3]", 4, 4),
            (r#"{"a": {"b": [1, "x, y\\"]}}"#, 5, 5),
            ("[[], {}]", 3, 5),
        ] {
            assert!((least..=most).contains(&values(json)), "{json}: {}", values(json));
        }
    }

    #[test]
    fn a_request_of_too_many_values_names_the_parameter() {
        let raw = |json: String| RawValue::from_string(json).unwrap();
        let many = |count: usize| format!("[{}0]", "0,".repeat(count));
        let request = |chat: Chat| GenerationRequest { prompts: vec![Prompt::Chat(Arc::new(chat))], ..plain() };
        let chat = || Chat {
            messages: vec![Message::text(Role::User, "a")],
            tools: Vec::new(),
            tool_choice: Default::default(),
            parallel_tool_calls: true,
            template: TemplateOptions::default(),
        };
        let (mut tools, mut variables, mut extra, mut arguments) = (chat(), chat(), chat(), chat());
        let tool = |count| Tool { name: "f".to_owned(), parameters: None, definition: raw(many(count)) };
        tools.tools = vec![tool(60_000), tool(60_000)];
        variables.template.variables = vec![("v".to_owned(), raw(many(MOST)))];
        extra.messages[0].extra = vec![("z".to_owned(), raw(many(MOST)))];
        arguments.messages[0].tool_calls = vec![ToolCall { id: None, name: "f".to_owned(), arguments: many(MOST) }];
        for (chat, parameter) in [
            (tools, "tools[1]"),
            (variables, "chat_template_kwargs.v"),
            (extra, "messages[0].z"),
            (arguments, "messages[0].tool_calls"),
        ] {
            assert_eq!(check_values(&request(chat)).unwrap_err().parameter.as_deref(), Some(parameter));
        }
        assert_eq!(check_values(&request(chat())), Ok(()));
    }

    fn plain() -> GenerationRequest {
        GenerationRequest {
            model: "m".to_owned(),
            prompts: Vec::new(),
            choices: 1,
            sampling: Default::default(),
            stop: Vec::new(),
            format: Default::default(),
            logprobs: None,
            echo: false,
            stream: false,
            stream_usage: false,
            session: None,
        }
    }
}
