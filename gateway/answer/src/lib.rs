//! Text of an answer: from an engine's pieces to the parts for a client, by the guard and the parser of a choice.
//!
//! ```text
//!  pieces ──▶ OutputGuard ──▶ Parser ──▶ Parts: deltas, tokens
//!  end ─────────▲                └─────▶ finish, whose reason the calls decide
//! ```
//!
//! Before them come the parts of a repeated prompt, where the engine repeats its tokens ([`Echo`]).
#![forbid(unsafe_code)]

mod echo;

pub use echo::Echo;

use omni_generation::guard::{EngineFinish, Guarded};
use omni_generation::{Delta, Finish, FinishReason, OutputGuard, Piece, TokenInfo, Usage};
use omni_tool_parser::Parser;

/// Text of one choice.
#[derive(Debug)]
pub struct AnswerText {
    guard: OutputGuard,
    parser: Parser,
}

/// Parts of a choice that came together.
#[derive(Debug, Default)]
pub struct Parts {
    /// Parts of the answer.
    pub deltas: Vec<Delta>,
    /// Tokens with log probabilities, if the client asked for them.
    pub tokens: Vec<TokenInfo>,
    /// End of the choice.
    pub finish: Option<Finish>,
}

impl Parts {
    /// Returns true if there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.deltas.is_empty() && self.tokens.is_empty() && self.finish.is_none()
    }
}

impl AnswerText {
    /// Makes the text of a choice.
    #[must_use]
    pub fn new(guard: OutputGuard, parser: Parser) -> Self {
        Self { guard, parser }
    }

    /// Tokens so far, as they were counted here.
    #[must_use]
    pub fn counted(&self) -> Usage {
        self.guard.counted()
    }

    /// Takes a piece. Returns the end if this piece brought it, for [`AnswerText::finish`]: the engine's work on the
    /// choice is over.
    pub fn push(&mut self, piece: Piece, parts: &mut Parts) -> Option<Finish> {
        let mut guarded = Guarded::default();
        let finish = self.guard.push(piece, &mut guarded);
        self.take(guarded, parts);
        if finish.is_none() && self.parser.outcome().dropped {
            // All text behind the only call that may be made is dropped: nothing more can come.
            return self.end(EngineFinish::default(), parts);
        }
        finish
    }

    /// Ends the text as the engine did. Returns the end, for [`AnswerText::finish`]; `None` if it came before.
    pub fn end(&mut self, engine: EngineFinish, parts: &mut Parts) -> Option<Finish> {
        let mut guarded = Guarded::default();
        let finish = self.guard.finish(engine, &mut guarded);
        self.take(guarded, parts);
        finish
    }

    /// Adds the end. An answer with calls that the model has ended waits for their results. `other_calls`: those that the
    /// engine has parsed itself. Returns the number of all calls.
    pub fn finish(&mut self, mut finish: Finish, other_calls: usize, parts: &mut Parts) -> usize {
        let outcome = match finish.reason {
            FinishReason::Length => self.parser.finish_cut(&mut parts.deltas),
            _ => self.parser.finish(&mut parts.deltas),
        };
        let calls = outcome.calls + other_calls;
        match finish.reason {
            FinishReason::Stop { .. } if calls > 0 => finish.reason = FinishReason::ToolCalls,
            FinishReason::ToolCalls if calls == 0 => finish.reason = FinishReason::Stop { sequence: None },
            _ => {}
        }
        parts.finish = Some(finish);
        calls
    }

    fn take(&mut self, guarded: Guarded, parts: &mut Parts) {
        self.parser.push(&guarded.text, &mut parts.deltas);
        parts.tokens.extend(guarded.tokens);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use omni_generation::GuardLimits;
    use omni_generation::{StopStrings, Tool};
    use omni_tool_parser::{CompiledTools, Dialect, ParserOptions};
    use serde_json::value::RawValue;
    use std::sync::Arc;

    fn text(stop: &str) -> AnswerText {
        let guard =
            OutputGuard::new(GuardLimits { stop: StopStrings::new(&[stop.to_owned()]), ..GuardLimits::default() });
        AnswerText::new(guard, Parser::new(Dialect::None, ParserOptions::default()))
    }

    fn piece(text: &str) -> Piece {
        Piece { bytes: text.into(), token: None }
    }

    #[test]
    fn a_stop_string_ends_the_text_before_it() {
        let (mut text, mut parts) = (text("END"), Parts::default());
        assert_eq!(text.push(piece("a EN"), &mut parts), None);
        assert_eq!(parts.deltas, [Delta::Content("a ".to_owned())]);
        let finish = text.push(piece("D b"), &mut parts).unwrap();
        assert_eq!(text.finish(finish, 0, &mut parts), 0);
        let reason = FinishReason::Stop { sequence: Some("END".to_owned()) };
        assert_eq!(parts.finish.map(|finish| finish.reason), Some(reason));
        assert_eq!(parts.deltas.len(), 1);
        assert_eq!(text.end(EngineFinish::default(), &mut Parts::default()), None, "it has ended");
    }

    #[test]
    fn a_second_call_where_one_may_be_made_ends_the_text() {
        let definition =
            RawValue::from_string(r#"{"type": "function", "function": {"name": "f"}}"#.to_owned()).unwrap();
        let tool = Tool { name: "f".to_owned(), parameters: None, definition };
        let options = ParserOptions {
            tools: Arc::new(CompiledTools::new(&[tool])),
            parallel_tool_calls: false,
            ..ParserOptions::default()
        };
        let parser = Parser::new(Dialect::Hermes, options);
        let (mut text, mut parts) =
            (AnswerText::new(OutputGuard::new(GuardLimits::default()), parser), Parts::default());
        let call = "<tool_call>{\"name\": \"f\", \"arguments\": {}}</tool_call>";
        assert_eq!(text.push(piece(call), &mut parts), None, "text may follow");
        let finish = text.push(piece(call), &mut parts).unwrap();
        assert_eq!(text.finish(finish, 0, &mut parts), 1);
        assert_eq!(parts.finish.map(|finish| finish.reason), Some(FinishReason::ToolCalls));
        assert_eq!(text.push(piece("more"), &mut Parts::default()), None);
    }

    #[test]
    fn calls_decide_the_reason_of_the_end() {
        let stop = FinishReason::Stop { sequence: None };
        for (reason, calls, expected) in [
            (stop.clone(), 0, stop.clone()),
            (stop.clone(), 1, FinishReason::ToolCalls),
            (FinishReason::ToolCalls, 0, stop),
            (FinishReason::Length, 1, FinishReason::Length),
        ] {
            let (mut text, mut parts) = (text(""), Parts::default());
            let engine = EngineFinish { reason: Some(reason), usage: None };
            let finish = text.end(engine, &mut parts).unwrap();
            assert_eq!(text.finish(finish, calls, &mut parts), calls);
            assert_eq!(parts.finish.map(|finish| finish.reason), Some(expected));
        }
    }
}
