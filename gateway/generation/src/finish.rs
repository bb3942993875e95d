//! End of a choice.

/// Reason for the end of a choice.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum FinishReason {
    /// The model has ended its answer, or a stop string came.
    Stop {
        /// The stop string, if it was one.
        sequence: Option<String>,
    },
    /// The limit of tokens is reached.
    Length,
    /// The model waits for the results of its calls.
    ToolCalls,
    /// The answer was withheld.
    ContentFilter,
}

/// End of a choice.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Finish {
    /// Reason.
    pub reason: FinishReason,
    /// Usage of this choice.
    pub usage: Usage,
}

/// Tokens of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Usage {
    /// Tokens of the prompt, those from a cache included.
    pub prompt_tokens: u64,
    /// Tokens of the answer, reasoning included.
    pub completion_tokens: u64,
    /// Tokens of the prompt that came from a cache.
    pub cached_tokens: u64,
    /// Tokens of the reasoning.
    pub reasoning_tokens: u64,
}

impl Usage {
    /// All tokens.
    #[must_use]
    pub fn total(&self) -> u64 {
        self.prompt_tokens.saturating_add(self.completion_tokens)
    }

    /// Adds the usage of another choice. `same_prompt`: its prompt is counted already.
    pub fn add(&mut self, other: Self, same_prompt: bool) {
        if !same_prompt {
            self.prompt_tokens = self.prompt_tokens.saturating_add(other.prompt_tokens);
            self.cached_tokens = self.cached_tokens.saturating_add(other.cached_tokens);
        }
        self.completion_tokens = self.completion_tokens.saturating_add(other.completion_tokens);
        self.reasoning_tokens = self.reasoning_tokens.saturating_add(other.reasoning_tokens);
    }
}
