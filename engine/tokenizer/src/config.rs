//! Further files that say which tokens begin and end a text.

use crate::error::TokenizerError;
use serde::Deserialize;

/// Settings of files beside `tokenizer.json`.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct TokenizerConfig {
    /// Addition of the token of the begin; `None`: as `tokenizer.json` has it.
    pub add_bos: Option<bool>,
    /// Addition of the token of the end; `None`: as `tokenizer.json` has it.
    pub add_eos: Option<bool>,
    /// Text of the token of the begin.
    pub bos: Option<String>,
    /// Text of the token of the end.
    pub eos: Option<String>,
    /// Tokens that end a generated text, beside that.
    pub end: Vec<u32>,
}

impl TokenizerConfig {
    /// Reads the texts of `tokenizer_config.json`, `generation_config.json` and `config.json`, of those that are there.
    ///
    /// # Errors
    /// A text is not JSON, or a field that is read has another type.
    pub fn read(
        tokenizer_config: Option<&str>,
        generation_config: Option<&str>,
        config: Option<&str>,
    ) -> Result<Self, TokenizerError> {
        let tokenizer: TokenizerFields = parse("tokenizer_config.json", tokenizer_config)?;
        let generation: ModelFields = parse("generation_config.json", generation_config)?;
        let model: ModelFields = parse("config.json", config)?;
        let nested = model.text_config.and_then(|fields| fields.eos_token_id);
        let mut end = Vec::new();
        for ids in [generation.eos_token_id, model.eos_token_id, nested].into_iter().flatten() {
            match ids {
                Ids::One(id) => end.push(id),
                Ids::Several(ids) => end.extend(ids),
            }
        }
        end.sort_unstable();
        end.dedup();
        Ok(Self {
            add_bos: tokenizer.add_bos_token,
            add_eos: tokenizer.add_eos_token,
            bos: tokenizer.bos_token.map(TokenText::text),
            eos: tokenizer.eos_token.map(TokenText::text),
            end,
        })
    }
}

fn parse<'a, T: Deserialize<'a> + Default>(file: &'static str, text: Option<&'a str>) -> Result<T, TokenizerError> {
    match text {
        None => Ok(T::default()),
        Some(text) => serde_json::from_str(text).map_err(|error| TokenizerError::file(file, error)),
    }
}

#[derive(Deserialize, Default)]
struct TokenizerFields {
    add_bos_token: Option<bool>,
    add_eos_token: Option<bool>,
    bos_token: Option<TokenText>,
    eos_token: Option<TokenText>,
}

#[derive(Deserialize)]
#[serde(untagged)]
enum TokenText {
    Plain(String),
    Added { content: String },
}

impl TokenText {
    fn text(self) -> String {
        match self {
            Self::Plain(text) | Self::Added { content: text } => text,
        }
    }
}

#[derive(Deserialize, Default)]
struct ModelFields {
    eos_token_id: Option<Ids>,
    text_config: Option<NestedFields>,
}

#[derive(Deserialize)]
struct NestedFields {
    eos_token_id: Option<Ids>,
}

#[derive(Deserialize)]
#[serde(untagged)]
enum Ids {
    One(u32),
    Several(Vec<u32>),
}
