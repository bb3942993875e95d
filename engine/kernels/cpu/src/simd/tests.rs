//! Operations on vectors, on every level, against the scalar ones.

use super::*;

/// Applies every operation to random vectors.
struct All<'a> {
    a: &'a [f32; LANES],
    b: &'a [f32; LANES],
    halves: &'a [bf16; LANES],
}

impl Kernel for All<'_> {
    type Output = Vec<[f32; LANES]>;

    #[inline(always)]
    fn run<S: Simd>(self, simd: S) -> Self::Output {
        let (a, b) = (simd.load(self.a), simd.load(self.b));
        let results = [
            simd.splat(0.5),
            simd.load_bf16(self.halves),
            simd.add(a, b),
            simd.sub(a, b),
            simd.mul(a, b),
            simd.div(a, b),
            simd.mul_add(simd.round(a), simd.round(b), simd.splat(1.0)),
            simd.min(a, b),
            simd.max(a, b),
            simd.round(a),
            simd.scale(a, simd.round(b)),
            simd.zero_below(a, b, 0.25),
            simd.splat(simd.sum(a)),
            simd.splat(simd.greatest(a)),
        ];
        let mut out = vec![[0.0; LANES]; results.len()];
        for (value, out) in results.into_iter().zip(&mut out) {
            simd.store(value, out);
        }
        out
    }
}

#[test]
fn every_level_computes_the_same() {
    let mut random = fastrand::Rng::with_seed(1);
    for _ in 0..100 {
        let a: [f32; LANES] = std::array::from_fn(|_| (random.f32() - 0.5) * 100.0);
        let b: [f32; LANES] = std::array::from_fn(|_| (random.f32() - 0.5) * 100.0);
        let halves = std::array::from_fn(|_| bf16::from_f32(random.f32()));
        let kernel = || All { a: &a, b: &b, halves: &halves };
        let expected = run(Vectors::of(Level::Scalar), kernel());
        for level in Level::all_supported() {
            assert_eq!(run(Vectors::of(level), kernel()), expected, "{level:?}");
        }
    }
}
