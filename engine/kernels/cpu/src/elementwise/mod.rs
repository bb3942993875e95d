//! Operations on each row or element between the products of matrices.

mod activation;
mod norm;
mod rope;

pub(crate) use activation::{activate, cap};
pub(crate) use norm::NormWeights;
pub(crate) use rope::{angles, rotate};

use crate::simd::{Kernel, LANES, Simd, Vectors, run};

/// Base 2 logarithm of e.
pub(crate) const LOG2_E: f32 = std::f32::consts::LOG2_E;

/// Least exponent of [`exp2`]; the result is 0 below.
const LEAST: f32 = -126.0;
/// Greatest exponent of [`exp2`].
const GREATEST: f32 = 127.0;
/// Coefficients of the series of `2^x`, from `x^7` down to `x`.
const SERIES: [f32; 7] =
    [1.525_273_4e-5, 1.540_353e-4, 1.333_355_8e-3, 9.618_129e-3, 5.550_411e-2, 2.402_265e-1, 6.931_472e-1];

/// Returns `2^x`, exactly 0 where `x` is less than -126.
#[inline(always)]
pub(crate) fn exp2<S: Simd>(simd: S, x: S::Vector) -> S::Vector {
    let within = simd.min(simd.splat(GREATEST), simd.max(simd.splat(LEAST), x));
    let whole = simd.round(within);
    let rest = simd.sub(within, whole);
    let mut sum = simd.splat(SERIES[0]);
    for coefficient in &SERIES[1..] {
        sum = simd.mul_add(sum, rest, simd.splat(*coefficient));
    }
    let power = simd.mul_add(sum, rest, simd.splat(1.0));
    simd.zero_below(simd.scale(power, whole), x, LEAST)
}

/// Copies fewer numbers than a vector has and fills up with 0.
#[inline(always)]
fn padded(tail: &[f32]) -> [f32; LANES] {
    let mut lanes = [0.0; LANES];
    lanes[..tail.len()].copy_from_slice(tail);
    lanes
}

/// Adds `delta` to `x`.
pub(crate) fn add(vectors: Vectors, x: &mut [f32], delta: &[f32]) {
    run(vectors, Add { x, delta });
}

struct Add<'a> {
    x: &'a mut [f32],
    delta: &'a [f32],
}

impl Kernel for Add<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        let (x, x_tail) = self.x.as_chunks_mut::<LANES>();
        let (delta, delta_tail) = self.delta.as_chunks::<LANES>();
        for (x, delta) in x.iter_mut().zip(delta) {
            simd.store(simd.add(simd.load(x), simd.load(delta)), x);
        }
        for (x, delta) in x_tail.iter_mut().zip(delta_tail) {
            *x += delta;
        }
    }
}

/// Adds `factor` times `delta` to `x`.
pub(crate) fn add_scaled(vectors: Vectors, x: &mut [f32], factor: f32, delta: &[f32]) {
    run(vectors, AddScaled { x, factor, delta });
}

struct AddScaled<'a> {
    x: &'a mut [f32],
    factor: f32,
    delta: &'a [f32],
}

impl Kernel for AddScaled<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        let factor = simd.splat(self.factor);
        let (x, x_tail) = self.x.as_chunks_mut::<LANES>();
        let (delta, delta_tail) = self.delta.as_chunks::<LANES>();
        for (x, delta) in x.iter_mut().zip(delta) {
            simd.store(simd.mul_add(factor, simd.load(delta), simd.load(x)), x);
        }
        for (x, delta) in x_tail.iter_mut().zip(delta_tail) {
            *x += self.factor * delta;
        }
    }
}

/// Multiplies each number by `factor`.
pub(crate) fn scale(row: &mut [f32], factor: f32) {
    for x in row {
        *x *= factor;
    }
}

#[cfg(test)]
mod tests;
