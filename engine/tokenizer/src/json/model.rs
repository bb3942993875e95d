//! Models: byte pairs and WordPiece.
//!
//! Control tokens are taken out of a model, but for the unknown one: text can never become one by the model.

use super::failure;
use crate::byte_pairs::{BytePairs, Vocab};
use crate::error::TokenizerError;
use crate::parts;
use serde::Deserialize;
use std::collections::{HashMap, HashSet};
use tokenizers::ModelWrapper;
use tokenizers::models::wordpiece::WordPiece;

const SUPPORTED: &[&str] = &["BPE", "WordPiece"];

/// Longest word of WordPiece, in characters: its time is quadratic in it.
const LONGEST_WORD: usize = 1000;

#[derive(Deserialize)]
struct Kind {
    r#type: Option<String>,
    merges: Option<serde::de::IgnoredAny>,
}

#[derive(Deserialize)]
struct Pairs {
    dropout: Option<f32>,
    unk_token: Option<String>,
    continuing_subword_prefix: Option<String>,
    end_of_word_suffix: Option<String>,
    fuse_unk: Option<bool>,
    byte_fallback: Option<bool>,
    ignore_merges: Option<bool>,
    vocab: HashMap<String, u32>,
    merges: Vec<Merge>,
}

#[derive(Deserialize)]
#[serde(untagged)]
enum Merge {
    Pair(String, String),
    Text(String),
}

#[derive(Deserialize)]
struct Words {
    unk_token: String,
    continuing_subword_prefix: String,
    max_input_chars_per_word: usize,
    vocab: HashMap<String, u32>,
}

/// Reads a model with its tokens. `control` are the texts of control tokens.
pub(super) fn read(text: &str, control: &HashSet<&str>) -> Result<(ModelWrapper, Vec<(String, u32)>), TokenizerError> {
    let kind: Kind = serde_json::from_str(text).map_err(failure)?;
    match (kind.r#type.as_deref(), kind.merges) {
        (Some("BPE"), _) | (None, Some(_)) => pairs(serde_json::from_str(text).map_err(failure)?, control),
        (Some("WordPiece"), _) => words(serde_json::from_str(text).map_err(failure)?, control),
        (other, _) => Err(TokenizerError::unsupported("model", other.unwrap_or("without a type"), SUPPORTED)),
    }
}

fn pairs(model: Pairs, control: &HashSet<&str>) -> Result<(ModelWrapper, Vec<(String, u32)>), TokenizerError> {
    let refused = [
        ("dropout", model.dropout.is_some_and(|dropout| dropout != 0.0)),
        ("continuing_subword_prefix", model.continuing_subword_prefix.is_some_and(|prefix| !prefix.is_empty())),
        ("end_of_word_suffix", model.end_of_word_suffix.is_some_and(|suffix| !suffix.is_empty())),
    ];
    if let Some((name, _)) = refused.into_iter().find(|(_, set)| *set) {
        return Err(TokenizerError::invalid(name, "it is not supported"));
    }
    let vocabulary = listed(model.vocab, control, model.unk_token.as_deref())?;
    let merge = |merge: Merge| match merge {
        Merge::Pair(left, right) => Ok((left, right)),
        Merge::Text(text) => split(&text),
    };
    let mut merges: Vec<(String, String)> = model.merges.into_iter().map(merge).collect::<Result<_, _>>()?;
    if !control.is_empty() {
        let is_control = |text: &str| control.contains(text);
        merges
            .retain(|(left, right)| !(is_control(left) || is_control(right) || is_control(&format!("{left}{right}"))));
    }
    let pairs = BytePairs {
        vocabulary: vocabulary.iter().cloned().collect(),
        merges,
        unknown: model.unk_token,
        fuse_unknown: model.fuse_unk.unwrap_or(false),
        byte_fallback: model.byte_fallback.unwrap_or(false),
        whole_words: model.ignore_merges.unwrap_or(false),
    };
    Ok((pairs.build()?, vocabulary))
}

/// Splits a merge at its space. One may begin with a space.
pub(crate) fn split(text: &str) -> Result<(String, String), TokenizerError> {
    let second = text.char_indices().nth(1).map_or(text.len(), |(at, _)| at);
    match text[second..].split_once(' ') {
        Some((rest, right)) => Ok((format!("{}{rest}", &text[..second]), right.to_owned())),
        None => Err(TokenizerError::invalid("merges", format!("{:?} is no pair", crate::error::shorten(text)))),
    }
}

fn words(model: Words, control: &HashSet<&str>) -> Result<(ModelWrapper, Vec<(String, u32)>), TokenizerError> {
    if model.max_input_chars_per_word > LONGEST_WORD {
        let reason = format!("it is {}, above {LONGEST_WORD}", model.max_input_chars_per_word);
        return Err(TokenizerError::invalid("max_input_chars_per_word", reason));
    }
    if !model.vocab.contains_key(&model.unk_token) {
        return Err(TokenizerError::invalid("unk_token", "it is not in the vocabulary"));
    }
    let vocabulary = listed(model.vocab, control, Some(&model.unk_token))?;
    let built = WordPiece::builder()
        .vocab(vocabulary.iter().cloned().collect::<Vocab>())
        .unk_token(model.unk_token)
        .continuing_subword_prefix(model.continuing_subword_prefix)
        .max_input_chars_per_word(model.max_input_chars_per_word)
        .build()
        .map_err(failure)?;
    Ok((built.into(), vocabulary))
}

/// Tokens of the model in the order of their ids.
fn listed(
    vocabulary: HashMap<String, u32>,
    control: &HashSet<&str>,
    unknown: Option<&str>,
) -> Result<Vec<(String, u32)>, TokenizerError> {
    let of_model = |text: &str| !control.contains(text) || Some(text) == unknown;
    let mut list: Vec<(String, u32)> = vocabulary.into_iter().filter(|(text, _)| of_model(text)).collect();
    parts::size(list.iter().map(|(text, id)| (text.as_str(), *id)))?;
    list.sort_unstable_by(|left, right| left.1.cmp(&right.1).then_with(|| left.0.cmp(&right.0)));
    Ok(list)
}
