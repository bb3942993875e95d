//! Division of a step's attention into tasks.

use super::{Heads, SPLIT};
use omni_kernels::{Segment, StepPlan};
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};

/// Tasks of a head and thread below which long tiles are split.
const TASKS_PER_THREAD: usize = 4;

/// Bounds of a plan.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Limits {
    /// Most tokens of a step.
    pub(crate) tokens: usize,
    /// Places for results of splits of whole tiles. Those of smaller tiles take only as many of their rows.
    pub(crate) slots: usize,
}

impl Limits {
    /// Most tasks of a plan.
    pub(crate) fn tasks(self) -> usize {
        self.tokens.saturating_add(self.slots)
    }
}

/// Task for each head of keys and values.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Task {
    /// Segment of the step.
    pub(super) segment: usize,
    /// First query of the tile, counted in the segment.
    pub(super) first: usize,
    /// Queries of the tile.
    pub(super) count: usize,
    /// Split to compute, `None`: all.
    pub(super) split: Option<Split>,
}

/// Split of a tile.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Split {
    /// Number of the split.
    pub(super) number: usize,
    /// Splits of the tile.
    pub(super) count: usize,
    /// First row for results. Those of a split are at this and `number * heads + head` times the rows of the tile.
    pub(super) row: usize,
    /// First counter of splits to come, one for each head.
    pub(super) counter: usize,
}

/// Tasks of a layer's attention.
#[derive(Debug)]
pub(crate) struct Plan {
    pub(super) tasks: Vec<Task>,
    limits: Limits,
    next: AtomicUsize,
    /// Splits of a tile and head that are to come.
    remaining: Vec<AtomicU32>,
}

impl Plan {
    /// Plan without tasks. `tasks` has room for those of a step within the limits.
    pub(crate) fn new(tasks: Vec<Task>, limits: Limits) -> Self {
        let remaining = (0..limits.slots).map(|_| AtomicU32::new(0)).collect();
        Self { tasks, limits, next: AtomicUsize::new(0), remaining }
    }

    /// Bytes of such a plan.
    pub(crate) fn bytes(limits: Limits) -> u64 {
        (limits.tasks() * size_of::<Task>() + limits.slots * size_of::<AtomicU32>()) as u64
    }

    /// Divides a step, with the last queries of each segment only where `queries` says so.
    pub(crate) fn fill(&mut self, step: &StepPlan, heads: Heads, threads: usize, queries: impl Fn(&Segment) -> usize) {
        self.tasks.clear();
        let tile = heads.tile();
        let tiles: usize = step.segments.iter().map(|segment| queries(segment).div_ceil(tile)).sum();
        let is_split = tiles * heads.kv < TASKS_PER_THREAD * threads;
        let (mut row, mut counter, mut split_tasks) = (0, 0, 0);
        let all_rows = self.limits.slots * heads.rows();
        for (number, segment) in step.segments.iter().enumerate() {
            let length = segment.tokens.len();
            let skipped = length - queries(segment).min(length);
            let mut end = length;
            // Tiles with the most positions come first, so that no thread begins a long one at the end.
            while end > skipped {
                let first = end.saturating_sub(tile).max(skipped);
                let task = Task { segment: number, first, count: end - first, split: None };
                let splits = (segment.start + length).div_ceil(SPLIT);
                let rows = splits * heads.kv * task.count * heads.group();
                let has_room = row + rows <= all_rows
                    && counter + heads.kv <= self.remaining.len()
                    && split_tasks + splits <= self.limits.slots;
                if is_split && splits > 1 && has_room {
                    let split = |at| Some(Split { number: at, count: splits, row, counter });
                    self.tasks.extend((0..splits).map(|at| Task { split: split(at), ..task }));
                    let counters = &self.remaining[counter..counter + heads.kv];
                    counters.iter().for_each(|remaining| remaining.store(splits as u32, Ordering::Relaxed));
                    row += rows;
                    split_tasks += splits;
                    counter += heads.kv;
                } else {
                    self.tasks.push(task);
                }
                end = first;
            }
        }
    }

    /// Makes all tasks available again.
    pub(crate) fn restart(&self) {
        self.next.store(0, Ordering::Relaxed);
    }

    /// Takes the next task, with its head.
    pub(super) fn take(&self, heads: Heads) -> Option<(Task, usize)> {
        let at = self.next.fetch_add(1, Ordering::Relaxed);
        self.tasks.get(at / heads.kv).map(|task| (*task, at % heads.kv))
    }

    /// Notes that a split is computed. Returns true for the last one of its tile and head.
    pub(super) fn finish(&self, split: Split, head: usize) -> bool {
        let remaining = &self.remaining[split.counter + head];
        let is_last = remaining.fetch_sub(1, Ordering::AcqRel) == 1;
        if is_last {
            remaining.store(split.count as u32, Ordering::Relaxed);
        }
        is_last
    }
}
