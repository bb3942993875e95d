//! Requests and their sequences, as the batcher keeps them.

use std::sync::Arc;
use std::time::Duration;

use omni_kernels::BLOCK;
use omni_kv_cache::{BlockTable, Digest};

use crate::queue::Rank;
use crate::request::{Request, RequestId};

/// Number of blocks of so many positions.
pub(crate) const fn blocks_of(positions: usize) -> usize {
    positions.div_ceil(BLOCK)
}

/// Request that has not ended.
#[derive(Debug)]
pub(crate) struct Live {
    pub(crate) request: Request,
    /// Names of the prompt's full blocks.
    pub(crate) names: Vec<Digest>,
    /// Sequence of each choice; before the end of the prompt that of choice 0 stands for all.
    pub(crate) sequences: Vec<Option<u32>>,
    /// The choices have sequences of their own.
    pub(crate) forked: bool,
    /// Cached tokens are counted: at the first admission.
    pub(crate) counted: bool,
    /// First position whose row of logits is still due for log probabilities of the prompt.
    pub(crate) due: Option<usize>,
}

impl Live {
    pub(crate) fn new(request: Request) -> Self {
        let mut names = Vec::new();
        if !request.whole {
            let mut name = request.root;
            names.reserve_exact(request.prompt.len() / BLOCK);
            for block in request.prompt.chunks_exact(BLOCK) {
                name = name.extended(block);
                names.push(name);
            }
        }
        let due = request.logprobs_from.map(|from| from.saturating_sub(1));
        let sequences = vec![None; request.choices as usize];
        Self { forked: request.choices == 1, request, names, sequences, counted: false, due }
    }

    /// Number of sequences that its first one stands for.
    pub(crate) fn weight(&self) -> usize {
        if self.forked { 1 } else { self.sequences.len() }
    }
}

/// Tokens of a sequence in a step.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Flight {
    /// Number of tokens, drafts included.
    pub(crate) tokens: usize,
    /// Number of drafts.
    pub(crate) drafts: usize,
    /// Layers that they have gone through after the step.
    pub(crate) layers: usize,
}

/// Tokens after the computed ones that went through some layers.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Part {
    /// Number of tokens.
    pub(crate) tokens: usize,
    /// Layers that they went through.
    pub(crate) layers: usize,
}

/// Choice of a request.
///
/// Invariants: keys and values of positions before `computed` are in the blocks; a sequence that waits has no blocks.
#[derive(Debug)]
pub(crate) struct Sequence {
    pub(crate) live: u32,
    pub(crate) choice: u32,
    pub(crate) rank: Rank,
    /// Parts of the request, copied so that decoding reads nothing else.
    pub(crate) request: RequestId,
    pub(crate) max_tokens: usize,
    pub(crate) whole: bool,
    /// Tokens of the prompt that were in the cache at the first admission.
    pub(crate) cached: usize,
    pub(crate) prompt: Arc<[u32]>,
    pub(crate) answer: Vec<u32>,
    /// Names of the full blocks after those of the prompt.
    pub(crate) names: Vec<Digest>,
    pub(crate) table: BlockTable,
    pub(crate) computed: usize,
    /// Number of blocks that are published, or were found.
    pub(crate) published: usize,
    /// Guesses of the tokens after the last.
    pub(crate) drafts: Vec<u32>,
    pub(crate) flight: Option<Flight>,
    /// Prompt that goes through its layers in several steps; at most one sequence has one.
    pub(crate) part: Option<Part>,
    /// A token was sampled for it, which is not known yet.
    pub(crate) awaits: bool,
    pub(crate) running: bool,
    /// Time at which it was the first of the queue and did not fit.
    pub(crate) blocked: Option<Duration>,
    /// Blocks that it needed and nobody shared with it, when it did not fit.
    pub(crate) wanted: usize,
}

impl Sequence {
    pub(crate) fn new(live: u32, choice: u32, rank: Rank, request: &Request) -> Self {
        Self {
            live,
            choice,
            rank,
            request: request.id,
            max_tokens: request.max_tokens,
            whole: request.whole,
            cached: 0,
            prompt: request.prompt.clone(),
            answer: Vec::new(),
            names: Vec::new(),
            table: BlockTable::default(),
            computed: 0,
            published: 0,
            drafts: Vec::new(),
            flight: None,
            part: None,
            awaits: false,
            running: false,
            blocked: None,
            wanted: 0,
        }
    }

    /// Returns true if tokens are sampled after the prompt.
    pub(crate) fn has_answer(&self) -> bool {
        self.max_tokens > 0 && !self.whole
    }

    /// Number of known tokens.
    pub(crate) fn known(&self) -> usize {
        self.prompt.len() + self.answer.len()
    }

    /// Number of known tokens that are to be computed.
    pub(crate) fn remaining(&self) -> usize {
        self.known() - self.computed
    }

    /// Returns true if only the last token of the answer is to be computed.
    pub(crate) fn decodes(&self) -> bool {
        !self.answer.is_empty() && self.remaining() == 1 && self.part.is_none()
    }

    /// Appends known tokens from `computed` on to `tokens`, `count` of them.
    pub(crate) fn copy_tokens(&self, count: usize, tokens: &mut Vec<u32>) {
        let (start, end, prompt) = (self.computed, self.computed + count, self.prompt.len());
        if start < prompt {
            tokens.extend_from_slice(&self.prompt[start..end.min(prompt)]);
        }
        if end > prompt {
            tokens.extend_from_slice(&self.answer[start.max(prompt) - prompt..end - prompt]);
        }
    }

    /// Known tokens of a block that is full.
    fn block(&self, number: usize) -> [u32; BLOCK] {
        std::array::from_fn(|i| {
            let position = number * BLOCK + i;
            self.prompt.get(position).copied().unwrap_or_else(|| self.answer[position - self.prompt.len()])
        })
    }

    /// Name of a block that is full; it is computed once.
    pub(crate) fn name(&mut self, live: &Live, number: usize) -> Digest {
        if let Some(name) = live.names.get(number) {
            return *name;
        }
        while self.names.len() <= number - live.names.len() {
            let parent = *self.names.last().or(live.names.last()).unwrap_or(&live.request.root);
            self.names.push(parent.extended(&self.block(live.names.len() + self.names.len())));
        }
        self.names[number - live.names.len()]
    }
}

#[cfg(test)]
mod tests {
    use omni_kv_cache::Root;

    use super::*;

    #[test]
    fn b05_names_of_blocks_are_the_same_in_a_prompt_and_in_an_answer() {
        let tokens: Vec<u32> = (0..100).map(|token| token % 3).collect();
        let request = |prompt: usize| Request {
            id: RequestId(1),
            prompt: tokens[..prompt].into(),
            max_tokens: 100,
            choices: 1,
            logprobs_from: None,
            whole: false,
            priority: 0,
            deadline: None,
            root: Root::default().digest(),
        };
        let all = Live::new(request(100)).names;
        assert_eq!(all.len(), 6);
        for prompt in 1..100 {
            let live = Live::new(request(prompt));
            let rank = Rank::new(Duration::ZERO, 0, Duration::from_secs(1), 0);
            let mut sequence = Sequence::new(0, 0, rank, &live.request);
            sequence.answer.extend_from_slice(&tokens[prompt..]);
            let names: Vec<_> = [5, 0, 1, 2, 3, 4].map(|number| (number, sequence.name(&live, number))).into();
            assert!(names.iter().all(|(number, name)| *name == all[*number]), "prompt of {prompt}");
        }
    }
}
