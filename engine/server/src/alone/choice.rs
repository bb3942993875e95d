//! Choice of an answer: from the tokens of the engine to the parts for the client.

use super::service::TextModel;
use crate::engine::{FinishReason as EngineReason, Token};
use crate::model::shown;
use omni_answer::{AnswerText, Parts};
use omni_generation::guard::EngineFinish;
use omni_generation::{Alternative, FinishReason, Piece, TokenInfo, Usage};

/// Choice.
pub(super) struct Choice {
    text: AnswerText,
    /// Control tokens are text for the parser, which knows them as markup.
    shows_special: bool,
    state: State,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum State {
    /// Tokens are expected.
    Open,
    /// The engine has ended it.
    Ended,
    /// A stop string has ended it; the engine may go on.
    Stopped,
}

impl Choice {
    pub(super) fn new(text: AnswerText, shows_special: bool) -> Self {
        Self { text, shows_special, state: State::Open }
    }

    /// Returns true if nothing more comes.
    pub(super) fn is_over(&self) -> bool {
        self.state != State::Open
    }

    /// Returns true if a stop string has ended the choice.
    pub(super) fn is_stopped(&self) -> bool {
        self.state == State::Stopped
    }

    /// Tokens so far.
    pub(super) fn counted(&self) -> Usage {
        self.text.counted()
    }

    /// Parts that a token brings.
    pub(super) fn push(&mut self, model: &TextModel, token: &Token) -> Parts {
        let mut parts = Parts::default();
        if self.is_over() {
            return parts;
        }
        let is_hidden = !self.shows_special && model.tokenizer.is_special(token.id);
        let bytes = model.tokenizer.token_bytes(token.id).filter(|_| !is_hidden).unwrap_or_default();
        // Without log probabilities nobody reads the token; the guard counts it all the same.
        let unread = || TokenInfo { text: String::new(), bytes: None, id: None, logprob: None, top: Vec::new() };
        let info = if token.logprob.is_some() { token_info(model, token) } else { unread() };
        let piece = Piece { bytes: bytes.to_vec(), token: Some(info) };
        if let Some(finish) = self.text.push(piece, &mut parts) {
            self.state = State::Stopped;
            self.text.finish(finish, 0, &mut parts);
        }
        parts
    }

    /// Parts that the end brings.
    pub(super) fn end(&mut self, reason: EngineReason) -> Parts {
        let mut parts = Parts::default();
        if self.is_over() {
            return parts;
        }
        self.state = State::Ended;
        let reason = match reason {
            EngineReason::Stop => FinishReason::Stop { sequence: None },
            EngineReason::Length => FinishReason::Length,
        };
        let finish = self.text.end(EngineFinish { reason: Some(reason), usage: None }, &mut parts);
        if let Some(finish) = finish {
            self.text.finish(finish, 0, &mut parts);
        }
        parts
    }
}

/// Token with its text, as clients get it beside log probabilities.
pub(super) fn token_info(text: &TextModel, token: &Token) -> TokenInfo {
    let (name, bytes) = shown(&text.tokenizer, token.id);
    let alternative = |&(id, logprob): &(u32, f32)| {
        let (text, bytes) = shown(&text.tokenizer, id);
        Alternative { text, bytes, logprob }
    };
    let top = token.top.iter().map(alternative).collect();
    TokenInfo { text: name, bytes, id: Some(token.id), logprob: token.logprob, top }
}
