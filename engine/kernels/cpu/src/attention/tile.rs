//! Attention of a tile: some queries of a segment, of the heads that share keys and values.
#![allow(unsafe_code, reason = "threads read queries and cache, and write disjoint parts of the output")]

use super::micro::{self, Keys, Values, Weights};
use super::plan::{Plan, Split, Task};
use super::softmax::{Chunk, Part, merge, weigh};
use super::{BLOCKS, CHUNK, Heads, SPLIT, visible, within};
use crate::cache::{Element, LayerLayout, Lent, Tiles};
use crate::shared::Shared;
use crate::simd::{Kernel, LANES, Simd, Vectors, run};
use omni_kernels::model::Mask;
use omni_kernels::{BLOCK, BlockId, StepPlan};
use std::ops::Range;

/// Attention of a layer.
pub(crate) struct Call<'a, E> {
    pub(crate) vectors: Vectors,
    pub(crate) heads: Heads,
    pub(crate) mask: Mask,
    pub(crate) layer: LayerLayout,
    pub(crate) cache: &'a Lent<'a, E>,
    pub(crate) step: &'a StepPlan,
    pub(crate) plan: &'a Plan,
    /// Queries of all tokens, which the output replaces. Scores are exponents of 2.
    pub(crate) queries: &'a Shared<'a, f32>,
    /// Scratch of each thread.
    pub(crate) scratch: &'a Shared<'a, Scratch>,
    /// Results of splits.
    pub(crate) slots: &'a Shared<'a, f32>,
}

/// Softmax of each row over some positions.
#[derive(Debug, Default)]
struct State {
    greatest: Vec<f32>,
    sums: Vec<f32>,
    values: Vec<[f32; LANES]>,
}

/// Scratch of a thread.
#[derive(Debug, Default)]
pub(crate) struct Scratch {
    queries: Vec<f32>,
    visible: Vec<Range<usize>>,
    visible_of_chunk: Vec<Range<usize>>,
    scores: Vec<[f32; CHUNK]>,
    factors: Vec<[f32; LANES]>,
    keys: Vec<[f32; LANES]>,
    values: Vec<[f32; LANES]>,
    part: State,
    total: State,
}

impl State {
    fn new(rows: usize, stride: usize) -> Self {
        Self { greatest: vec![0.0; rows], sums: vec![0.0; rows], values: vec![[0.0; LANES]; rows * stride] }
    }
}

impl Scratch {
    /// Scratch for layers with these heads.
    pub(crate) fn new(heads: &[Heads]) -> Self {
        let greatest = |size: fn(&Heads) -> usize| heads.iter().map(size).max().unwrap_or(0);
        let rows = greatest(|heads| heads.rows());
        let width = greatest(|heads| heads.width);
        let stride = width.div_ceil(LANES);
        Self {
            queries: vec![0.0; rows * width],
            visible: vec![0..0; rows],
            visible_of_chunk: vec![0..0; rows],
            scores: vec![[0.0; CHUNK]; rows],
            factors: vec![[0.0; LANES]; rows.div_ceil(LANES)],
            keys: vec![[0.0; LANES]; BLOCKS * width],
            values: vec![[0.0; LANES]; CHUNK * stride],
            part: State::new(rows, stride),
            total: State::new(rows, stride),
        }
    }

    /// Bytes of the scratch.
    pub(crate) fn bytes(&self) -> u64 {
        let numbers = self.queries.len()
            + self.scores.len() * CHUNK
            + (self.factors.len()
                + self.keys.len()
                + self.values.len()
                + self.part.values.len()
                + self.total.values.len())
                * LANES
            + 4 * self.visible.len();
        (numbers * size_of::<f32>() + 2 * self.visible.len() * size_of::<Range<usize>>()) as u64
    }
}

/// Numbers of a split's result.
pub(crate) fn slot_size(heads: &[Heads]) -> usize {
    heads.iter().map(|heads| heads.rows() * (2 + heads.width.next_multiple_of(LANES))).max().unwrap_or(0)
}

/// Computes tasks until there are none.
pub(crate) fn attend<E: Element>(call: &Call<'_, E>, thread: usize) {
    // SAFETY: each thread uses the scratch of its number only.
    let scratch = unsafe { call.scratch.write(thread..thread + 1) };
    let Some(scratch) = scratch.first_mut() else { return };
    let mut next = None;
    while let Some((task, head)) = next.take().or_else(|| call.plan.take(call.heads)) {
        call.prepare(scratch, task, head);
        if let Some(split) = task.split {
            // Splits are short: what comes after each has to be known while it is computed.
            next = call.plan.take(call.heads);
            call.compute_split(scratch, (task, split, head), next);
        } else {
            call.compute(scratch, task, head);
        }
    }
}

/// Chunk of a sequence's positions, for one head of keys and values.
#[derive(Clone, Copy)]
struct Place<'a> {
    head: usize,
    blocks: &'a [BlockId],
    /// First position.
    position: usize,
}

impl<E: Element> Call<'_, E> {
    /// Queries of a token and a head of keys and values, counted in all queries.
    fn queries_of(&self, task: Task, query: usize, head: usize) -> Range<usize> {
        let token = self.step.segments[task.segment].tokens.start + task.first + query;
        let width = self.heads.group() * self.heads.width;
        let start = token * self.heads.queries * self.heads.width + head * width;
        start..start + width
    }

    /// Collects the tile's queries, and the positions that they see.
    fn prepare(&self, scratch: &mut Scratch, task: Task, head: usize) {
        let group = self.heads.group();
        let segment = &self.step.segments[task.segment];
        let length = segment.start + segment.tokens.len();
        for query in 0..task.count {
            let range = self.queries_of(task, query, head);
            let width = range.len();
            // SAFETY: the output replaces these queries after the tile's last use of them, by the thread that is last.
            let queries = unsafe { self.queries.read(range) };
            scratch.queries[query * width..][..width].copy_from_slice(queries);
            let seen = visible(self.mask, segment.start + task.first + query, length);
            scratch.visible[query * group..][..group].fill(seen);
        }
    }

    /// Blocks of a task's sequence.
    fn blocks(&self, task: Task) -> &[BlockId] {
        &self.step.blocks[self.step.segments[task.segment].blocks.clone()]
    }

    /// First chunk that a task reads of a split.
    fn first(&self, task: Task, head: usize, split: usize) -> Place<'_> {
        let segment = &self.step.segments[task.segment];
        let seen = visible(self.mask, segment.start + task.first, segment.start + segment.tokens.len());
        Place { head, blocks: self.blocks(task), position: seen.start.max(split * SPLIT) / CHUNK * CHUNK }
    }

    /// Keys and values of a chunk. Blocks after the last one stand for that.
    fn tiles(&self, place: Place<'_>, last: usize) -> [Tiles<'_, E>; BLOCKS] {
        std::array::from_fn(|at| {
            let block = place.blocks[(place.position / BLOCK + at).min(last)];
            // SAFETY: blocks are not written during the attention.
            unsafe { self.cache.read(self.layer, place.head, block) }
        })
    }

    /// Computes one split of the tile into `part`. `next` is read after it.
    fn span(&self, scratch: &mut Scratch, task: Task, head: usize, split: usize, next: Option<Place<'_>>) {
        let rows = task.count * self.heads.group();
        let positions = split * SPLIT..(split + 1) * SPLIT;
        run(self.vectors, Span { call: self, head, rows, positions, blocks: self.blocks(task), next, scratch });
    }

    fn compute(&self, scratch: &mut Scratch, task: Task, head: usize) {
        let rows = task.count * self.heads.group();
        let stride = self.layer.stride();
        let first = scratch.visible[..rows].iter().map(|row| row.start).min().unwrap_or(0) / SPLIT;
        let end = scratch.visible[..rows].iter().map(|row| row.end).max().unwrap_or(0).div_ceil(SPLIT);
        for split in first..end {
            let next = (split + 1 < end).then(|| self.first(task, head, split + 1));
            self.span(scratch, task, head, split, next);
            let Scratch { visible, part, total, .. } = scratch;
            for (row, visible) in visible[..rows].iter().enumerate() {
                let values = row * stride..(row + 1) * stride;
                total.take(
                    self.vectors,
                    row,
                    split,
                    visible,
                    (part.greatest[row], part.sums[row], &part.values[values]),
                );
            }
        }
        self.output(scratch, task, head);
    }

    fn compute_split(
        &self,
        scratch: &mut Scratch,
        (task, split, head): (Task, Split, usize),
        next: Option<(Task, usize)>,
    ) {
        let rows = task.count * self.heads.group();
        let stride = self.layer.stride();
        let of_row = 2 + stride * LANES;
        let size = rows * of_row;
        let slot = |number: usize| (split.row + (number * self.heads.kv + head) * rows) * of_row;
        let next = next.map(|(task, head)| self.first(task, head, task.split.map_or(0, |split| split.number)));
        self.span(scratch, task, head, split.number, next);
        // SAFETY: only this task writes the slot, and others read it after `finish` only.
        let (greatest, rest) =
            unsafe { self.slots.write(slot(split.number)..slot(split.number) + size) }.split_at_mut(rows);
        let (sums, values) = rest.split_at_mut(rows);
        greatest.copy_from_slice(&scratch.part.greatest[..rows]);
        sums.copy_from_slice(&scratch.part.sums[..rows]);
        values.copy_from_slice(scratch.part.values[..rows * stride].as_flattened());
        if !self.plan.finish(split, head) {
            return;
        }
        for number in 0..split.count {
            // SAFETY: all splits of the tile and head are computed.
            let (greatest, rest) = unsafe { self.slots.read(slot(number)..slot(number) + size) }.split_at(rows);
            let (sums, values) = rest.split_at(rows);
            let (values, _) = values.as_chunks::<LANES>();
            let Scratch { visible, total, .. } = &mut *scratch;
            for (row, visible) in visible[..rows].iter().enumerate() {
                let part = (greatest[row], sums[row], &values[row * stride..(row + 1) * stride]);
                total.take(self.vectors, row, number, visible, part);
            }
        }
        self.output(scratch, task, head);
    }

    /// Writes the tile's results in place of its queries.
    fn output(&self, scratch: &mut Scratch, task: Task, head: usize) {
        let (group, stride, width) = (self.heads.group(), self.layer.stride(), self.heads.width);
        for query in 0..task.count {
            // SAFETY: no other task uses these queries, or all others that did are done.
            let out = unsafe { self.queries.write(self.queries_of(task, query, head)) };
            for (at, out) in out.chunks_exact_mut(width).enumerate() {
                let row = query * group + at;
                let factor = 1.0 / scratch.total.sums[row];
                let values = scratch.total.values[row * stride..(row + 1) * stride].as_flattened();
                for (out, value) in out.iter_mut().zip(values) {
                    *out = value * factor;
                }
            }
        }
    }
}

impl State {
    /// Adds a split to a row's softmax if the row sees any of its positions.
    fn take(
        &mut self,
        vectors: Vectors,
        row: usize,
        split: usize,
        visible: &Range<usize>,
        part: (f32, f32, &[[f32; LANES]]),
    ) {
        if visible.start >= (split + 1) * SPLIT || visible.end <= split * SPLIT {
            return;
        }
        let stride = part.2.len();
        let values = &mut self.values[row * stride..(row + 1) * stride];
        if visible.start >= split * SPLIT {
            (self.greatest[row], self.sums[row]) = (part.0, part.1);
            values.copy_from_slice(part.2);
        } else {
            merge(vectors, Part { greatest: &mut self.greatest[row], sum: &mut self.sums[row], values }, part);
        }
    }
}

/// Softmax of the rows of a tile over one split.
struct Span<'a, E> {
    call: &'a Call<'a, E>,
    head: usize,
    rows: usize,
    positions: Range<usize>,
    blocks: &'a [BlockId],
    /// Chunk that is read after the split.
    next: Option<Place<'a>>,
    scratch: &'a mut Scratch,
}

impl<E: Element> Kernel for Span<'_, E> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        let Self { call, head, rows, positions, blocks, next, scratch } = self;
        let (stride, width) = (call.layer.stride(), call.heads.width);
        scratch.part.greatest[..rows].fill(f32::NEG_INFINITY);
        scratch.part.sums[..rows].fill(0.0);
        scratch.part.values[..rows * stride].fill([0.0; LANES]);
        let start = scratch.visible[..rows].iter().map(|row| row.start).min().unwrap_or(0).max(positions.start);
        let end = scratch.visible[..rows].iter().map(|row| row.end).max().unwrap_or(0).min(positions.end);
        for chunk in (start / CHUNK * CHUNK..end).step_by(CHUNK) {
            for (of_chunk, visible) in scratch.visible_of_chunk.iter_mut().zip(&scratch.visible[..rows]) {
                *of_chunk = within(visible, &(chunk..chunk + CHUNK));
            }
            // No position of a block after the last one is visible.
            let last = (end - 1) / BLOCK;
            let count = (last + 1 - chunk / BLOCK).min(BLOCKS);
            let place = |position: usize| Place { head, blocks, position };
            let tiles = call.tiles(place(chunk), last);
            if E::CONVERTED && rows > micro::ROWS {
                let Scratch { keys, values, .. } = &mut *scratch;
                for (at, tile) in tiles.iter().enumerate() {
                    convert(simd, tile.0, &mut keys[at * width..]);
                    convert(simd, tile.1, &mut values[at * BLOCK * stride..]);
                }
                let (keys, values) = (std::mem::take(keys), std::mem::take(values));
                let block =
                    |at: usize| (&keys[at * width..][..width], &values[at * BLOCK * stride..][..BLOCK * stride]);
                let tiles = std::array::from_fn(block);
                add_chunk::<S, f32>(simd, (rows, count), stride, tiles, tiles, scratch);
                (scratch.keys, scratch.values) = (keys, values);
            } else {
                let following = (chunk + CHUNK < end).then(|| place(chunk + CHUNK)).or(next);
                let ahead = following.map_or(tiles, |place| call.tiles(place, place.blocks.len() - 1));
                add_chunk::<S, E>(simd, (rows, count), stride, tiles, ahead, scratch);
            }
        }
    }
}

#[inline(always)]
fn convert<S: Simd, E: Element>(simd: S, from: &[[E; LANES]], to: &mut [[f32; LANES]]) {
    for (from, to) in from.iter().zip(to) {
        simd.store(E::load(simd, from), to);
    }
}

/// Adds a chunk of positions, of which some are in the first `blocks` blocks only, to the softmax of each row. The tiles
/// `ahead` are read next.
#[inline(always)]
fn add_chunk<S: Simd, E: Element>(
    simd: S,
    (rows, blocks): (usize, usize),
    stride: usize,
    tiles: [Tiles<'_, E>; BLOCKS],
    ahead: [Tiles<'_, E>; BLOCKS],
    scratch: &mut Scratch,
) {
    let keys = Keys { blocks: tiles.map(|tile| tile.0), ahead: ahead.map(|tile| tile.0) };
    let values = Values { blocks: tiles.map(|tile| tile.1), ahead: ahead.map(|tile| tile.1), stride };
    let width = keys.blocks[0].len();
    let Scratch { queries, visible_of_chunk, scores, factors, part, .. } = scratch;
    let visible = &visible_of_chunk[..rows];
    let mut row = 0;
    while row < rows {
        let count = micro::rows_of(rows - row);
        let (scores, _) = scores[row..row + count].as_flattened_mut().as_chunks_mut();
        micro::scores(simd, (count, blocks), &queries[row * width..(row + count) * width], keys, scores);
        row += count;
    }
    let State { greatest, sums, values: totals } = part;
    weigh(simd, Chunk { visible, scores, greatest, sums, factors });
    let factors = factors.as_flattened();
    let mut row = 0;
    while row < rows {
        let count = micro::rows_of(rows - row);
        let weights =
            Weights { rows: &scores[row..row + count], visible: &visible[row..row + count], factors: &factors[row..] };
        micro::values(simd, count, weights, values, &mut totals[row * stride..(row + count) * stride]);
        row += count;
    }
}
