//! Vocabularies of GGUF.

mod byte_level;
mod sentencepiece;
mod wordpiece;

use crate::added::AddedToken;
use crate::error::TokenizerError;
use crate::parts::{MOST_TOKENS, Parts};
use omni_checkpoint::gguf::Metadata;

const MODELS: &[&str] = &["gpt2", "llama", "bert"];

/// Names of tokens that end a turn or a text, in models whose files may not say so by a key.
const ENDS: &[&str] =
    &["<|im_end|>", "<|eot_id|>", "<|eom_id|>", "<end_of_turn>", "<|end|>", "<|endoftext|>", "<|end_of_text|>"];

/// Type of a token.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Type {
    /// Token of the model.
    Normal,
    /// Control token, or the unknown one.
    Control,
    /// Added token that is text.
    UserDefined,
    /// Token that is never used.
    Unused,
    /// Byte.
    Byte,
}

/// Vocabulary of a file.
#[derive(Debug, Clone, Default)]
pub(crate) struct Vocabulary<'a> {
    /// Kind of the model.
    pub(crate) model: &'a str,
    /// Kind of the pre-tokeniser.
    pub(crate) pre: Option<&'a str>,
    /// Texts by id.
    pub(crate) tokens: Vec<&'a str>,
    /// Types by id; empty: all are normal.
    pub(crate) types: Vec<i32>,
    /// Scores by id; empty: there are none.
    pub(crate) scores: Vec<f32>,
    /// Merges.
    pub(crate) merges: Vec<&'a str>,
    /// Token of a text's begin.
    pub(crate) bos: Option<u32>,
    /// Token of a text's end.
    pub(crate) eos: Option<u32>,
    /// Token between texts (BERT).
    pub(crate) separator: Option<u32>,
    /// Token for what the vocabulary does not have.
    pub(crate) unknown: Option<u32>,
    /// Further tokens that end a generated text.
    pub(crate) ends: Vec<u32>,
    /// Addition of the token of the begin.
    pub(crate) add_bos: Option<bool>,
    /// Addition of the token of the end.
    pub(crate) add_eos: Option<bool>,
    /// Addition of a space before a text.
    pub(crate) add_space_prefix: Option<bool>,
}

impl<'a> Vocabulary<'a> {
    pub(crate) fn read(metadata: &'a Metadata) -> Result<Self, TokenizerError> {
        let name = |key: &str| format!("tokenizer.ggml.{key}");
        let wrong = |key: &str| TokenizerError::invalid(name(key), "it is absent or of another type");
        let id = |key: &str| match metadata.u64(&name(key)).map(u32::try_from) {
            Some(Ok(id)) => Ok(Some(id)),
            None if !metadata.has(&name(key)) => Ok(None),
            _ => Err(wrong(key)),
        };
        let present =
            |key: &str, found: bool| if found || !metadata.has(&name(key)) { Ok(()) } else { Err(wrong(key)) };
        let types = metadata.i32s(&name("token_type"));
        let scores = metadata.f32s(&name("scores"));
        let merges = metadata.texts(&name("merges"));
        present("token_type", types.is_some())?;
        present("scores", scores.is_some())?;
        present("merges", merges.is_some())?;
        let ends = [id("eot_token_id")?, id("eom_token_id")?];
        Ok(Self {
            model: metadata.text(&name("model")).ok_or_else(|| wrong("model"))?,
            pre: metadata.text(&name("pre")),
            tokens: metadata.texts(&name("tokens")).ok_or_else(|| wrong("tokens"))?,
            types: types.unwrap_or_default(),
            scores: scores.unwrap_or_default(),
            merges: merges.unwrap_or_default(),
            bos: id("bos_token_id")?.or(id("cls_token_id")?),
            eos: id("eos_token_id")?,
            // The name in the files is written so.
            separator: id("seperator_token_id")?,
            unknown: id("unknown_token_id")?,
            ends: ends.into_iter().flatten().collect(),
            add_bos: metadata.bool(&name("add_bos_token")),
            add_eos: metadata.bool(&name("add_eos_token")),
            add_space_prefix: metadata.bool(&name("add_space_prefix")),
        })
    }

    /// Tokens with their ids and types. Tokens of the begin and the end are control tokens even in files that do not say
    /// so.
    fn typed(&self) -> impl Iterator<Item = (u32, &'a str, Type)> + '_ {
        let framing = [self.bos, self.eos, self.separator];
        self.tokens.iter().zip(0_u32..).map(move |(text, id)| {
            let kind = match self.types.get(id as usize).copied().unwrap_or(1) {
                2 | 3 => Type::Control,
                4 => Type::UserDefined,
                _ if framing.contains(&Some(id)) => Type::Control,
                5 => Type::Unused,
                6 => Type::Byte,
                _ => Type::Normal,
            };
            (id, *text, kind)
        })
    }

    /// Tokens that are found before the model sees a text.
    fn added(&self) -> Vec<AddedToken> {
        self.typed()
            .filter(|(_, text, _)| !text.is_empty())
            .filter_map(|(id, text, kind)| match kind {
                Type::UserDefined => Some(AddedToken::plain(id, text, false)),
                Type::Control => Some(AddedToken::plain(id, text, true)),
                Type::Normal | Type::Unused | Type::Byte => None,
            })
            .collect()
    }

    /// Tokens that end a generated text.
    fn end(&self) -> Vec<u32> {
        let named = self.typed().filter(|(_, text, kind)| *kind == Type::Control && ENDS.contains(text));
        let mut end: Vec<u32> = named.map(|(id, _, _)| id).chain(self.eos).chain(self.ends.iter().copied()).collect();
        end.sort_unstable();
        end.dedup();
        end
    }

    /// Text of a token.
    fn text(&self, id: u32, part: &str) -> Result<&'a str, TokenizerError> {
        let text = self.tokens.get(id as usize).copied().filter(|text| !text.is_empty());
        text.ok_or_else(|| TokenizerError::invalid(part, format!("token {id} is not in the vocabulary")))
    }

    fn check(&self) -> Result<(), TokenizerError> {
        let count = self.tokens.len();
        if count > MOST_TOKENS as usize {
            let reason = format!("there are {count}, more than {MOST_TOKENS}");
            return Err(TokenizerError::invalid("tokenizer.ggml.tokens", reason));
        }
        for (name, length) in [("token_type", self.types.len()), ("scores", self.scores.len())] {
            if length != 0 && length != count {
                let reason = format!("there are {length} for {count} tokens");
                return Err(TokenizerError::invalid(format!("tokenizer.ggml.{name}"), reason));
            }
        }
        Ok(())
    }

    /// Ids around a text.
    fn frame(&self, add_bos: bool, add_eos: bool) -> Result<(Vec<u32>, Vec<u32>), TokenizerError> {
        let one = |add: bool, id: Option<u32>, key: &str| match (add, id) {
            (false, _) => Ok(Vec::new()),
            (true, Some(id)) => Ok(vec![id]),
            (true, None) => Err(TokenizerError::invalid(format!("tokenizer.ggml.{key}"), "it is absent")),
        };
        Ok((
            one(self.add_bos.unwrap_or(add_bos), self.bos, "bos_token_id")?,
            one(self.add_eos.unwrap_or(add_eos), self.separator.or(self.eos), "eos_token_id")?,
        ))
    }
}

/// Parts of a tokenizer from a vocabulary.
pub(crate) fn parts(vocabulary: &Vocabulary<'_>) -> Result<Parts, TokenizerError> {
    vocabulary.check()?;
    match vocabulary.model {
        "gpt2" => byte_level::parts(vocabulary),
        "llama" => sentencepiece::parts(vocabulary),
        "bert" => wordpiece::parts(vocabulary),
        other => Err(TokenizerError::unsupported("tokenizer.ggml.model", other, MODELS)),
    }
}
