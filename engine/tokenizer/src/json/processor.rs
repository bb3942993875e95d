//! Post-processors, as the tokens that they put before and after a text.

use super::components::{each, kind};
use crate::error::TokenizerError;
use serde_json::Value;

const SUPPORTED: &[&str] = &["BertProcessing", "ByteLevel", "RobertaProcessing", "Sequence", "TemplateProcessing"];

const PART: &str = "post_processor";

/// Tokens around a text.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Frame {
    /// Before it.
    pub(super) prefix: Vec<u32>,
    /// After it.
    pub(super) suffix: Vec<u32>,
}

pub(super) fn frame(value: &Value) -> Result<Frame, TokenizerError> {
    match kind(value, PART)? {
        "ByteLevel" => Ok(Frame::default()),
        "TemplateProcessing" => template(value),
        "BertProcessing" | "RobertaProcessing" => {
            let token = |name: &str| id(value.get(name).and_then(|pair| pair.get(1)));
            Ok(Frame { prefix: vec![token("cls")?], suffix: vec![token("sep")?] })
        }
        "Sequence" => {
            let mut all = Frame::default();
            each(value, PART, "processors", |processor| {
                if kind(processor, PART)? == "Sequence" {
                    return Err(TokenizerError::unsupported(PART, "a sequence within a sequence", SUPPORTED));
                }
                let Frame { mut prefix, suffix } = frame(processor)?;
                prefix.append(&mut all.prefix);
                all.prefix = prefix;
                all.suffix.extend(suffix);
                Ok(())
            })?;
            Ok(all)
        }
        other => Err(TokenizerError::unsupported(PART, other, SUPPORTED)),
    }
}

fn template(value: &Value) -> Result<Frame, TokenizerError> {
    let mut frame = Frame::default();
    let mut text_seen = false;
    each(value, PART, "single", |piece| {
        let Some(token) = piece.get("SpecialToken") else {
            text_seen |= piece.get("Sequence").is_some();
            return Ok(());
        };
        let name = token.get("id").and_then(Value::as_str).unwrap_or_default();
        let ids = value.get("special_tokens").and_then(|tokens| tokens.get(name)).and_then(|token| token.get("ids"));
        let Some(ids) = ids.and_then(Value::as_array).filter(|ids| ids.len() <= 64) else {
            return Err(TokenizerError::invalid(PART, "a token of the template has no ids"));
        };
        let side = if text_seen { &mut frame.suffix } else { &mut frame.prefix };
        for one in ids {
            side.push(id(Some(one))?);
        }
        Ok(())
    })?;
    match text_seen {
        true => Ok(frame),
        false => Err(TokenizerError::invalid(PART, "the template has no place for the text")),
    }
}

fn id(value: Option<&Value>) -> Result<u32, TokenizerError> {
    let id = value.and_then(Value::as_u64).and_then(|id| u32::try_from(id).ok());
    id.ok_or_else(|| TokenizerError::invalid(PART, "a token has no id"))
}
