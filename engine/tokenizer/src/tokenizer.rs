//! Tokenizer: encoding, decoding, ids with a meaning.

use crate::bytes::{Place, Table};
use crate::config::TokenizerConfig;
use crate::decoder::{Decoder, Special};
use crate::error::{EncodeError, TokenizerError, UnknownToken};
use crate::parts::Parts;
use crate::pipeline::Pipeline;
use crate::{gguf, json};
use std::ops::Range;

/// Longest text that is encoded, in bytes. Memory of an encoding is a multiple of it.
const LONGEST: usize = 16 << 20;

/// Tokenizer of a model.
pub struct Tokenizer {
    pipeline: Pipeline,
    table: Table,
    prefix: Vec<u32>,
    suffix: Vec<u32>,
    bos: Option<u32>,
    end: Vec<u32>,
}

impl std::fmt::Debug for Tokenizer {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter
            .debug_struct("Tokenizer")
            .field("vocabulary", &self.vocabulary())
            .field("prefix", &self.prefix)
            .field("suffix", &self.suffix)
            .field("end", &self.end)
            .finish_non_exhaustive()
    }
}

impl Tokenizer {
    /// Reads the text of a `tokenizer.json`.
    ///
    /// # Errors
    /// The text is not understood, or has parts that are not supported; the message names them.
    pub fn from_json(text: &str, config: &TokenizerConfig) -> Result<Self, TokenizerError> {
        Self::assemble(json::parts(text, config)?)
    }

    /// Reads the vocabulary of a GGUF file.
    ///
    /// # Errors
    /// The vocabulary is not understood, or of a kind that is not supported; the message names it.
    pub fn from_gguf(metadata: &omni_checkpoint::gguf::Metadata) -> Result<Self, TokenizerError> {
        Self::assemble(gguf::parts(&gguf::Vocabulary::read(metadata)?)?)
    }

    pub(crate) fn assemble(parts: Parts) -> Result<Self, TokenizerError> {
        let table = Table::new(&parts.vocabulary, &parts.added, &parts.form)?;
        let tokenizer = Self {
            pipeline: Pipeline::new(parts.normalizer, parts.pre_tokenizer, parts.model, &parts.added)?,
            prefix: parts.prefix,
            suffix: parts.suffix,
            bos: parts.bos,
            end: parts.end,
            table,
        };
        for id in tokenizer.prefix.iter().chain(&tokenizer.suffix).chain(&tokenizer.bos).chain(&tokenizer.end) {
            if tokenizer.table.get(*id).is_none() {
                return Err(TokenizerError::invalid("special tokens", UnknownToken(*id).to_string()));
            }
        }
        Ok(tokenizer)
    }

    /// Tokens of a text. With `framed`, those that begin and end every text of the model are added; the first one is
    /// not added again to a text that begins with it, such as a rendered chat template. No added token is found in the
    /// literal ranges of bytes, but for those of white space alone. The ranges are in order and do not overlap.
    ///
    /// # Errors
    /// The text is too long, or a literal range is not one of the text.
    pub fn encode(&self, text: &str, framed: bool, literals: &[Range<usize>]) -> Result<Vec<u32>, EncodeError> {
        if text.len() > LONGEST {
            return Err(EncodeError::Length { bytes: text.len(), most: LONGEST });
        }
        let mut free = 0;
        for &Range { start, end } in literals {
            let valid = free <= start && start <= end && text.is_char_boundary(start) && text.is_char_boundary(end);
            if !valid {
                return Err(EncodeError::Literal { start, end });
            }
            free = end;
        }
        let mut ids = Vec::new();
        if framed {
            ids.extend_from_slice(&self.prefix);
        }
        self.pipeline.encode(text, literals, &mut ids)?;
        if framed {
            if let ([first], Some(bos)) = (self.prefix.as_slice(), self.bos)
                && *first == bos
                && ids.get(1) == Some(&bos)
            {
                ids.remove(0);
            }
            ids.extend_from_slice(&self.suffix);
        }
        Ok(ids)
    }

    /// Text of tokens that are a whole text. Bytes that are no UTF-8 become U+FFFD.
    ///
    /// # Errors
    /// An id is not in the vocabulary.
    pub fn decode(&self, ids: &[u32], special: Special) -> Result<String, UnknownToken> {
        let mut decoder = Decoder::new(Place::Start, special);
        let mut text = String::new();
        for id in ids {
            decoder.push(&self.table, *id, &mut text)?;
        }
        decoder.finish(&mut text);
        Ok(text)
    }

    /// Bytes of a token within a text; of a control token, those of its name. `None`: the id is not in the vocabulary.
    #[must_use]
    pub fn token_bytes(&self, id: u32) -> Option<&[u8]> {
        self.table.get(id)
    }

    /// Returns true for a control token, which is no text.
    #[must_use]
    pub fn is_special(&self, id: u32) -> bool {
        self.table.is_special(id)
    }

    /// Number of ids: one more than the greatest. Some below it may be no token.
    #[must_use]
    pub fn vocabulary(&self) -> usize {
        self.table.size()
    }

    /// Token of a text's begin.
    #[must_use]
    pub fn bos(&self) -> Option<u32> {
        self.bos
    }

    /// Tokens that end a generated text, in rising order.
    #[must_use]
    pub fn end_tokens(&self) -> &[u32] {
        &self.end
    }

    /// Returns true if this token ends a generated text.
    #[must_use]
    pub fn is_end(&self, id: u32) -> bool {
        self.end.binary_search(&id).is_ok()
    }

    /// Bytes of all tokens.
    pub(crate) fn table(&self) -> &Table {
        &self.table
    }
}
