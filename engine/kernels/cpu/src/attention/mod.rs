//! Paged attention with grouped heads.
//!
//! ```text
//!  segments ─▶ tiles: some queries of a segment ─▶ tasks: a tile and a head of keys and values, for decode of long
//!              sequences also one split of positions ─▶ threads take tasks one after the other
//! ```
//!
//! Positions are counted in chunks of 64 and splits of 256, both from position 0 of the sequence. The softmax of a query is
//! computed chunk by chunk within a split, and split by split, in ascending order. A query's result thus depends on its
//! position alone: not on the tile, the segment, or the thread.

mod micro;
mod plan;
mod softmax;
mod tile;

pub(crate) use plan::{Limits, Plan};
pub(crate) use tile::{Call, Scratch, attend, slot_size};

use omni_kernels::BLOCK;
use omni_kernels::model::{Attention, Mask};
use std::ops::Range;

/// Positions of a chunk.
const CHUNK: usize = 64;
/// Blocks of a chunk.
const BLOCKS: usize = CHUNK / BLOCK;
/// Positions of a split.
const SPLIT: usize = 256;
/// Rows of a tile, at least those of one query.
const TILE_ROWS: usize = 48;

/// Heads of a layer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Heads {
    /// Heads of queries.
    pub(crate) queries: usize,
    /// Heads of keys and values.
    pub(crate) kv: usize,
    /// Width of a head.
    pub(crate) width: usize,
}

impl Heads {
    pub(crate) fn of(attention: &Attention) -> Self {
        Self { queries: attention.heads, kv: attention.kv_heads, width: attention.head_width }
    }

    /// Heads of queries for one of keys and values.
    pub(crate) fn group(self) -> usize {
        self.queries / self.kv
    }

    /// Queries of a tile.
    fn tile(self) -> usize {
        (TILE_ROWS / self.group()).max(1)
    }

    /// Rows of a tile.
    fn rows(self) -> usize {
        self.tile() * self.group()
    }
}

/// Positions that the query at `position` sees in a sequence of which `length` positions are there.
fn visible(mask: Mask, position: usize, length: usize) -> Range<usize> {
    match mask {
        Mask::Causal => 0..position + 1,
        Mask::Window { window } => (position + 1).saturating_sub(window)..position + 1,
        Mask::All => 0..length,
    }
}

/// The part of a range within another, counted from the other's start; an empty range at its start or end if there is none.
fn within(range: &Range<usize>, outer: &Range<usize>) -> Range<usize> {
    let start = range.start.clamp(outer.start, outer.end);
    let end = range.end.clamp(start, outer.end);
    start - outer.start..end - outer.start
}

#[cfg(test)]
mod tests;
