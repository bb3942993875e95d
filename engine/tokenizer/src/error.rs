//! Failures of a vocabulary and of a text.

/// Characters of a value in a message.
const VALUE: usize = 80;
/// Characters of a reason that quotes a file.
const REASON: usize = 200;

/// Failure of a vocabulary.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum TokenizerError {
    /// A file is not JSON of the form that it should have.
    #[error("{file} is not understood: {reason}")]
    File {
        /// Name of the file.
        file: &'static str,
        /// Cause.
        reason: String,
    },
    /// A part of the tokenizer has a form that is not supported.
    #[error("{part} {value} is not supported; supported are: {supported}")]
    Unsupported {
        /// Part.
        part: String,
        /// Form that it has.
        value: String,
        /// Supported forms.
        supported: String,
    },
    /// A part of the tokenizer contradicts another, or is beyond a bound.
    #[error("{part}: {reason}")]
    Invalid {
        /// Part.
        part: String,
        /// Cause.
        reason: String,
    },
}

impl TokenizerError {
    pub(crate) fn file(file: &'static str, reason: impl std::fmt::Display) -> Self {
        Self::File { file, reason: excerpt(&reason.to_string(), REASON) }
    }

    pub(crate) fn invalid(part: impl Into<String>, reason: impl Into<String>) -> Self {
        Self::Invalid { part: part.into(), reason: reason.into() }
    }

    pub(crate) fn unsupported(part: impl Into<String>, value: impl Into<String>, supported: &[&str]) -> Self {
        Self::Unsupported { part: part.into(), value: shorten(&value.into()), supported: supported.join(", ") }
    }
}

/// First part of a foreign text, for a message.
pub(crate) fn shorten(text: &str) -> String {
    excerpt(text, VALUE)
}

/// First characters of a foreign text, on one line.
fn excerpt(text: &str, length: usize) -> String {
    let shown = |character: char| if character.is_control() { char::REPLACEMENT_CHARACTER } else { character };
    let rest = text.chars().nth(length).map(|_| '…');
    text.chars().take(length).map(shown).chain(rest).collect()
}

/// Failure of a text.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum EncodeError {
    /// The text is too long.
    #[error("the text has {bytes} bytes, more than {most}")]
    Length {
        /// Bytes of the text.
        bytes: usize,
        /// Most bytes.
        most: usize,
    },
    /// A literal range is not one of the text: beyond its end, within a character, or before the one before it.
    #[error("the literal range from byte {start} to {end} is not one of the text")]
    Literal {
        /// First byte.
        start: usize,
        /// Byte after the last.
        end: usize,
    },
    /// The vocabulary cannot write the text.
    #[error("the text cannot be tokenised: {0}")]
    Model(String),
}

/// A token id that the vocabulary does not have.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("token id {0} is not in the vocabulary")]
pub struct UnknownToken(pub u32);
