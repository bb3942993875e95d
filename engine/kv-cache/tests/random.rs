//! Random operations on a pool, beside a model of it that holds what every block contains.
#![allow(clippy::expect_used, clippy::panic, reason = "a test stops at the first surprise")]

use omni_kernels::{BLOCK, BlockId};
use omni_kv_cache::{BlockTable, Digest, Pool, Root};
use proptest::prelude::*;

/// Pool, the references that are held, and what is in each block.
struct Model {
    pool: Pool,
    held: Vec<BlockId>,
    contents: Vec<Option<Digest>>,
    names: u32,
}

impl Model {
    fn new(blocks: u32) -> Self {
        Self { pool: Pool::new(blocks), held: Vec::new(), contents: vec![None; blocks as usize], names: 0 }
    }

    fn count(&self, block: BlockId) -> u32 {
        self.held.iter().filter(|held| **held == block).count() as u32
    }

    /// Does one operation, chosen by two numbers.
    fn operate(&mut self, operation: u32, choice: u32) {
        let pick = |held: &[BlockId]| held.get(choice as usize % held.len().max(1)).copied();
        match operation % 100 {
            0..40 => {
                let available = self.pool.available();
                match self.pool.allocate() {
                    Some(block) => {
                        assert_eq!(self.count(block), 0, "a block with references was given away");
                        self.contents[block.0 as usize] = None;
                        self.held.push(block);
                    }
                    None => assert_eq!(available, 0),
                }
            }
            40..70 => {
                if !self.held.is_empty() {
                    let block = self.held.swap_remove(choice as usize % self.held.len());
                    self.pool.release(block);
                }
            }
            70..80 => {
                if let Some(block) = pick(&self.held) {
                    self.pool.share(block);
                    self.held.push(block);
                }
            }
            80..90 => {
                if let Some(block) = pick(&self.held) {
                    self.names += 1;
                    let name = name(if choice.is_multiple_of(3) { choice % 50 } else { 50 + self.names });
                    let known = self.pool.find(&name);
                    self.pool.publish(block, name);
                    let content = &mut self.contents[block.0 as usize];
                    if known.is_none() && content.is_none() {
                        *content = Some(name);
                    }
                }
            }
            90..99 => {
                let number = if choice.is_multiple_of(2) { choice % 50 } else { 50 + choice % self.names.max(1) };
                if let Some(block) = self.pool.find(&name(number)) {
                    assert_eq!(self.contents[block.0 as usize], Some(name(number)), "the wrong content was found");
                    self.pool.share(block);
                    self.held.push(block);
                }
            }
            _ => {
                if choice.is_multiple_of(50) {
                    self.pool.forget();
                    self.contents.fill(None);
                    assert_eq!(self.pool.cached(), 0);
                }
            }
        }
        if let Err(fault) = self.pool.audit(|block| self.count(block)) {
            panic!("operation {operation} {choice}: {fault}");
        }
    }
}

fn name(number: u32) -> Digest {
    Root::default().digest().extended(&[number])
}

#[test]
fn b22_no_block_is_lost_in_a_hundred_thousand_operations() {
    let mut random = fastrand::Rng::with_seed(22);
    let mut model = Model::new(61);
    for _ in 0..100_000 {
        model.operate(random.u32(..), random.u32(..));
    }
    while let Some(block) = model.held.pop() {
        model.pool.release(block);
    }
    assert_eq!((model.pool.used(), model.pool.available()), (0, 61));
    let mut all: Vec<_> = std::iter::from_fn(|| model.pool.allocate()).collect();
    all.sort_unstable();
    all.dedup();
    assert_eq!(all.len(), 61);
}

proptest! {
    #[test]
    fn b22_free_cached_and_used_blocks_are_all(
        blocks in 0_u32..9,
        operations in prop::collection::vec((any::<u32>(), any::<u32>()), 0..200),
    ) {
        let mut model = Model::new(blocks);
        for (operation, choice) in operations {
            model.operate(operation, choice);
        }
    }
}

#[test]
fn the_least_recently_used_prefix_is_evicted_first_and_of_it_the_end() {
    let mut pool = Pool::new(4);
    let mut tables: Vec<_> = (0..2)
        .map(|sequence| {
            let mut table = BlockTable::default();
            table.prepare(&mut pool, 0..2 * BLOCK, &mut Vec::new()).expect("four blocks");
            for (number, block) in (0..).zip(table.blocks()) {
                pool.publish(*block, name(10 * sequence + number));
            }
            table
        })
        .collect();
    tables[1].clear(&mut pool);
    tables[0].clear(&mut pool);
    let found = |pool: &Pool| [0, 1, 10, 11].map(|number| pool.find(&name(number)).is_some());
    assert_eq!(found(&pool), [true, true, true, true]);
    pool.allocate().expect("a cached block");
    assert_eq!(found(&pool), [true, true, true, false]);
    let used_again = pool.find(&name(10)).expect("it is cached");
    pool.share(used_again);
    pool.release(used_again);
    pool.allocate().expect("a cached block");
    assert_eq!(found(&pool), [true, false, true, false]);
}

#[test]
fn a_writer_gets_a_copy_of_what_others_see() {
    let mut pool = Pool::new(5);
    let (mut first, mut second, mut third) = (BlockTable::default(), BlockTable::default(), BlockTable::default());
    let mut copies = Vec::new();
    first.prepare(&mut pool, 0..BLOCK + 3, &mut copies).expect("two blocks");
    pool.publish(first.blocks()[0], name(0));
    first.fork(&mut pool, &mut second);
    first.fork(&mut pool, &mut third);
    assert_eq!((pool.used(), copies.len()), (2, 0));

    second.prepare(&mut pool, BLOCK + 3..BLOCK + 4, &mut copies).expect("a block");
    third.prepare(&mut pool, BLOCK + 3..BLOCK + 4, &mut copies).expect("a block");
    first.prepare(&mut pool, BLOCK + 3..BLOCK + 4, &mut copies).expect("its own block");
    assert_eq!(copies.iter().map(|copy| copy.from).collect::<Vec<_>>(), [first.blocks()[1]; 2]);
    assert_eq!([copies[0].to, copies[1].to], [second.blocks()[1], third.blocks()[1]]);
    assert_eq!((first.blocks()[0], pool.used()), (third.blocks()[0], 4));

    first.clear(&mut pool);
    second.prepare(&mut pool, 0..1, &mut copies).expect("a block");
    assert_ne!(second.blocks()[0], third.blocks()[0]);
    third.prepare(&mut pool, BLOCK..3 * BLOCK, &mut copies).expect("the last block");
    let refused = second.prepare(&mut pool, BLOCK..3 * BLOCK, &mut copies);
    assert!(refused.is_err());
    second.truncate(&mut pool, BLOCK);
    assert_eq!(second.blocks().len(), 1);
    second.clear(&mut pool);
    third.clear(&mut pool);
    pool.audit(|_| 0).expect("nothing is lost");
}
