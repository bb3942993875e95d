//! Requests to the engine's thread, and what it answers.

use omni_batcher::Refusal;
use omni_kv_cache::Digest;
use omni_sampler::{Grammar, Parameters, SampleError};
use std::sync::Arc;
use std::time::Instant;

/// Request in tokens.
#[derive(Debug, Clone)]
pub struct Submission {
    /// Tokens of the prompt.
    pub prompt: Arc<[u32]>,
    /// Work for the prompt.
    pub work: Work,
    /// Priority; a greater one goes first.
    pub priority: i16,
    /// Time at which the request ends, finished or not.
    pub deadline: Option<Instant>,
    /// Root of the prefix cache that the request shares.
    pub root: Digest,
}

/// Work for a prompt.
#[derive(Debug, Clone)]
pub enum Work {
    /// Answers.
    Generate(Box<Generation>),
    /// A vector.
    Embed,
}

/// Answers to a prompt.
#[derive(Debug, Clone)]
pub struct Generation {
    /// Sampling.
    pub parameters: Parameters,
    /// Most tokens of each answer; with 0 the prompt's log probabilities alone are computed.
    pub max_tokens: usize,
    /// Number of answers.
    pub choices: u32,
    /// Grammar of the answers.
    pub grammar: Option<Grammar>,
    /// Log probabilities of the prompt's tokens, with as many alternatives as those of the answer.
    pub prompt_logprobs: bool,
}

/// Answer to a request, in parts. [`Event::Ended`] and [`Event::Failed`] are the last ones.
#[derive(Debug, Clone, PartialEq)]
pub enum Event {
    /// Log probability of the prompt's next token, from the second one on.
    Prompt(Token),
    /// Next token of a choice.
    Token {
        /// Choice.
        choice: u32,
        /// Token.
        token: Token,
    },
    /// End of a choice.
    Finished {
        /// Choice.
        choice: u32,
        /// Reason.
        reason: FinishReason,
    },
    /// Vector of the prompt.
    Embedding(Vec<f32>),
    /// End of the request.
    Ended(Usage),
    /// The request cannot go on.
    Failed(Failure),
}

/// Token with its log probability, if asked for.
#[derive(Debug, Clone, PartialEq)]
pub struct Token {
    /// Id.
    pub id: u32,
    /// Log probability in the model's own distribution.
    pub logprob: Option<f32>,
    /// Most probable tokens in its place, with their log probabilities.
    pub top: Vec<(u32, f32)>,
}

/// Tokens of a prompt that no event brings: the first one, which has no log probability, or all of them without
/// `prompt_logprobs`.
pub(crate) fn unscored(prompt: &[u32], prompt_logprobs: bool) -> impl Iterator<Item = Token> {
    let count = if prompt_logprobs { 1 } else { prompt.len() };
    prompt.iter().take(count).map(|id| Token { id: *id, logprob: None, top: Vec::new() })
}

/// Reason for the end of a choice.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FinishReason {
    /// An end token, or the grammar allows nothing more.
    Stop,
    /// The most tokens.
    Length,
}

/// Tokens of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Usage {
    /// Tokens of the prompt.
    pub prompt: usize,
    /// Tokens of these that were in the cache.
    pub cached: usize,
    /// Tokens of all answers, end tokens included.
    pub completion: usize,
}

/// Reason why a request cannot go on.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum Failure {
    /// The engine does not take it.
    #[error(transparent)]
    Refused(#[from] Refusal),
    /// A parameter that cannot be honoured.
    #[error(transparent)]
    Parameter(#[from] omni_sampler::ParameterError),
    /// The model makes embeddings only, or none.
    #[error("this model does not {0}")]
    Kind(&'static str),
    /// No token can be sampled.
    #[error(transparent)]
    Sample(#[from] SampleError),
    /// The deadline has passed.
    #[error("the request was not finished by its deadline")]
    Deadline,
    /// The backend has failed.
    #[error("the step could not be computed: {0}")]
    Backend(String),
    /// The engine ends.
    #[error("the engine ends")]
    Ending,
    /// More commands wait than may.
    #[error("more requests wait than the engine takes")]
    Overloaded,
}
