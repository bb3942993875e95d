//! Grammar of one choice, token by token.

use crate::error::SampleError;
use crate::grammar::error::GrammarError;
use llguidance::Matcher;
use std::sync::Arc;
use toktrie::SimpleVob;

/// Most tokens of a marker after which a grammar begins.
const LONGEST_MARKER: usize = 64;

/// Grammar of an answer, at a position of it. A clone is for another choice.
#[derive(Clone)]
pub struct Grammar {
    matcher: Matcher,
    marker: Option<Marker>,
    /// Mask of the next position, once computed.
    mask: Option<SimpleVob>,
}

/// Tokens that a grammar allows at a position.
pub(crate) enum GrammarMask<'a> {
    /// A bit for each id.
    Tokens(&'a [u32]),
    /// All but end tokens: the grammar has not begun.
    NotYet,
}

/// Tokens after which a grammar begins, of which some have been seen.
#[derive(Debug, Clone)]
struct Marker {
    tokens: Arc<[u32]>,
    seen: usize,
}

impl Marker {
    /// Moves on by a token. Returns true if it is the last of the marker.
    fn accept(&mut self, token: u32) -> bool {
        // Longest beginning of the marker that ends with the token and with what was seen before it.
        let seen = (0..=self.seen).rev().find(|&length| {
            self.tokens[length] == token && self.tokens[..length] == self.tokens[self.seen - length..self.seen]
        });
        self.seen = seen.map_or(0, |length| length + 1);
        self.seen == self.tokens.len()
    }
}

impl std::fmt::Debug for Grammar {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("Grammar").field("marker", &self.marker).finish_non_exhaustive()
    }
}

impl Grammar {
    pub(crate) fn new(matcher: Matcher) -> Self {
        Self { matcher, marker: None, mask: None }
    }

    /// The grammar, to begin with the token after a marker, such as the end of reasoning. Before it all tokens are
    /// allowed but end tokens: the answer does not end without what was asked for.
    ///
    /// # Errors
    /// The marker has no tokens or more than 64.
    pub fn after(mut self, marker: &[u32]) -> Result<Self, GrammarError> {
        if marker.is_empty() || marker.len() > LONGEST_MARKER {
            return Err(GrammarError::Marker(marker.len()));
        }
        self.marker = Some(Marker { tokens: marker.into(), seen: 0 });
        Ok(self)
    }

    /// Computes the mask of the next position.
    pub(crate) fn prepare(&mut self) -> Result<(), SampleError> {
        if self.marker.is_none() && self.mask.is_none() {
            self.mask = Some(self.matcher.compute_mask().map_err(failure)?);
        }
        Ok(())
    }

    /// Tokens that are allowed at the next position.
    pub(crate) fn mask(&mut self) -> Result<GrammarMask<'_>, SampleError> {
        self.prepare()?;
        Ok(self.mask.as_ref().map_or(GrammarMask::NotYet, |mask| GrammarMask::Tokens(mask.as_slice())))
    }

    /// Moves on by a token. Returns true if the answer is complete and nothing more may follow.
    pub(crate) fn accept(&mut self, token: u32) -> Result<bool, SampleError> {
        if let Some(marker) = &mut self.marker {
            if marker.accept(token) {
                self.marker = None;
            }
            return Ok(false);
        }
        self.mask = None;
        if self.matcher.try_consume_tokens(&[token]).map_err(failure)? == 0 {
            return Err(SampleError::Grammar(format!("token id {token} is not allowed here")));
        }
        Ok(self.matcher.is_stopped())
    }

    /// Number of tokens at the beginning of a draft that are allowed one after the other.
    pub(crate) fn plausible(&mut self, draft: &[u32]) -> usize {
        let mut before = 0;
        if let Some(mut marker) = self.marker.clone() {
            match draft.iter().position(|&token| marker.accept(token)) {
                Some(last) => before = last + 1,
                None => return draft.len(),
            }
        }
        before + self.matcher.validate_tokens(&draft[before..]).unwrap_or(0)
    }
}

/// First line of a message: further ones describe the parser.
fn failure(error: impl std::fmt::Display) -> SampleError {
    SampleError::Grammar(error.to_string().lines().next().unwrap_or_default().to_owned())
}
