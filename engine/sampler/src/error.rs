//! Reasons why a choice cannot go on.

/// Reason why a choice cannot go on. Other choices are not concerned.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SampleError {
    /// All logits are -∞, or parameters and grammar exclude all others.
    #[error("no token can be sampled: the model, the request's parameters and its grammar exclude all")]
    NothingLeft,
    /// The row is shorter than the vocabulary.
    #[error("a row of {row} logits for a vocabulary of {vocabulary} tokens")]
    Width {
        /// Number of logits.
        row: usize,
        /// Number of tokens.
        vocabulary: usize,
    },
    /// A token outside of the vocabulary.
    #[error("token id {0} is not in the vocabulary")]
    Token(u32),
    /// The grammar does not allow the token, or reached its limits.
    #[error("the grammar cannot go on: {0}")]
    Grammar(String),
}
