//! Tokens of one step. A plan is filled anew for each step and keeps its memory.

use std::ops::Range;

/// Positions of a block of the key-value cache.
pub const BLOCK: usize = 16;

/// Block of the key-value cache, by its number in the backend.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct BlockId(pub u32);

/// Copy of a block, before the tokens of the step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BlockCopy {
    /// Source.
    pub from: BlockId,
    /// Destination.
    pub to: BlockId,
}

/// Consecutive tokens of one sequence in a step.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Segment {
    /// Tokens, in [`StepPlan::tokens`]; at least one.
    pub tokens: Range<usize>,
    /// Position of the first token in its sequence.
    pub start: usize,
    /// Blocks of positions 0 to the last of these tokens, in [`StepPlan::blocks`]. Keys and values of earlier positions
    /// are there; those of these tokens are written.
    pub blocks: Range<usize>,
    /// Number of tokens at the segment's end whose logits are computed.
    pub logits: usize,
}

/// Tokens of one step.
///
/// Invariants: segments cover `tokens` in order; no block that a segment writes is in another segment's range.
///
/// A long prompt beside sequences that decode would make their step long: however few of its tokens a step computes, they
/// read all earlier positions. So the last segment may go through some layers only, and through the next ones in later steps:
///
/// ```text
///  step 1:  others ─▶ layers 0..30     last ─▶ layers 0..12, rows are kept
///  step 2:  others ─▶ layers 0..30     last ─▶ layers 12..24, rows are kept
///  step 3:  others ─▶ layers 0..30     last ─▶ layers 24..30 ─▶ logits
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct StepPlan {
    /// Copies of blocks before the step, in order.
    pub copies: Vec<BlockCopy>,
    /// Token ids of all segments.
    pub tokens: Vec<u32>,
    /// Block tables of all segments.
    pub blocks: Vec<BlockId>,
    /// Segments.
    pub segments: Vec<Segment>,
    /// Layers through which the last segment goes in this step, where these are not all; at least one. The segment has at
    /// most [`BLOCK`] tokens, and logits with the last layer only. Its parts follow each other from layer 0 on; between them
    /// come only steps without a part.
    pub part: Option<Range<usize>>,
}

impl StepPlan {
    /// Empties the plan and keeps its memory.
    pub fn clear(&mut self) {
        self.copies.clear();
        self.tokens.clear();
        self.blocks.clear();
        self.segments.clear();
        self.part = None;
    }

    /// Number of rows of logits: those of the segments one after the other.
    #[must_use]
    pub fn logits(&self) -> usize {
        self.segments.iter().map(|segment| segment.logits).sum()
    }

    /// Returns true if there is nothing to compute.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.segments.is_empty()
    }
}
