//! `[generation]` and `[chat]`: what a model that generates text can do, and who renders its prompts.
//!
//! Read by [`super::Manifest::parse`]; applied by the scheduler.

use serde::{Serialize, Serializer};

use crate::kind::{choice, string};
use crate::reader::Section;

/// `[generation]`: what the model can do.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct Generation {
    /// Parameters and inputs that the model honours beyond those that every model does. A request that asks for another one is
    /// refused.
    pub honours: Vec<Capability>,
}

impl Generation {
    pub(super) fn read(section: &mut Section<'_>) -> Self {
        Self { honours: section.list("honours", choice(&Capability::ALL)) }
    }
}

/// Parameter or input that not every model honours.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Capability {
    /// Sound in messages.
    Audio,
    /// `ignore_eos`.
    IgnoreEos,
    /// Images in messages.
    Images,
    /// Output constrained to a JSON object. Without it the node validates the finished answer.
    JsonObject,
    /// Output constrained to a JSON Schema. Without it the node validates the finished answer.
    JsonSchema,
    /// Ranges of the prompt that are plain text, whatever they look like. Without it the node breaks control tokens in a client's
    /// text by an invisible character.
    LiteralRanges,
    /// `logit_bias`.
    LogitBias,
    /// `logprobs` and `top_logprobs`.
    Logprobs,
    /// `max_tokens`, counted in the model's own tokens. Without it the node counts pieces of text.
    MaxTokens,
    /// `min_p`.
    MinP,
    /// `min_tokens`.
    MinTokens,
    /// `frequency_penalty` and `presence_penalty`.
    Penalties,
    /// `echo` with `logprobs` or of token ids: the engine repeats the tokens of the prompt. Of the native engine alone, so
    /// that no manifest names it.
    PromptTokens,
    /// `repetition_penalty`.
    RepetitionPenalty,
    /// `seed`.
    Seed,
    /// Prompts of token ids.
    TokenPrompts,
    /// `top_k`.
    TopK,
}

impl Capability {
    /// Capabilities that a manifest may name, by their names.
    pub const ALL: [(&'static str, Self); 16] = [
        ("audio", Self::Audio),
        ("ignore-eos", Self::IgnoreEos),
        ("images", Self::Images),
        ("json-object", Self::JsonObject),
        ("json-schema", Self::JsonSchema),
        ("literal-ranges", Self::LiteralRanges),
        ("logit-bias", Self::LogitBias),
        ("logprobs", Self::Logprobs),
        ("max-tokens", Self::MaxTokens),
        ("min-p", Self::MinP),
        ("min-tokens", Self::MinTokens),
        ("penalties", Self::Penalties),
        ("repetition-penalty", Self::RepetitionPenalty),
        ("seed", Self::Seed),
        ("token-prompts", Self::TokenPrompts),
        ("top-k", Self::TopK),
    ];

    /// Capabilities of the native engine.
    pub const NATIVE: [Self; 15] = [
        Self::IgnoreEos,
        Self::JsonObject,
        Self::JsonSchema,
        Self::LiteralRanges,
        Self::LogitBias,
        Self::Logprobs,
        Self::MaxTokens,
        Self::MinP,
        Self::MinTokens,
        Self::Penalties,
        Self::PromptTokens,
        Self::RepetitionPenalty,
        Self::Seed,
        Self::TokenPrompts,
        Self::TopK,
    ];
}

impl Serialize for Capability {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let name = Self::ALL.iter().find(|(_, capability)| capability == self).map_or("", |(name, _)| *name);
        serializer.serialize_str(name)
    }
}

/// `[chat]`: how conversations become prompts, and answers become tool calls.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct Chat {
    /// Renderer of the prompt.
    pub render: Render,
    /// Dialect of tool calls in the model's output; `"auto"`: by the chat template.
    pub tool_parser: String,
    /// Form of reasoning in the model's output; `"auto"`: by the chat template.
    pub reasoning_parser: String,
}

impl Default for Chat {
    fn default() -> Self {
        Self { render: Render::Node, tool_parser: AUTO.to_owned(), reasoning_parser: AUTO.to_owned() }
    }
}

/// Value of a parser that is chosen by the chat template.
pub const AUTO: &str = "auto";

impl Chat {
    pub(super) fn read(section: &mut Section<'_>) -> Self {
        let default = Self::default();
        Self {
            render: section.get("render", choice(&[("node", Render::Node), ("model", Render::Model)]), default.render),
            tool_parser: section.get("tool-parser", string, default.tool_parser),
            reasoning_parser: section.get("reasoning-parser", string, default.reasoning_parser),
        }
    }
}

/// Renderer of prompts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Render {
    /// The node, by the model's chat template: the handler gets a prompt.
    #[default]
    Node,
    /// The model: the handler gets the messages.
    Model,
}
