//! Log probabilities in the chat form.

use omni_generation::{Alternative, TokenInfo};
use schemars::JsonSchema;
use serde::Serialize;

/// Log probability of a token that has none: clients know it as "improbable".
pub(crate) const NO_LOGPROB: f32 = -9999.0;

/// Log probabilities of a part of the answer.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct ChatLogprobs<'a> {
    /// Tokens.
    content: Vec<TokenLogprob<'a>>,
    /// `null`.
    refusal: Option<()>,
}

/// Token with its alternatives.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct TokenLogprob<'a> {
    #[serde(flatten)]
    token: TopLogprob<'a>,
    /// Most probable tokens at its position.
    top_logprobs: Vec<TopLogprob<'a>>,
}

/// Token.
#[derive(Debug, Serialize, JsonSchema)]
struct TopLogprob<'a> {
    /// Text.
    token: &'a str,
    /// Natural logarithm of the probability.
    logprob: f32,
    /// Bytes of the token, which may be a part of a character.
    bytes: &'a [u8],
}

impl<'a> ChatLogprobs<'a> {
    /// Log probabilities of these tokens; `None` where there are none.
    pub(crate) fn new(tokens: &'a [TokenInfo]) -> Option<Self> {
        if tokens.is_empty() {
            return None;
        }
        Some(Self { content: tokens.iter().map(TokenLogprob::new).collect(), refusal: None })
    }
}

impl<'a> TokenLogprob<'a> {
    /// A token with its alternatives.
    pub(crate) fn new(token: &'a TokenInfo) -> Self {
        let top = |other: &'a Alternative| TopLogprob::new(&other.text, other.bytes.as_deref(), Some(other.logprob));
        let of = TopLogprob::new(&token.text, token.bytes.as_deref(), token.logprob);
        Self { token: of, top_logprobs: token.top.iter().map(top).collect() }
    }
}

impl<'a> TopLogprob<'a> {
    fn new(text: &'a str, bytes: Option<&'a [u8]>, logprob: Option<f32>) -> Self {
        let logprob = logprob.filter(|logprob| logprob.is_finite()).unwrap_or(NO_LOGPROB);
        Self { token: text, logprob, bytes: bytes.unwrap_or(text.as_bytes()) }
    }
}
