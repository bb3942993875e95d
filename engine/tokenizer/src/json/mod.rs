//! `tokenizer.json`.

mod components;
mod decoder;
mod model;
mod processor;

pub(crate) use model::split;

use crate::added::AddedToken;
use crate::config::TokenizerConfig;
use crate::error::TokenizerError;
use crate::parts::{MOST_TOKENS, Parts};
use serde::Deserialize;
use serde_json::Value;
use serde_json::value::RawValue;
use std::collections::HashMap;

/// Largest file: that of Gemma 3 has 33 MB.
const MOST_BYTES: usize = 128 << 20;

/// File.
#[derive(Deserialize)]
struct File<'a> {
    #[serde(default)]
    added_tokens: Vec<Added>,
    normalizer: Option<Value>,
    pre_tokenizer: Option<Value>,
    post_processor: Option<Value>,
    decoder: Option<Value>,
    #[serde(borrow)]
    model: &'a RawValue,
}

#[derive(Deserialize)]
struct Added {
    id: u32,
    content: String,
    #[serde(default)]
    single_word: bool,
    #[serde(default)]
    lstrip: bool,
    #[serde(default)]
    rstrip: bool,
    #[serde(default)]
    normalized: bool,
    #[serde(default)]
    special: bool,
}

/// Failure of a part of the file.
fn failure(error: impl std::fmt::Display) -> TokenizerError {
    TokenizerError::file("tokenizer.json", error)
}

/// Reads a file.
pub(crate) fn parts(text: &str, config: &TokenizerConfig) -> Result<Parts, TokenizerError> {
    if text.len() > MOST_BYTES {
        return Err(failure(format!("it has more than {MOST_BYTES} bytes")));
    }
    let file: File<'_> = serde_json::from_str(text).map_err(failure)?;
    let added = added(file.added_tokens)?;
    let control = added.iter().filter(|token| token.special).map(|token| token.text.as_str()).collect();
    let (model, vocabulary) = model::read(file.model.get(), &control)?;
    let form = match file.decoder {
        Some(decoder) => decoder::form(&decoder)?,
        None => return Err(TokenizerError::unsupported("decoder", "null", decoder::SUPPORTED)),
    };
    let frame = file.post_processor.as_ref().map(processor::frame).transpose()?.unwrap_or_default();
    let mut parts = Parts {
        normalizer: file.normalizer.map(components::normalizer).transpose()?,
        pre_tokenizer: file.pre_tokenizer.map(components::pre_tokenizer).transpose()?,
        model,
        vocabulary,
        added,
        form,
        prefix: frame.prefix,
        suffix: frame.suffix,
        bos: None,
        end: Vec::new(),
    };
    apply(config, &mut parts);
    Ok(parts)
}

fn added(tokens: Vec<Added>) -> Result<Vec<AddedToken>, TokenizerError> {
    tokens
        .into_iter()
        .map(|token| {
            if token.id >= MOST_TOKENS {
                let reason = format!("a token has the id {}, beyond {MOST_TOKENS}", token.id);
                return Err(TokenizerError::invalid("added_tokens", reason));
            }
            Ok(AddedToken {
                id: token.id,
                text: token.content,
                special: token.special,
                normalized: token.normalized,
                single_word: token.single_word,
                left: token.lstrip,
                right: token.rstrip,
            })
        })
        .collect()
}

/// Applies what the other files say.
fn apply(config: &TokenizerConfig, parts: &mut Parts) {
    let added: HashMap<&str, u32> = parts.added.iter().map(|token| (token.text.as_str(), token.id)).collect();
    let find = |text: &Option<String>| {
        let text = text.as_ref()?;
        let of_model = || parts.vocabulary.iter().find(|(token, _)| token == text).map(|(_, id)| *id);
        added.get(text.as_str()).copied().or_else(of_model)
    };
    let (bos, eos) = (find(&config.bos), find(&config.eos));
    let mut end: Vec<u32> = config.end.iter().copied().chain(eos).collect();
    end.sort_unstable();
    end.dedup();
    match (config.add_bos, bos) {
        (Some(true), Some(bos)) if !parts.prefix.contains(&bos) => parts.prefix.insert(0, bos),
        (Some(false), Some(bos)) => parts.prefix.retain(|id| *id != bos),
        _ => {}
    }
    match (config.add_eos, eos) {
        (Some(true), Some(eos)) if !parts.suffix.contains(&eos) => parts.suffix.push(eos),
        (Some(false), Some(eos)) => parts.suffix.retain(|id| *id != eos),
        _ => {}
    }
    // A token of the begin without one of the end is that of a text, both are the frame of an encoder.
    parts.bos = bos.or_else(|| parts.prefix.first().copied().filter(|_| parts.suffix.is_empty()));
    parts.end = end;
}
