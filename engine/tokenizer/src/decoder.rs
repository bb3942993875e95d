//! Whole characters from the bytes of tokens.

use crate::bytes::{Place, Table};
use crate::error::UnknownToken;

/// Control tokens in a decoded text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Special {
    /// Control tokens are no text.
    Hidden,
    /// Control tokens are written as their names.
    Shown,
}

/// State of a decoder.
#[derive(Debug, Clone)]
pub(crate) struct Decoder {
    special: Special,
    /// First bytes of a character, at most 3 between two tokens.
    pending: Vec<u8>,
    /// No byte has come yet, and a space would be left out.
    at_start: bool,
}

impl Decoder {
    pub(crate) fn new(place: Place, special: Special) -> Self {
        Self { special, pending: Vec::new(), at_start: place == Place::Start }
    }

    pub(crate) fn push(&mut self, table: &Table, id: u32, text: &mut String) -> Result<(), UnknownToken> {
        let mut bytes = table.get(id).ok_or(UnknownToken(id))?;
        if self.special == Special::Hidden && table.is_special(id) {
            return Ok(());
        }
        if self.at_start && !bytes.is_empty() {
            self.at_start = false;
            if table.strips() {
                bytes = bytes.strip_prefix(b" ").unwrap_or(bytes);
            }
        }
        self.pending.extend_from_slice(bytes);
        self.take(text);
        Ok(())
    }

    pub(crate) fn finish(&mut self, text: &mut String) {
        if !self.pending.is_empty() {
            self.pending.clear();
            text.push(char::REPLACEMENT_CHARACTER);
        }
    }

    /// Returns true if bytes of a character are kept back.
    pub(crate) fn is_pending(&self) -> bool {
        !self.pending.is_empty()
    }

    /// Moves whole characters out, with U+FFFD for each greatest part of one that cannot become whole.
    fn take(&mut self, text: &mut String) {
        let mut taken = 0;
        for chunk in self.pending.utf8_chunks() {
            text.push_str(chunk.valid());
            taken += chunk.valid().len();
            let invalid = chunk.invalid();
            if invalid.is_empty() {
                break;
            }
            let incomplete = std::str::from_utf8(invalid).is_err_and(|error| error.error_len().is_none());
            if incomplete && taken + invalid.len() == self.pending.len() {
                break;
            }
            text.push(char::REPLACEMENT_CHARACTER);
            taken += invalid.len();
        }
        self.pending.drain(..taken);
    }
}
