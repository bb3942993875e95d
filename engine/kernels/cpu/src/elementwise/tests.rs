//! Operations on rows, on every level, against their formulas in 64 bits.

use super::*;
use crate::level::Level;
use omni_kernels::model::{Activation, NormKind, Rope};

fn levels() -> Vec<Vectors> {
    Level::all_supported().into_iter().map(Vectors::of).collect()
}

fn numbers(count: usize, range: f32) -> Vec<f32> {
    let mut random = fastrand::Rng::with_seed(count as u64);
    (0..count).map(|_| (random.f32() - 0.5) * 2.0 * range).collect()
}

fn assert_near(found: &[f32], expected: impl Iterator<Item = f64>, bound: f64) {
    for (at, (found, expected)) in found.iter().zip(expected).enumerate() {
        let error = (f64::from(*found) - expected).abs() / expected.abs().max(1.0);
        assert!(error < bound, "element {at}: {found} for {expected}");
    }
}

struct Power<'a>(&'a mut [f32; LANES]);

impl Kernel for Power<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        simd.store(exp2(simd, simd.load(self.0)), self.0);
    }
}

#[test]
fn powers_of_two_are_exact_to_the_last_bits() {
    let mut random = fastrand::Rng::with_seed(1);
    for vectors in levels() {
        for _ in 0..1000 {
            let from: [f32; LANES] = std::array::from_fn(|_| random.f32() * 252.0 - 126.0);
            let mut found = from;
            run(vectors, Power(&mut found));
            for (x, found) in from.into_iter().zip(found) {
                let expected = f64::from(x).exp2();
                assert!((f64::from(found) - expected).abs() < 2e-7 * expected, "2^{x} is not {found}");
            }
        }
        let mut edges = [0.0; LANES];
        edges[..5].copy_from_slice(&[f32::NEG_INFINITY, -127.0, 0.0, f32::NAN, 1e9]);
        run(vectors, Power(&mut edges));
        assert_eq!(edges[..3], [0.0, 0.0, 1.0]);
        assert!(edges[3].is_nan() && edges[4] > 1e38);
    }
}

#[test]
fn activations_are_their_formulas() {
    let silu = |x: f64| x / (1.0 + (-x).exp());
    let tanh = |x: f64| 0.5 * x * (1.0 + ((2.0 / std::f64::consts::PI).sqrt() * (x + 0.044_715 * x.powi(3))).tanh());
    for vectors in levels() {
        for count in [1, 15, 16, 17, 100] {
            let (x, up) = (numbers(count, 12.0), numbers(count + 1, 3.0));
            let check = |activation, formula: &dyn Fn(f64) -> f64| {
                let mut found = x.clone();
                activate(vectors, activation, &mut found, None);
                assert_near(&found, x.iter().map(|x| formula(f64::from(*x))), 1e-6);
                let mut found = x.clone();
                activate(vectors, activation, &mut found, Some(&up[..count]));
                let products = x.iter().zip(&up).map(|(x, up)| formula(f64::from(*x)) * f64::from(*up));
                assert_near(&found, products, 1e-6);
            };
            check(Activation::Silu, &silu);
            check(Activation::GeluTanh, &tanh);
            check(Activation::Relu, &|x| x.max(0.0));
            let mut found = x.clone();
            cap(vectors, &mut found, 5.0);
            assert_near(&found, x.iter().map(|x| 5.0 * (f64::from(*x) / 5.0).tanh()), 1e-6);
        }
        let (mut x, values) = ([0.0, 0.5, -0.5, 1.0, -1.0, 3.0, -3.0], [0.0, 0.345_731_2, -0.154_268_8]);
        activate(vectors, Activation::Gelu, &mut x, None);
        let rest = [0.841_344_7, -0.158_655_3, 2.995_950_3, -0.004_049_7];
        assert_near(&x, values.into_iter().chain(rest), 5e-7);
    }
}

#[test]
fn norms_are_their_formulas() {
    for vectors in levels() {
        for count in [2, 16, 40, 100, 576] {
            let (x, weight, bias) = (numbers(count, 2.0), numbers(count + 1, 1.0), numbers(count + 2, 1.0));
            for kind in [NormKind::Rms, NormKind::Layer] {
                let weight = weight[..count].to_vec();
                let bias = (kind == NormKind::Layer).then(|| bias[..count].to_vec());
                let norm = NormWeights { weight, bias, kind, epsilon: 1e-5 };
                let mut found = x.clone();
                norm.apply(vectors, &mut found);
                let all = || x.iter().map(|x| f64::from(*x));
                let mean = if kind == NormKind::Layer { all().sum::<f64>() / count as f64 } else { 0.0 };
                let variance = all().map(|x| (x - mean).powi(2)).sum::<f64>() / count as f64;
                let one = |(at, x): (usize, f64)| {
                    let bias = norm.bias.as_ref().map_or(0.0, |bias| f64::from(bias[at]));
                    (x - mean) / (variance + 1e-5).sqrt() * f64::from(norm.weight[at]) + bias
                };
                assert_near(&found, all().enumerate().map(one), 2e-6);
            }
        }
    }
}

#[test]
fn rotations_turn_pairs() {
    let rope = Rope { frequencies: (0..21).map(|at| 0.9_f32.powi(at)).collect(), factor: 1.5 };
    for vectors in levels() {
        let x = numbers(50, 1.0);
        let mut row = vec![0.0; 42];
        angles(&rope, 77, &mut row);
        let mut found = x.clone();
        rotate(vectors, &mut found, &row);
        let expected = (0..50).map(|at| {
            let (pair, is_second) = (at % 25, at >= 25);
            let Some(frequency) = rope.frequencies.get(pair) else { return f64::from(x[at]) };
            let (sine, cosine) = (77.0 * f64::from(*frequency)).sin_cos();
            let (a, b) = (f64::from(x[pair]), f64::from(x[pair + 25]));
            1.5 * if is_second { b * cosine + a * sine } else { a * cosine - b * sine }
        });
        assert_near(&found, expected, 1e-5);
    }
}
