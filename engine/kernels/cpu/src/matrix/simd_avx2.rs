//! Kernels of AVX2 with FMA. A register holds 8 outputs; a pass along the inputs computes all outputs of a panel for
//! few rows, for more of them 16 outputs of floats or 8 of integers, so that the sums of a tile stay in registers.
#![allow(unsafe_code, reason = "loads and stores by pointer")]

use super::form::Layout;
use super::line::Line;
use super::tile::{self, GROUP_WORDS, NEGATIVE, NEGATIVE_FIRST, SCALE, SUM, Tile, for_rows};
use std::arch::x86_64::{
    __m128i, __m256, __m256i, _MM_HINT_T0, _mm_cvtsi32_si128, _mm_loadu_si128, _mm_prefetch, _mm256_add_epi16,
    _mm256_add_epi32, _mm256_and_si256, _mm256_castsi256_ps, _mm256_cvtepi32_ps, _mm256_cvtph_ps, _mm256_fmadd_ps,
    _mm256_load_si256, _mm256_madd_epi16, _mm256_maddubs_epi16, _mm256_mul_ps, _mm256_set1_epi8, _mm256_set1_epi16,
    _mm256_set1_epi32, _mm256_set1_ps, _mm256_setzero_ps, _mm256_setzero_si256, _mm256_slli_epi32, _mm256_srl_epi16,
    _mm256_srli_epi16, _mm256_storeu_ps,
};

/// Lines that are fetched before they are used.
const AHEAD: usize = 64;

/// Sums of rows, of some times 8 outputs each.
type Sums<const ROWS: usize, const WIDTH: usize> = [[__m256; WIDTH]; ROWS];

/// Calls a kernel for the number of rows and of registers that a row's sums take in one pass.
macro_rules! for_rows_and_width {
    ($rows:expr, $kernel:ident($($argument:expr),*)) => {
        if $rows < 4 {
            for_rows!($rows, [1 2 3], ROWS => $kernel::<ROWS, 4>($($argument),*));
        } else {
            for_rows!($rows, [4 5], ROWS => $kernel::<ROWS, 2>($($argument),*));
        }
    };
}

/// Products of weights in 32 bits.
#[target_feature(enable = "avx2,fma")]
pub(super) fn f32(panel: &[Line], tile: &[u32], rows: usize, out: &mut Tile) {
    for_rows_and_width!(rows, f32_rows(panel, tile, out));
}

#[target_feature(enable = "avx2,fma")]
fn f32_rows<const ROWS: usize, const WIDTH: usize>(panel: &[Line], tile: &[u32], out: &mut Tile) {
    for first in (0..4).step_by(WIDTH) {
        let mut sums = [[_mm256_setzero_ps(); WIDTH]; ROWS];
        for (lines, values) in panel.as_chunks::<2>().0.iter().zip(tile.as_chunks::<ROWS>().0) {
            add(load::<WIDTH>(lines, first).map(|weights| _mm256_castsi256_ps(weights)), values, &mut sums);
        }
        store(&sums, first, out);
    }
}

/// Products of weights in f16.
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) fn f16(panel: &[Line], tile: &[u32], rows: usize, out: &mut Tile) {
    for_rows_and_width!(rows, f16_rows(panel, tile, out));
}

#[target_feature(enable = "avx2,fma,f16c")]
fn f16_rows<const ROWS: usize, const WIDTH: usize>(panel: &[Line], tile: &[u32], out: &mut Tile) {
    for first in (0..4).step_by(WIDTH) {
        let mut sums = [[_mm256_setzero_ps(); WIDTH]; ROWS];
        for (line, values) in panel.iter().zip(tile.as_chunks::<ROWS>().0) {
            prefetch(line);
            let mut weights = [_mm256_setzero_ps(); WIDTH];
            weights.iter_mut().enumerate().for_each(|(index, weights)| *weights = halves(line, first + index));
            add(weights, values, &mut sums);
        }
        store(&sums, first, out);
    }
}

/// Products of weights in bf16 with activations in 32 bits.
#[target_feature(enable = "avx2,fma")]
pub(super) fn bf16(panel: &[Line], tile: &[u32], rows: usize, out: &mut Tile) {
    for_rows_and_width!(rows, bf16_rows(panel, tile, out));
}

#[target_feature(enable = "avx2,fma")]
fn bf16_rows<const ROWS: usize, const WIDTH: usize>(panel: &[Line], tile: &[u32], out: &mut Tile) {
    let values = tile.as_chunks::<ROWS>().0.as_chunks::<2>().0;
    let high = _mm256_set1_epi32(0xffff_0000_u32 as i32);
    for first in (0..4).step_by(WIDTH) {
        let mut sums = [[_mm256_setzero_ps(); WIDTH]; ROWS];
        for (lines, [even, odd]) in panel.as_chunks::<2>().0.iter().zip(values) {
            let pairs = load::<WIDTH>(lines, first);
            add(pairs.map(|pair| _mm256_castsi256_ps(_mm256_slli_epi32::<16>(pair))), even, &mut sums);
            add(pairs.map(|pair| _mm256_castsi256_ps(_mm256_and_si256(pair, high))), odd, &mut sums);
        }
        store(&sums, first, out);
    }
}

/// Adds the products of one input's weights.
#[inline]
#[target_feature(enable = "avx2,fma")]
fn add<const ROWS: usize, const WIDTH: usize>(
    weights: [__m256; WIDTH],
    values: &[u32; ROWS],
    sums: &mut Sums<ROWS, WIDTH>,
) {
    for (sums, value) in sums.iter_mut().zip(values) {
        let value = _mm256_set1_ps(f32::from_bits(*value));
        for (sum, weights) in sums.iter_mut().zip(weights) {
            *sum = _mm256_fmadd_ps(value, weights, *sum);
        }
    }
}

/// Products of integers.
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) fn grouped<L: Layout>(panel: &[Line], tile: &[u32], rows: usize, out: &mut Tile) {
    if rows == 1 {
        return grouped_rows::<1, 4, L>(panel, tile, out);
    }
    for_rows!(rows, [2 3 4], ROWS => grouped_rows::<ROWS, 1, L>(panel, tile, out));
}

#[target_feature(enable = "avx2,fma,f16c")]
fn grouped_rows<const ROWS: usize, const WIDTH: usize, L: Layout>(panel: &[Line], tile: &[u32], out: &mut Tile) {
    let tile = tile.as_chunks::<GROUP_WORDS>().0.as_chunks::<ROWS>().0;
    for first in (0..4).step_by(WIDTH) {
        let mut sums = [[_mm256_setzero_ps(); WIDTH]; ROWS];
        for (lines, values) in panel.chunks_exact(const { L::FORM.lines() }).zip(tile) {
            if WIDTH == 4 {
                lines.iter().for_each(|line| prefetch(line));
            }
            for index in 0..WIDTH {
                add_group::<ROWS, WIDTH, L>(lines, values, first + index, index, &mut sums);
            }
        }
        store(&sums, first, out);
    }
}

/// Adds the products of a group of 8 outputs, whose sums are at `index`.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn add_group<const ROWS: usize, const WIDTH: usize, L: Layout>(
    lines: &[Line],
    values: &[[u32; GROUP_WORDS]; ROWS],
    eight: usize,
    index: usize,
    sums: &mut Sums<ROWS, WIDTH>,
) {
    let scale = halves(&lines[0], eight);
    let second = if const { L::FORM.first_quants() == 2 } { halves(&lines[1], eight) } else { scale };
    let quants = &lines[const { L::FORM.first_quants() }..];
    let rows = sums.iter_mut().map(|sums| &mut sums[index]).zip(values);
    if const { L::FORM.has_halves() } {
        let firsts = dot::<ROWS, L>(quants, eight, 0..4, values);
        let seconds = dot::<ROWS, L>(quants, eight, 4..8, values);
        for (((sum, values), first), rest) in rows.zip(firsts).zip(seconds) {
            let (all, half) = (values[NEGATIVE] as i32, values[NEGATIVE_FIRST] as i32);
            let zeros = [half, all - half].map(|zero| _mm256_set1_epi32(zero << (L::FORM.bits() - 1)));
            *sum = scaled(_mm256_add_epi32(first, zeros[0]), scale, values, *sum);
            *sum = scaled(_mm256_add_epi32(rest, zeros[1]), second, values, *sum);
        }
        return;
    }
    let dots = dot::<ROWS, L>(quants, eight, 0..8, values);
    for ((sum, values), dot) in rows.zip(dots) {
        if const { L::FORM.has_offsets() } {
            *sum = scaled(dot, scale, values, *sum);
            *sum = _mm256_fmadd_ps(second, _mm256_set1_ps(f32::from_bits(values[SUM])), *sum);
        } else {
            let zero = (values[NEGATIVE] as i32) << (L::FORM.bits() - 1);
            *sum = scaled(_mm256_add_epi32(dot, _mm256_set1_epi32(zero)), scale, values, *sum);
        }
    }
}

/// Adds a dot product of integers to a sum.
#[inline]
#[target_feature(enable = "avx2,fma")]
fn scaled(dot: __m256i, scale: __m256, values: &[u32; GROUP_WORDS], sum: __m256) -> __m256 {
    let scale = _mm256_mul_ps(scale, _mm256_set1_ps(f32::from_bits(values[SCALE])));
    _mm256_fmadd_ps(_mm256_cvtepi32_ps(dot), scale, sum)
}

/// Dot products of some of the eight quads of a group of 8 outputs. The lowest four bits of quants and the others are
/// multiplied on their own, as sums of 16 bits hold eight products of pairs with 4 bits, but not one with 8.
#[inline]
#[target_feature(enable = "avx2")]
fn dot<const ROWS: usize, L: Layout>(
    quants: &[Line],
    eight: usize,
    quads: std::ops::Range<usize>,
    values: &[[u32; GROUP_WORDS]; ROWS],
) -> [__m256i; ROWS] {
    let ones = _mm256_set1_epi16(1);
    let mut low = [_mm256_setzero_si256(); ROWS];
    let mut high = [_mm256_setzero_si256(); ROWS];
    for quad in quads {
        let [lower, upper] = unpack::<L>(quants, eight, quad);
        for ((low, high), values) in low.iter_mut().zip(&mut high).zip(values) {
            let value = _mm256_set1_epi32(values[quad] as i32);
            *low = _mm256_add_epi16(*low, _mm256_maddubs_epi16(lower, value));
            if const { L::FORM.bits() > 4 } {
                *high = _mm256_add_epi16(*high, _mm256_maddubs_epi16(upper, value));
            }
        }
    }
    for (low, high) in low.iter_mut().zip(high) {
        *low = _mm256_madd_epi16(*low, ones);
        if const { L::FORM.bits() > 4 } {
            *low = _mm256_add_epi32(*low, _mm256_slli_epi32::<4>(_mm256_madd_epi16(high, ones)));
        }
    }
    low
}

/// Unpacks a quad of inputs of 8 outputs: the lowest four bits, and the others.
#[inline]
#[target_feature(enable = "avx2")]
fn unpack<L: Layout>(quants: &[Line], eight: usize, quad: usize) -> [__m256i; 2] {
    let mask = _mm256_set1_epi8(15);
    let load = |line: usize| load_half(&quants[line + eight / 2], eight % 2);
    let upper = |both: __m256i| _mm256_and_si256(_mm256_srli_epi16::<4>(both), mask);
    if const { L::FORM.bits() == 8 } {
        let both = load(quad * 2);
        return [_mm256_and_si256(both, mask), upper(both)];
    }
    let both = load(quad / 2 * 2);
    let low = if quad.is_multiple_of(2) { _mm256_and_si256(both, mask) } else { upper(both) };
    if const { L::FORM.high_bits() == 0 } {
        return [low, low];
    }
    let (line, shift) = L::FORM.high_place(quad);
    let bits = _mm256_srl_epi16(load(line), _mm_cvtsi32_si128(shift as i32));
    [low, _mm256_and_si256(bits, _mm256_set1_epi8(const { (1 << L::FORM.high_bits()) - 1 }))]
}

/// Loads registers of the two lines of a step from `first` on.
#[inline]
#[target_feature(enable = "avx2")]
fn load<const WIDTH: usize>(lines: &[Line; 2], first: usize) -> [__m256i; WIDTH] {
    lines.iter().for_each(|line| prefetch(line));
    let mut registers = [_mm256_setzero_si256(); WIDTH];
    for (index, register) in registers.iter_mut().enumerate() {
        *register = load_half(&lines[(first + index) / 2], (first + index) % 2);
    }
    registers
}

#[inline]
#[target_feature(enable = "avx2")]
fn load_half(line: &Line, half: usize) -> __m256i {
    let bytes: &[u8; 32] = &line.0.as_chunks().0[half];
    // SAFETY: there are 32 bytes, and a half of a line is aligned to them.
    unsafe { _mm256_load_si256(bytes.as_ptr().cast()) }
}

/// Fetches a line some way ahead.
#[inline]
#[target_feature(enable = "avx2")]
fn prefetch(line: &Line) {
    _mm_prefetch::<_MM_HINT_T0>(std::ptr::from_ref(line).wrapping_add(AHEAD).cast());
}

/// Widens 8 of a line's values in f16.
#[inline]
#[target_feature(enable = "avx2,f16c")]
fn halves(line: &Line, eight: usize) -> __m256 {
    let bytes: &[u8; 16] = &line.0.as_chunks().0[eight];
    // SAFETY: there are 16 bytes.
    let values: __m128i = unsafe { _mm_loadu_si128(bytes.as_ptr().cast()) };
    _mm256_cvtph_ps(values)
}

#[inline]
#[target_feature(enable = "avx2")]
fn store<const ROWS: usize, const WIDTH: usize>(sums: &Sums<ROWS, WIDTH>, first: usize, out: &mut Tile) {
    for (sums, out) in sums.iter().zip(out) {
        for (sum, out) in sums.iter().zip(&mut out.as_chunks_mut::<8>().0[first..]) {
            // SAFETY: there are 8 floats.
            unsafe { _mm256_storeu_ps(out.as_mut_ptr(), *sum) };
        }
    }
}

#[target_feature(enable = "avx2,fma")]
pub(super) fn pack_f32(values: &[f32], width: usize, tile: &mut [u32]) {
    tile::pack_f32(values, width, tile);
}

#[target_feature(enable = "avx2,fma")]
pub(super) fn pack_bf16(values: &[f32], width: usize, tile: &mut [u32]) {
    tile::pack_bf16(values, width, tile);
}

#[target_feature(enable = "avx2,fma")]
pub(super) fn pack_int8(values: &[f32], width: usize, tile: &mut [u32]) {
    tile::pack_int8(values, width, tile);
}
