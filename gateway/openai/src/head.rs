//! Fields that all answers and all events of an answer have.

use bytes::{BufMut, BytesMut};
use omni_codec::event::{put_json, put_number, put_string};
use omni_generation::Usage as Tokens;
use schemars::JsonSchema;
use serde::Serialize;

/// Text between the fields of an event and the number of its choice.
const CHOICES: &[u8] = b",\"choices\":[{\"index\":";

/// Identity of an answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AnswerHead {
    /// Unique text of letters and digits; ids of the answer and its parts are made of it.
    pub id: String,
    /// Time of the answer, in seconds since 1970.
    pub created: u64,
    /// Model, by the name that the client sent.
    pub model: String,
}

/// Usage in the chat and completions form.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, JsonSchema)]
pub struct Usage {
    /// Tokens of the prompt.
    pub prompt_tokens: u64,
    /// Tokens of the answer.
    pub completion_tokens: u64,
    /// All tokens.
    pub total_tokens: u64,
    /// Parts of the prompt's tokens.
    pub prompt_tokens_details: PromptTokensDetails,
    /// Parts of the answer's tokens.
    pub completion_tokens_details: CompletionTokensDetails,
}

/// Parts of the prompt's tokens.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, JsonSchema)]
pub struct PromptTokensDetails {
    /// Tokens from a cache.
    pub cached_tokens: u64,
}

/// Parts of the answer's tokens.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, JsonSchema)]
pub struct CompletionTokensDetails {
    /// Tokens of the reasoning.
    pub reasoning_tokens: u64,
}

impl From<&Tokens> for Usage {
    fn from(tokens: &Tokens) -> Self {
        Self {
            prompt_tokens: tokens.prompt_tokens,
            completion_tokens: tokens.completion_tokens,
            total_tokens: tokens.total(),
            prompt_tokens_details: PromptTokensDetails { cached_tokens: tokens.cached_tokens },
            completion_tokens_details: CompletionTokensDetails { reasoning_tokens: tokens.reasoning_tokens },
        }
    }
}

/// Beginning of each event, up to the number of its choice.
pub(crate) fn chunk_prefix(id_prefix: &str, object: &str, head: &AnswerHead) -> Vec<u8> {
    let mut out = BytesMut::new();
    out.put_slice(b"data: {\"id\":");
    put_string(&format!("{id_prefix}{}", head.id), &mut out);
    out.put_slice(b",\"object\":");
    put_string(object, &mut out);
    out.put_slice(b",\"created\":");
    put_number(head.created, &mut out);
    out.put_slice(b",\"model\":");
    put_string(&head.model, &mut out);
    out.put_slice(CHOICES);
    out.to_vec()
}

/// Puts the event of the usage. It has no choices.
pub(crate) fn put_usage(prefix: &[u8], usage: &Tokens, out: &mut BytesMut) {
    out.put_slice(prefix.strip_suffix(CHOICES).unwrap_or(prefix));
    out.put_slice(b",\"choices\":[],\"usage\":");
    put_json(&Usage::from(usage), out);
    out.put_slice(b"}\n\n");
}
