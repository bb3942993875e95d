//! Messages of a conversation.

use crate::request::block::{Block, InputBlock};
use omni_codec::{TextOr, bounds};
use omni_generation::{Content, InvalidRequest, Message, Part, Role};
use schemars::JsonSchema;
use serde::Deserialize;

/// Most messages of a conversation.
const MOST_MESSAGES: usize = 16_384;
/// Most blocks of a message.
const MOST_BLOCKS: usize = 16_384;

/// A message.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct InputMessage {
    /// `user` or `assistant`.
    #[schemars(extend("enum" = ["user", "assistant"]))]
    role: String,
    /// Text, or blocks.
    content: TextOr<Vec<InputBlock>>,
}

/// Reads the messages of a conversation. Messages of one role that follow each other are one turn, as the API has it.
pub(crate) fn read_messages(messages: Vec<InputMessage>) -> Result<Vec<Message>, InvalidRequest> {
    bounds::count("messages", messages.len(), 1..=MOST_MESSAGES)?;
    let mut read = Vec::with_capacity(messages.len());
    for (index, message) in messages.into_iter().enumerate() {
        message.read(&format!("messages[{index}]"), &mut read)?;
    }
    let mut turns: Vec<Message> = Vec::with_capacity(read.len());
    for message in read {
        match turns.last_mut() {
            Some(last) if last.role == message.role && message.role != Role::Tool => join(last, message),
            Some(_) | None => turns.push(message),
        }
    }
    Ok(turns)
}

/// Appends a message to one of the same role.
fn join(turn: &mut Message, message: Message) {
    let parts = |content| match content {
        Content::Absent => Vec::new(),
        Content::Text(text) => vec![Part::Text(text)],
        Content::Parts(parts) => parts,
    };
    let mut joined = parts(std::mem::replace(&mut turn.content, Content::Absent));
    joined.extend(parts(message.content));
    turn.content = if joined.is_empty() { Content::Absent } else { content(joined) };
    turn.tool_calls.extend(message.tool_calls);
    if let Some(reasoning) = message.reasoning {
        turn.reasoning.get_or_insert_default().push_str(&reasoning);
    }
}

impl InputMessage {
    fn read(self, at: &str, messages: &mut Vec<Message>) -> Result<(), InvalidRequest> {
        let role = match self.role.as_str() {
            "user" => Role::User,
            "assistant" => Role::Assistant,
            _ => {
                let message = "the role has to be `user` or `assistant`: instructions belong to `system`";
                return Err(InvalidRequest::new(format!("{at}.role"), message));
            }
        };
        let blocks = match self.content {
            TextOr::Text(text) => {
                messages.push(Message::text(role, text));
                return Ok(());
            }
            TextOr::Other(blocks) => blocks,
        };
        let at = format!("{at}.content");
        bounds::count(&at, blocks.len(), usize::from(role == Role::User)..=MOST_BLOCKS)?;
        let blocks = blocks.into_iter().enumerate().map(|(index, block)| {
            let at = format!("{at}[{index}]");
            block.read(&at).map(|block| (at, block))
        });
        match role {
            Role::User => read_user(blocks, messages),
            _ => read_assistant(blocks, messages),
        }
    }
}

/// Reads a message of the user. Results of calls become messages of their own.
fn read_user(
    blocks: impl Iterator<Item = Result<(String, Block), InvalidRequest>>,
    messages: &mut Vec<Message>,
) -> Result<(), InvalidRequest> {
    let mut parts = Vec::new();
    for block in blocks {
        match block? {
            (_, Block::Part(part)) => parts.push(part),
            (_, Block::Result(result)) => {
                push_user(&mut parts, messages);
                messages.push(Message {
                    content: content(result.parts),
                    tool_call_id: Some(result.id),
                    ..Message::text(Role::Tool, "")
                });
            }
            (at, Block::Call(_) | Block::Reasoning(_)) => {
                let message = "calls and reasoning belong to messages of the assistant";
                return Err(InvalidRequest::new(format!("{at}.type"), message));
            }
        }
    }
    push_user(&mut parts, messages);
    Ok(())
}

fn push_user(parts: &mut Vec<Part>, messages: &mut Vec<Message>) {
    if !parts.is_empty() {
        messages.push(Message { content: content(std::mem::take(parts)), ..Message::text(Role::User, "") });
    }
}

fn read_assistant(
    blocks: impl Iterator<Item = Result<(String, Block), InvalidRequest>>,
    messages: &mut Vec<Message>,
) -> Result<(), InvalidRequest> {
    let (mut parts, mut reasoning, mut message) = (Vec::new(), String::new(), Message::text(Role::Assistant, ""));
    for block in blocks {
        match block? {
            (_, Block::Part(part @ Part::Text(_))) => parts.push(part),
            (_, Block::Call(call)) => message.tool_calls.push(call),
            (_, Block::Reasoning(text)) => reasoning.push_str(&text),
            (at, Block::Part(_) | Block::Result(_)) => {
                let message = "images and results belong to messages of the user";
                return Err(InvalidRequest::new(format!("{at}.type"), message));
            }
        }
    }
    message.content = if parts.is_empty() { Content::Absent } else { content(parts) };
    message.reasoning = (!reasoning.is_empty()).then_some(reasoning);
    messages.push(message);
    Ok(())
}

/// The content of parts; a single text stands for itself.
fn content(mut parts: Vec<Part>) -> Content {
    match parts.as_mut_slice() {
        [Part::Text(text)] => Content::Text(std::mem::take(text)),
        _ => Content::Parts(parts),
    }
}
