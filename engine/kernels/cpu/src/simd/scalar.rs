//! Vectors without instructions of their own.

use super::{LANES, Simd};
use half::bf16;

/// Level of every processor.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Scalar;

type Vector = [f32; LANES];

#[inline(always)]
fn each(mut value: impl FnMut(usize) -> f32) -> Vector {
    let mut lanes = [0.0; LANES];
    for (at, lane) in lanes.iter_mut().enumerate() {
        *lane = value(at);
    }
    lanes
}

impl Simd for Scalar {
    type Vector = Vector;
    const WIDE: bool = false;

    #[inline(always)]
    fn splat(self, value: f32) -> Vector {
        [value; LANES]
    }

    #[inline(always)]
    fn load(self, from: &[f32; LANES]) -> Vector {
        *from
    }

    #[inline(always)]
    fn load_bf16(self, from: &[bf16; LANES]) -> Vector {
        each(|at| f32::from_bits(u32::from(from[at].to_bits()) << 16))
    }

    #[inline(always)]
    fn store(self, value: Vector, to: &mut [f32; LANES]) {
        *to = value;
    }

    #[inline(always)]
    fn add(self, a: Vector, b: Vector) -> Vector {
        each(|at| a[at] + b[at])
    }

    #[inline(always)]
    fn sub(self, a: Vector, b: Vector) -> Vector {
        each(|at| a[at] - b[at])
    }

    #[inline(always)]
    fn mul(self, a: Vector, b: Vector) -> Vector {
        each(|at| a[at] * b[at])
    }

    #[inline(always)]
    fn div(self, a: Vector, b: Vector) -> Vector {
        each(|at| a[at] / b[at])
    }

    #[inline(always)]
    fn mul_add(self, a: Vector, b: Vector, c: Vector) -> Vector {
        each(|at| a[at] * b[at] + c[at])
    }

    #[inline(always)]
    fn min(self, a: Vector, b: Vector) -> Vector {
        each(|at| if a[at] < b[at] { a[at] } else { b[at] })
    }

    #[inline(always)]
    fn max(self, a: Vector, b: Vector) -> Vector {
        each(|at| if a[at] > b[at] { a[at] } else { b[at] })
    }

    #[inline(always)]
    fn round(self, value: Vector) -> Vector {
        each(|at| value[at].round_ties_even())
    }

    #[inline(always)]
    fn scale(self, a: Vector, n: Vector) -> Vector {
        each(|at| a[at] * f32::from_bits(((n[at] as i32).wrapping_add(127) as u32) << 23))
    }

    #[inline(always)]
    fn zero_below(self, a: Vector, b: Vector, bound: f32) -> Vector {
        each(|at| if b[at] < bound { 0.0 } else { a[at] })
    }
}
