//! Normalisers and pre-tokenisers: those that are supported, within bounds.

use super::failure;
use crate::error::TokenizerError;
use serde_json::Value;
use tokenizers::{NormalizerWrapper, PreTokenizerWrapper};

const NORMALIZERS: &[&str] = &[
    "BertNormalizer",
    "ByteLevel",
    "Lowercase",
    "NFC",
    "NFD",
    "NFKC",
    "NFKD",
    "Prepend",
    "Replace",
    "Sequence",
    "Strip",
    "StripAccents",
];

const PRE_TOKENIZERS: &[&str] = &[
    "BertPreTokenizer",
    "ByteLevel",
    "Digits",
    "Metaspace",
    "Punctuation",
    "Sequence",
    "Split",
    "Whitespace",
    "WhitespaceSplit",
];

/// Most components of a sequence.
const MOST_COMPONENTS: usize = 64;
/// Longest pattern, in bytes.
const LONGEST_PATTERN: usize = 4096;
/// Longest text that is written in place of another or before a text, in bytes.
const LONGEST_CONTENT: usize = 16;

pub(super) fn normalizer(value: Value) -> Result<NormalizerWrapper, TokenizerError> {
    check(&value, "normalizer", "normalizers", NORMALIZERS)?;
    serde_json::from_value(value).map_err(failure)
}

pub(super) fn pre_tokenizer(value: Value) -> Result<PreTokenizerWrapper, TokenizerError> {
    check(&value, "pre_tokenizer", "pretokenizers", PRE_TOKENIZERS)?;
    serde_json::from_value(value).map_err(failure)
}

/// Type of a component.
pub(super) fn kind<'a>(value: &'a Value, part: &str) -> Result<&'a str, TokenizerError> {
    let kind = value.get("type").and_then(Value::as_str);
    kind.ok_or_else(|| TokenizerError::invalid(part, "it has no type"))
}

fn check(value: &Value, part: &str, list: &str, supported: &[&str]) -> Result<(), TokenizerError> {
    let kind = kind(value, part)?;
    if !supported.contains(&kind) {
        return Err(TokenizerError::unsupported(part, kind, supported));
    }
    if kind == "Sequence" {
        return each(value, part, list, |component| check(component, part, list, supported));
    }
    let length = |text: &str, most: usize| match text.len() {
        0 => Err(TokenizerError::invalid(part, format!("an empty text in {kind}"))),
        length if length > most => {
            Err(TokenizerError::invalid(part, format!("a text of {length} bytes in {kind}, more than {most}")))
        }
        _ => Ok(()),
    };
    for pattern in value.get("pattern").and_then(Value::as_object).into_iter().flat_map(|pattern| pattern.values()) {
        length(pattern.as_str().unwrap_or_default(), LONGEST_PATTERN)?;
    }
    match value.get(if kind == "Prepend" { "prepend" } else { "content" }).and_then(Value::as_str) {
        None | Some("") => Ok(()),
        Some(text) => length(text, LONGEST_CONTENT),
    }
}

/// Calls `each` for the components of a sequence.
pub(super) fn each(
    value: &Value,
    part: &str,
    list: &str,
    mut each: impl FnMut(&Value) -> Result<(), TokenizerError>,
) -> Result<(), TokenizerError> {
    let components = value.get(list).and_then(Value::as_array);
    let components = components.ok_or_else(|| TokenizerError::invalid(part, format!("a sequence has no {list}")))?;
    if components.len() > MOST_COMPONENTS {
        let reason = format!("a sequence has {} components, more than {MOST_COMPONENTS}", components.len());
        return Err(TokenizerError::invalid(part, reason));
    }
    components.iter().try_for_each(&mut each)
}
