//! Parts of a tokenizer, as both sources of a vocabulary give them.

use crate::added::AddedToken;
use crate::error::TokenizerError;
use tokenizers::{ModelWrapper, NormalizerWrapper, PreTokenizerWrapper};

/// Most token ids of a vocabulary.
pub(crate) const MOST_TOKENS: u32 = 1 << 22;
/// Most ids below the greatest that are no token, beside as many as there are tokens: tables have a place for each id.
const MOST_GAPS: usize = 1 << 16;
/// Most bytes of the texts of all tokens.
const MOST_BYTES: usize = 1 << 28;

/// Parts of a tokenizer.
pub(crate) struct Parts {
    /// Change of a text before all else.
    pub(crate) normalizer: Option<NormalizerWrapper>,
    /// Cut of a text into words.
    pub(crate) pre_tokenizer: Option<PreTokenizerWrapper>,
    /// Tokens of a word.
    pub(crate) model: ModelWrapper,
    /// Tokens of the model with their ids.
    pub(crate) vocabulary: Vec<(String, u32)>,
    /// Tokens that are found before the model sees a text.
    pub(crate) added: Vec<AddedToken>,
    /// Way from a token's text to its bytes.
    pub(crate) form: Form,
    /// Ids before a text.
    pub(crate) prefix: Vec<u32>,
    /// Ids after a text.
    pub(crate) suffix: Vec<u32>,
    /// Token of a text's begin.
    pub(crate) bos: Option<u32>,
    /// Tokens that end a generated text.
    pub(crate) end: Vec<u32>,
}

/// Way from a token's text to its bytes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Form {
    /// Each character stands for a byte, as in GPT-2.
    ByteLevel,
    /// Texts, as in SentencePiece.
    Pieces {
        /// Character that stands for a space.
        space: Option<char>,
        /// Tokens such as `<0x0A>` stand for a byte.
        byte_fallback: bool,
        /// A space at the begin of a text is left out.
        strip: bool,
    },
    /// Words and parts of words, as in BERT.
    Words {
        /// First characters of a part that continues a word.
        prefix: String,
        /// No space before marks of punctuation and English short forms.
        cleanup: bool,
    },
}

/// Number of ids: one more than the greatest.
///
/// # Errors
/// There are none, or they are beyond the bounds, or far apart.
pub(crate) fn size<'a>(tokens: impl Iterator<Item = (&'a str, u32)>) -> Result<usize, TokenizerError> {
    let (mut size, mut count, mut bytes) = (0, 0, 0);
    for (text, id) in tokens {
        if id >= MOST_TOKENS {
            return Err(TokenizerError::invalid(
                "vocabulary",
                format!("a token has the id {id}, beyond {MOST_TOKENS}"),
            ));
        }
        bytes += text.len();
        count += 1;
        size = size.max(id as usize + 1);
    }
    if size > 2 * count + MOST_GAPS {
        let reason = format!("a token has the id {}, and there are {count} tokens", size - 1);
        return Err(TokenizerError::invalid("vocabulary", reason));
    }
    match bytes {
        0 => Err(TokenizerError::invalid("vocabulary", "it is empty")),
        bytes if bytes > MOST_BYTES => {
            Err(TokenizerError::invalid("vocabulary", format!("its texts have {bytes} bytes, more than {MOST_BYTES}")))
        }
        _ => Ok(size),
    }
}
