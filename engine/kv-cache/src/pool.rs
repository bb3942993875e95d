//! States of all blocks. No operation allocates; each takes constant time, [`Pool::audit`] and [`Pool::forget`] apart.

use omni_kernels::BlockId;

use crate::digest::Digest;

/// End of a list.
const NONE: u32 = u32::MAX;

/// Block. Without a reference it is in the list of free blocks, or, if it has a name, in that of cached ones.
#[derive(Debug, Clone)]
struct Block {
    references: u32,
    name: Option<Digest>,
    /// Neighbours in the list of cached blocks, `next` also in that of free ones.
    previous: u32,
    next: u32,
    /// Next block of the same bucket of the index.
    bucket: u32,
}

/// Blocks of a cache: references, free ones, cached ones in the order of their last use, and an index of prefixes.
#[derive(Debug)]
pub struct Pool {
    blocks: Vec<Block>,
    /// First free block.
    free: u32,
    free_count: usize,
    /// Cached blocks: least recently used first.
    oldest: u32,
    newest: u32,
    cached_count: usize,
    /// First block of each bucket of the index; their number is a power of two.
    buckets: Vec<u32>,
}

/// Broken invariant of a pool.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PoolFault {
    /// Blocks are lost or counted twice.
    #[error("{free} free, {cached} cached and {used} used blocks are not the {total} of the pool")]
    Sum {
        /// Blocks in the list of free ones.
        free: usize,
        /// Blocks in the list of cached ones.
        cached: usize,
        /// Blocks with references.
        used: usize,
        /// All blocks.
        total: usize,
    },
    /// A block is in a list that does not fit its state, or not where it must be.
    #[error("block {0} is in a list that does not fit its state")]
    List(u32),
    /// The index and the block's name differ.
    #[error("block {0} is not in the index as its name says")]
    Index(u32),
    /// References are not those that the sequences hold.
    #[error("block {block} has {counted} references, of which sequences hold {held}")]
    References {
        /// Block.
        block: u32,
        /// Count of the pool.
        counted: u32,
        /// Count of the sequences.
        held: u32,
    },
}

impl Pool {
    /// Pool of `blocks` free blocks.
    #[must_use]
    pub fn new(blocks: u32) -> Self {
        let count = blocks.min(NONE - 1);
        let block = |number: u32| Block {
            references: 0,
            name: None,
            previous: NONE,
            next: if number + 1 < count { number + 1 } else { NONE },
            bucket: NONE,
        };
        Self {
            blocks: (0..count).map(block).collect(),
            free: if count == 0 { NONE } else { 0 },
            free_count: count as usize,
            oldest: NONE,
            newest: NONE,
            cached_count: 0,
            buckets: vec![NONE; (count as usize).next_power_of_two()],
        }
    }

    /// Number of all blocks.
    #[must_use]
    pub fn total(&self) -> usize {
        self.blocks.len()
    }

    /// Number of blocks without content.
    #[must_use]
    pub fn free(&self) -> usize {
        self.free_count
    }

    /// Number of blocks with a prefix and without a reference.
    #[must_use]
    pub fn cached(&self) -> usize {
        self.cached_count
    }

    /// Number of blocks with references.
    #[must_use]
    pub fn used(&self) -> usize {
        self.total() - self.available()
    }

    /// Number of blocks that can be allocated: free and cached ones.
    #[must_use]
    pub fn available(&self) -> usize {
        self.free_count + self.cached_count
    }

    /// Number of references of a block.
    #[must_use]
    pub fn references(&self, block: BlockId) -> u32 {
        self.blocks[block.0 as usize].references
    }

    /// Returns true if the holder of the block's only reference may write to it: nobody can find it by its prefix.
    #[must_use]
    pub fn is_writable(&self, block: BlockId) -> bool {
        let block = &self.blocks[block.0 as usize];
        block.references == 1 && block.name.is_none()
    }

    /// Takes a free block, or the least recently used cached one, with one reference. `None` if all are used.
    pub fn allocate(&mut self) -> Option<BlockId> {
        let number = if self.free != NONE {
            let number = self.free;
            self.free = self.blocks[number as usize].next;
            self.free_count -= 1;
            number
        } else if self.oldest != NONE {
            let number = self.oldest;
            self.unlink(number);
            self.unindex(number);
            number
        } else {
            return None;
        };
        let block = &mut self.blocks[number as usize];
        block.references = 1;
        block.next = NONE;
        Some(BlockId(number))
    }

    /// Adds a reference to a used or cached block.
    pub fn share(&mut self, block: BlockId) {
        if self.blocks[block.0 as usize].references == 0 {
            debug_assert!(self.blocks[block.0 as usize].name.is_some(), "a free block has nothing to share");
            self.unlink(block.0);
        }
        self.blocks[block.0 as usize].references += 1;
    }

    /// Takes a reference away. Without any the block is cached, as the most recently used, if its prefix is published,
    /// else free.
    pub fn release(&mut self, block: BlockId) {
        let entry = &mut self.blocks[block.0 as usize];
        debug_assert!(entry.references > 0, "a block without references is released");
        entry.references = entry.references.saturating_sub(1);
        if entry.references > 0 {
            return;
        }
        if entry.name.is_some() {
            self.link(block.0);
        } else {
            entry.next = self.free;
            self.free = block.0;
            self.free_count += 1;
        }
    }

    /// Publishes a used block as the last of the prefix with this name. Its content must be complete, and nobody may
    /// write to it any more. Where the prefix is known already, the first block stays the one that is found.
    pub fn publish(&mut self, block: BlockId, name: Digest) {
        debug_assert!(self.blocks[block.0 as usize].references > 0, "an unused block is published");
        if self.blocks[block.0 as usize].name.is_some() || self.find(&name).is_some() {
            return;
        }
        let bucket = self.bucket(&name);
        let entry = &mut self.blocks[block.0 as usize];
        entry.name = Some(name);
        entry.bucket = self.buckets[bucket];
        self.buckets[bucket] = block.0;
    }

    /// Finds the last block of the prefix with this name. It stays what it is until it is shared.
    #[must_use]
    pub fn find(&self, name: &Digest) -> Option<BlockId> {
        let mut number = *self.buckets.get(self.bucket(name))?;
        while number != NONE {
            let block = &self.blocks[number as usize];
            if block.name.as_ref() == Some(name) {
                return Some(BlockId(number));
            }
            number = block.bucket;
        }
        None
    }

    /// Forgets all prefixes: the contents of the blocks are lost. Cached blocks become free.
    pub fn forget(&mut self) {
        for number in 0..self.blocks.len() as u32 {
            if self.blocks[number as usize].name.is_none() {
                continue;
            }
            self.unindex(number);
            if self.blocks[number as usize].references == 0 {
                self.unlink(number);
                self.blocks[number as usize].next = self.free;
                self.free = number;
                self.free_count += 1;
            }
        }
    }

    /// Verifies all invariants; `held` counts the references that sequences hold of a block.
    ///
    /// # Errors
    /// The first invariant that is broken.
    pub fn audit(&self, held: impl Fn(BlockId) -> u32) -> Result<(), PoolFault> {
        let (mut free, mut cached, mut used) = (0, 0, 0);
        let mut number = self.free;
        while number != NONE && free <= self.total() {
            let block = &self.blocks[number as usize];
            if block.references > 0 || block.name.is_some() {
                return Err(PoolFault::List(number));
            }
            free += 1;
            number = block.next;
        }
        let (mut number, mut previous) = (self.oldest, NONE);
        while number != NONE && cached <= self.total() {
            let block = &self.blocks[number as usize];
            if block.references > 0 || block.name.is_none() || block.previous != previous {
                return Err(PoolFault::List(number));
            }
            cached += 1;
            previous = number;
            number = block.next;
        }
        for (number, block) in (0..).zip(&self.blocks) {
            used += usize::from(block.references > 0);
            let held = held(BlockId(number));
            if block.references != held {
                return Err(PoolFault::References { block: number, counted: block.references, held });
            }
            if block.name.is_some_and(|name| self.find(&name) != Some(BlockId(number))) {
                return Err(PoolFault::Index(number));
            }
        }
        let counts_fit = free == self.free_count && cached == self.cached_count && previous == self.newest;
        if counts_fit && free + cached + used == self.total() {
            Ok(())
        } else {
            Err(PoolFault::Sum { free, cached, used, total: self.total() })
        }
    }

    /// Bucket of a name, whose bytes are random already.
    fn bucket(&self, name: &Digest) -> usize {
        let bytes = name.bytes();
        let low = u32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]);
        low as usize & (self.buckets.len() - 1)
    }

    /// Takes a block out of the index.
    fn unindex(&mut self, number: u32) {
        let Some(name) = self.blocks[number as usize].name.take() else { return };
        let next = std::mem::replace(&mut self.blocks[number as usize].bucket, NONE);
        let bucket = self.bucket(&name);
        if self.buckets[bucket] == number {
            self.buckets[bucket] = next;
            return;
        }
        let mut at = self.buckets[bucket];
        while at != NONE {
            let entry = &mut self.blocks[at as usize];
            if entry.bucket == number {
                entry.bucket = next;
                return;
            }
            at = entry.bucket;
        }
    }

    /// Puts a block at the end of the list of cached ones.
    fn link(&mut self, number: u32) {
        let newest = self.newest;
        let block = &mut self.blocks[number as usize];
        block.previous = newest;
        block.next = NONE;
        match newest {
            NONE => self.oldest = number,
            newest => self.blocks[newest as usize].next = number,
        }
        self.newest = number;
        self.cached_count += 1;
    }

    /// Takes a block out of the list of cached ones.
    fn unlink(&mut self, number: u32) {
        let block = &mut self.blocks[number as usize];
        let previous = std::mem::replace(&mut block.previous, NONE);
        let next = std::mem::replace(&mut block.next, NONE);
        match previous {
            NONE => self.oldest = next,
            previous => self.blocks[previous as usize].next = next,
        }
        match next {
            NONE => self.newest = previous,
            next => self.blocks[next as usize].previous = previous,
        }
        self.cached_count -= 1;
    }
}
