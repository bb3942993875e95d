//! Innermost loops: scores of some rows of queries with a chunk of keys, and weighted sums of a chunk of values.
//!
//! Invariant: each number is a sum in one order, over the elements of a head or over positions, whatever rows are computed
//! beside it.
//!
//! Few rows need less time for a chunk than memory does. So the lines of the next chunk are asked for one by one, where
//! those of this chunk are read.

use super::{BLOCKS, CHUNK};
use crate::cache::Element;
use crate::simd::{LANES, Simd};
use std::ops::Range;

/// Most rows at once.
pub(super) const ROWS: usize = 6;

/// Calls a function with the number of rows as a constant.
macro_rules! with_rows {
    ($rows:expr, $function:ident($($argument:expr),*)) => {
        match $rows {
            1 => $function::<S, E, 1>($($argument),*),
            2 => $function::<S, E, 2>($($argument),*),
            3 => $function::<S, E, 3>($($argument),*),
            4 => $function::<S, E, 4>($($argument),*),
            5 => $function::<S, E, 5>($($argument),*),
            _ => $function::<S, E, ROWS>($($argument),*),
        }
    };
}

/// Number of rows to compute next, so that none is left alone where it can be helped.
#[inline(always)]
pub(super) fn rows_of(left: usize) -> usize {
    match left {
        0..=ROWS => left,
        7..=11 => left.div_ceil(2),
        _ => ROWS,
    }
}

/// Keys of a chunk: a vector of 16 positions for each element, in each block.
#[derive(Clone, Copy)]
pub(super) struct Keys<'a, E> {
    pub(super) blocks: [&'a [[E; LANES]]; BLOCKS],
    /// The same of the chunk that is read next.
    pub(super) ahead: [&'a [[E; LANES]]; BLOCKS],
}

/// Computes scores of `rows` queries with the keys of the first `blocks` blocks of a chunk.
#[inline(always)]
pub(super) fn scores<S: Simd, E: Element>(
    simd: S,
    (rows, blocks): (usize, usize),
    queries: &[f32],
    keys: Keys<'_, E>,
    scores: &mut [[f32; LANES]],
) {
    with_rows!(rows, scores_of_rows(simd, blocks, queries, keys, scores));
}

#[inline(always)]
fn scores_of_rows<S: Simd, E: Element, const R: usize>(
    simd: S,
    blocks: usize,
    queries: &[f32],
    keys: Keys<'_, E>,
    scores: &mut [[f32; LANES]],
) {
    if S::WIDE && blocks == BLOCKS {
        scores_of_blocks::<S, E, R, BLOCKS>(simd, queries, keys.blocks, keys.ahead, scores, 0);
    } else {
        for (block, (keys, ahead)) in keys.blocks.into_iter().zip(keys.ahead).take(blocks).enumerate() {
            scores_of_blocks::<S, E, R, 1>(simd, queries, [keys], [ahead], scores, block);
        }
    }
}

#[inline(always)]
fn scores_of_blocks<S: Simd, E: Element, const R: usize, const B: usize>(
    simd: S,
    queries: &[f32],
    keys: [&[[E; LANES]]; B],
    ahead: [&[[E; LANES]]; B],
    scores: &mut [[f32; LANES]],
    first: usize,
) {
    let width = keys[0].len();
    let mut rows = [queries; R];
    for (at, row) in rows.iter_mut().enumerate() {
        *row = &queries[at * width..(at + 1) * width];
    }
    let mut sums = [[simd.splat(0.0); B]; R];
    for element in 0..width {
        let mut key = [simd.splat(0.0); B];
        for (key, keys) in key.iter_mut().zip(keys) {
            *key = E::load(simd, &keys[element]);
        }
        if E::CONVERTED && element.is_multiple_of(E::OF_LINE) {
            ahead.iter().for_each(|ahead| simd.prefetch(&ahead[element]));
        }
        for (sums, row) in sums.iter_mut().zip(rows) {
            let query = simd.splat(row[element]);
            for (sum, key) in sums.iter_mut().zip(key) {
                *sum = simd.mul_add(query, key, *sum);
            }
        }
    }
    for (sums, scores) in sums.into_iter().zip(scores.chunks_exact_mut(BLOCKS)) {
        for (sum, score) in sums.into_iter().zip(&mut scores[first..]) {
            simd.store(sum, score);
        }
    }
}

/// Chunk of values: 16 rows of `stride` vectors in each block.
#[derive(Clone, Copy)]
pub(super) struct Values<'a, E> {
    pub(super) blocks: [&'a [[E; LANES]]; BLOCKS],
    /// The same of the chunk that is read next.
    pub(super) ahead: [&'a [[E; LANES]]; BLOCKS],
    pub(super) stride: usize,
}

/// Weights of the positions of a chunk for some rows.
#[derive(Clone, Copy)]
pub(super) struct Weights<'a> {
    pub(super) rows: &'a [[f32; CHUNK]],
    /// Positions that each row sees.
    pub(super) visible: &'a [Range<usize>],
    /// Factor of each row's sums before the chunk.
    pub(super) factors: &'a [f32],
}

/// Factors that change nothing.
const ONES: [f32; ROWS] = [1.0; ROWS];

/// Adds the values of a chunk, weighted, to the sums of `rows` queries. Each row counts its visible positions only.
#[inline(always)]
pub(super) fn values<S: Simd, E: Element>(
    simd: S,
    rows: usize,
    weights: Weights<'_>,
    values: Values<'_, E>,
    sums: &mut [[f32; LANES]],
) {
    with_rows!(rows, values_of_rows(simd, weights, values, sums));
}

#[inline(always)]
fn values_of_rows<S: Simd, E: Element, const R: usize>(
    simd: S,
    weights: Weights<'_>,
    values: Values<'_, E>,
    sums: &mut [[f32; LANES]],
) {
    let Weights { rows, visible, mut factors } = weights;
    let (rows, visible) = (&rows[..R], &visible[..R]);
    let start = visible.iter().fold(0, |start, row| start.max(row.start));
    let end = visible.iter().fold(CHUNK, |end, row| end.min(row.end)).max(start);
    // Positions that some of the rows do not see are added row by row, before and after those that all see.
    if start == end || visible.iter().any(|row| row.start < start) {
        for ((sums, row), (visible, factor)) in
            sums.chunks_exact_mut(values.stride).zip(rows).zip(visible.iter().zip(factors))
        {
            let edge = visible.start..visible.end.min(start).max(visible.start);
            values_of_range::<S, E, 1>(simd, std::slice::from_ref(row), &[*factor], edge, values, sums);
        }
        factors = &ONES;
    }
    if start < end {
        values_of_range::<S, E, R>(simd, rows, factors, start..end, values, sums);
    }
    if visible.iter().any(|row| row.end > end) {
        for ((sums, row), visible) in sums.chunks_exact_mut(values.stride).zip(rows).zip(visible) {
            values_of_range::<S, E, 1>(simd, std::slice::from_ref(row), &ONES, end..visible.end, values, sums);
        }
    }
}

/// Multiplies the sums by their factors, and adds the values of a range of positions.
#[inline(always)]
fn values_of_range<S: Simd, E: Element, const R: usize>(
    simd: S,
    weights: &[[f32; CHUNK]],
    factors: &[f32],
    range: Range<usize>,
    values: Values<'_, E>,
    sums: &mut [[f32; LANES]],
) {
    let mut column = 0;
    if S::WIDE {
        while column + BLOCKS <= values.stride {
            values_of_columns::<S, E, R, BLOCKS>(simd, weights, factors, range.clone(), values, sums, column);
            column += BLOCKS;
        }
    }
    while column < values.stride {
        values_of_columns::<S, E, R, 1>(simd, weights, factors, range.clone(), values, sums, column);
        column += 1;
    }
}

#[inline(always)]
fn values_of_columns<S: Simd, E: Element, const R: usize, const B: usize>(
    simd: S,
    weights: &[[f32; CHUNK]],
    factors: &[f32],
    range: Range<usize>,
    values: Values<'_, E>,
    sums: &mut [[f32; LANES]],
    column: usize,
) {
    let (weights, factors) = (&weights[..R], &factors[..R]);
    let mut total = [[simd.splat(0.0); B]; R];
    for ((total, sums), factor) in total.iter_mut().zip(sums.chunks_exact(values.stride)).zip(factors) {
        let factor = simd.splat(*factor);
        for (total, sum) in total.iter_mut().zip(&sums[column..]) {
            *total = simd.mul(simd.load(sum), factor);
        }
    }
    for position in range {
        let (block, first) = (position / LANES, position % LANES * values.stride + column);
        let row = &values.blocks[block][first..][..B];
        let mut value = [simd.splat(0.0); B];
        for (value, row) in value.iter_mut().zip(row) {
            *value = E::load(simd, row);
        }
        if E::CONVERTED {
            values.ahead[block][first..][..B].iter().step_by(E::OF_LINE).for_each(|ahead| simd.prefetch(ahead));
        }
        for (total, weights) in total.iter_mut().zip(weights) {
            let weight = simd.splat(weights[position]);
            for (total, value) in total.iter_mut().zip(value) {
                *total = simd.mul_add(weight, value, *total);
            }
        }
    }
    for (total, sums) in total.into_iter().zip(sums.chunks_exact_mut(values.stride)) {
        for (total, sum) in total.into_iter().zip(&mut sums[column..]) {
            simd.store(total, sum);
        }
    }
}
