//! Repetition of a prompt before an answer to it, by the tokens that the engine repeats.

use crate::Parts;
use omni_generation::{Characters, Delta, Piece};
use std::sync::Arc;

/// Repetition of one prompt.
///
/// Invariant: all parts together are the text of the prompt, and its tokens if their log probabilities are wanted.
#[derive(Debug)]
pub struct Echo {
    text: Text,
    /// Tokens with their log probabilities are passed on.
    passes_tokens: bool,
    has_begun: bool,
}

/// Text of a prompt.
#[derive(Debug)]
enum Text {
    /// Text of the client, until it has left: its tokens may be those of another text, with control tokens around it.
    Sent(Option<Arc<str>>),
    /// Text of the tokens.
    OfTokens(Characters),
}

impl Echo {
    /// Makes the repetition of a client's text, or without one of tokens. `passes_tokens`: their log probabilities are
    /// wanted.
    #[must_use]
    pub fn new(text: Option<Arc<str>>, passes_tokens: bool) -> Self {
        let text = match text {
            Some(text) => Text::Sent(Some(text)),
            None => Text::OfTokens(Characters::default()),
        };
        Self { text, passes_tokens, has_begun: false }
    }

    /// Takes the next token of the prompt. The first one has no log probability.
    pub fn push(&mut self, piece: Piece, parts: &mut Parts) {
        self.has_begun = true;
        let text = match &mut self.text {
            Text::Sent(text) => text.take().as_deref().unwrap_or_default().to_owned(),
            Text::OfTokens(characters) => characters.push(&piece.bytes),
        };
        add(text, parts);
        parts.tokens.extend(piece.token.filter(|_| self.passes_tokens));
    }

    /// Ends the repetition. Returns `false` if no token has come.
    #[must_use]
    pub fn end(mut self, parts: &mut Parts) -> bool {
        if let Text::OfTokens(characters) = &mut self.text {
            add(characters.finish(), parts);
        }
        self.has_begun
    }
}

/// Adds text to the parts, which have no other text yet than that of the prompt.
fn add(text: String, parts: &mut Parts) {
    match parts.deltas.last_mut() {
        _ if text.is_empty() => {}
        Some(Delta::Content(before)) => before.push_str(&text),
        _ => parts.deltas.push(Delta::Content(text)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use omni_generation::TokenInfo;

    fn piece(bytes: &[u8], logprob: Option<f32>) -> Piece {
        let text = String::from_utf8_lossy(bytes).into_owned();
        Piece {
            bytes: bytes.to_vec(),
            token: Some(TokenInfo { text, bytes: None, id: None, logprob, top: Vec::new() }),
        }
    }

    fn content(parts: &Parts) -> Vec<&str> {
        fn text(delta: &Delta) -> &str {
            match delta {
                Delta::Content(text) => text,
                other => panic!("{other:?}"),
            }
        }
        parts.deltas.iter().map(text).collect()
    }

    #[test]
    fn a_clients_text_is_repeated_once_and_as_it_was_sent() {
        let (mut echo, mut parts) = (Echo::new(Some("h\u{e9}".into()), true), Parts::default());
        for (bytes, logprob) in [(&b"<s>"[..], None), (b"h", Some(-1.0)), (b"\xc3", Some(-2.0)), (b"\xa9", Some(-3.0))]
        {
            echo.push(piece(bytes, logprob), &mut parts);
        }
        assert_eq!(content(&parts), ["h\u{e9}"]);
        let mut logprobs = parts.tokens.iter().map(|token| token.logprob);
        assert!(logprobs.by_ref().eq([None, Some(-1.0), Some(-2.0), Some(-3.0)]));
        assert!(echo.end(&mut parts) && parts.deltas.len() == 1);
    }

    #[test]
    fn tokens_that_were_sent_are_repeated_as_their_text() {
        let (mut echo, mut first, mut second) = (Echo::new(None, false), Parts::default(), Parts::default());
        echo.push(piece(b"a", None), &mut first);
        echo.push(piece(b"\xc3", None), &mut first);
        assert_eq!(content(&first), ["a"], "a character waits for its end");
        echo.push(piece(b"\xa9b", None), &mut second);
        echo.push(piece(b"\xf0\x9f", None), &mut second);
        assert!(echo.end(&mut second));
        assert_eq!(content(&second), ["\u{e9}b\u{fffd}"]);
        assert!(first.tokens.is_empty() && second.tokens.is_empty(), "no log probabilities are wanted");
    }

    #[test]
    fn an_engine_that_repeats_nothing_is_found_out() {
        let mut parts = Parts::default();
        assert!(!Echo::new(Some("a".into()), true).end(&mut parts));
        assert!(parts.is_empty());
    }
}
