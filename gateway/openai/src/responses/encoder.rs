//! Answers of the Responses API: server-sent events, or one document.
//!
//! ```text
//!  response.created ─▶ response.in_progress ─▶ item* ─▶ response.completed | response.incomplete
//!  item: output_item.added ─▶ content_part.added ─▶ delta* ─▶ done ─▶ content_part.done ─▶ output_item.done
//!  call: output_item.added ─▶ function_call_arguments.delta* ─▶ function_call_arguments.done ─▶ output_item.done
//! ```
//!
//! Invariants: events are numbered from 0; items do not overlap, and all events of an item have its id and its place.

use crate::chat::TokenLogprob;
use crate::error::{ErrorBody, ErrorObject};
use crate::head::AnswerHead;
use crate::responses::answer::{Item, OutputItem, OutputPart, Response, ResponseEcho, State, items, reason, status};
use bytes::{BufMut, BytesMut};
use omni_codec::event::{put_event, put_json, put_number, put_string};
use omni_generation::encoder::StreamFailure;
use omni_generation::{Completion, Delta, Finish, FinishReason, ResponseEncoder, TokenInfo, Usage};
use serde::Serialize;

/// Longest output, in bytes, that the end of a failed answer repeats.
const REPEATED: usize = 64 * 1024;

/// Encoder of one answer.
#[derive(Debug)]
pub struct ResponsesEncoder {
    head: AnswerHead,
    echo: ResponseEcho,
    /// Number of the next event.
    sequence: u64,
    /// Items so far; the last one is open if `open` says so.
    items: Vec<Item>,
    open: bool,
    /// Beginning of each delta of the open item, up to the number of the event.
    prefix: Vec<u8>,
    reason: FinishReason,
}

#[derive(Serialize)]
struct ResponseEvent<'a> {
    r#type: &'static str,
    sequence_number: u64,
    response: Response<'a>,
}

#[derive(Serialize)]
struct ItemEvent<'a> {
    r#type: &'static str,
    sequence_number: u64,
    output_index: usize,
    item: OutputItem<'a>,
}

#[derive(Serialize)]
struct PartEvent<'a> {
    r#type: &'static str,
    sequence_number: u64,
    item_id: &'a str,
    output_index: usize,
    content_index: usize,
    part: OutputPart<'a>,
}

/// Whole text of a part, or whole arguments of a call.
#[derive(Serialize)]
struct DoneEvent<'a> {
    r#type: &'static str,
    sequence_number: u64,
    item_id: &'a str,
    output_index: usize,
    #[serde(skip_serializing_if = "Option::is_none")]
    content_index: Option<usize>,
    #[serde(skip_serializing_if = "Option::is_none")]
    text: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    logprobs: Option<Vec<TokenLogprob<'a>>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    name: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    arguments: Option<&'a str>,
}

#[derive(Serialize)]
struct ErrorEvent<'a> {
    r#type: &'static str,
    sequence_number: u64,
    code: &'static str,
    message: &'a str,
    param: Option<&'a str>,
}

impl ResponsesEncoder {
    /// Makes the encoder of an answer; `echo` are the parameters of its request.
    #[must_use]
    pub fn new(head: AnswerHead, echo: ResponseEcho) -> Self {
        let reason = FinishReason::Stop { sequence: None };
        Self { head, echo, sequence: 0, items: Vec::new(), open: false, prefix: Vec::new(), reason }
    }

    fn next(&mut self) -> u64 {
        self.sequence += 1;
        self.sequence - 1
    }

    fn response(&mut self, r#type: &'static str, state: State<'_>, out: &mut BytesMut) {
        let sequence_number = self.next();
        let response = Response::new(&self.head, &self.echo, &self.items, state);
        put_event(r#type, &ResponseEvent { r#type, sequence_number, response }, out);
    }

    fn begin(&mut self, item: Item, out: &mut BytesMut) {
        self.close("completed", out);
        let (added, output_index) = (self.next(), self.items.len());
        let item_id = item.id(&self.head, output_index);
        let delta = match &item {
            Item::Reasoning { .. } => "response.reasoning_text.delta",
            Item::Message { .. } => "response.output_text.delta",
            Item::Call { .. } => "response.function_call_arguments.delta",
        };
        let r#type = "response.output_item.added";
        let begun = item.begun(&self.head, output_index);
        put_event(r#type, &ItemEvent { r#type, sequence_number: added, output_index, item: begun }, out);
        if let Some(part) = item.part() {
            let (r#type, sequence_number) = ("response.content_part.added", self.next());
            let event = PartEvent { r#type, sequence_number, item_id: &item_id, output_index, content_index: 0, part };
            put_event(r#type, &event, out);
        }
        let content = if matches!(item, Item::Call { .. }) { "" } else { "\"content_index\":0," };
        self.prefix = format!(
            "event: {delta}\ndata: {{\"type\":\"{delta}\",\"item_id\":\"{item_id}\",\"output_index\":{output_index},\
             {content}\"sequence_number\":"
        )
        .into_bytes();
        self.items.push(item);
        self.open = true;
    }

    /// Ends the open item, if there is one.
    fn close(&mut self, status: &'static str, out: &mut BytesMut) {
        if !std::mem::take(&mut self.open) {
            return;
        }
        let (first, output_index) = (self.sequence, self.items.len().saturating_sub(1));
        let Some(item) = self.items.last() else { return };
        let item_id = item.id(&self.head, output_index);
        let mut event = DoneEvent {
            r#type: "response.output_text.done",
            sequence_number: first,
            item_id: &item_id,
            output_index,
            content_index: Some(0),
            text: None,
            logprobs: None,
            name: None,
            arguments: None,
        };
        match item {
            Item::Reasoning { text } => {
                event.r#type = "response.reasoning_text.done";
                event.text = Some(text);
            }
            Item::Message { text, tokens } => {
                event.text = Some(text);
                event.logprobs = Some(tokens.iter().map(TokenLogprob::new).collect());
            }
            Item::Call { id: _, name, arguments } => {
                event.r#type = "response.function_call_arguments.done";
                event.content_index = None;
                event.name = Some(name);
                event.arguments = Some(arguments);
            }
        }
        put_event(event.r#type, &event, out);
        let mut sequence_number = first + 1;
        if let Some(part) = item.part() {
            let r#type = "response.content_part.done";
            let event = PartEvent { r#type, sequence_number, item_id: &item_id, output_index, content_index: 0, part };
            put_event(r#type, &event, out);
            sequence_number += 1;
        }
        let r#type = "response.output_item.done";
        let item = item.output(&self.head, output_index, status);
        put_event(r#type, &ItemEvent { r#type, sequence_number, output_index, item }, out);
        self.sequence = sequence_number + 1;
    }

    fn text(&mut self, text: &str, tokens: &[TokenInfo], out: &mut BytesMut) {
        if !self.open || !matches!(self.items.last(), Some(Item::Message { .. })) {
            self.begin(Item::Message { text: String::new(), tokens: Vec::new() }, out);
        }
        if let Some(Item::Message { text: whole, tokens: all }) = self.items.last_mut() {
            whole.push_str(text);
            all.extend_from_slice(tokens);
        }
        self.delta(text, Some(tokens), out);
    }

    fn reasoning(&mut self, text: &str, out: &mut BytesMut) {
        if !self.open || !matches!(self.items.last(), Some(Item::Reasoning { .. })) {
            self.begin(Item::Reasoning { text: String::new() }, out);
        }
        if let Some(Item::Reasoning { text: whole }) = self.items.last_mut() {
            whole.push_str(text);
        }
        self.delta(text, None, out);
    }

    fn delta(&mut self, text: &str, tokens: Option<&[TokenInfo]>, out: &mut BytesMut) {
        out.put_slice(&self.prefix);
        put_number(self.next(), out);
        match tokens {
            None => {}
            Some([]) => out.put_slice(b",\"logprobs\":[]"),
            Some(tokens) => {
                out.put_slice(b",\"logprobs\":");
                put_json(&tokens.iter().map(TokenLogprob::new).collect::<Vec<_>>(), out);
            }
        }
        out.put_slice(b",\"delta\":");
        put_string(text, out);
        out.put_slice(b"}\n\n");
    }
}

impl ResponseEncoder for ResponsesEncoder {
    fn start(&mut self, out: &mut BytesMut) {
        self.response("response.created", State::InProgress, out);
        self.response("response.in_progress", State::InProgress, out);
    }

    fn deltas(&mut self, choice: usize, deltas: &[Delta], tokens: &[TokenInfo], out: &mut BytesMut) {
        if choice != 0 {
            return; // requests of this API have one choice
        }
        let mut tokens = tokens;
        for delta in deltas {
            match delta {
                Delta::Content(text) => self.text(text, std::mem::take(&mut tokens), out),
                Delta::Reasoning(text) => self.reasoning(text, out),
                Delta::CallStart { call: _, id, name } => {
                    let (id, name) = (id.clone(), name.clone());
                    self.begin(Item::Call { id, name, arguments: String::new() }, out);
                }
                Delta::CallArguments { call: _, text } => {
                    if let Some(Item::Call { arguments, .. }) = self.items.last_mut() {
                        arguments.push_str(text);
                    }
                    self.delta(text, None, out);
                }
            }
        }
        // Tokens without text of their own belong to the message that is open.
        if let Some(Item::Message { tokens: all, .. }) = self.items.last_mut().filter(|_| self.open) {
            all.extend_from_slice(tokens);
        }
    }

    fn holds(&self, _: &Delta) -> bool {
        true
    }

    fn finish(&mut self, choice: usize, finish: &Finish, out: &mut BytesMut) {
        if choice == 0 {
            self.close(status(&finish.reason), out);
            self.reason = finish.reason.clone();
        }
    }

    fn end(&mut self, usage: &Usage, out: &mut BytesMut) {
        let reason = self.reason.clone();
        let r#type = match status(&reason) {
            "incomplete" => "response.incomplete",
            _ => "response.completed",
        };
        self.response(r#type, State::Ended { reason: &reason, usage }, out);
    }

    fn error(&mut self, failure: &StreamFailure<'_>, out: &mut BytesMut) {
        let ErrorObject { message, param, code, .. } = ErrorBody::new(failure.failure).error;
        let code = code.unwrap_or("server_error");
        let sequence_number = self.next();
        let event = ErrorEvent { r#type: "error", sequence_number, code, message: &message, param: param.as_deref() };
        put_event("error", &event, out);
        // The client has them, and large ones may be what there is no memory for.
        if self.items.iter().map(Item::length).sum::<usize>() > REPEATED {
            self.items.clear();
        }
        self.response("response.failed", State::Failed { open: self.open, code, message: &message }, out);
    }

    fn whole(&mut self, completion: &Completion, out: &mut BytesMut) {
        let items = completion.choices.first().map(items).unwrap_or_default();
        let reason = reason(completion);
        let state = State::Ended { reason: &reason, usage: &completion.usage };
        put_json(&Response::new(&self.head, &self.echo, &items, state), out);
    }
}
