//! Items of a request's input, as messages.

use crate::chat::checked_url;
use omni_codec::{Object, TextOr, body, bounds};
use omni_generation::{Content, InvalidRequest, Message, Part, Role, ToolCall};
use schemars::JsonSchema;
use serde::Deserialize;

/// Most items of an input.
const MOST_ITEMS: usize = 16_384;

/// An item; its type says which of the fields it has.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct InputItem {
    /// `message` (if absent), `function_call`, `function_call_output` or `reasoning`.
    #[schemars(extend("enum" = ["message", "function_call", "function_call_output", "reasoning", null]))]
    r#type: Option<String>,
    /// Role of a message: `user`, `assistant`, `system` or `developer`.
    #[schemars(extend("enum" = ["user", "assistant", "system", "developer", null]))]
    role: Option<String>,
    /// Content of a message or of reasoning.
    content: Option<TextOr<Vec<ItemPart>>>,
    /// Call, or the call whose output the item is.
    call_id: Option<String>,
    /// Function.
    name: Option<String>,
    /// Arguments: JSON text.
    arguments: Option<String>,
    /// Output of a call.
    output: Option<TextOr<Vec<ItemPart>>>,
    /// Summary of reasoning, read where its content is absent.
    summary: Option<Vec<ItemPart>>,
    /// Accepted without effect.
    #[serde(rename = "id")]
    _id: Option<String>,
    /// Accepted without effect.
    #[serde(rename = "status")]
    _status: Option<String>,
    /// Accepted without effect.
    #[serde(rename = "phase")]
    _phase: Option<String>,
    /// Accepted without effect: reasoning is not encrypted.
    #[serde(rename = "encrypted_content")]
    _encrypted_content: Option<String>,
    /// Accepted without effect.
    #[serde(rename = "caller")]
    _caller: Option<Object>,
}

/// Part of a content; its type says which of the fields it has.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct ItemPart {
    /// `input_text`, `output_text`, `refusal`, `input_image`, `input_audio`, `reasoning_text` or `summary_text`.
    r#type: String,
    /// Text.
    text: Option<String>,
    /// Text of a refusal.
    refusal: Option<String>,
    /// Data URL or address of an image.
    image_url: Option<String>,
    /// Sound.
    input_audio: Option<ItemAudio>,
    /// Accepted without effect: a hint.
    #[serde(rename = "detail")]
    _detail: Option<String>,
    /// Accepted without effect.
    #[serde(rename = "annotations")]
    _annotations: Option<Vec<Object>>,
    /// Accepted without effect.
    #[serde(rename = "logprobs")]
    _logprobs: Option<Vec<Object>>,
    /// Accepted without effect.
    #[serde(rename = "prompt_cache_breakpoint")]
    _prompt_cache_breakpoint: Option<Object>,
}

/// Sound.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct ItemAudio {
    /// Base64 of the file.
    data: String,
    /// Format of the file.
    format: String,
}

/// Reads the items of an input. Reasoning, text and calls that follow each other become one message of the assistant.
pub(crate) fn read_items(items: Vec<InputItem>, messages: &mut Vec<Message>) -> Result<(), InvalidRequest> {
    bounds::count("input", items.len(), 1..=MOST_ITEMS)?;
    // Message of the assistant that further items may complete.
    let mut open: Option<Message> = None;
    for (index, item) in items.into_iter().enumerate() {
        let at = format!("input[{index}]");
        match item.r#type.as_deref() {
            None | Some("message") => {
                let message = item.into_message(&at)?;
                match &mut open {
                    Some(before) if message.role == Role::Assistant && is_reasoning_alone(before) => {
                        before.content = message.content;
                    }
                    _ => {
                        messages.extend(open.take());
                        open = Some(message);
                    }
                }
            }
            Some("reasoning") => {
                messages.extend(open.take());
                let reasoning = Some(item.into_reasoning(&at)?);
                open = Some(Message { content: Content::Absent, reasoning, ..Message::text(Role::Assistant, "") });
            }
            Some("function_call") => {
                let call = item.into_call(&at)?;
                if !open.as_ref().is_some_and(|message| message.role == Role::Assistant) {
                    messages.extend(open.take());
                }
                let message = open
                    .get_or_insert_with(|| Message { content: Content::Absent, ..Message::text(Role::Assistant, "") });
                message.tool_calls.push(call);
            }
            Some("function_call_output") => {
                messages.extend(open.take());
                messages.push(item.into_result(&at)?);
            }
            Some("item_reference") => {
                let message = "answers are not stored: send the item itself; clients do so when `store` is `false`";
                return Err(InvalidRequest::unsupported(format!("{at}.type"), message));
            }
            Some(_) => {
                let message = "items of this type are not supported: there are `message`, `function_call`, \
                               `function_call_output` and `reasoning`";
                return Err(InvalidRequest::unsupported(format!("{at}.type"), message));
            }
        }
    }
    messages.extend(open);
    Ok(())
}

fn is_reasoning_alone(message: &Message) -> bool {
    message.role == Role::Assistant && message.content == Content::Absent && message.tool_calls.is_empty()
}

impl InputItem {
    fn into_message(self, at: &str) -> Result<Message, InvalidRequest> {
        let role = match self.role.as_deref() {
            None => return Err(InvalidRequest::missing(&body::join(at, "role"))),
            Some("user") => Role::User,
            Some("assistant") => Role::Assistant,
            Some("system") => Role::System,
            Some("developer") => Role::Developer,
            Some(_) => {
                let message = "the role has to be `user`, `assistant`, `system` or `developer`";
                return Err(InvalidRequest::new(body::join(at, "role"), message));
            }
        };
        let at = body::join(at, "content");
        let content = content(self.content.ok_or_else(|| InvalidRequest::missing(&at))?, role, &at)?;
        Ok(Message { content, ..Message::text(role, "") })
    }

    fn into_reasoning(self, at: &str) -> Result<String, InvalidRequest> {
        let at = body::join(at, "content");
        let parts = match self.content {
            Some(TextOr::Text(text)) => return Ok(text),
            Some(TextOr::Other(parts)) if !parts.is_empty() => parts,
            _ => self.summary.unwrap_or_default(),
        };
        let texts = parts.into_iter().enumerate().map(|(index, part)| {
            let at = format!("{at}[{index}]");
            match part.r#type.as_str() {
                "reasoning_text" | "summary_text" | "text" => {
                    part.text.ok_or_else(|| InvalidRequest::missing(&body::join(&at, "text")))
                }
                _ => {
                    let message = "parts of reasoning have the type `reasoning_text` or `summary_text`";
                    Err(InvalidRequest::new(body::join(&at, "type"), message))
                }
            }
        });
        Ok(texts.collect::<Result<Vec<_>, _>>()?.join("\n"))
    }

    fn into_call(self, at: &str) -> Result<ToolCall, InvalidRequest> {
        let missing = |name: &str| InvalidRequest::missing(&body::join(at, name));
        Ok(ToolCall {
            id: Some(self.call_id.ok_or_else(|| missing("call_id"))?),
            name: self.name.ok_or_else(|| missing("name"))?,
            arguments: self.arguments.ok_or_else(|| missing("arguments"))?,
        })
    }

    fn into_result(self, at: &str) -> Result<Message, InvalidRequest> {
        let missing = |name: &str| InvalidRequest::missing(&body::join(at, name));
        let id = self.call_id.ok_or_else(|| missing("call_id"))?;
        let output = self.output.ok_or_else(|| missing("output"))?;
        let content = content(output, Role::Tool, &body::join(at, "output"))?;
        Ok(Message { content, tool_call_id: Some(id), ..Message::text(Role::Tool, "") })
    }
}

fn content(content: TextOr<Vec<ItemPart>>, role: Role, at: &str) -> Result<Content, InvalidRequest> {
    let parts = match content {
        TextOr::Text(text) => return Ok(Content::Text(text)),
        TextOr::Other(parts) => parts,
    };
    let parts = parts.into_iter().enumerate().map(|(index, part)| part.into_part(role, &format!("{at}[{index}]")));
    let mut parts = parts.collect::<Result<Vec<_>, _>>()?;
    Ok(match parts.as_mut_slice() {
        [] => Content::Text(String::new()),
        [Part::Text(text)] => Content::Text(std::mem::take(text)),
        _ => Content::Parts(parts),
    })
}

impl ItemPart {
    fn into_part(self, role: Role, at: &str) -> Result<Part, InvalidRequest> {
        let missing = |name: &str| InvalidRequest::missing(&body::join(at, name));
        let part = match self.r#type.as_str() {
            "input_text" | "output_text" | "text" => Part::Text(self.text.ok_or_else(|| missing("text"))?),
            "refusal" => Part::Text(self.refusal.ok_or_else(|| missing("refusal"))?),
            "input_image" => {
                let url = self.image_url.ok_or_else(|| missing("image_url"))?;
                Part::Image { url: checked_url(url, &body::join(at, "image_url"))? }
            }
            "input_audio" => {
                let audio = self.input_audio.ok_or_else(|| missing("input_audio"))?;
                Part::Audio { data: audio.data, format: audio.format }
            }
            _ => {
                let message = "parts of this type are not supported: there are `input_text`, `output_text`, `refusal`, \
                               `input_image` and `input_audio`";
                return Err(InvalidRequest::unsupported(body::join(at, "type"), message));
            }
        };
        if role != Role::User && role != Role::Tool && !matches!(part, Part::Text(_)) {
            let message = format!("messages of the role `{}` have text alone", role.name());
            return Err(InvalidRequest::new(body::join(at, "type"), message));
        }
        Ok(part)
    }
}
