//! SentencePiece's byte pairs (`llama`): tokens have scores, and of two neighbours those become one whose joined text
//! has the highest.

use super::{Type, Vocabulary};
use crate::byte_pairs::{BytePairs, Vocab};
use crate::bytes::byte_of;
use crate::error::{TokenizerError, shorten};
use crate::parts::{Form, Parts};
use tokenizers::NormalizerWrapper;
use tokenizers::normalizers::prepend::Prepend;
use tokenizers::normalizers::replace::Replace;
use tokenizers::normalizers::utils::Sequence;

/// Character that stands for a space.
const SPACE: char = '▁';
/// Longest token, in bytes: the merges of a token are as many as its characters.
const LONGEST: usize = 1024;
/// Most bytes of all merges for each byte of the vocabulary, and for a small one. Words have few merges, runs of a
/// character as many as characters, and merges of tokens that are ever longer runs grow with the cube of the longest.
const MOST_GROWTH: usize = 64;
const SMALL: usize = 1 << 20;
/// Bytes of a token beside its text: length, score and type in the file, or places of a merge in memory.
const OVERHEAD: usize = 16;

pub(super) fn parts(vocabulary: &Vocabulary<'_>) -> Result<Parts, TokenizerError> {
    if vocabulary.scores.is_empty() && !vocabulary.tokens.is_empty() {
        return Err(TokenizerError::invalid("tokenizer.ggml.scores", "they are absent"));
    }
    let mut ids = Vocab::with_capacity(vocabulary.tokens.len());
    for (id, text, kind) in vocabulary.typed() {
        let of_model = matches!(kind, Type::Normal | Type::Byte | Type::Unused) && !text.is_empty();
        if of_model && text.len() > LONGEST {
            let reason = format!("token {id}, {:?}, has more than {LONGEST} bytes", shorten(text));
            return Err(TokenizerError::invalid("tokenizer.ggml.tokens", reason));
        }
        if of_model {
            ids.entry(text.to_owned()).or_insert(id);
        }
    }
    let merges = merges(vocabulary, &ids)?;
    let unknown = vocabulary.unknown.unwrap_or(0);
    let text = vocabulary.text(unknown, "tokenizer.ggml.unknown_token_id")?;
    ids.entry(text.to_owned()).or_insert(unknown);
    let mut tokens: Vec<(String, u32)> = ids.iter().map(|(text, id)| (text.clone(), *id)).collect();
    tokens.sort_unstable_by_key(|(_, id)| *id);
    let space_first = vocabulary.add_space_prefix.unwrap_or(true);
    let model = BytePairs {
        vocabulary: ids,
        merges,
        unknown: Some(text.to_owned()),
        fuse_unknown: true,
        byte_fallback: true,
        whole_words: false,
    };
    let (prefix, suffix) = vocabulary.frame(true, false)?;
    Ok(Parts {
        normalizer: Some(normalizer(space_first)?),
        pre_tokenizer: None,
        model: model.build()?,
        vocabulary: tokens,
        added: vocabulary.added(),
        form: Form::Pieces { space: Some(SPACE), byte_fallback: true, strip: space_first },
        prefix,
        suffix,
        bos: vocabulary.bos,
        end: vocabulary.end(),
    })
}

fn normalizer(space_first: bool) -> Result<NormalizerWrapper, TokenizerError> {
    let space = SPACE.to_string();
    let replace =
        Replace::new(" ", space.clone()).map_err(|error| TokenizerError::invalid("normaliser", error.to_string()))?;
    Ok(match space_first {
        true => Sequence::new(vec![Prepend::new(space).into(), replace.into()]).into(),
        false => replace.into(),
    })
}

/// Pairs of tokens whose joined text is a token, those with the highest score first.
fn merges(vocabulary: &Vocabulary<'_>, ids: &Vocab) -> Result<Vec<(String, String)>, TokenizerError> {
    let most = SMALL + MOST_GROWTH * vocabulary.tokens.iter().map(|text| text.len() + OVERHEAD).sum::<usize>();
    let mut bytes = 0;
    let mut pairs: Vec<(f32, u32, u32, &str, usize)> = Vec::new();
    for (id, text, kind) in vocabulary.typed() {
        if kind != Type::Normal || byte_of(text).is_some() || ids.get(text) != Some(&id) {
            continue;
        }
        let score = vocabulary.scores.get(id as usize).copied().unwrap_or_default();
        for (at, _) in text.char_indices().skip(1) {
            if let (Some(left), Some(right)) = (ids.get(&text[..at]), ids.get(&text[at..])) {
                pairs.push((score, *left, *right, text, at));
                bytes += text.len() + OVERHEAD;
            }
        }
        if bytes > most {
            let reason = format!("the merges of the first {id} tokens have {bytes} bytes, more than {most}");
            return Err(TokenizerError::invalid("tokenizer.ggml.tokens", reason));
        }
    }
    pairs.sort_by(|left, right| right.0.total_cmp(&left.0).then_with(|| (left.1, left.2).cmp(&(right.1, right.2))));
    Ok(pairs.into_iter().map(|(_, _, _, text, at)| (text[..at].to_owned(), text[at..].to_owned())).collect())
}
