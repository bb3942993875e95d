//! Whole answers of completions, and log probabilities in their form.

use crate::chat::NO_LOGPROB;
use crate::chat::finish_reason;
use crate::head::{AnswerHead, Usage};
use omni_generation::{Choice, Completion, TokenInfo};
use schemars::JsonSchema;
use serde::Serialize;
use std::collections::BTreeMap;

/// Whole answer.
#[derive(Debug, Serialize, JsonSchema)]
pub struct TextCompletion<'a> {
    /// Id.
    id: String,
    /// `text_completion`.
    object: &'static str,
    /// Time, in seconds since 1970.
    created: u64,
    /// Model.
    model: &'a str,
    /// Answers.
    choices: Vec<TextChoice<'a>>,
    /// Tokens.
    usage: Usage,
}

/// An answer.
#[derive(Debug, Serialize, JsonSchema)]
struct TextChoice<'a> {
    /// Number.
    index: usize,
    /// Text.
    text: String,
    /// Log probabilities, if they were asked for.
    logprobs: Option<TextLogprobs<'a>>,
    /// `stop`, `length` or `content_filter`.
    finish_reason: &'static str,
}

/// Log probabilities of a text.
#[derive(Debug, Default, Serialize, JsonSchema)]
pub(crate) struct TextLogprobs<'a> {
    /// Tokens.
    tokens: Vec<&'a str>,
    /// Natural logarithms of their probabilities; `null` for the first token of a repeated prompt.
    token_logprobs: Vec<Option<f32>>,
    /// Most probable tokens at each position.
    top_logprobs: Vec<Option<BTreeMap<&'a str, f32>>>,
    /// Place of each token in the text, in characters.
    text_offset: Vec<usize>,
}

impl<'a> TextCompletion<'a> {
    /// The answer. `echo`: the text before each answer.
    pub(crate) fn new(head: &'a AnswerHead, completion: &'a Completion, echo: impl Fn(usize) -> &'a str) -> Self {
        let choices = completion.choices.iter().enumerate();
        Self {
            id: format!("cmpl-{}", head.id),
            object: "text_completion",
            created: head.created,
            model: &head.model,
            choices: choices.map(|(index, choice)| TextChoice::new(index, choice, echo(index))).collect(),
            usage: Usage::from(&completion.usage),
        }
    }
}

impl<'a> TextChoice<'a> {
    fn new(index: usize, choice: &'a Choice, echo: &str) -> Self {
        let reason = choice.finish.as_ref().map(|finish| &finish.reason);
        Self {
            index,
            text: format!("{echo}{}", choice.content),
            logprobs: TextLogprobs::new(&choice.tokens, &mut 0),
            finish_reason: reason.map_or("stop", |reason| finish_reason(reason, true)),
        }
    }
}

impl<'a> TextLogprobs<'a> {
    /// Log probabilities of these tokens, `None` where there are none. `offset` is that of the first, and of the one after
    /// the last. A text that begins with a token without one is a repeated prompt, whose first token has none.
    pub(crate) fn new(tokens: &'a [TokenInfo], offset: &mut usize) -> Option<Self> {
        let finite = |logprob: f32| if logprob.is_finite() { logprob } else { NO_LOGPROB };
        let mut logprobs = Self::default();
        for token in tokens {
            let has_none = *offset == 0 && token.logprob.is_none();
            let top = token.top.iter().map(|top| (top.text.as_str(), finite(top.logprob)));
            logprobs.tokens.push(&token.text);
            logprobs.token_logprobs.push((!has_none).then(|| token.logprob.map_or(NO_LOGPROB, finite)));
            logprobs.top_logprobs.push((!has_none).then(|| top.collect()));
            logprobs.text_offset.push(*offset);
            *offset += token.text.chars().count();
        }
        (!tokens.is_empty()).then_some(logprobs)
    }
}
