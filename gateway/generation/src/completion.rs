//! A whole answer, collected from its parts.

use crate::delta::Delta;
use crate::finish::{Finish, Usage};
use crate::message::ToolCall;
use crate::piece::TokenInfo;

/// A whole answer.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Completion {
    /// Choices, by their numbers.
    pub choices: Vec<Choice>,
    /// Usage of all choices.
    pub usage: Usage,
}

/// Answer to the prompt.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Choice {
    /// Text.
    pub content: String,
    /// Reasoning before the text.
    pub reasoning: String,
    /// Tool calls; each has an id.
    pub calls: Vec<ToolCall>,
    /// Tokens with log probabilities, if the client asked for them.
    pub tokens: Vec<TokenInfo>,
    /// End; `None` until it has come.
    pub finish: Option<Finish>,
}

impl Choice {
    /// Adds parts.
    pub fn extend(&mut self, deltas: &[Delta], tokens: &[TokenInfo]) {
        self.tokens.extend_from_slice(tokens);
        for delta in deltas {
            match delta {
                Delta::Content(text) => self.content.push_str(text),
                Delta::Reasoning(text) => self.reasoning.push_str(text),
                Delta::CallStart { call: _, id, name } => {
                    self.calls.push(ToolCall { id: Some(id.clone()), name: name.clone(), arguments: String::new() });
                }
                Delta::CallArguments { call, text } => {
                    if let Some(call) = self.calls.get_mut(*call) {
                        call.arguments.push_str(text);
                    }
                }
            }
        }
    }
}
