//! Vectors of 16 numbers on each level of instructions.
//!
//! A kernel is written once, generic over [`Simd`], and [`run`] compiles it for each level. Operations are the same on every
//! level but for the rounding of [`Simd::mul_add`], which the scalar level rounds twice.

mod scalar;
#[cfg(target_arch = "x86_64")]
mod x86;

use crate::level::Level;
use half::bf16;

/// Numbers of a vector.
pub(crate) const LANES: usize = 16;

/// Operations on vectors of [`LANES`] numbers. A value of the type proves that the processor has the instructions.
pub(crate) trait Simd: Copy {
    /// Vector.
    type Vector: Copy;
    /// The level has registers for 24 sums beside the operands.
    const WIDE: bool;

    fn splat(self, value: f32) -> Self::Vector;
    fn load(self, from: &[f32; LANES]) -> Self::Vector;
    fn load_bf16(self, from: &[bf16; LANES]) -> Self::Vector;
    fn store(self, value: Self::Vector, to: &mut [f32; LANES]);
    fn add(self, a: Self::Vector, b: Self::Vector) -> Self::Vector;
    fn sub(self, a: Self::Vector, b: Self::Vector) -> Self::Vector;
    fn mul(self, a: Self::Vector, b: Self::Vector) -> Self::Vector;
    fn div(self, a: Self::Vector, b: Self::Vector) -> Self::Vector;
    /// Returns `a b + c`.
    fn mul_add(self, a: Self::Vector, b: Self::Vector, c: Self::Vector) -> Self::Vector;
    /// Returns the smaller numbers, those of `b` where either is not a number.
    fn min(self, a: Self::Vector, b: Self::Vector) -> Self::Vector;
    /// Returns the greater numbers, those of `b` where either is not a number.
    fn max(self, a: Self::Vector, b: Self::Vector) -> Self::Vector;
    /// Rounds to the nearest whole numbers, ties to even.
    fn round(self, value: Self::Vector) -> Self::Vector;
    /// Returns `a 2^n` for whole `n` between -126 and 127.
    fn scale(self, a: Self::Vector, n: Self::Vector) -> Self::Vector;
    /// Returns `a`, and 0 where `b` is less than `bound`.
    fn zero_below(self, a: Self::Vector, b: Self::Vector, bound: f32) -> Self::Vector;

    /// Begins to load the line of memory at a value into the processor's cache.
    #[inline(always)]
    fn prefetch<T>(self, from: &T) {
        _ = from;
    }

    /// Adds the numbers up in pairs: an order that is the same on every level.
    #[inline(always)]
    fn sum(self, value: Self::Vector) -> f32 {
        let mut lanes = [0.0; LANES];
        self.store(value, &mut lanes);
        let mut half = LANES / 2;
        while half > 0 {
            for at in 0..half {
                lanes[at] += lanes[at + half];
            }
            half /= 2;
        }
        lanes[0]
    }

    /// Returns the greatest number.
    #[inline(always)]
    fn greatest(self, value: Self::Vector) -> f32 {
        let mut lanes = [0.0; LANES];
        self.store(value, &mut lanes);
        let mut half = LANES / 2;
        while half > 0 {
            for at in 0..half {
                lanes[at] = if lanes[at] > lanes[at + half] { lanes[at] } else { lanes[at + half] };
            }
            half /= 2;
        }
        lanes[0]
    }
}

/// Computation that is compiled for each level.
pub(crate) trait Kernel {
    /// Result.
    type Output;

    /// Computes. Implementations are `#[inline(always)]`, as are the functions that they call with `simd`.
    fn run<S: Simd>(self, simd: S) -> Self::Output;
}

/// Level of the vectors, which the processor has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Vectors(Kind);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Scalar,
    #[cfg(target_arch = "x86_64")]
    Avx2(x86::Avx2),
    #[cfg(target_arch = "x86_64")]
    Avx512(x86::Avx512),
}

impl Vectors {
    /// Returns the best vectors within a level that the processor has.
    pub(crate) fn of(level: Level) -> Self {
        #[cfg(target_arch = "x86_64")]
        {
            let avx512 = || x86::Avx512::detect().map(Kind::Avx512);
            let avx2 = || x86::Avx2::detect().map(Kind::Avx2);
            let found = match level {
                Level::Scalar => None,
                Level::Avx2 => avx2(),
                _ => avx512().or_else(avx2),
            };
            Self(found.unwrap_or(Kind::Scalar))
        }
        #[cfg(not(target_arch = "x86_64"))]
        {
            let _ = level;
            Self(Kind::Scalar)
        }
    }
}

/// Runs a kernel with the instructions of a level.
#[inline]
pub(crate) fn run<K: Kernel>(vectors: Vectors, kernel: K) -> K::Output {
    match vectors.0 {
        Kind::Scalar => kernel.run(scalar::Scalar),
        #[cfg(target_arch = "x86_64")]
        Kind::Avx2(simd) => simd.run(kernel),
        #[cfg(target_arch = "x86_64")]
        Kind::Avx512(simd) => simd.run(kernel),
    }
}

#[cfg(test)]
mod tests;
