//! Added tokens, which are found in a text before the model sees it.

use crate::error::TokenizerError;
use aho_corasick::{AhoCorasick, MatchKind};
use std::collections::HashSet;
use std::ops::Range;
use tokenizers::{NormalizedString, Normalizer, NormalizerWrapper};

/// Longest text of an added token, in bytes.
const LONGEST: usize = 4096;
/// Most added tokens.
const MOST: usize = 1 << 18;

/// Added token.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct AddedToken {
    /// Id.
    pub(crate) id: u32,
    /// Text.
    pub(crate) text: String,
    /// Control token, which is no text in an answer.
    pub(crate) special: bool,
    /// Found in the normalised text.
    pub(crate) normalized: bool,
    /// Found between characters that are not of a word only.
    pub(crate) single_word: bool,
    /// Takes the white space before it.
    pub(crate) left: bool,
    /// Takes the white space after it.
    pub(crate) right: bool,
}

impl AddedToken {
    /// Token that is found wherever its text is.
    pub(crate) fn plain(id: u32, text: &str, special: bool) -> Self {
        Self { id, text: text.to_owned(), special, normalized: false, single_word: false, left: false, right: false }
    }
}

/// Token in a text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Match {
    /// Bytes of the text, white space that it takes included.
    pub(crate) range: Range<usize>,
    /// Id.
    pub(crate) id: u32,
}

/// Search for added tokens, the leftmost and longest first.
pub(crate) struct Finder {
    automaton: AhoCorasick,
    tokens: Vec<AddedToken>,
}

/// Searches of a vocabulary.
#[derive(Default)]
pub(crate) struct Finders {
    /// For all tokens that are looked for in a text as it is.
    pub(crate) plain: Option<Finder>,
    /// For those of them that are white space, such as runs of line ends, which are in literal ranges too.
    pub(crate) blank: Option<Finder>,
    /// For all tokens that are looked for in a normalised text.
    pub(crate) normalised: Option<Finder>,
}

impl Finders {
    pub(crate) fn new(tokens: &[AddedToken], normalizer: Option<&NormalizerWrapper>) -> Result<Self, TokenizerError> {
        let mut seen = HashSet::new();
        let mut plain = Vec::new();
        let mut normalised = Vec::new();
        for token in tokens {
            if token.text.is_empty() || token.text.len() > LONGEST {
                let reason = format!("the text of token {} is empty or longer than {LONGEST} bytes", token.id);
                return Err(TokenizerError::invalid("added_tokens", reason));
            }
            if !seen.insert(token.text.as_str()) {
                continue;
            }
            match normalizer.filter(|_| token.normalized) {
                Some(normalizer) => {
                    let mut text = NormalizedString::from(token.text.as_str());
                    normalizer
                        .normalize(&mut text)
                        .map_err(|error| TokenizerError::invalid("normalizer", error.to_string()))?;
                    if !text.get().is_empty() {
                        normalised.push(AddedToken { text: text.get().to_owned(), ..token.clone() });
                    }
                }
                None => plain.push(token.clone()),
            }
        }
        let blank = |token: &&AddedToken| !token.special && token.text.trim().is_empty();
        Ok(Self {
            blank: Finder::new(plain.iter().filter(blank).cloned().collect())?,
            plain: Finder::new(plain)?,
            normalised: Finder::new(normalised)?,
        })
    }
}

impl Finder {
    fn new(tokens: Vec<AddedToken>) -> Result<Option<Self>, TokenizerError> {
        if tokens.is_empty() {
            return Ok(None);
        }
        let invalid = |reason: String| TokenizerError::invalid("added_tokens", reason);
        if tokens.len() > MOST {
            return Err(invalid(format!("there are {}, more than {MOST}", tokens.len())));
        }
        let automaton = AhoCorasick::builder()
            .match_kind(MatchKind::LeftmostLongest)
            .build(tokens.iter().map(|token| &token.text))
            .map_err(|error| invalid(error.to_string()))?;
        Ok(Some(Self { automaton, tokens }))
    }

    /// Finds tokens within a range of a text, in order, without overlaps.
    pub(crate) fn find(&self, text: &str, within: Range<usize>, found: &mut Vec<Match>) {
        let mut free = within.start;
        for hit in self.automaton.find_iter(&text[within.clone()]) {
            let (start, end) = (within.start + hit.start(), within.start + hit.end());
            let Some(token) = self.tokens.get(hit.pattern().as_usize()).filter(|_| start >= free) else { continue };
            let (before, after) = (&text[free..start], &text[end..within.end]);
            if token.single_word
                && (text[..start].chars().next_back().is_some_and(is_of_word)
                    || text[end..].chars().next().is_some_and(is_of_word))
            {
                continue;
            }
            let start = if token.left { free + before.trim_end().len() } else { start };
            let end = if token.right { within.end - after.trim_start().len() } else { end };
            found.push(Match { range: start..end, id: token.id });
            free = end;
        }
    }
}

fn is_of_word(char: char) -> bool {
    char.is_alphanumeric() || char == '_'
}
