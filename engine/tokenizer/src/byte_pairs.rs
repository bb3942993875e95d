//! Byte-pair models, checked before they are built: the `tokenizers` crate relies on merges that fit the vocabulary.

use crate::error::{TokenizerError, shorten};
use tokenizers::ModelWrapper;
use tokenizers::models::bpe::BPE;
pub(crate) use tokenizers::models::bpe::Vocab;

/// Most merges of a model.
const MOST_MERGES: usize = 1 << 22;

/// Most words whose tokens each thread keeps: a word of 255 bytes takes some 8 KB, and a vocabulary that does not split
/// texts into words has whole texts for words.
const KEPT_WORDS: usize = 1024;

/// Byte-pair model before it is built.
pub(crate) struct BytePairs {
    /// Tokens with their ids.
    pub(crate) vocabulary: Vocab,
    /// Pairs that become one token, the first ones before the others.
    pub(crate) merges: Vec<(String, String)>,
    /// Token for characters that the vocabulary does not have.
    pub(crate) unknown: Option<String>,
    /// Unknown characters in succession become a single token.
    pub(crate) fuse_unknown: bool,
    /// Tokens of bytes, such as `<0x0A>`, for characters that the vocabulary does not have.
    pub(crate) byte_fallback: bool,
    /// A word that is in the vocabulary is one token, whatever the merges say.
    pub(crate) whole_words: bool,
}

impl BytePairs {
    pub(crate) fn build(self) -> Result<ModelWrapper, TokenizerError> {
        let vocabulary = self.vocabulary;
        if self.merges.len() > MOST_MERGES {
            let reason = format!("there are {}, more than {MOST_MERGES}", self.merges.len());
            return Err(TokenizerError::invalid("merges", reason));
        }
        let mut joined = String::new();
        for (number, (left, right)) in self.merges.iter().enumerate() {
            joined.clear();
            joined.push_str(left);
            joined.push_str(right);
            for part in [left, right, &joined] {
                if part.is_empty() || !vocabulary.contains_key(part) {
                    let reason = format!("number {number} needs the token {:?}, which is missing", shorten(part));
                    return Err(TokenizerError::invalid("merges", reason));
                }
            }
        }
        let mut builder = BPE::builder()
            .cache_capacity(KEPT_WORDS)
            .fuse_unk(self.fuse_unknown)
            .byte_fallback(self.byte_fallback)
            .ignore_merges(self.whole_words);
        if let Some(unknown) = self.unknown {
            if !vocabulary.contains_key(&unknown) {
                let reason = format!("{:?} is not in the vocabulary", shorten(&unknown));
                return Err(TokenizerError::invalid("unknown token", reason));
            }
            builder = builder.unk_token(unknown);
        }
        let model = builder.vocab_and_merges(vocabulary, self.merges).build();
        model.map(ModelWrapper::from).map_err(|error| TokenizerError::invalid("model", error.to_string()))
    }
}
