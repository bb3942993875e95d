//! Softmax over chunks of positions, and the sum of its parts.

use super::{BLOCKS, CHUNK};
use crate::elementwise::exp2;
use crate::simd::{Kernel, LANES, Simd, Vectors, run};
use std::ops::Range;

/// Rows of a tile in one chunk.
pub(super) struct Chunk<'a> {
    /// Positions that each row sees.
    pub(super) visible: &'a [Range<usize>],
    /// Scores, which weights replace; exponents of 2.
    pub(super) scores: &'a mut [[f32; CHUNK]],
    /// Greatest score of each row so far.
    pub(super) greatest: &'a mut [f32],
    /// Sum of each row's weights so far.
    pub(super) sums: &'a mut [f32],
    /// Factor of each row's sums before; room for whole vectors.
    pub(super) factors: &'a mut [[f32; LANES]],
}

/// Replaces the scores of a chunk by weights relative to the greatest score so far, which it updates as the sum of weights.
#[inline(always)]
pub(super) fn weigh<S: Simd>(simd: S, chunk: Chunk<'_>) {
    let Chunk { visible, scores, greatest, sums, factors } = chunk;
    let flat = factors.as_flattened_mut();
    for (((visible, scores), greatest), factor) in visible.iter().zip(&mut *scores).zip(&mut *greatest).zip(flat) {
        *factor = 0.0;
        if visible.is_empty() {
            continue;
        }
        scores[..visible.start].fill(f32::NEG_INFINITY);
        scores[visible.end..].fill(f32::NEG_INFINITY);
        let vectors = load(simd, scores);
        let pairs = [simd.max(vectors[0], vectors[1]), simd.max(vectors[2], vectors[3])];
        let found = simd.greatest(simd.max(pairs[0], pairs[1]));
        let now = if found > *greatest { found } else { *greatest };
        *factor = *greatest - now;
        *greatest = now;
    }
    for factor in &mut factors[..visible.len().div_ceil(LANES)] {
        simd.store(exp2(simd, simd.load(factor)), factor);
    }
    let rows = visible.iter().zip(scores).zip(greatest).zip(sums).zip(factors.as_flattened());
    for ((((visible, scores), greatest), sum), factor) in rows {
        if visible.is_empty() {
            continue;
        }
        let mut vectors = load(simd, scores);
        let greatest = simd.splat(*greatest);
        for (vector, scores) in vectors.iter_mut().zip(scores.as_chunks_mut().0) {
            *vector = exp2(simd, simd.sub(*vector, greatest));
            simd.store(*vector, scores);
        }
        let pairs = [simd.add(vectors[0], vectors[1]), simd.add(vectors[2], vectors[3])];
        *sum = *sum * factor + simd.sum(simd.add(pairs[0], pairs[1]));
    }
}

#[inline(always)]
fn load<S: Simd>(simd: S, scores: &[f32; CHUNK]) -> [S::Vector; BLOCKS] {
    let mut vectors = [simd.splat(0.0); BLOCKS];
    for (vector, scores) in vectors.iter_mut().zip(scores.as_chunks().0) {
        *vector = simd.load(scores);
    }
    vectors
}

/// Returns `2^x` of one number.
#[inline(always)]
fn power<S: Simd>(simd: S, x: f32) -> f32 {
    let mut lanes = [0.0; LANES];
    simd.store(exp2(simd, simd.splat(x)), &mut lanes);
    lanes[0]
}

/// Softmax of one row over some positions: greatest score, sum of weights and weighted sum of values.
pub(super) struct Part<'a> {
    pub(super) greatest: &'a mut f32,
    pub(super) sum: &'a mut f32,
    pub(super) values: &'a mut [[f32; LANES]],
}

/// Adds the part of later positions to a row's softmax.
pub(super) fn merge(vectors: Vectors, total: Part<'_>, part: (f32, f32, &[[f32; LANES]])) {
    run(vectors, Merge { total, part });
}

struct Merge<'a> {
    total: Part<'a>,
    part: (f32, f32, &'a [[f32; LANES]]),
}

impl Kernel for Merge<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        let (greatest, sum, values) = self.part;
        let before = *self.total.greatest;
        let now = if greatest > before { greatest } else { before };
        let (old, new) = (power(simd, before - now), power(simd, greatest - now));
        *self.total.greatest = now;
        *self.total.sum = *self.total.sum * old + sum * new;
        let (old, new) = (simd.splat(old), simd.splat(new));
        for (total, value) in self.total.values.iter_mut().zip(values) {
            simd.store(simd.mul_add(simd.load(value), new, simd.mul(simd.load(total), old)), total);
        }
    }
}
