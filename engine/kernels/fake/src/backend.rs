//! The backend.

use omni_kernels::{BLOCK, Backend, BackendError, BlockId, Capacity, Facts, Segment, StepPlan};

use crate::clock::{Clock, Cost};
use crate::reference::{content, logit};

/// Layers. A segment has contents when it went through all.
pub const LAYERS: usize = 12;
/// Bytes of a block.
const BLOCK_BYTES: usize = BLOCK * size_of::<u64>();

/// Backend that computes hashes, and lets a clock advance by what a step would cost.
///
/// A plan that breaks the contract is refused: a block outside of the cache, a position that is read and was never
/// written, a block with two writers or with a writer and a reader.
#[derive(Debug)]
pub struct SimulatedBackend {
    facts: Facts,
    cost: Cost,
    clock: Clock,
    capacity: Capacity,
    is_asleep: bool,
    /// Content of each position of each block; 0 where nothing was written.
    contents: Vec<u64>,
    /// Segment that writes to each block in this step.
    writers: Vec<Option<usize>>,
    rows: Vec<f32>,
    /// Segment that went through some layers: its tokens, position, first block, and the next layer.
    kept: Option<Kept>,
}

/// Segment that went through some layers.
#[derive(Debug, PartialEq, Eq)]
struct Kept {
    tokens: Vec<u32>,
    start: usize,
    block: BlockId,
    next: usize,
}

impl SimulatedBackend {
    /// Backend with a vocabulary, which is also the width of an embedding.
    #[must_use]
    pub fn new(vocabulary: usize, cost: Cost) -> Self {
        let facts = Facts {
            name: "simulated".to_owned(),
            weight_bytes: 0,
            block_bytes: BLOCK_BYTES as u64,
            row_width: vocabulary,
            layers: LAYERS,
        };
        Self {
            facts,
            cost,
            clock: Clock::default(),
            capacity: Capacity { blocks: 0, tokens: 0, segments: 0, logits: 0 },
            is_asleep: false,
            contents: Vec::new(),
            writers: Vec::new(),
            rows: Vec::new(),
            kept: None,
        }
    }

    /// Clock of the backend.
    #[must_use]
    pub fn clock(&self) -> Clock {
        self.clock.clone()
    }

    /// Compares a plan with the capacity, and segments with each other.
    fn check(&mut self, plan: &StepPlan) -> Result<(), BackendError> {
        let Capacity { tokens, segments, logits, .. } = self.capacity;
        let broken = |what: String| Err(BackendError::Plan(what));
        if self.is_asleep {
            return broken("the backend sleeps".to_owned());
        }
        if plan.tokens.len() > tokens || plan.segments.len() > segments || plan.logits() > logits {
            return broken("more tokens, segments or rows than the capacity".to_owned());
        }
        let blocks = self.writers.len();
        let copied = plan.copies.iter().flat_map(|copy| [copy.from, copy.to]);
        if let Some(block) = plan.blocks.iter().copied().chain(copied).find(|block| block.0 as usize >= blocks) {
            return broken(format!("block {} of {blocks}", block.0));
        }
        self.writers.fill(None);
        let mut next = 0;
        for (number, segment) in plan.segments.iter().enumerate() {
            let tokens = segment.tokens.len();
            let end = segment.start + tokens;
            let covers = segment.tokens.start == next && tokens > 0 && segment.tokens.end <= plan.tokens.len();
            if !covers || segment.logits > tokens || segment.blocks.len() != end.div_ceil(BLOCK) {
                return broken(format!("segment {number} is {segment:?}"));
            }
            next = segment.tokens.end;
            let table = table(plan, segment)?;
            for block in &table[segment.start / BLOCK..] {
                if let Some(other) = self.writers[block.0 as usize].replace(number) {
                    return broken(format!("segments {other} and {number} write to block {}", block.0));
                }
            }
        }
        for (number, segment) in plan.segments.iter().enumerate() {
            for block in table(plan, segment)? {
                if let Some(other) = self.writers[block.0 as usize].filter(|other| *other != number) {
                    return broken(format!("segment {number} reads block {}, to which {other} writes", block.0));
                }
            }
        }
        if next != plan.tokens.len() {
            return broken("tokens of no segment".to_owned());
        }
        self.check_part(plan)
    }

    /// Compares a part with the segment that is kept, and keeps it as far as it goes.
    fn check_part(&mut self, plan: &StepPlan) -> Result<(), BackendError> {
        let Some(part) = &plan.part else { return Ok(()) };
        let broken = |what: String| Err(BackendError::Plan(what));
        let Some(segment) = plan.segments.last() else { return broken("a part of no segment".to_owned()) };
        let tokens = plan.tokens[segment.tokens.clone()].to_vec();
        let is_some = part.start < part.end && part.end <= LAYERS && part.len() < LAYERS;
        if !is_some || tokens.len() > BLOCK || (part.end < LAYERS && segment.logits > 0) {
            return broken(format!("{segment:?} through layers {part:?}"));
        }
        let block = table(plan, segment)?[segment.start / BLOCK];
        let kept = |next: usize| Kept { tokens: tokens.clone(), start: segment.start, block, next };
        if part.start > 0 && self.kept != Some(kept(part.start)) {
            return broken(format!("{segment:?} through layers {part:?} does not continue {:?}", self.kept));
        }
        self.kept = (part.end < LAYERS).then(|| kept(part.end));
        Ok(())
    }

    /// Writes the contents of a segment's positions if it `ends` in this step. Returns the number of positions that were
    /// read.
    fn compute(&mut self, plan: &StepPlan, segment: &Segment, ends: bool) -> Result<u64, BackendError> {
        let table = table(plan, segment)?;
        let place = |position: usize| table[position / BLOCK].0 as usize * BLOCK + position % BLOCK;
        let mut read = 0;
        if !ends {
            let end = segment.start + segment.tokens.len();
            return Ok((segment.start..end).map(|position| position as u64 + 1).sum());
        }
        for (position, token) in (segment.start..).zip(&plan.tokens[segment.tokens.clone()]) {
            let earlier = (0..position).map(|earlier| self.contents[place(earlier)]);
            if let Some(lost) = earlier.clone().position(|content| content == 0) {
                return Err(BackendError::Plan(format!("position {lost} is read and was not written")));
            }
            self.contents[place(position)] = content(*token, earlier);
            read += position as u64 + 1;
        }
        let end = segment.start + segment.tokens.len();
        for position in end - segment.logits..end {
            let content = self.contents[place(position)];
            let width = self.facts.row_width;
            self.rows.extend((0..width).map(|token| logit(content, token, width)));
        }
        Ok(read)
    }
}

/// Blocks of a segment.
fn table<'a>(plan: &'a StepPlan, segment: &Segment) -> Result<&'a [BlockId], BackendError> {
    let table = plan.blocks.get(segment.blocks.clone());
    table.ok_or_else(|| BackendError::Plan(format!("blocks {:?} of {}", segment.blocks, plan.blocks.len())))
}

impl Backend for SimulatedBackend {
    fn facts(&self) -> &Facts {
        &self.facts
    }

    fn bytes(&self, capacity: Capacity) -> u64 {
        let rows = capacity.logits as u64 * self.facts.row_width as u64 * size_of::<f32>() as u64;
        u64::from(capacity.blocks) * self.facts.block_bytes + rows
    }

    fn reserve(&mut self, capacity: Capacity) -> Result<(), BackendError> {
        self.capacity = capacity;
        self.contents = vec![0; capacity.blocks as usize * BLOCK];
        self.writers = vec![None; capacity.blocks as usize];
        self.rows = Vec::with_capacity(capacity.logits * self.facts.row_width);
        Ok(())
    }

    fn step(&mut self, plan: &StepPlan) -> Result<(), BackendError> {
        self.check(plan)?;
        for copy in &plan.copies {
            let from = copy.from.0 as usize * BLOCK;
            self.contents.copy_within(from..from + BLOCK, copy.to.0 as usize * BLOCK);
        }
        self.rows.clear();
        let (mut tokens, mut read) = (0.0, 0.0);
        for (number, segment) in plan.segments.iter().enumerate() {
            let part = plan.part.as_ref().filter(|_| number + 1 == plan.segments.len());
            let share = part.map_or(1.0, |part| part.len() as f64 / LAYERS as f64);
            let ends = part.is_none_or(|part| part.end == LAYERS);
            read += self.compute(plan, segment, ends)? as f64 * share;
            tokens += segment.tokens.len() as f64 * share;
        }
        self.clock.advance(self.cost.of(tokens, read));
        Ok(())
    }

    fn row(&mut self, row: usize) -> &mut [f32] {
        let width = self.facts.row_width;
        &mut self.rows[row * width..(row + 1) * width]
    }

    fn export(&self, block: BlockId, into: &mut [u8]) {
        let contents = &self.contents[block.0 as usize * BLOCK..][..BLOCK];
        for (bytes, content) in into.chunks_exact_mut(size_of::<u64>()).zip(contents) {
            bytes.copy_from_slice(&content.to_le_bytes());
        }
    }

    fn import(&mut self, block: BlockId, from: &[u8]) {
        let contents = &mut self.contents[block.0 as usize * BLOCK..][..BLOCK];
        for (content, bytes) in contents.iter_mut().zip(from.as_chunks().0) {
            *content = u64::from_le_bytes(*bytes);
        }
    }

    fn sleep(&mut self) -> Result<u64, BackendError> {
        self.is_asleep = true;
        self.kept = None;
        self.contents.fill(0);
        Ok(self.bytes(self.capacity))
    }

    fn wake(&mut self) -> Result<(), BackendError> {
        self.is_asleep = false;
        Ok(())
    }
}
