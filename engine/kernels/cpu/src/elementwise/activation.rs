//! Functions between the matrices of a feed-forward network, and the cap of logits.

use super::{LOG2_E, exp2, padded};
use crate::simd::{Kernel, LANES, Simd, Vectors, run};
use omni_kernels::model::Activation;

/// `2 sqrt(2 / pi)`: the approximation of GELU is `x / (1 + exp(-u))` with `u` this times `x + 0.044715 x^3`.
const GELU_FACTOR: f32 = 1.595_769;
/// Factor of the cubic term of that approximation.
const GELU_CUBIC: f32 = 0.044_715;
/// Coefficients of the error function by Abramowitz and Stegun 7.1.26, highest power first; the error is below 1.5e-7.
const ERF: [f32; 5] = [1.061_405_4, -1.453_152, 1.421_413_7, -0.284_496_74, 0.254_829_6];
/// Factor of the argument in the same formula.
const ERF_ARGUMENT: f32 = 0.327_591_1;

/// Replaces each number of `gate` by its activation, times that of `up` where there is one.
pub(crate) fn activate(vectors: Vectors, activation: Activation, gate: &mut [f32], up: Option<&[f32]>) {
    match activation {
        Activation::Silu => run(vectors, Activate { gate, up, function: Silu }),
        Activation::Gelu => run(vectors, Activate { gate, up, function: Gelu }),
        Activation::GeluTanh => run(vectors, Activate { gate, up, function: GeluTanh }),
        Activation::Relu => run(vectors, Activate { gate, up, function: Relu }),
    }
}

/// Replaces each logit by `cap tanh(logit / cap)`.
pub(crate) fn cap(vectors: Vectors, logits: &mut [f32], cap: f32) {
    run(vectors, Activate { gate: logits, up: None, function: Cap(cap) });
}

/// Function of each element.
trait Function: Copy {
    fn of<S: Simd>(self, simd: S, x: S::Vector) -> S::Vector;
}

struct Activate<'a, F> {
    gate: &'a mut [f32],
    up: Option<&'a [f32]>,
    function: F,
}

impl<F: Function> Kernel for Activate<'_, F> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        let (gate, gate_tail) = self.gate.as_chunks_mut::<LANES>();
        if let Some(up) = self.up {
            let (up, up_tail) = up.as_chunks::<LANES>();
            for (gate, up) in gate.iter_mut().zip(up) {
                let active = self.function.of(simd, simd.load(gate));
                simd.store(simd.mul(active, simd.load(up)), gate);
            }
            let mut lanes = padded(gate_tail);
            let active = self.function.of(simd, simd.load(&lanes));
            simd.store(simd.mul(active, simd.load(&padded(up_tail))), &mut lanes);
            gate_tail.copy_from_slice(&lanes[..gate_tail.len()]);
        } else {
            for gate in gate.iter_mut() {
                simd.store(self.function.of(simd, simd.load(gate)), gate);
            }
            let mut lanes = padded(gate_tail);
            simd.store(self.function.of(simd, simd.load(&lanes)), &mut lanes);
            gate_tail.copy_from_slice(&lanes[..gate_tail.len()]);
        }
    }
}

/// Returns `x / (1 + exp(-u))`.
#[inline(always)]
fn gated<S: Simd>(simd: S, x: S::Vector, u: S::Vector) -> S::Vector {
    let exponential = exp2(simd, simd.mul(u, simd.splat(-LOG2_E)));
    simd.div(x, simd.add(exponential, simd.splat(1.0)))
}

#[derive(Clone, Copy)]
struct Silu;

impl Function for Silu {
    #[inline(always)]
    fn of<S: Simd>(self, simd: S, x: S::Vector) -> S::Vector {
        gated(simd, x, x)
    }
}

#[derive(Clone, Copy)]
struct GeluTanh;

impl Function for GeluTanh {
    #[inline(always)]
    fn of<S: Simd>(self, simd: S, x: S::Vector) -> S::Vector {
        let square = simd.mul(x, x);
        let polynomial = simd.mul_add(square, simd.splat(GELU_CUBIC * GELU_FACTOR), simd.splat(GELU_FACTOR));
        gated(simd, x, simd.mul(x, polynomial))
    }
}

#[derive(Clone, Copy)]
struct Gelu;

impl Function for Gelu {
    /// Computes `0.5 x erfc(-x / sqrt 2)`, by the complement of the magnitude, so that no digits cancel for negative `x`.
    #[inline(always)]
    fn of<S: Simd>(self, simd: S, x: S::Vector) -> S::Vector {
        let zero = simd.splat(0.0);
        let magnitude = simd.mul(simd.max(x, simd.sub(zero, x)), simd.splat(std::f32::consts::FRAC_1_SQRT_2));
        let divisor = simd.mul_add(magnitude, simd.splat(ERF_ARGUMENT), simd.splat(1.0));
        let t = simd.div(simd.splat(1.0), divisor);
        let mut sum = simd.splat(ERF[0]);
        for coefficient in &ERF[1..] {
            sum = simd.mul_add(sum, t, simd.splat(*coefficient));
        }
        let exponent = simd.mul(simd.mul(magnitude, magnitude), simd.splat(-LOG2_E));
        let complement = simd.mul(simd.mul(sum, t), exp2(simd, exponent));
        // For x >= 0 the factor is (2 - complement) / 2, else complement / 2.
        let positive = simd.zero_below(simd.sub(simd.splat(2.0), simd.add(complement, complement)), x, 0.0);
        simd.mul(simd.mul(x, simd.splat(0.5)), simd.add(complement, positive))
    }
}

#[derive(Clone, Copy)]
struct Relu;

impl Function for Relu {
    #[inline(always)]
    fn of<S: Simd>(self, simd: S, x: S::Vector) -> S::Vector {
        simd.max(simd.splat(0.0), x)
    }
}

#[derive(Clone, Copy)]
struct Cap(f32);

impl Function for Cap {
    /// Computes `tanh(y)` as `1 - 2 / (exp(2 y) + 1)`.
    #[inline(always)]
    fn of<S: Simd>(self, simd: S, x: S::Vector) -> S::Vector {
        let exponential = exp2(simd, simd.mul(x, simd.splat(2.0 * LOG2_E / self.0)));
        let quotient = simd.div(simd.splat(2.0), simd.add(exponential, simd.splat(1.0)));
        simd.mul(simd.splat(self.0), simd.sub(simd.splat(1.0), quotient))
    }
}
