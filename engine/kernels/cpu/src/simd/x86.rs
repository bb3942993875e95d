//! Vectors of AVX2, two registers each, and of AVX-512.
#![allow(unsafe_code, reason = "instructions beyond those of every processor; loads and stores by pointer")]

use super::{Kernel, LANES, Simd};
use half::bf16;
use std::arch::x86_64::{
    __m256, __m512, _CMP_NLT_UQ, _MM_FROUND_NO_EXC, _MM_FROUND_TO_NEAREST_INT, _MM_HINT_T0, _mm_add_ps, _mm_add_ss,
    _mm_cvtss_f32, _mm_loadu_si128, _mm_max_ps, _mm_max_ss, _mm_movehl_ps, _mm_prefetch, _mm_shuffle_ps,
    _mm256_add_epi32, _mm256_add_ps, _mm256_and_ps, _mm256_castps256_ps128, _mm256_castsi256_ps, _mm256_cmp_ps,
    _mm256_cvtepu16_epi32, _mm256_cvtps_epi32, _mm256_div_ps, _mm256_extractf128_ps, _mm256_fmadd_ps, _mm256_loadu_ps,
    _mm256_loadu_si256, _mm256_max_ps, _mm256_min_ps, _mm256_mul_ps, _mm256_round_ps, _mm256_set1_epi32,
    _mm256_set1_ps, _mm256_slli_epi32, _mm256_storeu_ps, _mm256_sub_ps, _mm512_add_ps, _mm512_castps512_ps256,
    _mm512_castsi512_ps, _mm512_cmp_ps_mask, _mm512_cvtepu16_epi32, _mm512_div_ps, _mm512_extractf32x8_ps,
    _mm512_fmadd_ps, _mm512_loadu_ps, _mm512_maskz_mov_ps, _mm512_max_ps, _mm512_min_ps, _mm512_mul_ps,
    _mm512_roundscale_ps, _mm512_scalef_ps, _mm512_set1_ps, _mm512_slli_epi32, _mm512_storeu_ps, _mm512_sub_ps,
};

/// AVX2 with FMA.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Avx2(());

/// AVX-512 with F, BW, DQ and VL.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Avx512(());

/// Implements operations by functions that are compiled with the features of the level.
macro_rules! operations {
    ($features:literal: $(fn $name:ident($($argument:ident: $kind:ty),*) $(-> $result:ty)? $body:block)*) => {
        $(#[inline(always)]
        fn $name(self, $($argument: $kind),*) $(-> $result)? {
            #[inline]
            #[target_feature(enable = $features)]
            fn inner($($argument: $kind),*) $(-> $result)? $body
            // SAFETY: a value of the type exists only where the processor has these features.
            unsafe { inner($($argument),*) }
        })*
    };
}

/// Combines the eight numbers of a register in pairs: halves, quarters, and so on.
macro_rules! in_pairs {
    ($eight:expr, $four:ident, $one:ident) => {{
        let eight = $eight;
        let four = $four(_mm256_castps256_ps128(eight), _mm256_extractf128_ps::<1>(eight));
        let two = $four(four, _mm_movehl_ps(four, four));
        _mm_cvtss_f32($one(two, _mm_shuffle_ps::<1>(two, two)))
    }};
}

/// Begins to load a line of memory into the nearest cache.
#[inline(always)]
fn fetch<T>(from: &T) {
    // SAFETY: every processor of this architecture has the instruction.
    unsafe { _mm_prefetch::<_MM_HINT_T0>(std::ptr::from_ref(from).cast()) };
}

impl Avx2 {
    /// Returns a value if the processor has the instructions.
    pub(super) fn detect() -> Option<Self> {
        (is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma")).then_some(Self(()))
    }

    /// Runs a kernel.
    pub(super) fn run<K: Kernel>(self, kernel: K) -> K::Output {
        #[target_feature(enable = "avx2,fma")]
        fn inner<K: Kernel>(simd: Avx2, kernel: K) -> K::Output {
            kernel.run(simd)
        }
        // SAFETY: a value of the type exists only where the processor has these features.
        unsafe { inner(self, kernel) }
    }
}

impl Avx512 {
    /// Returns a value if the processor has the instructions.
    pub(super) fn detect() -> Option<Self> {
        let has_all = is_x86_feature_detected!("avx512f")
            && is_x86_feature_detected!("avx512bw")
            && is_x86_feature_detected!("avx512dq")
            && is_x86_feature_detected!("avx512vl")
            && is_x86_feature_detected!("avx2")
            && is_x86_feature_detected!("fma");
        has_all.then_some(Self(()))
    }

    /// Runs a kernel.
    pub(super) fn run<K: Kernel>(self, kernel: K) -> K::Output {
        #[target_feature(enable = "avx2,fma,avx512f,avx512bw,avx512dq,avx512vl")]
        fn inner<K: Kernel>(simd: Avx512, kernel: K) -> K::Output {
            kernel.run(simd)
        }
        // SAFETY: a value of the type exists only where the processor has these features.
        unsafe { inner(self, kernel) }
    }
}

impl Simd for Avx512 {
    type Vector = __m512;
    const WIDE: bool = true;

    #[inline(always)]
    fn prefetch<T>(self, from: &T) {
        fetch(from);
    }

    operations! { "avx512f,avx512bw,avx512dq,avx512vl":
        fn splat(value: f32) -> __m512 {
            _mm512_set1_ps(value)
        }
        fn load(from: &[f32; LANES]) -> __m512 {
            // SAFETY: the reference covers the 16 numbers that are read.
            unsafe { _mm512_loadu_ps(from.as_ptr()) }
        }
        fn load_bf16(from: &[bf16; LANES]) -> __m512 {
            // SAFETY: the reference covers the 32 bytes that are read.
            let halves = unsafe { _mm256_loadu_si256(from.as_ptr().cast()) };
            _mm512_castsi512_ps(_mm512_slli_epi32::<16>(_mm512_cvtepu16_epi32(halves)))
        }
        fn store(value: __m512, to: &mut [f32; LANES]) {
            // SAFETY: the reference covers the 16 numbers that are written.
            unsafe { _mm512_storeu_ps(to.as_mut_ptr(), value) }
        }
        fn add(a: __m512, b: __m512) -> __m512 {
            _mm512_add_ps(a, b)
        }
        fn sub(a: __m512, b: __m512) -> __m512 {
            _mm512_sub_ps(a, b)
        }
        fn mul(a: __m512, b: __m512) -> __m512 {
            _mm512_mul_ps(a, b)
        }
        fn div(a: __m512, b: __m512) -> __m512 {
            _mm512_div_ps(a, b)
        }
        fn mul_add(a: __m512, b: __m512, c: __m512) -> __m512 {
            _mm512_fmadd_ps(a, b, c)
        }
        fn min(a: __m512, b: __m512) -> __m512 {
            _mm512_min_ps(a, b)
        }
        fn max(a: __m512, b: __m512) -> __m512 {
            _mm512_max_ps(a, b)
        }
        fn round(value: __m512) -> __m512 {
            _mm512_roundscale_ps::<{ _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC }>(value)
        }
        fn scale(a: __m512, n: __m512) -> __m512 {
            _mm512_scalef_ps(a, n)
        }
        fn zero_below(a: __m512, b: __m512, bound: f32) -> __m512 {
            _mm512_maskz_mov_ps(_mm512_cmp_ps_mask::<_CMP_NLT_UQ>(b, _mm512_set1_ps(bound)), a)
        }
        fn sum(value: __m512) -> f32 {
            let (low, high) = (_mm512_castps512_ps256(value), _mm512_extractf32x8_ps::<1>(value));
            in_pairs!(_mm256_add_ps(low, high), _mm_add_ps, _mm_add_ss)
        }
        fn greatest(value: __m512) -> f32 {
            let (low, high) = (_mm512_castps512_ps256(value), _mm512_extractf32x8_ps::<1>(value));
            in_pairs!(_mm256_max_ps(low, high), _mm_max_ps, _mm_max_ss)
        }
    }
}

impl Simd for Avx2 {
    type Vector = [__m256; 2];
    const WIDE: bool = false;

    #[inline(always)]
    fn prefetch<T>(self, from: &T) {
        fetch(from);
    }

    operations! { "avx2,fma":
        fn splat(value: f32) -> [__m256; 2] {
            [_mm256_set1_ps(value), _mm256_set1_ps(value)]
        }
        fn load(from: &[f32; LANES]) -> [__m256; 2] {
            let (low, high) = from.split_at(LANES / 2);
            // SAFETY: the slice covers the 8 numbers that are read.
            let low = unsafe { _mm256_loadu_ps(low.as_ptr()) };
            // SAFETY: the slice covers the 8 numbers that are read.
            let high = unsafe { _mm256_loadu_ps(high.as_ptr()) };
            [low, high]
        }
        fn load_bf16(from: &[bf16; LANES]) -> [__m256; 2] {
            let (low, high) = from.split_at(LANES / 2);
            // SAFETY: the slice covers the 16 bytes that are read.
            let low = unsafe { _mm_loadu_si128(low.as_ptr().cast()) };
            // SAFETY: the slice covers the 16 bytes that are read.
            let high = unsafe { _mm_loadu_si128(high.as_ptr().cast()) };
            [low, high].map(|half| _mm256_castsi256_ps(_mm256_slli_epi32::<16>(_mm256_cvtepu16_epi32(half))))
        }
        fn store(value: [__m256; 2], to: &mut [f32; LANES]) {
            let (low, high) = to.split_at_mut(LANES / 2);
            // SAFETY: the slice covers the 8 numbers that are written.
            unsafe { _mm256_storeu_ps(low.as_mut_ptr(), value[0]) };
            // SAFETY: the slice covers the 8 numbers that are written.
            unsafe { _mm256_storeu_ps(high.as_mut_ptr(), value[1]) };
        }
        fn add(a: [__m256; 2], b: [__m256; 2]) -> [__m256; 2] {
            [_mm256_add_ps(a[0], b[0]), _mm256_add_ps(a[1], b[1])]
        }
        fn sub(a: [__m256; 2], b: [__m256; 2]) -> [__m256; 2] {
            [_mm256_sub_ps(a[0], b[0]), _mm256_sub_ps(a[1], b[1])]
        }
        fn mul(a: [__m256; 2], b: [__m256; 2]) -> [__m256; 2] {
            [_mm256_mul_ps(a[0], b[0]), _mm256_mul_ps(a[1], b[1])]
        }
        fn div(a: [__m256; 2], b: [__m256; 2]) -> [__m256; 2] {
            [_mm256_div_ps(a[0], b[0]), _mm256_div_ps(a[1], b[1])]
        }
        fn mul_add(a: [__m256; 2], b: [__m256; 2], c: [__m256; 2]) -> [__m256; 2] {
            [_mm256_fmadd_ps(a[0], b[0], c[0]), _mm256_fmadd_ps(a[1], b[1], c[1])]
        }
        fn min(a: [__m256; 2], b: [__m256; 2]) -> [__m256; 2] {
            [_mm256_min_ps(a[0], b[0]), _mm256_min_ps(a[1], b[1])]
        }
        fn max(a: [__m256; 2], b: [__m256; 2]) -> [__m256; 2] {
            [_mm256_max_ps(a[0], b[0]), _mm256_max_ps(a[1], b[1])]
        }
        fn round(value: [__m256; 2]) -> [__m256; 2] {
            value.map(|half| _mm256_round_ps::<{ _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC }>(half))
        }
        fn scale(a: [__m256; 2], n: [__m256; 2]) -> [__m256; 2] {
            let power = n.map(|half| {
                let biased = _mm256_add_epi32(_mm256_cvtps_epi32(half), _mm256_set1_epi32(127));
                _mm256_castsi256_ps(_mm256_slli_epi32::<23>(biased))
            });
            [_mm256_mul_ps(a[0], power[0]), _mm256_mul_ps(a[1], power[1])]
        }
        fn zero_below(a: [__m256; 2], b: [__m256; 2], bound: f32) -> [__m256; 2] {
            let kept = b.map(|half| _mm256_cmp_ps::<_CMP_NLT_UQ>(half, _mm256_set1_ps(bound)));
            [_mm256_and_ps(a[0], kept[0]), _mm256_and_ps(a[1], kept[1])]
        }
        fn sum(value: [__m256; 2]) -> f32 {
            in_pairs!(_mm256_add_ps(value[0], value[1]), _mm_add_ps, _mm_add_ss)
        }
        fn greatest(value: [__m256; 2]) -> f32 {
            in_pairs!(_mm256_max_ps(value[0], value[1]), _mm_max_ps, _mm_max_ss)
        }
    }
}
