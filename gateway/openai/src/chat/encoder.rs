//! Answers of chat completions: server-sent events, or one document.
//!
//! Invariants (services of other projects broke clients without them):
//! - Every event has `id`, `object`, `created`, `model`, and each choice its `index`.
//! - `role` is in the first delta of a choice alone, `id`, `type` and `name` in the first of a call alone.
//! - Usage is in one event, the last before `[DONE]`, with no choices, and only if it was asked for.

use crate::chat::answer::{ChatCompletion, finish_reason};
use crate::chat::logprobs::ChatLogprobs;
use crate::error::ErrorBody;
use crate::head::{AnswerHead, chunk_prefix, put_usage};
use bytes::{BufMut, BytesMut};
use omni_codec::event::{DONE, put_data, put_json, put_number, put_string};
use omni_generation::encoder::StreamFailure;
use omni_generation::{
    Chat, Completion, Delta, Finish, GenerationRequest, Prompt, ResponseEncoder, TokenInfo, ToolChoice,
};

/// Text between a delta and the next event, without log probabilities.
const AFTER_DELTA: &[u8] = b"},\"logprobs\":null,\"finish_reason\":null}]}\n\n";

/// Encoder of one answer.
#[derive(Debug)]
pub struct ChatEncoder {
    head: AnswerHead,
    /// Beginning of each event, up to the number of the choice.
    prefix: Vec<u8>,
    choices: usize,
    usage: bool,
    /// Choice of a function by its name.
    named: bool,
    /// Rendered text of the latest reasoning, which is sent under two names.
    rendered: BytesMut,
}

impl ChatEncoder {
    /// Makes the encoder of the answer to a request.
    #[must_use]
    pub fn new(head: AnswerHead, request: &GenerationRequest) -> Self {
        let named = |chat: &Chat| matches!(chat.tool_choice, ToolChoice::Named(_));
        Self {
            prefix: chunk_prefix("chatcmpl-", "chat.completion.chunk", &head),
            head,
            choices: request.prompts.len() * request.choices as usize,
            usage: request.stream_usage,
            named: request.prompts.iter().any(|prompt| matches!(prompt, Prompt::Chat(chat) if named(chat))),
            rendered: BytesMut::new(),
        }
    }

    fn begin(&self, choice: usize, out: &mut BytesMut) {
        out.put_slice(&self.prefix);
        put_number(choice as u64, out);
        out.put_slice(b",\"delta\":{");
    }

    fn delta(&mut self, delta: &Delta, out: &mut BytesMut) {
        match delta {
            Delta::Content(text) => {
                out.put_slice(b"\"content\":");
                put_string(text, out);
            }
            Delta::Reasoning(text) => {
                self.rendered.clear();
                put_string(text, &mut self.rendered);
                out.put_slice(b"\"reasoning_content\":");
                out.put_slice(&self.rendered);
                out.put_slice(b",\"reasoning\":");
                out.put_slice(&self.rendered);
            }
            Delta::CallStart { call, id, name } => {
                out.put_slice(b"\"tool_calls\":[{\"index\":");
                put_number(*call as u64, out);
                out.put_slice(b",\"id\":");
                put_string(id, out);
                out.put_slice(b",\"type\":\"function\",\"function\":{\"name\":");
                put_string(name, out);
                out.put_slice(b",\"arguments\":\"\"}}]");
            }
            Delta::CallArguments { call, text } => {
                out.put_slice(b"\"tool_calls\":[{\"index\":");
                put_number(*call as u64, out);
                out.put_slice(b",\"function\":{\"arguments\":");
                put_string(text, out);
                out.put_slice(b"}}]");
            }
        }
    }
}

impl ResponseEncoder for ChatEncoder {
    fn start(&mut self, out: &mut BytesMut) {
        for choice in 0..self.choices {
            self.begin(choice, out);
            out.put_slice(b"\"role\":\"assistant\",\"content\":\"\"");
            out.put_slice(AFTER_DELTA);
        }
    }

    fn deltas(&mut self, choice: usize, deltas: &[Delta], tokens: &[TokenInfo], out: &mut BytesMut) {
        let mut logprobs = ChatLogprobs::new(tokens);
        for delta in deltas {
            self.begin(choice, out);
            self.delta(delta, out);
            end_delta(logprobs.take().as_ref(), out);
        }
        if logprobs.is_some() {
            self.begin(choice, out);
            out.put_slice(b"\"content\":\"\"");
            end_delta(logprobs.as_ref(), out);
        }
    }

    fn finish(&mut self, choice: usize, finish: &Finish, out: &mut BytesMut) {
        self.begin(choice, out);
        out.put_slice(b"},\"logprobs\":null,\"finish_reason\":");
        put_string(finish_reason(&finish.reason, self.named), out);
        out.put_slice(b"}]}\n\n");
    }

    fn end(&mut self, usage: &omni_generation::Usage, out: &mut BytesMut) {
        if self.usage {
            put_usage(&self.prefix, usage, out);
        }
        out.put_slice(DONE);
    }

    fn error(&mut self, failure: &StreamFailure<'_>, out: &mut BytesMut) {
        put_data(&ErrorBody::new(failure.failure), out);
    }

    fn whole(&mut self, completion: &Completion, out: &mut BytesMut) {
        put_json(&ChatCompletion::new(&self.head, self.named, completion), out);
    }
}

fn end_delta(logprobs: Option<&ChatLogprobs<'_>>, out: &mut BytesMut) {
    match logprobs {
        None => out.put_slice(AFTER_DELTA),
        Some(logprobs) => {
            out.put_slice(b"},\"logprobs\":");
            put_json(logprobs, out);
            out.put_slice(b",\"finish_reason\":null}]}\n\n");
        }
    }
}
