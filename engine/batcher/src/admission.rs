//! Admission: which of the waiting sequences get blocks.

use std::time::Duration;

use omni_kernels::BLOCK;

use crate::batcher::Batcher;
use crate::sequence::blocks_of;

/// Sequences that are passed by others in one step.
const PASSED: usize = 16;
/// Steps after which the prefix of a sequence that does not fit is looked up again.
const LOOK: u64 = 16;

/// Answer to a sequence that wants to run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fit {
    /// There are seats and blocks.
    Now,
    /// A more senior sequence computes the next block of its prefix: it will be found.
    Soon,
    /// Seats or blocks lack.
    No,
}

impl Batcher {
    /// Admits waiting sequences as far as seats and blocks reach, the most senior first.
    ///
    /// Smaller ones pass one that does not fit. Once the first of the queue has been passed for the time that counts as
    /// one level of priority, nothing passes it any more, so that the blocks that come back add up for it.
    pub(crate) fn admit(&mut self, now: Duration) {
        let mut passed = 0;
        while passed < PASSED
            && self.seats < self.limits.sequences
            && let Some(slot) = self.waiting.get(passed)
        {
            match self.fit(slot) {
                Fit::Now => {
                    self.start(slot);
                    continue;
                }
                Fit::No if passed == 0 => {
                    let since = *self.sequences[slot].blocked.get_or_insert(now);
                    if now.saturating_sub(since) >= self.limits.ageing {
                        return;
                    }
                }
                Fit::No | Fit::Soon => {}
            }
            passed += 1;
        }
    }

    /// Compares what a waiting sequence needs with what there is: blocks for all its known tokens, and one beside for
    /// each sequence that runs. Finds the blocks of its prefix.
    fn fit(&mut self, slot: u32) -> Fit {
        let sequence = &mut self.sequences[slot];
        let live = &self.lives[sequence.live];
        if self.seats + live.weight() > self.limits.sequences {
            return Fit::No;
        }
        let available = self.pool.available().saturating_sub(self.running.len());
        if sequence.wanted > available && !(self.steps + u64::from(slot)).is_multiple_of(LOOK) {
            return Fit::No;
        }
        let mut reusable = if sequence.whole { 0 } else { (sequence.known() - 1) / BLOCK };
        if let Some(due) = live.due.filter(|due| *due < sequence.prompt.len()) {
            reusable = reusable.min(due / BLOCK);
        }
        self.scratch.found.clear();
        let mut in_use = 0;
        for number in 0..reusable {
            let name = sequence.name(live, number);
            let Some(block) = self.pool.find(&name) else { break };
            in_use += usize::from(self.pool.references(block) > 0);
            self.scratch.found.push(block);
        }
        sequence.wanted = blocks_of(sequence.known()) - in_use;
        let found = self.scratch.found.len();
        if sequence.wanted > available {
            Fit::No
        } else if found < reusable && self.is_being_computed(slot, found) {
            Fit::Soon
        } else {
            Fit::Now
        }
    }

    /// Returns true if a running sequence of more seniority is about to compute a block of a waiting one's prompt.
    fn is_being_computed(&self, slot: u32, number: usize) -> bool {
        let sequence = &self.sequences[slot];
        let Some(name) = self.lives[sequence.live].names.get(number) else { return false };
        self.running.iter().map(|slot| &self.sequences[slot]).any(|other| {
            other.rank < sequence.rank
                && other.published <= number
                && !other.whole
                && self.lives[other.live].names.get(number) == Some(name)
        })
    }

    /// Lets a sequence that fits run.
    fn start(&mut self, slot: u32) {
        self.reserve(slot);
        let sequence = &mut self.sequences[slot];
        let live = &mut self.lives[sequence.live];
        for block in &self.scratch.found {
            sequence.table.share(&mut self.pool, *block);
        }
        sequence.published = self.scratch.found.len();
        sequence.computed = sequence.published * BLOCK;
        let positions = sequence.computed..sequence.known();
        let prepared = sequence.table.prepare(&mut self.pool, positions, &mut Vec::new());
        debug_assert!(prepared.is_ok(), "a sequence that fits finds its blocks");
        if !std::mem::replace(&mut live.counted, true) {
            sequence.cached = sequence.computed;
            self.totals.prompt_tokens += sequence.prompt.len() as u64;
            self.totals.cached_tokens += sequence.cached as u64;
        }
        sequence.blocked = None;
        sequence.wanted = 0;
        sequence.running = true;
        self.waiting.remove(sequence.rank);
        self.running.insert(sequence.rank, slot);
        self.seats += live.weight();
    }
}
