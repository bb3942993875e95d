//! Pieces of generated text, as an engine sends them.

/// A piece of text, mostly of one token.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Piece {
    /// Bytes of the text; a character may be split over pieces.
    pub bytes: Vec<u8>,
    /// Token of the piece; `None` from engines that send text alone.
    pub token: Option<TokenInfo>,
}

/// Token of an answer.
#[derive(Debug, Clone, PartialEq)]
pub struct TokenInfo {
    /// Text of the token.
    pub text: String,
    /// Bytes of a token whose text is no whole characters.
    pub bytes: Option<Vec<u8>>,
    /// Id in the model's vocabulary.
    pub id: Option<u32>,
    /// Natural logarithm of its probability.
    pub logprob: Option<f32>,
    /// Most probable tokens at its position.
    pub top: Vec<Alternative>,
}

/// Token that could have stood in another's place.
#[derive(Debug, Clone, PartialEq)]
pub struct Alternative {
    /// Text of the token.
    pub text: String,
    /// Bytes of a token whose text is no whole characters.
    pub bytes: Option<Vec<u8>>,
    /// Natural logarithm of its probability.
    pub logprob: f32,
}
