//! Blocks of one sequence.

use std::ops::Range;

use omni_kernels::{BLOCK, BlockCopy, BlockId};

use crate::pool::Pool;

/// Blocks of a sequence, in the order of its positions. It holds one reference of each, which [`BlockTable::clear`] gives
/// back.
#[derive(Debug, Default)]
pub struct BlockTable {
    blocks: Vec<BlockId>,
}

/// No block can be had.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Exhausted;

impl BlockTable {
    /// Takes memory for that many blocks, so that none is allocated later.
    pub fn reserve(&mut self, blocks: usize) {
        self.blocks.reserve(blocks.saturating_sub(self.blocks.len()));
    }

    /// Blocks.
    #[must_use]
    pub fn blocks(&self) -> &[BlockId] {
        &self.blocks
    }

    /// Appends a block that was found by its prefix.
    pub fn share(&mut self, pool: &mut Pool, block: BlockId) {
        pool.share(block);
        self.blocks.push(block);
    }

    /// Makes `into`, which is empty, a table of the same blocks.
    pub fn fork(&self, pool: &mut Pool, into: &mut Self) {
        debug_assert!(into.blocks.is_empty(), "a fork replaces blocks");
        self.blocks.iter().for_each(|block| into.share(pool, *block));
    }

    /// Makes positions writable: appends the blocks that are missing, and replaces those that others can see by copies.
    ///
    /// # Errors
    /// No block is left. What was done stays done.
    pub fn prepare(
        &mut self,
        pool: &mut Pool,
        positions: Range<usize>,
        copies: &mut Vec<BlockCopy>,
    ) -> Result<(), Exhausted> {
        for at in positions.start / BLOCK..positions.end.div_ceil(BLOCK) {
            match self.blocks.get(at).copied() {
                Some(block) if pool.is_writable(block) => {}
                Some(from) => {
                    let to = pool.allocate().ok_or(Exhausted)?;
                    copies.push(BlockCopy { from, to });
                    self.blocks[at] = to;
                    pool.release(from);
                }
                None => self.blocks.push(pool.allocate().ok_or(Exhausted)?),
            }
        }
        Ok(())
    }

    /// Gives the blocks beyond those of the first `positions` back.
    pub fn truncate(&mut self, pool: &mut Pool, positions: usize) {
        let keep = positions.div_ceil(BLOCK);
        while self.blocks.len() > keep {
            self.blocks.pop().into_iter().for_each(|block| pool.release(block));
        }
    }

    /// Gives all blocks back, the last first: of a prefix the end is forgotten first.
    pub fn clear(&mut self, pool: &mut Pool) {
        self.truncate(pool, 0);
    }
}
