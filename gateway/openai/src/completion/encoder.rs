//! Answers of completions: server-sent events, or one document.
//!
//! Choices are numbered by prompt, then by answer: with two answers to each prompt, 2 and 3 belong to the second
//! prompt. A repeated prompt (`echo`) is the first event of its choices, or events if the engine repeats its tokens.
//! Only text has a place in this API: reasoning and calls that a model reports apart from its text are left out.

use crate::chat::finish_reason;
use crate::completion::answer::{TextCompletion, TextLogprobs};
use crate::error::ErrorBody;
use crate::head::{AnswerHead, chunk_prefix, put_usage};
use bytes::{BufMut, BytesMut};
use omni_codec::event::{DONE, put_data, put_json, put_number, put_string};
use omni_generation::encoder::StreamFailure;
use omni_generation::{Completion, Delta, Finish, GenerationRequest, Prompt, ResponseEncoder, TokenInfo, Usage};

/// Encoder of one answer.
#[derive(Debug)]
pub struct CompletionEncoder {
    head: AnswerHead,
    /// Beginning of each event, up to the number of the choice.
    prefix: Vec<u8>,
    /// Texts before the answers to each prompt, where they are to be repeated; empty without `echo`. Tokens that the engine
    /// repeats are parts of its answers.
    echo: Vec<Option<String>>,
    /// Answers to each prompt.
    answers: usize,
    usage: bool,
    /// Place of each choice's next token in its text, in characters.
    offsets: Vec<usize>,
}

impl CompletionEncoder {
    /// Makes the encoder of the answer to a request.
    #[must_use]
    pub fn new(head: AnswerHead, request: &GenerationRequest) -> Self {
        let text = |prompt: &Prompt| match prompt {
            Prompt::Text(text) => Some(text.clone()).filter(|_| !request.repeats_tokens(prompt)),
            Prompt::Tokens(_) | Prompt::Chat(_) => None,
        };
        let answers = request.choices as usize;
        Self {
            prefix: chunk_prefix("cmpl-", "text_completion", &head),
            head,
            echo: if request.echo { request.prompts.iter().map(text).collect() } else { Vec::new() },
            answers,
            usage: request.stream_usage,
            offsets: vec![0; request.prompts.len() * answers],
        }
    }

    fn begin(&self, choice: usize, out: &mut BytesMut) {
        out.put_slice(&self.prefix);
        put_number(choice as u64, out);
        out.put_slice(b",\"text\":");
    }
}

fn echo_of(echo: &[Option<String>], answers: usize, choice: usize) -> Option<&str> {
    echo.get(choice / answers.max(1))?.as_deref()
}

impl ResponseEncoder for CompletionEncoder {
    fn start(&mut self, out: &mut BytesMut) {
        for choice in 0..self.echo.len() * self.answers {
            let Some(text) = echo_of(&self.echo, self.answers, choice) else { continue };
            self.begin(choice, out);
            put_string(text, out);
            out.put_slice(b",\"logprobs\":null,\"finish_reason\":null}]}\n\n");
        }
    }

    fn deltas(&mut self, choice: usize, deltas: &[Delta], tokens: &[TokenInfo], out: &mut BytesMut) {
        let mut unknown = 0;
        let offset = self.offsets.get_mut(choice).unwrap_or(&mut unknown);
        let mut logprobs = TextLogprobs::new(tokens, offset);
        let texts = deltas.iter().filter_map(|delta| match delta {
            Delta::Content(text) => Some(text.as_str()),
            Delta::Reasoning(_) | Delta::CallStart { .. } | Delta::CallArguments { .. } => None,
        });
        let mut texts = texts.peekable();
        let alone = if texts.peek().is_none() && logprobs.is_some() { Some("") } else { None };
        for text in texts.chain(alone) {
            self.begin(choice, out);
            put_string(text, out);
            out.put_slice(b",\"logprobs\":");
            match logprobs.take() {
                None => out.put_slice(b"null"),
                Some(logprobs) => put_json(&logprobs, out),
            }
            out.put_slice(b",\"finish_reason\":null}]}\n\n");
        }
    }

    fn finish(&mut self, choice: usize, finish: &Finish, out: &mut BytesMut) {
        self.begin(choice, out);
        out.put_slice(b"\"\",\"logprobs\":null,\"finish_reason\":");
        put_string(finish_reason(&finish.reason, true), out);
        out.put_slice(b"}]}\n\n");
    }

    fn end(&mut self, usage: &Usage, out: &mut BytesMut) {
        if self.usage {
            put_usage(&self.prefix, usage, out);
        }
        out.put_slice(DONE);
    }

    fn error(&mut self, failure: &StreamFailure<'_>, out: &mut BytesMut) {
        put_data(&ErrorBody::new(failure.failure), out);
    }

    fn whole(&mut self, completion: &Completion, out: &mut BytesMut) {
        let echo = |choice| echo_of(&self.echo, self.answers, choice).unwrap_or_default();
        put_json(&TextCompletion::new(&self.head, completion, echo), out);
    }
}
