//! Chunks of generated text that are more than text.

use serde::{Deserialize, Serialize};

/// Most alternatives of a token.
pub const MAX_ALTERNATIVES: usize = 128;
/// Longest name or id of a tool call, in bytes.
pub const MAX_NAME: usize = 1024;

/// Payload of a chunk with [`flags::EVENT`](crate::frame::flags::EVENT), one JSON object.
///
/// ```
/// use omni_engine_protocol::generation::{FinishEvent, FinishReason, GenerationEvent};
///
/// let event = GenerationEvent::parse(br#"{"type":"finish","reason":"tool-calls"}"#).unwrap();
/// let finish = FinishEvent { reason: Some(FinishReason::ToolCalls), usage: None };
/// assert_eq!(event, GenerationEvent::Finish(finish));
/// ```
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "kebab-case")]
pub enum GenerationEvent {
    /// A token of the prompt, where the request asks to repeat it. All of them come in order, before anything of the answer;
    /// control tokens have their names as text. The first one has no log probability.
    Prompt(TokenEvent),
    /// A token of the answer. A control token, which is no text, has its name as `text`, and `bytes` without any.
    Token(TokenEvent),
    /// Text of the reasoning, from engines that separate it from the answer.
    Reasoning {
        /// Text.
        text: String,
    },
    /// A whole tool call, from engines that parse the calls themselves.
    ToolCall(ToolCallEvent),
    /// End of the answer.
    Finish(FinishEvent),
}

/// Token of an answer, or of the prompt before it.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct TokenEvent {
    /// Text; where `bytes` are present, for display only.
    pub text: String,
    /// Bytes of a token whose text is no whole characters.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bytes: Option<Vec<u8>>,
    /// Id in the model's vocabulary.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub id: Option<u32>,
    /// Natural logarithm of the probability.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub logprob: Option<f32>,
    /// Most probable tokens at this position, at most [`MAX_ALTERNATIVES`].
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub top: Vec<Alternative>,
}

/// Token that could have stood in another's place.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Alternative {
    /// Text.
    pub text: String,
    /// Natural logarithm of the probability.
    pub logprob: f32,
}

/// Tool call of an answer.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ToolCallEvent {
    /// Id; the node makes one where there is none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub id: Option<String>,
    /// Function.
    pub name: String,
    /// Arguments, JSON text.
    pub arguments: String,
}

/// End of an answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct FinishEvent {
    /// Reason; `None`: the node decides.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<FinishReason>,
    /// Tokens; `None`: the node counts.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub usage: Option<UsageReport>,
}

/// Reason for the end of an answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum FinishReason {
    /// The model has ended its answer, or a stop string came.
    Stop,
    /// The limit of tokens is reached.
    Length,
    /// The model waits for the results of its calls.
    ToolCalls,
    /// The answer was withheld.
    ContentFilter,
}

/// Tokens of a request, as an engine counts them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct UsageReport {
    /// Tokens of the prompt, those from a cache included.
    pub prompt_tokens: u64,
    /// Tokens of the answer, reasoning included.
    pub completion_tokens: u64,
    /// Tokens of the prompt that came from a cache.
    pub cached_tokens: u64,
    /// Tokens of the reasoning.
    pub reasoning_tokens: u64,
}

/// A chunk that is no event.
#[derive(Debug, thiserror::Error)]
pub enum InvalidEvent {
    /// No JSON object of a known type.
    #[error("malformed event: {0}")]
    Malformed(#[from] serde_json::Error),
    /// A part over its bound.
    #[error("{what} of an event is over its bound of {bound}")]
    TooLong {
        /// The part.
        what: &'static str,
        /// The bound of that part.
        bound: usize,
    },
}

impl GenerationEvent {
    /// Reads a chunk, whose length the frame bounds.
    ///
    /// # Errors
    /// [`InvalidEvent`].
    pub fn parse(payload: &[u8]) -> Result<Self, InvalidEvent> {
        let event = serde_json::from_slice(payload)?;
        let within = |what, length: usize, bound| {
            if length > bound { Err(InvalidEvent::TooLong { what, bound }) } else { Ok(()) }
        };
        match &event {
            Self::Prompt(token) | Self::Token(token) => within("`top`", token.top.len(), MAX_ALTERNATIVES)?,
            Self::ToolCall(call) => {
                within("`name`", call.name.len(), MAX_NAME)?;
                within("`id`", call.id.as_ref().map_or(0, String::len), MAX_NAME)?;
            }
            Self::Reasoning { .. } | Self::Finish(_) => {}
        }
        Ok(event)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn no_payload_breaks_the_reader(payload: Vec<u8>) {
            let _ = GenerationEvent::parse(&payload);
        }

        #[test]
        fn tokens_survive_the_wire(text: String, bytes: Option<Vec<u8>>, id: Option<u32>, logprob in prop::option::of(-1e4_f32..0.0)) {
            let token = TokenEvent { text, bytes, id, logprob, top: Vec::new() };
            for event in [GenerationEvent::Prompt(token.clone()), GenerationEvent::Token(token)] {
                prop_assert_eq!(GenerationEvent::parse(&serde_json::to_vec(&event).unwrap()).unwrap(), event);
            }
        }
    }

    #[test]
    fn events_without_their_fields_are_refused() {
        for bad in [
            "",
            "[]",
            "{}",
            r#"{"type":"text","text":"a"}"#,
            r#"{"type":"token"}"#,
            r#"{"type":"prompt","id":1}"#,
            r#"{"type":"token","text":"a","id":-1}"#,
            r#"{"type":"finish","reason":"tool_calls"}"#,
            r#"{"type":"tool-call","name":"f","arguments":{}}"#,
        ] {
            assert!(matches!(GenerationEvent::parse(bad.as_bytes()), Err(InvalidEvent::Malformed(_))), "{bad}");
        }
    }

    #[test]
    fn events_over_their_bounds_are_refused() {
        let alternative = Alternative { text: "a".into(), logprob: -1.0 };
        let token = |count| TokenEvent { top: vec![alternative.clone(); count], ..TokenEvent::default() };
        let call = |length| ToolCallEvent { id: None, name: "f".repeat(length), arguments: "{}".into() };
        let fits = |event: &GenerationEvent| GenerationEvent::parse(&serde_json::to_vec(event).unwrap()).is_ok();
        assert!(fits(&GenerationEvent::Token(token(MAX_ALTERNATIVES))));
        assert!(!fits(&GenerationEvent::Token(token(MAX_ALTERNATIVES + 1))));
        assert!(fits(&GenerationEvent::Prompt(token(MAX_ALTERNATIVES))));
        assert!(!fits(&GenerationEvent::Prompt(token(MAX_ALTERNATIVES + 1))));
        assert!(fits(&GenerationEvent::ToolCall(call(MAX_NAME))));
        assert!(!fits(&GenerationEvent::ToolCall(call(MAX_NAME + 1))));
    }
}
