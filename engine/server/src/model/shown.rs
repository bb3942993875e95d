//! Tokens as clients see them.

use omni_tokenizer::Tokenizer;
use std::borrow::Cow;

/// Text of a token, the name of a control token included, and its bytes where they are no whole characters.
pub(crate) fn shown(tokenizer: &Tokenizer, id: u32) -> (String, Option<Vec<u8>>) {
    let bytes = tokenizer.token_bytes(id).unwrap_or_default();
    match String::from_utf8_lossy(bytes) {
        Cow::Borrowed(text) => (text.to_owned(), None),
        Cow::Owned(text) => (text, Some(bytes.to_vec())),
    }
}
