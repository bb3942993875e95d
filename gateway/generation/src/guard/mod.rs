//! Rules for the output of every engine: whole characters, stop strings, a limit of tokens, one end with one usage.
//!
//! ```text
//!  open ──piece──▶ open
//!    │ └─ stop string, limit of tokens ──▶ ended
//!    └─── end of the engine ─────────────▶ ended
//! ```
//!
//! Invariants: the text that leaves is the engine's own up to the first stop string, whatever pieces it came in; at most one stop
//! string's length is held back, and at most [`MOST_TOKENS`] tokens with it; nothing leaves after the end.

mod characters;
mod stop;

use crate::finish::{Finish, FinishReason, Usage};
use crate::piece::{Piece, TokenInfo};
pub use characters::Characters;
use std::collections::VecDeque;
use stop::StopMatcher;
pub use stop::StopStrings;

/// Limits of one choice.
#[derive(Debug, Clone, Default)]
pub struct GuardLimits {
    /// Stop strings.
    pub stop: StopStrings,
    /// Most pieces, for engines that do not keep `max_tokens` themselves.
    pub pieces: Option<u32>,
    /// Tokens of the prompt, for engines that report no usage.
    pub prompt_tokens: u64,
    /// Tokens with their log probabilities are passed on.
    pub tokens: bool,
}

/// Most tokens that are held back with their text; of more, the first leave before it.
const MOST_TOKENS: usize = 1024;

/// Text and tokens that may leave.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Guarded {
    /// Text.
    pub text: String,
    /// Tokens whose whole text has left.
    pub tokens: Vec<TokenInfo>,
}

/// End of a choice as the engine reports it.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct EngineFinish {
    /// Reason; `None`: the engine has ended without one.
    pub reason: Option<FinishReason>,
    /// Usage; `None`: the node counts.
    pub usage: Option<Usage>,
}

/// Guard of one choice.
#[derive(Debug)]
pub struct OutputGuard {
    characters: Characters,
    stop: StopMatcher,
    pieces_left: Option<u32>,
    passes_tokens: bool,
    /// Usage as the node counts it.
    counted: Usage,
    /// Tokens whose text is held back, with the offset of their end in the output.
    tokens: VecDeque<(usize, TokenInfo)>,
    /// Bytes that came from the engine, and bytes that have left.
    received: usize,
    released: usize,
    ended: bool,
}

impl OutputGuard {
    /// Makes the guard of a choice.
    #[must_use]
    pub fn new(limits: GuardLimits) -> Self {
        let counted = Usage { prompt_tokens: limits.prompt_tokens, ..Usage::default() };
        Self {
            characters: Characters::default(),
            stop: StopMatcher::new(limits.stop),
            pieces_left: limits.pieces,
            passes_tokens: limits.tokens,
            counted,
            tokens: VecDeque::new(),
            received: 0,
            released: 0,
            ended: false,
        }
    }

    /// Takes a piece; what may leave is added to `out`. Returns the end if this piece brought it: the engine's work on the choice is
    /// over.
    pub fn push(&mut self, piece: Piece, out: &mut Guarded) -> Option<Finish> {
        if self.ended {
            return None;
        }
        let Piece { bytes, token } = piece;
        if !bytes.is_empty() || token.is_some() {
            self.counted.completion_tokens += 1;
        }
        let text = self.characters.push(&bytes);
        if let Some(sequence) = self.take(&text, token, out) {
            return Some(self.end(FinishReason::Stop { sequence: Some(sequence) }, None));
        }
        if let Some(left) = self.pieces_left.as_mut().filter(|_| !bytes.is_empty()) {
            *left = left.saturating_sub(1);
            if *left == 0 {
                return Some(self.flush(FinishReason::Length, None, out));
            }
        }
        None
    }

    /// Ends the choice as the engine did; what was held back is added to `out`. Returns `None` if the end came before.
    pub fn finish(&mut self, engine: EngineFinish, out: &mut Guarded) -> Option<Finish> {
        if self.ended {
            return None;
        }
        let reason = engine.reason.unwrap_or(FinishReason::Stop { sequence: None });
        Some(self.flush(reason, engine.usage, out))
    }

    /// Usage as the node has counted it so far.
    #[must_use]
    pub fn counted(&self) -> Usage {
        self.counted
    }

    fn flush(&mut self, reason: FinishReason, usage: Option<Usage>, out: &mut Guarded) -> Finish {
        let rest = self.characters.finish();
        if let Some(sequence) = self.take(&rest, None, out) {
            return self.end(FinishReason::Stop { sequence: Some(sequence) }, usage);
        }
        let held = self.stop.finish();
        self.release(&held, out);
        out.tokens.extend(self.tokens.drain(..).map(|(_, token)| token));
        self.end(reason, usage)
    }

    fn end(&mut self, reason: FinishReason, usage: Option<Usage>) -> Finish {
        self.ended = true;
        Finish { reason, usage: usage.unwrap_or(self.counted) }
    }

    /// Passes text through the stop strings. Returns the one that it completes.
    fn take(&mut self, text: &str, token: Option<TokenInfo>, out: &mut Guarded) -> Option<String> {
        self.received += text.len();
        if let Some(token) = token.filter(|_| self.passes_tokens) {
            self.tokens.push_back((self.received, token));
            if self.tokens.len() > MOST_TOKENS {
                out.tokens.extend(self.tokens.pop_front().map(|(_, token)| token));
            }
        }
        let (text, sequence) = self.stop.push(text);
        self.release(&text, out);
        if sequence.is_some() {
            self.tokens.clear();
        }
        sequence
    }

    fn release(&mut self, text: &str, out: &mut Guarded) {
        self.released += text.len();
        out.text.push_str(text);
        while let Some((_, token)) = self.tokens.pop_front_if(|(end, _)| *end <= self.released) {
            out.tokens.push(token);
        }
    }
}

#[cfg(test)]
mod tests;
