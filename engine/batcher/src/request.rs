//! Requests, and what passes between the batcher and its caller.

use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use omni_kernels::Capacity;
use omni_kv_cache::Digest;

/// Request, by the number that the caller gave it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RequestId(pub u64);

/// Bounds of the batcher. They hold for its life.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Blocks of the key-value cache.
    pub blocks: u32,
    /// Most tokens of a step; more than `sequences`.
    pub tokens: usize,
    /// Most sequences that are computed at a time, and so segments of a step.
    pub sequences: usize,
    /// Most rows of logits of a step; more than `sequences`.
    pub logits: usize,
    /// Most tokens of a sequence, prompt and answer.
    pub context: usize,
    /// Most requests that wait.
    pub queue: usize,
    /// Waiting time that counts as much as one level of priority; not zero.
    pub ageing: Duration,
    /// Layers of the backend, through which a prompt may go in several steps; 1: in one.
    pub layers: usize,
}

impl Limits {
    /// Capacity of a backend that computes the steps.
    #[must_use]
    pub fn capacity(&self) -> Capacity {
        let Self { blocks, tokens, sequences, logits, .. } = *self;
        Capacity { blocks, tokens, segments: sequences, logits }
    }
}

/// Limits that no batcher can keep.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum LimitsError {
    /// A limit is zero.
    #[error("the limit {0} of the batcher is zero")]
    Zero(&'static str),
    /// Sequences that decode would leave no room for prompts.
    #[error("{sequences} sequences leave no room for prompts in a step of {room} {what}: raise it above that")]
    NoRoom {
        /// Sequences.
        sequences: usize,
        /// Room of a step.
        room: usize,
        /// Unit of the room.
        what: &'static str,
    },
}

/// Request.
#[derive(Debug, Clone)]
pub struct Request {
    /// Number. No two live requests share one.
    pub id: RequestId,
    /// Tokens of the prompt.
    pub prompt: Arc<[u32]>,
    /// Most tokens of each answer. With 0 the request ends with its prompt.
    pub max_tokens: usize,
    /// Number of answers (`n`), at least 1. They share the blocks of the prompt.
    pub choices: u32,
    /// Position of the first prompt token whose log probability is wanted (echo). Rows of logits from there to the end of
    /// the prompt are computed, even where its prefix is cached, each once. The token at position 0 has none.
    pub logprobs_from: Option<usize>,
    /// The prompt is computed in one step, without the prefix cache, and gets one row (embeddings); no answer.
    pub whole: bool,
    /// Priority; a greater one goes first.
    pub priority: i16,
    /// Time since the start at which the request ends, finished or not.
    pub deadline: Option<Duration>,
    /// Root of the prefix cache: requests share prefixes with those of the same root only.
    pub root: Digest,
}

/// Reason why a request is not taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// A live request has the same number.
    #[error("a request with number {} is already there", .0.0)]
    Duplicate(RequestId),
    /// There is nothing to compute.
    #[error("the prompt is empty")]
    EmptyPrompt,
    /// Prompt and answer never fit, whatever else runs.
    #[error("prompt and answer have {tokens} tokens, of which at most {most} fit")]
    TooLong {
        /// Tokens of prompt and longest answer.
        tokens: usize,
        /// Most tokens of a sequence.
        most: usize,
    },
    /// The number of answers is 0, or more than can ever be computed at a time.
    #[error("{choices} choices were asked for; between 1 and {most} can be had")]
    Choices {
        /// Number of answers.
        choices: u32,
        /// Most answers.
        most: usize,
    },
    /// As many requests wait as may.
    #[error("{waiting} requests are waiting, as many as may")]
    QueueFull {
        /// Requests that wait.
        waiting: usize,
    },
}

/// Segment of a step: whose tokens it computes, and what its rows of logits are for. It has the segment's number.
///
/// Row `rows.start + i` belongs to the token at `position + i`: its log probability if that token is in the prompt, a
/// sample of it if not. So the last `drafts + 1` rows are sampled, for each of `choices`, unless `choices` is empty.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Scheduled {
    /// Request.
    pub request: RequestId,
    /// Choices that get tokens: all at the end of the prompt, one later, none before the prompt's end.
    pub choices: Range<u32>,
    /// Rows of logits of the step.
    pub rows: Range<usize>,
    /// Position of the token that the first row predicts.
    pub position: usize,
    /// Number of drafted tokens, the last of the segment, that the rows verify.
    pub drafts: usize,
    /// Tokens of the request's prompt that were in the cache when it was first admitted, so that they were not computed.
    pub cached: usize,
}

/// Tokens that a choice got from a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Outcome {
    /// Request.
    pub request: RequestId,
    /// Choice.
    pub choice: u32,
    /// Number of drafted tokens that are accepted.
    pub accepted: usize,
    /// Token after them; `None` if the answer ends with them.
    pub next: Option<u32>,
}

/// Numbers of the batcher at a moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Status {
    /// Sequences that wait, preempted ones included.
    pub waiting: usize,
    /// Sequences that hold blocks and are computed.
    pub running: usize,
    /// Blocks with no content.
    pub free_blocks: usize,
    /// Blocks with the content of a prefix that nobody uses now.
    pub cached_blocks: usize,
    /// Blocks of running sequences.
    pub used_blocks: usize,
    /// Sequences that lost their blocks to others since the start.
    pub preemptions: u64,
    /// Tokens of prompts since the start.
    pub prompt_tokens: u64,
    /// Tokens of prompts since the start that were in the cache.
    pub cached_tokens: u64,
}
