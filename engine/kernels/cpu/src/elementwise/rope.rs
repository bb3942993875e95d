//! Rotation of queries and keys by their positions.

use crate::simd::{Kernel, LANES, Simd, Vectors, run};
use omni_kernels::model::Rope;

/// Computes cosines, then sines, of a position's angles into a row of twice as many numbers as there are frequencies.
pub(crate) fn angles(rope: &Rope, position: usize, row: &mut [f32]) {
    let (cosines, sines) = row.split_at_mut(rope.frequencies.len());
    for ((frequency, cosine), sine) in rope.frequencies.iter().zip(cosines).zip(sines) {
        let (s, c) = (position as f32 * frequency).sin_cos();
        *cosine = c * rope.factor;
        *sine = s * rope.factor;
    }
}

/// Rotates pairs of a head: elements `i` and `i + width / 2`. `angles` has cosines, then sines.
pub(crate) fn rotate(vectors: Vectors, head: &mut [f32], angles: &[f32]) {
    run(vectors, Rotate { head, angles });
}

struct Rotate<'a> {
    head: &'a mut [f32],
    angles: &'a [f32],
}

impl Kernel for Rotate<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        let (cosines, sines) = self.angles.split_at(self.angles.len() / 2);
        let (first, second) = self.head.split_at_mut(self.head.len() / 2);
        let pairs = cosines.len().min(first.len());
        let (a, a_tail) = first[..pairs].as_chunks_mut::<LANES>();
        let (b, b_tail) = second[..pairs].as_chunks_mut::<LANES>();
        let (cosine, cosine_tail) = cosines[..pairs].as_chunks::<LANES>();
        let (sine, sine_tail) = sines[..pairs].as_chunks::<LANES>();
        for (((a, b), cosine), sine) in a.iter_mut().zip(b).zip(cosine).zip(sine) {
            let (x, y, cosine, sine) = (simd.load(a), simd.load(b), simd.load(cosine), simd.load(sine));
            simd.store(simd.sub(simd.mul(x, cosine), simd.mul(y, sine)), a);
            simd.store(simd.add(simd.mul(y, cosine), simd.mul(x, sine)), b);
        }
        for (((a, b), cosine), sine) in a_tail.iter_mut().zip(b_tail).zip(cosine_tail).zip(sine_tail) {
            (*a, *b) = (*a * cosine - *b * sine, *b * cosine + *a * sine);
        }
    }
}
