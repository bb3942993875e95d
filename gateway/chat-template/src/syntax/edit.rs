//! Changes of a text at several places.

use crate::syntax::token::Token;
use std::borrow::Cow;

/// Change of a text.
#[derive(Debug)]
pub(crate) struct Edit {
    at: usize,
    /// Order of edits at one place: ends of calls before beginnings, inner ends first, outer beginnings first.
    rank: u8,
    /// Length of what is replaced.
    removed: usize,
    text: String,
}

impl Edit {
    /// Beginning of a call; 0 is the outermost.
    pub(crate) fn open(at: usize, rank: u8, text: String) -> Self {
        Self { at, rank: 2 + rank, removed: 0, text }
    }

    /// End of a call; 0 is the innermost.
    pub(crate) fn close(at: usize, rank: u8, text: &str) -> Self {
        Self { at, rank, removed: 0, text: text.to_owned() }
    }

    /// Another text for a token.
    pub(crate) fn replace(token: &Token<'_>, text: &str) -> Self {
        Self { at: token.at, rank: u8::MAX, removed: token.text.len(), text: text.to_owned() }
    }
}

/// The text with all changes.
pub(crate) fn edited(text: &str, mut edits: Vec<Edit>) -> Cow<'_, str> {
    if edits.is_empty() {
        return Cow::Borrowed(text);
    }
    edits.sort_by_key(|edit| (edit.at, edit.rank));
    let mut out = String::with_capacity(text.len() + 32 * edits.len());
    let mut done = 0;
    for edit in edits {
        out.push_str(text.get(done..edit.at).unwrap_or(""));
        out.push_str(&edit.text);
        done = edit.at + edit.removed;
    }
    out.push_str(text.get(done..).unwrap_or(""));
    Cow::Owned(out)
}
