//! Reasons why a grammar cannot be had.

/// Grammar that cannot be had.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum GrammarError {
    /// The vocabulary does not fit into a trie.
    #[error(
        "grammars need a vocabulary of 1 to 16,777,214 tokens with an end token, and this one has {tokens} and {ends}"
    )]
    Vocabulary {
        /// Number of tokens.
        tokens: usize,
        /// Number of end tokens that are among them.
        ends: usize,
    },
    /// The tokens of the vocabulary cannot be indexed, or there is no thread for a compilation.
    #[error("grammars are not to be had: {0}")]
    Index(String),
    /// A marker of no tokens, or of too many.
    #[error("a marker before a grammar has 1 to 64 tokens, not {0}")]
    Marker(usize),
    /// The schema is larger than allowed.
    #[error("the JSON schema is too large: {0}")]
    TooLarge(String),
    /// The schema is none, or has keywords that a grammar cannot honour.
    #[error("the JSON schema cannot be a grammar: {0}")]
    Unsupported(String),
    /// The compilation, or the ones before it, took too long.
    #[error("the JSON schema takes more than two seconds to compile")]
    TooSlow,
}
