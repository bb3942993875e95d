//! Byte-level pairs (`gpt2`).

use super::{Type, Vocabulary};
use crate::byte_pairs::BytePairs;
use crate::error::TokenizerError;
use crate::json::split;
use crate::parts::{Form, Parts};
use std::collections::{HashMap, HashSet};
use tokenizers::normalizers::NFC;
use tokenizers::pre_tokenizers::byte_level::ByteLevel;
use tokenizers::pre_tokenizers::digits::Digits;
use tokenizers::pre_tokenizers::sequence::Sequence;
use tokenizers::pre_tokenizers::split::{Split, SplitPattern};
use tokenizers::{NormalizerWrapper, PreTokenizerWrapper, SplitDelimiterBehavior};

/// Pre-tokeniser, and what goes with it.
struct Pre {
    /// Names in files.
    names: &'static [&'static str],
    /// Cut into words.
    words: Words,
    /// Composition of characters before all else.
    nfc: bool,
    /// A word that is in the vocabulary is one token.
    whole_words: bool,
    /// Addition of the token of the begin where a file does not say.
    add_bos: bool,
}

enum Words {
    /// Pattern of GPT-2.
    Gpt2,
    /// Each digit by itself, then the pattern of GPT-2.
    DigitsGpt2,
    /// Another pattern.
    Pattern(&'static str),
}

const LLAMA3: &str = concat!(
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*",
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
);
const QWEN2: &str = concat!(
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*",
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
);

/// Pre-tokenisers by their names. The first one is that of files without a name.
const PRE: &[Pre] = &[
    Pre { names: &["default", "gpt-2"], words: Words::Gpt2, nfc: false, whole_words: false, add_bos: false },
    Pre {
        names: &["llama-bpe", "llama3", "llama-v3"],
        words: Words::Pattern(LLAMA3),
        nfc: false,
        whole_words: true,
        add_bos: true,
    },
    Pre {
        names: &["qwen2", "deepseek-r1-qwen"],
        words: Words::Pattern(QWEN2),
        nfc: true,
        whole_words: false,
        add_bos: false,
    },
    Pre {
        names: &["smollm", "starcoder", "refact"],
        words: Words::DigitsGpt2,
        nfc: false,
        whole_words: false,
        add_bos: false,
    },
];

pub(super) fn parts(vocabulary: &Vocabulary<'_>) -> Result<Parts, TokenizerError> {
    let name = vocabulary.pre.unwrap_or("default");
    let Some(pre) = PRE.iter().find(|pre| pre.names.contains(&name)) else {
        let supported: Vec<&str> = PRE.iter().flat_map(|pre| pre.names).copied().collect();
        return Err(TokenizerError::unsupported("tokenizer.ggml.pre", name, &supported));
    };
    let mut merges = vocabulary.merges.iter().map(|merge| split(merge)).collect::<Result<Vec<_>, _>>()?;
    // Text never becomes a control token by the model.
    let control = vocabulary.typed().filter(|(_, _, kind)| *kind == Type::Control);
    let control: HashSet<&str> = control.map(|(_, text, _)| text).collect();
    if !control.is_empty() {
        merges.retain(|(left, right)| {
            [left, right, &format!("{left}{right}")].iter().all(|text| !control.contains(text.as_str()))
        });
    }
    let tokens = tokens(vocabulary, &merges);
    let model = BytePairs {
        vocabulary: tokens.iter().cloned().collect(),
        merges,
        unknown: None,
        fuse_unknown: false,
        byte_fallback: false,
        whole_words: pre.whole_words,
    };
    let (prefix, suffix) = vocabulary.frame(pre.add_bos, false)?;
    Ok(Parts {
        normalizer: pre.nfc.then_some(NormalizerWrapper::NFC(NFC)),
        pre_tokenizer: Some(pre_tokenizer(&pre.words)?),
        model: model.build()?,
        vocabulary: tokens,
        added: vocabulary.added(),
        form: Form::ByteLevel,
        prefix,
        suffix,
        bos: vocabulary.bos,
        end: vocabulary.end(),
    })
}

fn pre_tokenizer(words: &Words) -> Result<PreTokenizerWrapper, TokenizerError> {
    Ok(match words {
        Words::Gpt2 => ByteLevel::new(false, true, true).into(),
        Words::DigitsGpt2 => {
            Sequence::new(vec![Digits::new(true).into(), ByteLevel::new(false, true, true).into()]).into()
        }
        Words::Pattern(pattern) => {
            let pattern = SplitPattern::Regex((*pattern).to_owned());
            let split = Split::new(pattern, SplitDelimiterBehavior::Isolated, false)
                .map_err(|error| TokenizerError::invalid("pre-tokeniser", error.to_string()))?;
            Sequence::new(vec![split.into(), ByteLevel::new(false, true, false).into()]).into()
        }
    })
}

/// Tokens of the model: all but the added ones, of which those stay that merges need. Of equal texts the first counts.
fn tokens(vocabulary: &Vocabulary<'_>, merges: &[(String, String)]) -> Vec<(String, u32)> {
    let needed: HashSet<String> = match vocabulary.typed().any(|(_, _, kind)| kind == Type::UserDefined) {
        true => {
            merges.iter().flat_map(|(left, right)| [left.clone(), right.clone(), format!("{left}{right}")]).collect()
        }
        false => HashSet::new(),
    };
    let mut ids: HashMap<&str, u32> = HashMap::with_capacity(vocabulary.tokens.len());
    for (id, text, kind) in vocabulary.typed() {
        let of_model = match kind {
            Type::Normal | Type::Byte | Type::Unused => true,
            Type::UserDefined => needed.contains(text),
            Type::Control => false,
        };
        if of_model && !text.is_empty() {
            ids.entry(text).or_insert(id);
        }
    }
    let mut tokens: Vec<(String, u32)> = ids.into_iter().map(|(text, id)| (text.to_owned(), id)).collect();
    tokens.sort_unstable_by_key(|(_, id)| *id);
    tokens
}
