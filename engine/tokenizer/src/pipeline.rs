//! Encoding of a text: added tokens are cut out, the rest goes through normaliser, pre-tokeniser and model.

use crate::added::{AddedToken, Finder, Finders, Match};
use crate::error::{EncodeError, TokenizerError};
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};
use tokenizers::normalizer::Range as Part;
use tokenizers::{
    Model, ModelWrapper, NormalizedString, Normalizer, NormalizerWrapper, OffsetReferential, OffsetType,
    PreTokenizedString, PreTokenizer, PreTokenizerWrapper, Token,
};

/// Piece of a text: not yet tokenised, or an added token.
type Piece = (NormalizedString, Option<Vec<Token>>);

/// Stages of an encoding.
pub(crate) struct Pipeline {
    normalizer: Option<NormalizerWrapper>,
    pre_tokenizer: Option<PreTokenizerWrapper>,
    model: ModelWrapper,
    finders: Finders,
}

impl Pipeline {
    pub(crate) fn new(
        normalizer: Option<NormalizerWrapper>,
        pre_tokenizer: Option<PreTokenizerWrapper>,
        model: ModelWrapper,
        added: &[AddedToken],
    ) -> Result<Self, TokenizerError> {
        let finders = guarded(|| Ok(Finders::new(added, normalizer.as_ref())))
            .map_err(|error| TokenizerError::invalid("normalizer", error))??;
        Ok(Self { normalizer, pre_tokenizer, model, finders })
    }

    /// Encodes a text whose literal ranges are in order and within it.
    pub(crate) fn encode(&self, text: &str, literals: &[Range<usize>], ids: &mut Vec<u32>) -> Result<(), EncodeError> {
        let mut pieces = PreTokenizedString::from(text);
        guarded(|| {
            pieces.split(|_, text| self.cut_plain(text, literals))?;
            pieces.split(|_, text| self.cut_normalised(text, literals))?;
            if let Some(pre_tokenizer) = &self.pre_tokenizer {
                pre_tokenizer.pre_tokenize(&mut pieces)?;
            }
            pieces.tokenize(|piece| self.model.tokenize(piece.get()))
        })
        .map_err(EncodeError::Model)?;
        let splits = pieces.get_splits(OffsetReferential::Normalized, OffsetType::None);
        ids.extend(splits.into_iter().filter_map(|(_, _, tokens)| tokens.as_ref()).flatten().map(|token| token.id));
        Ok(())
    }

    fn cut_plain(&self, text: NormalizedString, literals: &[Range<usize>]) -> tokenizers::Result<Vec<Piece>> {
        let mut found = Vec::new();
        let mut find = |finder: &Option<Finder>, range: Range<usize>| {
            if let Some(finder) = finder {
                finder.find(text.get(), range, &mut found);
            }
        };
        let mut start = 0;
        for literal in literals {
            find(&self.finders.plain, start..literal.start);
            find(&self.finders.blank, literal.clone());
            start = literal.end;
        }
        find(&self.finders.plain, start..text.get().len());
        cut(text, &found)
    }

    fn cut_normalised(&self, mut text: NormalizedString, literals: &[Range<usize>]) -> tokenizers::Result<Vec<Piece>> {
        if let Some(normalizer) = &self.normalizer {
            normalizer.normalize(&mut text)?;
        }
        let mut found = Vec::new();
        if let Some(finder) = &self.finders.normalised {
            finder.find(text.get(), 0..text.get().len(), &mut found);
            found.retain(|found| {
                let original = text.slice(Part::Normalized(found.range.clone())).map(|part| part.offsets_original());
                original.is_some_and(|(start, end)| {
                    let next = literals.partition_point(|literal| literal.end <= start);
                    literals.get(next).is_none_or(|literal| literal.start >= end)
                })
            });
        }
        cut(text, &found)
    }
}

/// Cuts a text at the tokens found in it.
fn cut(text: NormalizedString, found: &[Match]) -> tokenizers::Result<Vec<Piece>> {
    if found.is_empty() {
        return Ok(vec![(text, None)]);
    }
    let slice = |range: Range<usize>| text.slice(Part::Normalized(range)).ok_or("a piece beyond the text");
    let mut pieces = Vec::with_capacity(2 * found.len() + 1);
    let mut start = 0;
    for Match { range, id } in found {
        if start < range.start {
            pieces.push((slice(start..range.start)?, None));
        }
        pieces.push((slice(range.clone())?, Some(vec![Token::new(*id, String::new(), (0, range.len()))])));
        start = range.end;
    }
    if start < text.get().len() {
        pieces.push((slice(start..text.get().len())?, None));
    }
    Ok(pieces)
}

/// Runs code of the `tokenizers` crate on foreign patterns and vocabularies, which it does not check in every place: a
/// panic there becomes a failure.
fn guarded<T>(run: impl FnOnce() -> tokenizers::Result<T>) -> Result<T, String> {
    match catch_unwind(AssertUnwindSafe(run)) {
        Ok(result) => result.map_err(|error| error.to_string()),
        Err(_) => Err("the tokenizer's own parts contradict each other".to_owned()),
    }
}
