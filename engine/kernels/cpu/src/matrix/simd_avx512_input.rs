//! Activations into tiles, by AVX-512.
#![allow(unsafe_code, reason = "loads and stores by pointer, and vectors of bf16, which have no constructor")]

use super::form::GROUP;
use super::tile::{GROUP_WORDS, ROUND, SCALE, scale_and_inverse, sums};
use std::arch::x86_64::{
    __m128i, __m512bh, __m512i, _mm_add_epi32, _mm_cvtsi128_si32, _mm_dpbusd_epi32, _mm_set1_epi8, _mm_setzero_si128,
    _mm_shuffle_epi32, _mm_storeu_si128, _mm512_add_ps, _mm512_and_si512, _mm512_castps_si512, _mm512_castsi512_ps,
    _mm512_cvtepi32_epi8, _mm512_cvtne2ps_pbh, _mm512_mask_storeu_epi32, _mm512_maskz_loadu_epi32, _mm512_max_epu32,
    _mm512_mul_ps, _mm512_reduce_max_epu32, _mm512_set1_epi32, _mm512_set1_ps, _mm512_setzero_si512,
    _mm512_shuffle_i32x4, _mm512_unpackhi_epi32, _mm512_unpackhi_epi64, _mm512_unpacklo_epi32, _mm512_unpacklo_epi64,
};

/// Words of a register.
const LANES: usize = 16;

/// Packs rows of activations in 32 bits.
#[target_feature(enable = "avx512f")]
pub(super) fn pack_f32(values: &[f32], width: usize, tile: &mut [u32]) {
    let rows = values.len() / width;
    for (step, tile) in tile.chunks_exact_mut(LANES * rows).enumerate() {
        let block = |row: usize| load(&values[row * width..][..width], step * LANES);
        store_transposed(block, rows, tile);
    }
}

/// Packs rows of activations in pairs of bf16.
#[target_feature(enable = "avx512f,avx512bf16")]
pub(super) fn pack_bf16(values: &[f32], width: usize, tile: &mut [u32]) {
    let rows = values.len() / width;
    for (step, tile) in tile.chunks_exact_mut(LANES * rows).enumerate() {
        store_transposed(|row| pairs(&values[row * width..][..width], step), rows, tile);
    }
}

/// Packs rows of activations in blocks of 16 pairs of bf16.
#[target_feature(enable = "avx512f,avx512bf16")]
pub(super) fn pack_bf16_blocks(values: &[f32], width: usize, tile: &mut [u32]) {
    let rows = values.len() / width;
    for (step, tile) in tile.chunks_exact_mut(LANES * rows).enumerate() {
        for (values, out) in values.chunks_exact(width).zip(tile.chunks_exact_mut(LANES)) {
            store(pairs(values, step), out);
        }
    }
}

/// Rounds 32 values to bf16.
#[inline]
#[target_feature(enable = "avx512f,avx512bf16")]
fn pairs(values: &[f32], step: usize) -> __m512i {
    let load = |half: usize| _mm512_castsi512_ps(load(values, (step * 2 + half) * LANES));
    let pairs = _mm512_cvtne2ps_pbh(load(1), load(0));
    // SAFETY: both types are 512 bits, of which any are valid.
    unsafe { std::mem::transmute::<__m512bh, __m512i>(pairs) }
}

/// Writes blocks of 16 words of each row, the same word of all rows in one step.
#[inline]
#[target_feature(enable = "avx512f")]
fn store_transposed(block: impl Fn(usize) -> __m512i, rows: usize, tile: &mut [u32]) {
    if rows == 1 {
        return store(block(0), tile);
    }
    let mut blocks = [_mm512_setzero_si512(); LANES];
    for (row, out) in blocks.iter_mut().enumerate().take(rows) {
        *out = block(row);
    }
    for (step, out) in transpose(blocks).into_iter().zip(tile.chunks_exact_mut(rows)) {
        store(step, out);
    }
}

/// Transposes 16 times 16 words.
#[inline]
#[target_feature(enable = "avx512f")]
fn transpose(rows: [__m512i; LANES]) -> [__m512i; LANES] {
    let mut pairs = rows;
    for (out, rows) in pairs.as_chunks_mut::<2>().0.iter_mut().zip(rows.as_chunks::<2>().0) {
        *out = [_mm512_unpacklo_epi32(rows[0], rows[1]), _mm512_unpackhi_epi32(rows[0], rows[1])];
    }
    // Each register of a quad holds four rows of one word in each of its quarters.
    let mut quads = pairs;
    for (out, pairs) in quads.as_chunks_mut::<4>().0.iter_mut().zip(pairs.as_chunks::<4>().0) {
        *out = [
            _mm512_unpacklo_epi64(pairs[0], pairs[2]),
            _mm512_unpackhi_epi64(pairs[0], pairs[2]),
            _mm512_unpacklo_epi64(pairs[1], pairs[3]),
            _mm512_unpackhi_epi64(pairs[1], pairs[3]),
        ];
    }
    let mut out = quads;
    for word in 0..4 {
        let [a, b, c, d] = [quads[word], quads[word + 4], quads[word + 8], quads[word + 12]];
        let (even, odd) = (_mm512_shuffle_i32x4::<0x88>(a, b), _mm512_shuffle_i32x4::<0xdd>(a, b));
        let (even_high, odd_high) = (_mm512_shuffle_i32x4::<0x88>(c, d), _mm512_shuffle_i32x4::<0xdd>(c, d));
        out[word] = _mm512_shuffle_i32x4::<0x88>(even, even_high);
        out[word + 4] = _mm512_shuffle_i32x4::<0x88>(odd, odd_high);
        out[word + 8] = _mm512_shuffle_i32x4::<0xdd>(even, even_high);
        out[word + 12] = _mm512_shuffle_i32x4::<0xdd>(odd, odd_high);
    }
    out
}

/// Packs rows of activations in groups of integers.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni")]
pub(super) fn pack_int8(values: &[f32], width: usize, tile: &mut [u32]) {
    let rows = values.len() / width;
    let (groups, _) = tile.as_chunks_mut::<GROUP_WORDS>();
    for (row, values) in values.chunks_exact(width).enumerate() {
        for (group, out) in groups.iter_mut().skip(row).step_by(rows).enumerate() {
            pack_group(values, group * GROUP, out);
        }
    }
}

/// Rounds a group to integers of at most 127.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni")]
fn pack_group(values: &[f32], first: usize, out: &mut [u32; GROUP_WORDS]) {
    let blocks = [load(values, first), load(values, first + LANES)];
    let magnitudes = blocks.map(|block| _mm512_and_si512(block, _mm512_set1_epi32(0x7fff_ffff)));
    let greatest = f32::from_bits(_mm512_reduce_max_epu32(_mm512_max_epu32(magnitudes[0], magnitudes[1])));
    let (scale, inverse) = scale_and_inverse(greatest);
    let quants = blocks.map(|block| {
        let value = _mm512_mul_ps(_mm512_castsi512_ps(block), _mm512_set1_ps(inverse));
        _mm512_cvtepi32_epi8(_mm512_castps_si512(_mm512_add_ps(value, _mm512_set1_ps(ROUND))))
    });
    let [first, second] = quants.map(|quants| sum(quants));
    for (quants, out) in quants.into_iter().zip(out.as_chunks_mut::<4>().0) {
        // SAFETY: there are four words.
        unsafe { _mm_storeu_si128(out.as_mut_ptr().cast(), quants) };
    }
    out[SCALE..].copy_from_slice(&sums(scale, first, second));
}

/// Adds 16 integers of 8 bits up.
#[inline]
#[target_feature(enable = "avx512f,avx512vl,avx512vnni")]
fn sum(quants: __m128i) -> i32 {
    let quads = _mm_dpbusd_epi32(_mm_setzero_si128(), _mm_set1_epi8(1), quants);
    let pairs = _mm_add_epi32(quads, _mm_shuffle_epi32::<0b00_00_11_10>(quads));
    _mm_cvtsi128_si32(_mm_add_epi32(pairs, _mm_shuffle_epi32::<0b00_00_00_01>(pairs)))
}

/// Loads 16 values from `first` on, those beyond the end as zeros.
#[inline]
#[target_feature(enable = "avx512f")]
fn load(values: &[f32], first: usize) -> __m512i {
    let values = values.get(first..).unwrap_or_default();
    // SAFETY: only lanes below the number of values are read.
    unsafe { _mm512_maskz_loadu_epi32(lanes(values.len()), values.as_ptr().cast()) }
}

/// Stores as many words as there are, at most 16.
#[inline]
#[target_feature(enable = "avx512f")]
fn store(value: __m512i, out: &mut [u32]) {
    // SAFETY: only lanes below the number of words are written.
    unsafe { _mm512_mask_storeu_epi32(out.as_mut_ptr().cast(), lanes(out.len()), value) };
}

/// Mask of the first so many lanes.
#[inline]
fn lanes(count: usize) -> u16 {
    ((1_u32 << count.min(LANES)) - 1) as u16
}
