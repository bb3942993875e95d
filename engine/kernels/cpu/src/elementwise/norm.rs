//! Norms of rows.

use crate::simd::{Kernel, LANES, Simd, Vectors, run};
use omni_kernels::model::NormKind;

/// Norm with its weights.
#[derive(Debug)]
pub(crate) struct NormWeights {
    /// Factor of each element, the norm's offset included.
    pub(crate) weight: Vec<f32>,
    /// Addend of each element.
    pub(crate) bias: Option<Vec<f32>>,
    /// Formula.
    pub(crate) kind: NormKind,
    /// Addend of the variance.
    pub(crate) epsilon: f32,
}

impl NormWeights {
    /// Normalises a row in place.
    pub(crate) fn apply(&self, vectors: Vectors, row: &mut [f32]) {
        run(vectors, Apply { norm: self, row });
    }
}

struct Apply<'a> {
    norm: &'a NormWeights,
    row: &'a mut [f32],
}

impl Kernel for Apply<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        let Self { norm, row } = self;
        let width = row.len() as f32;
        let mean = match norm.kind {
            NormKind::Rms => 0.0,
            NormKind::Layer => sum(simd, row) / width,
        };
        let variance = sum_of_squares(simd, row, mean) / width;
        let factor = 1.0 / (variance + norm.epsilon).sqrt();
        normalise(simd, row, mean, factor, &norm.weight);
        if let Some(bias) = &norm.bias {
            for (x, bias) in row.iter_mut().zip(bias) {
                *x += bias;
            }
        }
    }
}

/// Computes `(x - mean) factor weight`.
#[inline(always)]
fn normalise<S: Simd>(simd: S, row: &mut [f32], mean: f32, factor: f32, weight: &[f32]) {
    let (rows, tail) = row.as_chunks_mut::<LANES>();
    let (weights, weight_tail) = weight.as_chunks::<LANES>();
    let (means, factors) = (simd.splat(mean), simd.splat(factor));
    for (x, weight) in rows.iter_mut().zip(weights) {
        let normal = simd.mul(simd.sub(simd.load(x), means), factors);
        simd.store(simd.mul(normal, simd.load(weight)), x);
    }
    for (x, weight) in tail.iter_mut().zip(weight_tail) {
        *x = (*x - mean) * factor * weight;
    }
}

#[inline(always)]
fn sum<S: Simd>(simd: S, row: &[f32]) -> f32 {
    let (chunks, tail) = row.as_chunks::<LANES>();
    let mut sum = simd.splat(0.0);
    for chunk in chunks {
        sum = simd.add(sum, simd.load(chunk));
    }
    simd.sum(sum) + tail.iter().sum::<f32>()
}

/// Adds up `(x - mean)^2` in two sums, so that each addition need not wait for the last one.
#[inline(always)]
fn sum_of_squares<S: Simd>(simd: S, row: &[f32], mean: f32) -> f32 {
    let (chunks, tail) = row.as_chunks::<LANES>();
    let (pairs, single) = chunks.as_chunks::<2>();
    let means = simd.splat(mean);
    let (mut even, mut odd) = (simd.splat(0.0), simd.splat(0.0));
    for [a, b] in pairs {
        let (a, b) = (simd.sub(simd.load(a), means), simd.sub(simd.load(b), means));
        even = simd.mul_add(a, a, even);
        odd = simd.mul_add(b, b, odd);
    }
    for chunk in single {
        let x = simd.sub(simd.load(chunk), means);
        even = simd.mul_add(x, x, even);
    }
    let mut rest = 0.0;
    for x in tail {
        rest += (x - mean) * (x - mean);
    }
    simd.sum(simd.add(even, odd)) + rest
}
