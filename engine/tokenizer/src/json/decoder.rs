//! Decoders, as the bytes that they give each token.

use super::components::{each, kind};
use crate::error::TokenizerError;
use crate::parts::Form;
use serde_json::Value;

/// Supported decoders.
pub(super) const SUPPORTED: &[&str] =
    &["ByteLevel", "Metaspace", "WordPiece", "Sequence of Replace, ByteFallback, Fuse, Strip and ByteLevel"];

const PART: &str = "decoder";

pub(super) fn form(value: &Value) -> Result<Form, TokenizerError> {
    let flag = |name: &str| value.get(name).and_then(Value::as_bool);
    match kind(value, PART)? {
        "ByteLevel" => Ok(Form::ByteLevel),
        "Metaspace" => {
            let never = value.get("prepend_scheme").and_then(Value::as_str) == Some("never");
            let strip = !never && flag("add_prefix_space") != Some(false);
            Ok(Form::Pieces { space: character(value.get("replacement"))?, byte_fallback: false, strip })
        }
        "WordPiece" => {
            let prefix = value.get("prefix").and_then(Value::as_str).unwrap_or("##").to_owned();
            Ok(Form::Words { prefix, cleanup: flag("cleanup").unwrap_or(true) })
        }
        "Sequence" => sequence(value),
        other => Err(TokenizerError::unsupported(PART, other, SUPPORTED)),
    }
}

fn sequence(value: &Value) -> Result<Form, TokenizerError> {
    let (mut space, mut byte_fallback, mut strip, mut whole) = (None, false, false, None);
    each(value, PART, "decoders", |decoder| {
        let unsupported = |what: &str| TokenizerError::unsupported(PART, format!("{what} {decoder}"), SUPPORTED);
        match kind(decoder, PART)? {
            "ByteFallback" => byte_fallback = true,
            "Fuse" => {}
            "Replace" => {
                let pattern = decoder.get("pattern").and_then(|pattern| pattern.get("String"));
                if decoder.get("content").and_then(Value::as_str) != Some(" ") {
                    return Err(unsupported("Replace"));
                }
                space = character(pattern)?;
            }
            "Strip" => {
                let number = |name: &str| decoder.get(name).and_then(Value::as_u64);
                let content = decoder.get("content").and_then(Value::as_str);
                match (content, number("start"), number("stop")) {
                    (Some(" "), Some(0), Some(0)) => {}
                    (Some(" "), Some(1), Some(0)) => strip = true,
                    _ => return Err(unsupported("Strip")),
                }
            }
            "Sequence" => return Err(unsupported("Sequence")),
            _ => whole = Some(form(decoder)?),
        }
        Ok(())
    })?;
    match whole {
        Some(_) if byte_fallback || space.is_some() || strip => {
            Err(TokenizerError::unsupported(PART, "a mixture of decoders", SUPPORTED))
        }
        Some(form) => Ok(form),
        None => Ok(Form::Pieces { space, byte_fallback, strip }),
    }
}

fn character(value: Option<&Value>) -> Result<Option<char>, TokenizerError> {
    let text = value.and_then(Value::as_str).unwrap_or_default();
    let mut characters = text.chars();
    match (characters.next(), characters.next()) {
        (Some(character), None) => Ok(Some(character)),
        _ => Err(TokenizerError::invalid(PART, "what stands for a space is not one character")),
    }
}
