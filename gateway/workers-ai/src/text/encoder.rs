//! Answers in the native form: server-sent events, or a document in its envelope.
//!
//! | part | event |
//! | --- | --- |
//! | text | `{"response": "…"}` |
//! | reasoning, for which the form has no place | `{"choices": [{"index": 0, "delta": {"reasoning_content": "…"}}]}` |
//! | end | `{"response": "", "tool_calls": […], "finish_reason": "…", "usage": {…}}`, then `[DONE]` |
//! | failure | `{"error": {"message": "…"}}` |

use crate::envelope::put_enveloped;
use bytes::{BufMut, BytesMut};
use omni_codec::event::{DONE, put_data, put_string};
use omni_generation::encoder::StreamFailure;
use omni_generation::{
    Completion, Delta, Finish, FinishReason, GenerationRequest, ResponseEncoder, ResponseFormat, TokenInfo, ToolCall,
};
use omni_openai::Usage;
use schemars::JsonSchema;
use serde::Serialize;
use serde_json::value::RawValue;

/// Encoder of one answer.
#[derive(Debug)]
pub struct NativeEncoder {
    /// Answer that is JSON: a whole one is no text but a value.
    json: bool,
    calls: Vec<ToolCall>,
    reason: FinishReason,
}

/// Whole answer, and last event of a stream.
#[derive(Debug, Serialize, JsonSchema)]
pub struct TextAnswer<'a> {
    /// Text, or the value of an answer that has to be JSON.
    #[schemars(with = "serde_json::Value")]
    response: Text<'a>,
    /// Calls.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    tool_calls: Vec<NativeCall<'a>>,
    /// `stop`, `length`, `tool_calls` or `content_filter`.
    finish_reason: &'static str,
    /// Reasoning, in the form of the OpenAI API.
    #[serde(skip_serializing_if = "Option::is_none")]
    choices: Option<[ReasonedChoice<'a>; 1]>,
    /// Tokens.
    usage: Usage,
}

#[derive(Debug, Serialize)]
#[serde(untagged)]
enum Text<'a> {
    Text(&'a str),
    Json(&'a RawValue),
}

/// Call of a function.
#[derive(Debug, Serialize, JsonSchema)]
struct NativeCall<'a> {
    /// Number of the call: workers-ai-provider takes calls without one for a single call.
    index: usize,
    /// Id.
    id: &'a str,
    /// Function.
    name: &'a str,
    /// Arguments: an object, or the text of the model if it is none.
    #[schemars(with = "serde_json::Value")]
    arguments: Text<'a>,
}

/// Choice with reasoning.
#[derive(Debug, Serialize, JsonSchema)]
struct ReasonedChoice<'a> {
    /// 0.
    index: u32,
    /// Message.
    message: ReasonedMessage<'a>,
    /// As above.
    finish_reason: &'static str,
}

/// Message with reasoning.
#[derive(Debug, Serialize, JsonSchema)]
struct ReasonedMessage<'a> {
    /// `assistant`.
    role: &'static str,
    /// Text.
    content: &'a str,
    /// Reasoning.
    reasoning_content: &'a str,
}

impl NativeEncoder {
    /// Makes the encoder of the answer to a request.
    #[must_use]
    pub fn new(request: &GenerationRequest) -> Self {
        let json = !matches!(request.format, ResponseFormat::Text);
        Self { json, calls: Vec::new(), reason: FinishReason::Stop { sequence: None } }
    }
}

impl ResponseEncoder for NativeEncoder {
    fn start(&mut self, _: &mut BytesMut) {}

    fn deltas(&mut self, choice: usize, deltas: &[Delta], _: &[TokenInfo], out: &mut BytesMut) {
        // Requests of this form have one choice.
        for delta in deltas.iter().filter(|_| choice == 0) {
            match delta {
                Delta::Content(text) => {
                    out.put_slice(b"data: {\"response\":");
                    put_string(text, out);
                    out.put_slice(b"}\n\n");
                }
                Delta::Reasoning(text) => {
                    out.put_slice(b"data: {\"choices\":[{\"index\":0,\"delta\":{\"reasoning_content\":");
                    put_string(text, out);
                    out.put_slice(b"}}]}\n\n");
                }
                Delta::CallStart { call: _, id, name } => {
                    let (id, name) = (Some(id.clone()), name.clone());
                    self.calls.push(ToolCall { id, name, arguments: String::new() });
                }
                Delta::CallArguments { call, text } => {
                    if let Some(call) = self.calls.get_mut(*call) {
                        call.arguments.push_str(text);
                    }
                }
            }
        }
    }

    fn holds(&self, delta: &Delta) -> bool {
        matches!(delta, Delta::CallStart { .. } | Delta::CallArguments { .. })
    }

    fn finish(&mut self, choice: usize, finish: &Finish, _: &mut BytesMut) {
        if choice == 0 {
            self.reason = finish.reason.clone();
        }
    }

    fn end(&mut self, usage: &omni_generation::Usage, out: &mut BytesMut) {
        let answer = TextAnswer {
            response: Text::Text(""),
            tool_calls: calls(&self.calls),
            finish_reason: finish_reason(&self.reason),
            choices: None,
            usage: Usage::from(usage),
        };
        put_data(&answer, out);
        out.put_slice(DONE);
    }

    fn error(&mut self, failure: &StreamFailure<'_>, out: &mut BytesMut) {
        put_data(&serde_json::json!({ "error": { "message": failure.failure.to_string() } }), out);
    }

    fn whole(&mut self, completion: &Completion, out: &mut BytesMut) {
        let empty = omni_generation::Choice::default();
        let choice = completion.choices.first().unwrap_or(&empty);
        let reason = choice.finish.as_ref().map(|finish| &finish.reason);
        let finish_reason = reason.map_or("stop", finish_reason);
        let message =
            ReasonedMessage { role: "assistant", content: &choice.content, reasoning_content: &choice.reasoning };
        let reasoned = (!choice.reasoning.is_empty()).then_some([ReasonedChoice { index: 0, message, finish_reason }]);
        let answer = TextAnswer {
            response: if self.json { value(&choice.content) } else { Text::Text(&choice.content) },
            tool_calls: calls(&choice.calls),
            finish_reason,
            choices: reasoned,
            usage: Usage::from(&completion.usage),
        };
        put_enveloped(&answer, out);
    }
}

fn calls(calls: &[ToolCall]) -> Vec<NativeCall<'_>> {
    let calls = calls.iter().enumerate().map(|(index, call)| {
        let arguments = if call.arguments.is_empty() { "{}" } else { &call.arguments };
        NativeCall { index, id: call.id.as_deref().unwrap_or_default(), name: &call.name, arguments: value(arguments) }
    });
    calls.collect()
}

/// The value of JSON text, or the text itself if it is none.
fn value(text: &str) -> Text<'_> {
    serde_json::from_str(text.trim()).map_or(Text::Text(text), Text::Json)
}

fn finish_reason(reason: &FinishReason) -> &'static str {
    match reason {
        FinishReason::Stop { .. } => "stop",
        FinishReason::Length => "length",
        FinishReason::ToolCalls => "tool_calls",
        FinishReason::ContentFilter => "content_filter",
    }
}
