//! Text of tokens that come one by one.

use crate::bytes::Place;
use crate::decoder::{Decoder, Special};
use crate::error::UnknownToken;
use crate::tokenizer::Tokenizer;
use std::sync::Arc;

/// Decoder of one sequence of tokens: whole characters come out as soon as they are there.
#[derive(Debug, Clone)]
pub struct Detokenizer {
    tokenizer: Arc<Tokenizer>,
    decoder: Decoder,
}

impl Detokenizer {
    /// Decoder of tokens of which the first one is at this place.
    #[must_use]
    pub fn new(tokenizer: Arc<Tokenizer>, place: Place, special: Special) -> Self {
        Self { tokenizer, decoder: Decoder::new(place, special) }
    }

    /// Appends the text that a further token completes. Bytes of a character that is not complete are kept back; those
    /// that are no UTF-8 become U+FFFD.
    ///
    /// # Errors
    /// The id is not in the vocabulary; the decoder is as before.
    pub fn push(&mut self, id: u32, text: &mut String) -> Result<(), UnknownToken> {
        self.decoder.push(self.tokenizer.table(), id, text)
    }

    /// Appends what was kept back: U+FFFD for a character that is not complete.
    pub fn finish(&mut self, text: &mut String) {
        self.decoder.finish(text);
    }

    /// Returns true if bytes of a character are kept back.
    #[must_use]
    pub fn is_pending(&self) -> bool {
        self.decoder.is_pending()
    }
}
