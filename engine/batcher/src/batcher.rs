//! State of the batcher, and the ways in which requests come and go.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};
use std::time::Duration;

use omni_kernels::{BLOCK, BlockId};
use omni_kv_cache::{Pool, PoolFault};

use crate::pace::Pace;
use crate::queue::{Queue, Rank};
use crate::request::{Limits, LimitsError, Refusal, Request, RequestId, Status};
use crate::sequence::{Live, Sequence, blocks_of};
use crate::share::Share;
use crate::slab::Slab;

/// Requests that wait and run, and the blocks that they hold.
#[derive(Debug)]
pub struct Batcher {
    pub(crate) limits: Limits,
    pub(crate) pool: Pool,
    pub(crate) lives: Slab<Live>,
    pub(crate) by_id: HashMap<RequestId, u32, BuildHasherDefault<IdHasher>>,
    pub(crate) sequences: Slab<Sequence>,
    pub(crate) waiting: Queue,
    pub(crate) running: Queue,
    /// Sequences that run, those included that a first one stands for.
    pub(crate) seats: usize,
    pub(crate) step: Step,
    /// Number of steps.
    pub(crate) steps: u64,
    pub(crate) pace: Pace,
    /// The next prompt that goes through some layers at a time is the one with the fewest tokens left, not the senior one.
    pub(crate) short_prompt_is_next: bool,
    /// Number of the next request.
    next: u64,
    /// No deadline is before this time.
    deadline: Duration,
    pub(crate) totals: Totals,
    pub(crate) scratch: Scratch,
}

/// Step that is being computed.
#[derive(Debug, Default)]
pub(crate) struct Step {
    pub(crate) started: Duration,
    /// Sequences of the segments.
    pub(crate) slots: Vec<u32>,
    /// Number of sequences that decode.
    pub(crate) decoding: usize,
    /// Number of tokens of prompts, those of a part by its share of the layers.
    pub(crate) prompt: f64,
}

/// Counts since the start.
#[derive(Debug, Default)]
pub(crate) struct Totals {
    pub(crate) preemptions: u64,
    pub(crate) prompt_tokens: u64,
    pub(crate) cached_tokens: u64,
}

/// Memory that is used again.
#[derive(Debug)]
pub(crate) struct Scratch {
    /// Blocks of a prefix that was found.
    pub(crate) found: Vec<BlockId>,
    /// Prompts that share a step.
    pub(crate) prompts: Vec<Share>,
    /// Sequences that await a token.
    pub(crate) awaiting: Vec<u32>,
}

/// Hash of request numbers, which the caller counts.
#[derive(Debug, Default, Clone, Copy)]
pub(crate) struct IdHasher(u64);

impl Hasher for IdHasher {
    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|byte| self.write_u64(u64::from(*byte)));
    }

    fn write_u64(&mut self, number: u64) {
        let product = u128::from(self.0 ^ number) * 0x9e37_79b9_7f4a_7c15;
        self.0 = (product >> 64) as u64 ^ product as u64;
    }

    fn finish(&self) -> u64 {
        self.0
    }
}

impl Batcher {
    /// Batcher without requests.
    ///
    /// # Errors
    /// The limits leave no room for progress.
    pub fn new(limits: Limits) -> Result<Self, LimitsError> {
        let Limits { blocks, tokens, sequences, logits, context, queue, ageing, layers } = limits;
        let numbers = [
            ("blocks", blocks as usize),
            ("sequences", sequences),
            ("context", context),
            ("queue", queue),
            ("layers", layers),
        ];
        if let Some((name, _)) = numbers.iter().find(|(_, number)| *number == 0) {
            return Err(LimitsError::Zero(name));
        }
        if ageing.is_zero() {
            return Err(LimitsError::Zero("ageing"));
        }
        for (room, what) in [(tokens, "tokens"), (logits, "rows of logits")] {
            if room <= sequences {
                return Err(LimitsError::NoRoom { sequences, room, what });
            }
        }
        Ok(Self {
            limits,
            pool: Pool::new(blocks),
            lives: Slab::new(),
            by_id: HashMap::default(),
            sequences: Slab::new(),
            waiting: Queue::with_capacity(sequences),
            running: Queue::with_capacity(sequences),
            seats: 0,
            step: Step { slots: Vec::with_capacity(sequences), ..Step::default() },
            steps: 0,
            pace: Pace::default(),
            short_prompt_is_next: false,
            next: 0,
            deadline: Duration::MAX,
            totals: Totals::default(),
            scratch: Scratch {
                found: Vec::with_capacity(blocks_of(context.min(blocks as usize * BLOCK))),
                prompts: Vec::with_capacity(sequences),
                awaiting: Vec::with_capacity(sequences),
            },
        })
    }

    /// Most tokens of a sequence: prompt and answer.
    #[must_use]
    pub fn longest(&self) -> usize {
        self.limits.context.min(self.pool.total() * BLOCK)
    }

    /// Takes a request. It waits until a step admits it.
    ///
    /// # Errors
    /// The request can never be computed, or too many wait.
    pub fn add(&mut self, request: Request, now: Duration) -> Result<(), Refusal> {
        self.check(&request)?;
        let Request { id, priority, deadline, .. } = request;
        let rank = Rank::new(now, priority, self.limits.ageing, self.next);
        self.next += 1;
        self.deadline = self.deadline.min(deadline.unwrap_or(Duration::MAX));
        let live = self.lives.insert(Live::new(request));
        self.by_id.insert(id, live);
        let slot = self.sequences.insert(Sequence::new(live, 0, rank, &self.lives[live].request));
        self.lives[live].sequences[0] = Some(slot);
        self.waiting.insert(rank, slot);
        Ok(())
    }

    fn check(&self, request: &Request) -> Result<(), Refusal> {
        let most = self.limits.sequences;
        let tokens = request.prompt.len().saturating_add(if request.whole { 0 } else { request.max_tokens });
        let longest = if request.whole { self.longest().min(self.limits.tokens - most) } else { self.longest() };
        if self.by_id.contains_key(&request.id) {
            Err(Refusal::Duplicate(request.id))
        } else if request.prompt.is_empty() {
            Err(Refusal::EmptyPrompt)
        } else if tokens > longest {
            Err(Refusal::TooLong { tokens, most: longest })
        } else if request.choices == 0 || request.choices as usize > most {
            Err(Refusal::Choices { choices: request.choices, most })
        } else if self.waiting.len() >= self.limits.queue {
            Err(Refusal::QueueFull { waiting: self.waiting.len() })
        } else {
            Ok(())
        }
    }

    /// Ends a request, whatever its state; its blocks are given back at once. False if there is none of this number.
    pub fn cancel(&mut self, id: RequestId) -> bool {
        let Some(live) = self.by_id.get(&id).copied() else { return false };
        self.end_request(live);
        true
    }

    /// Ends a choice whose text is complete for its client; its blocks are given back at once, and the others go on.
    /// With the last one its request ends. False if the choice has ended, or has no sequence of its own yet.
    pub fn cancel_choice(&mut self, id: RequestId, choice: u32) -> bool {
        let stands_for_all = |live: &Live| !live.forked && live.sequences.len() > 1;
        if self.by_id.get(&id).is_some_and(|live| stands_for_all(&self.lives[*live])) {
            return false;
        }
        let Some(slot) = self.slot(id, choice) else { return false };
        self.end_choice(slot);
        true
    }

    /// Ends the requests whose deadline is past, and appends them to `ended`.
    pub fn expire(&mut self, now: Duration, ended: &mut Vec<RequestId>) {
        if now < self.deadline {
            return;
        }
        let first = ended.len();
        self.deadline = Duration::MAX;
        for live in self.lives.values() {
            match live.request.deadline {
                Some(deadline) if deadline <= now => ended.push(live.request.id),
                Some(deadline) => self.deadline = self.deadline.min(deadline),
                None => {}
            }
        }
        for id in &ended[first..] {
            self.cancel(*id);
        }
    }

    /// Gives guesses of the tokens after a choice's last, which the next step verifies as far as it has room.
    pub fn draft(&mut self, id: RequestId, choice: u32, tokens: &[u32]) {
        let Some(slot) = self.slot(id, choice) else { return };
        let sequence = &mut self.sequences[slot];
        if sequence.running && sequence.flight.is_none() && sequence.decodes() {
            sequence.drafts.clear();
            sequence.drafts.extend_from_slice(&tokens[..tokens.len().min(self.limits.tokens)]);
        }
    }

    /// Takes the last step as not computed: its sequences wait again and lose their blocks.
    pub fn abandon(&mut self) {
        let slots = std::mem::take(&mut self.step.slots);
        for slot in &slots {
            if self.sequences.get_mut(*slot).is_some_and(|sequence| sequence.flight.is_some()) {
                self.preempt(*slot);
            }
        }
        self.step.slots = slots;
        self.step.slots.clear();
    }

    /// Takes the contents of all blocks as lost, as after the backend slept. Requests that run wait again.
    pub fn forget(&mut self) {
        while let Some(slot) = self.running.last() {
            self.preempt(slot);
        }
        self.step.slots.clear();
        self.pool.forget();
    }

    /// Returns true if a request of this number waits or runs.
    #[must_use]
    pub fn is_live(&self, id: RequestId) -> bool {
        self.by_id.contains_key(&id)
    }

    /// Returns true if no request lives.
    #[must_use]
    pub fn is_idle(&self) -> bool {
        self.by_id.is_empty()
    }

    /// Numbers of this moment.
    #[must_use]
    pub fn status(&self) -> Status {
        Status {
            waiting: self.waiting.len(),
            running: self.running.len(),
            free_blocks: self.pool.free(),
            cached_blocks: self.pool.cached(),
            used_blocks: self.pool.used(),
            preemptions: self.totals.preemptions,
            prompt_tokens: self.totals.prompt_tokens,
            cached_tokens: self.totals.cached_tokens,
        }
    }

    /// Verifies that no block is lost: free, cached and used ones are all, and references are those of the sequences.
    ///
    /// # Errors
    /// The first invariant that is broken.
    pub fn audit(&self) -> Result<(), PoolFault> {
        let mut held = vec![0_u32; self.pool.total()];
        for sequence in self.sequences.values() {
            for block in sequence.table.blocks() {
                held[block.0 as usize] += 1;
            }
        }
        self.pool.audit(|block| held[block.0 as usize])
    }

    /// Sequence of a choice that has not ended.
    pub(crate) fn slot(&self, id: RequestId, choice: u32) -> Option<u32> {
        let live = self.by_id.get(&id)?;
        self.lives[*live].sequences.get(choice as usize).copied().flatten()
    }

    /// Takes the blocks of a running sequence and lets it wait. Its tokens stay.
    pub(crate) fn preempt(&mut self, slot: u32) {
        let sequence = &mut self.sequences[slot];
        sequence.table.clear(&mut self.pool);
        sequence.computed = 0;
        sequence.published = 0;
        sequence.drafts.clear();
        sequence.flight = None;
        sequence.part = None;
        sequence.running = false;
        self.running.remove(sequence.rank);
        self.seats -= self.lives[sequence.live].weight();
        self.waiting.insert(sequence.rank, slot);
        self.totals.preemptions += 1;
    }

    /// Ends all choices of a request.
    pub(crate) fn end_request(&mut self, live: u32) {
        for choice in 0..self.lives[live].sequences.len() {
            if let Some(slot) = self.lives[live].sequences[choice].take() {
                self.drop_sequence(slot);
            }
        }
        if let Some(live) = self.lives.remove(live) {
            self.by_id.remove(&live.request.id);
        }
    }

    /// Ends a choice, and with the last one its request.
    pub(crate) fn end_choice(&mut self, slot: u32) {
        let Sequence { live, choice, .. } = self.sequences[slot];
        self.lives[live].sequences[choice as usize] = None;
        self.drop_sequence(slot);
        if self.lives[live].sequences.iter().all(Option::is_none) {
            self.end_request(live);
        }
    }

    /// Gives everything of a sequence back.
    fn drop_sequence(&mut self, slot: u32) {
        let Some(mut sequence) = self.sequences.remove(slot) else { return };
        sequence.table.clear(&mut self.pool);
        if sequence.running {
            self.running.remove(sequence.rank);
            self.seats -= self.lives[sequence.live].weight();
        } else {
            self.waiting.remove(sequence.rank);
        }
    }

    /// Takes memory for a sequence's blocks and tokens, so that a step allocates none.
    pub(crate) fn reserve(&mut self, slot: u32) {
        /// Longest answer that memory is taken for at once.
        const ANSWER: usize = 4096;
        let sequence = &mut self.sequences[slot];
        let live = &self.lives[sequence.live];
        let answer = sequence.max_tokens.min(ANSWER);
        let blocks = blocks_of(sequence.prompt.len() + answer);
        sequence.answer.reserve(answer.saturating_sub(sequence.answer.len()));
        sequence.table.reserve(blocks + 1);
        sequence.names.reserve((blocks + 1).saturating_sub(live.names.len() + sequence.names.len()));
    }
}
