//! WordPiece (`bert`). Converters write words with `▁` before them, and parts that continue one without `##`.

use super::{Type, Vocabulary};
use crate::byte_pairs::Vocab;
use crate::error::TokenizerError;
use crate::parts::{Form, Parts};
use std::collections::HashMap;
use tokenizers::models::wordpiece::WordPiece;
use tokenizers::normalizers::BertNormalizer;
use tokenizers::pre_tokenizers::bert::BertPreTokenizer;

const CONTINUATION: &str = "##";

pub(super) fn parts(vocabulary: &Vocabulary<'_>) -> Result<Parts, TokenizerError> {
    let mut ids: HashMap<String, u32> = HashMap::with_capacity(vocabulary.tokens.len());
    for (id, text, kind) in vocabulary.typed() {
        let text = match (kind, text.strip_prefix('▁')) {
            (Type::Control, _) => continue,
            (Type::UserDefined, _) => text.to_owned(),
            (_, Some(word)) => word.to_owned(),
            (_, None) => format!("{CONTINUATION}{text}"),
        };
        if !text.is_empty() {
            ids.entry(text).or_insert(id);
        }
    }
    let unknown = vocabulary.unknown.unwrap_or(100);
    let text = vocabulary.text(unknown, "tokenizer.ggml.unknown_token_id")?.to_owned();
    ids.insert(text.clone(), unknown);
    let mut tokens: Vec<(String, u32)> = ids.into_iter().collect();
    tokens.sort_unstable_by(|left, right| left.1.cmp(&right.1).then_with(|| left.0.cmp(&right.0)));
    let model = WordPiece::builder()
        .vocab(tokens.iter().cloned().collect::<Vocab>())
        .unk_token(text)
        .build()
        .map_err(|error| TokenizerError::invalid("model", error.to_string()))?;
    let (prefix, suffix) = vocabulary.frame(true, true)?;
    // Models with capital letters keep them and their accents: their vocabulary has words that begin with one.
    let cased = vocabulary.tokens.iter().any(|token| {
        token.strip_prefix('▁').is_some_and(|word| word.len() > 1 && word.starts_with(char::is_uppercase))
    });
    Ok(Parts {
        normalizer: Some(BertNormalizer::new(true, true, None, !cased).into()),
        pre_tokenizer: Some(BertPreTokenizer.into()),
        model: model.into(),
        vocabulary: tokens,
        added: vocabulary.added(),
        form: Form::Words { prefix: CONTINUATION.to_owned(), cleanup: true },
        prefix,
        suffix,
        bos: None,
        end: vocabulary.end(),
    })
}
