//! Answers of the Messages API: server-sent events, or one document.
//!
//! ```text
//!  message_start ─▶ (content_block_start ─▶ content_block_delta* ─▶ content_block_stop)* ─▶ message_delta ─▶ message_stop
//! ```

use crate::AnswerHead;
use crate::answer::{Message, Usage, stop_reason, stop_sequence};
use crate::error::{ErrorBody, message};
use bytes::{BufMut, BytesMut};
use omni_codec::event::{put_event, put_json, put_number, put_string};
use omni_generation::encoder::StreamFailure;
use omni_generation::{Completion, Delta, Finish, FinishReason, ResponseEncoder, TokenInfo, Usage as Tokens};
use serde::Serialize;

/// Block that is open.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Block {
    /// None: before the first block, or after the last.
    None,
    /// Text.
    Text,
    /// Reasoning.
    Thinking,
    /// Call of a tool.
    ToolUse,
}

/// Encoder of one answer.
#[derive(Debug)]
pub struct AnthropicEncoder {
    head: AnswerHead,
    input_tokens: u64,
    block: Block,
    /// Number of the open block, or of the next one.
    index: u64,
    reason: FinishReason,
}

#[derive(Serialize)]
struct MessageStart<'a> {
    r#type: &'static str,
    message: Message<'a>,
}

#[derive(Serialize)]
struct MessageDelta<'a> {
    r#type: &'static str,
    delta: EndDelta<'a>,
    usage: Usage,
}

#[derive(Serialize)]
struct EndDelta<'a> {
    stop_reason: &'static str,
    stop_sequence: Option<&'a str>,
}

impl AnthropicEncoder {
    /// Makes the encoder of an answer. `input_tokens`: tokens of the prompt if they are known already, else 0; the last event has them.
    #[must_use]
    pub fn new(head: AnswerHead, input_tokens: u64) -> Self {
        let reason = FinishReason::Stop { sequence: None };
        Self { head, input_tokens, block: Block::None, index: 0, reason }
    }

    /// Ends the block that is open, and begins another one.
    fn change(&mut self, block: Block, out: &mut BytesMut) {
        if self.block != Block::None {
            out.put_slice(b"event: content_block_stop\ndata: {\"type\":\"content_block_stop\",\"index\":");
            put_number(self.index, out);
            out.put_slice(b"}\n\n");
            self.index += 1;
        }
        self.block = block;
        if block != Block::None {
            out.put_slice(b"event: content_block_start\ndata: {\"type\":\"content_block_start\",\"index\":");
            put_number(self.index, out);
            out.put_slice(b",\"content_block\":");
        }
    }

    fn text(&mut self, block: Block, text: &str, out: &mut BytesMut) {
        if self.block != block {
            self.change(block, out);
            out.put_slice(match block {
                Block::Thinking => b"{\"type\":\"thinking\",\"thinking\":\"\",\"signature\":\"\"}}\n\n",
                _ => b"{\"type\":\"text\",\"text\":\"\"}}\n\n",
            });
        }
        let delta: &[u8] = match block {
            Block::Thinking => b",\"delta\":{\"type\":\"thinking_delta\",\"thinking\":",
            _ => b",\"delta\":{\"type\":\"text_delta\",\"text\":",
        };
        self.delta(delta, text, out);
    }

    fn delta(&self, delta: &[u8], text: &str, out: &mut BytesMut) {
        out.put_slice(b"event: content_block_delta\ndata: {\"type\":\"content_block_delta\",\"index\":");
        put_number(self.index, out);
        out.put_slice(delta);
        put_string(text, out);
        out.put_slice(b"}}\n\n");
    }
}

impl ResponseEncoder for AnthropicEncoder {
    fn start(&mut self, out: &mut BytesMut) {
        let message = Message::empty(&self.head, self.input_tokens);
        put_event("message_start", &MessageStart { r#type: "message_start", message }, out);
    }

    fn deltas(&mut self, choice: usize, deltas: &[Delta], _: &[TokenInfo], out: &mut BytesMut) {
        // Requests of this API have one choice.
        for delta in deltas.iter().filter(|_| choice == 0) {
            match delta {
                Delta::Content(text) => self.text(Block::Text, text, out),
                Delta::Reasoning(text) => self.text(Block::Thinking, text, out),
                Delta::CallStart { call: _, id, name } => {
                    self.change(Block::ToolUse, out);
                    out.put_slice(b"{\"type\":\"tool_use\",\"id\":");
                    put_string(id, out);
                    out.put_slice(b",\"name\":");
                    put_string(name, out);
                    out.put_slice(b",\"input\":{}}}\n\n");
                }
                Delta::CallArguments { call: _, text } => {
                    self.delta(b",\"delta\":{\"type\":\"input_json_delta\",\"partial_json\":", text, out);
                }
            }
        }
    }

    fn finish(&mut self, choice: usize, finish: &Finish, out: &mut BytesMut) {
        if choice == 0 {
            self.change(Block::None, out);
            self.reason = finish.reason.clone();
        }
    }

    fn end(&mut self, usage: &Tokens, out: &mut BytesMut) {
        let delta = EndDelta { stop_reason: stop_reason(&self.reason), stop_sequence: stop_sequence(&self.reason) };
        put_event("message_delta", &MessageDelta { r#type: "message_delta", delta, usage: Usage::from(usage) }, out);
        out.put_slice(b"event: message_stop\ndata: {\"type\":\"message_stop\"}\n\n");
    }

    fn error(&mut self, failure: &StreamFailure<'_>, out: &mut BytesMut) {
        let StreamFailure { failure, request_id } = *failure;
        put_event("error", &ErrorBody::new(failure.status(), &message(failure), request_id), out);
    }

    fn whole(&mut self, completion: &Completion, out: &mut BytesMut) {
        put_json(&Message::new(&self.head, completion), out);
    }
}
