//! Draft models: those whose tokens are the model's.

use super::{LoadOptions, Model, ModelError};
use crate::engine::Draft;
use std::path::Path;

/// Reason why a draft model cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum DraftError {
    /// Files that cannot be used.
    #[error(transparent)]
    Model(#[from] ModelError),
    /// A model that makes vectors, or the draft model of one.
    #[error("drafts are of models that make text, for models that make text")]
    Embeds,
    /// Vocabularies of other sizes.
    #[error("the draft model has a vocabulary of {draft} tokens and the model one of {model}: they have to be equal")]
    Size {
        /// Tokens of the model.
        model: usize,
        /// Tokens of the draft model.
        draft: usize,
    },
    /// Vocabularies of one size and with other tokens.
    #[error(
        "token {id} of the draft model is another one than that of the model: their {size} tokens have to be equal"
    )]
    Token {
        /// First token that differs.
        id: u32,
        /// Size of both vocabularies.
        size: usize,
    },
}

/// Opens the draft model of a model.
///
/// # Errors
/// A file cannot be read or is not understood, or the tokens of both are not the same.
pub fn open_draft(model: &Model, path: &Path) -> Result<Model, DraftError> {
    let draft = Model::open(path)?;
    check(model, &draft)?;
    Ok(draft)
}

/// Loads the weights of a draft model.
///
/// # Errors
/// A tensor does not fit the description, or there is no memory.
pub fn load_draft(draft: &Model, options: &LoadOptions) -> Result<Draft, ModelError> {
    let backend = Box::new(draft.load(options, &mut |_, _| {})?);
    Ok(Draft { backend, context: draft.spec.context })
}

/// Compares the tokens of two models.
fn check(model: &Model, draft: &Model) -> Result<(), DraftError> {
    if model.embeds() || draft.embeds() {
        return Err(DraftError::Embeds);
    }
    let sizes = [model, draft].map(|model| (model.vocabulary.size(), model.tokenizer.vocabulary()));
    if sizes[0] != sizes[1] {
        // The tokens of the tokenizer are more where the matrices have no rows for some.
        let [model, draft] =
            if sizes[0].0 == sizes[1].0 { sizes.map(|sizes| sizes.1) } else { sizes.map(|sizes| sizes.0) };
        return Err(DraftError::Size { model, draft });
    }
    let size = model.vocabulary.size();
    let token = |model: &Model, id: u32| {
        let bytes = model.tokenizer.token_bytes(id).map(<[u8]>::to_vec);
        (bytes, model.tokenizer.is_special(id), model.vocabulary.end_tokens().contains(&id))
    };
    let ids = 0..u32::try_from(size).unwrap_or(u32::MAX);
    match ids.into_iter().find(|id| token(model, *id) != token(draft, *id)) {
        Some(id) => Err(DraftError::Token { id, size }),
        None => Ok(()),
    }
}
