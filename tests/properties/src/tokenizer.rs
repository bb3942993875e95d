//! Tokenizers of foreign files: refused with a sentence, or texts become tokens and tokens texts.

use crate::{memory, sentence};
use omni_tokenizer::{Detokenizer, Place, Special, Tokenizer, TokenizerConfig, TokenizerError};
use std::collections::BTreeSet;
use std::slice;
use std::sync::Arc;

/// Between `tokenizer.json`, a text, `tokenizer_config.json`, `generation_config.json` and `config.json`.
const SEPARATOR: u8 = 0;
/// Bytes of memory for each byte of the file, and those that the parts of any tokenizer take.
const FACTOR: usize = 1024;
const BASE: usize = 8 << 20;

/// Reads a tokenizer and encodes a text.
///
/// # Panics
/// A refusal is no sentence, more memory is taken than the file's size allows, or tokens of a text are not those of the
/// vocabulary, or others the second time.
pub fn holds(data: &[u8]) {
    let parts: Vec<_> = data.splitn(5, |byte| *byte == SEPARATOR).map(String::from_utf8_lossy).collect();
    let part = |number: usize| parts.get(number).map(|part| &**part).filter(|part| !part.is_empty());
    let config = match TokenizerConfig::read(part(2), part(3), part(4)) {
        Ok(config) => config,
        Err(error) => return sentence::holds(&error.to_string()),
    };
    let json = part(0).unwrap_or_default();
    if let Some(tokenizer) = built(data.len(), || Tokenizer::from_json(json, &config)) {
        works(tokenizer, part(1).unwrap_or("The cost is 1,024 €."));
    }
}

/// Builds a tokenizer of a file of so many bytes. `None`: it is refused.
pub(crate) fn built(size: usize, build: impl FnOnce() -> Result<Tokenizer, TokenizerError>) -> Option<Tokenizer> {
    match memory::at_most(BASE + FACTOR * size, build) {
        Ok(tokenizer) => Some(tokenizer),
        Err(error) => {
            sentence::holds(&error.to_string());
            None
        }
    }
}

/// Encodes a text, as a whole and as a literal, and decodes its tokens.
pub(crate) fn works(tokenizer: Tokenizer, text: &str) {
    let known = |id: &u32| (*id as usize) < tokenizer.vocabulary() && tokenizer.token_bytes(*id).is_some();
    assert!(tokenizer.end_tokens().iter().chain(&tokenizer.bos()).all(known));
    assert!(tokenizer.end_tokens().is_sorted() && tokenizer.end_tokens().iter().all(|id| tokenizer.is_end(*id)));
    let mut encoded = Vec::new();
    let whole = 0..text.len();
    for (framed, literals) in [(true, [].as_slice()), (false, slice::from_ref(&whole))] {
        match tokenizer.encode(text, framed, literals) {
            Ok(ids) => {
                assert!(ids.iter().all(known), "tokens outside of the vocabulary: {ids:?}");
                assert_eq!(tokenizer.encode(text, framed, literals).as_ref(), Ok(&ids), "other tokens the second time");
                encoded.push(ids);
            }
            Err(error) => sentence::holds(&error.to_string()),
        }
    }
    if let [_, literal] = encoded.as_slice() {
        // The unknown token is the only one of control that a literal text can have.
        let control: BTreeSet<u32> = literal.iter().copied().filter(|id| tokenizer.is_special(*id)).collect();
        assert!(control.len() <= 1, "control tokens {control:?} of a literal text");
    }
    let tokenizer = Arc::new(tokenizer);
    for ids in &encoded {
        decodes(&tokenizer, ids);
    }
}

/// Texts of tokens one by one are the text of all of them.
fn decodes(tokenizer: &Arc<Tokenizer>, ids: &[u32]) {
    for special in [Special::Hidden, Special::Shown] {
        let whole = tokenizer.decode(ids, special).expect("known tokens");
        let mut detokenizer = Detokenizer::new(Arc::clone(tokenizer), Place::Start, special);
        let mut joined = String::new();
        for id in ids {
            detokenizer.push(*id, &mut joined).expect("known tokens");
        }
        detokenizer.finish(&mut joined);
        assert_eq!(joined, whole);
    }
    assert!(tokenizer.decode(&[u32::MAX], Special::Shown).is_err());
}
