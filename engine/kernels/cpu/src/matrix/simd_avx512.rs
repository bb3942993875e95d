//! Kernels of AVX-512. A register holds 16 outputs; the sums of a tile stay in registers along all inputs.
#![allow(unsafe_code, reason = "loads and stores by pointer, and vectors of bf16, which have no constructor")]

use super::form::{Layout, PANEL};
use super::line::Line;
use super::tile::{GROUP_WORDS, NEGATIVE, NEGATIVE_FIRST, SCALE, SUM, Tile, for_rows};
use std::arch::x86_64::{
    __m256i, __m512, __m512bh, __m512i, _MM_HINT_T0, _mm_prefetch, _mm256_loadu_si256, _mm512_and_si512,
    _mm512_castsi512_ps, _mm512_cvtepi32_ps, _mm512_cvtph_ps, _mm512_dpbf16_ps, _mm512_dpbusd_epi32, _mm512_fmadd_ps,
    _mm512_load_si512, _mm512_loadu_ps, _mm512_loadu_si512, _mm512_mul_ps, _mm512_set1_epi8, _mm512_set1_epi32,
    _mm512_set1_ps, _mm512_setzero_ps, _mm512_slli_epi16, _mm512_slli_epi32, _mm512_srli_epi16, _mm512_store_si512,
    _mm512_storeu_ps, _mm512_sub_epi32, _mm512_ternarylogic_epi32,
};

/// Lines that are fetched before they are used, by the rows of a tile. More rows compute longer than memory takes, but
/// fetch less evenly. Found by measurements.
const fn ahead(rows: usize) -> usize {
    if rows < 8 { 96 } else { 192 }
}

/// Sums of rows, of 2 times 16 outputs each.
type Sums<const ROWS: usize> = [[__m512; 2]; ROWS];

/// Products of weights in 32 bits.
#[target_feature(enable = "avx512f")]
pub(super) fn f32(panel: &[Line], tile: &[u32], rows: usize, out: &mut Tile) {
    for_rows!(rows, [1 2 3 4 5 6 7 8 9 10 11 12], ROWS => f32_rows::<ROWS>(panel, tile, out));
}

#[target_feature(enable = "avx512f")]
fn f32_rows<const ROWS: usize>(panel: &[Line], tile: &[u32], out: &mut Tile) {
    let mut sums = [[_mm512_setzero_ps(); 2]; ROWS];
    for (lines, values) in panel.as_chunks::<2>().0.iter().zip(tile.as_chunks::<ROWS>().0) {
        prefetch(lines, ahead(ROWS));
        let weights = [_mm512_castsi512_ps(load(&lines[0])), _mm512_castsi512_ps(load(&lines[1]))];
        add(weights, values, &mut sums);
    }
    store(&sums, out);
}

/// Products of weights in f16.
#[target_feature(enable = "avx512f,avx2")]
pub(super) fn f16(panel: &[Line], tile: &[u32], rows: usize, out: &mut Tile) {
    for_rows!(rows, [1 2 3 4 5 6 7 8 9 10 11 12], ROWS => f16_rows::<ROWS>(panel, tile, out));
}

#[target_feature(enable = "avx512f,avx2")]
fn f16_rows<const ROWS: usize>(panel: &[Line], tile: &[u32], out: &mut Tile) {
    let mut sums = [[_mm512_setzero_ps(); 2]; ROWS];
    for (line, values) in panel.as_chunks::<1>().0.iter().zip(tile.as_chunks::<ROWS>().0) {
        prefetch(line, ahead(ROWS));
        add(halves(&line[0]), values, &mut sums);
    }
    store(&sums, out);
}

/// Products of weights in bf16 with activations in 32 bits.
#[target_feature(enable = "avx512f")]
pub(super) fn bf16(panel: &[Line], tile: &[u32], rows: usize, out: &mut Tile) {
    for_rows!(rows, [1 2 3 4 5 6 7 8 9 10 11 12], ROWS => bf16_rows::<ROWS>(panel, tile, out));
}

#[target_feature(enable = "avx512f")]
fn bf16_rows<const ROWS: usize>(panel: &[Line], tile: &[u32], out: &mut Tile) {
    let mut sums = [[_mm512_setzero_ps(); 2]; ROWS];
    let values = tile.as_chunks::<ROWS>().0.as_chunks::<2>().0;
    let high = _mm512_set1_epi32(0xffff_0000_u32 as i32);
    for (lines, [first, second]) in panel.as_chunks::<2>().0.iter().zip(values) {
        prefetch(lines, ahead(ROWS));
        let pairs = [load(&lines[0]), load(&lines[1])];
        add(pairs.map(|pair| _mm512_castsi512_ps(_mm512_slli_epi32::<16>(pair))), first, &mut sums);
        add(pairs.map(|pair| _mm512_castsi512_ps(_mm512_and_si512(pair, high))), second, &mut sums);
    }
    store(&sums, out);
}

/// Products of weights in bf16 with activations in bf16.
#[target_feature(enable = "avx512f,avx512bf16")]
pub(super) fn bf16_pairs(panel: &[Line], tile: &[u32], rows: usize, out: &mut Tile) {
    for_rows!(rows, [1 2 3 4 5 6 7 8 9 10 11 12], ROWS => bf16_pairs_rows::<ROWS>(panel, tile, out));
}

#[target_feature(enable = "avx512f,avx512bf16")]
fn bf16_pairs_rows<const ROWS: usize>(panel: &[Line], tile: &[u32], out: &mut Tile) {
    let mut sums = [[_mm512_setzero_ps(); 2]; ROWS];
    for (lines, values) in panel.as_chunks::<2>().0.iter().zip(tile.as_chunks::<ROWS>().0) {
        prefetch(lines, ahead(ROWS));
        let weights = [pairs(load(&lines[0])), pairs(load(&lines[1]))];
        for (sums, value) in sums.iter_mut().zip(values) {
            let value = pairs(_mm512_set1_epi32(*value as i32));
            sums[0] = _mm512_dpbf16_ps(sums[0], weights[0], value);
            sums[1] = _mm512_dpbf16_ps(sums[1], weights[1], value);
        }
    }
    store(&sums, out);
}

/// Adds the products of one input's weights.
#[inline]
#[target_feature(enable = "avx512f")]
fn add<const ROWS: usize>(weights: [__m512; 2], values: &[u32; ROWS], sums: &mut Sums<ROWS>) {
    for (sums, value) in sums.iter_mut().zip(values) {
        let value = _mm512_set1_ps(f32::from_bits(*value));
        sums[0] = _mm512_fmadd_ps(value, weights[0], sums[0]);
        sums[1] = _mm512_fmadd_ps(value, weights[1], sums[1]);
    }
}

/// Products of integers. The weights of a group stay in registers while all rows of the tile pass by; their sums are in
/// `out`, but for a single row.
#[target_feature(enable = "avx512f,avx512bw,avx512vnni,avx2")]
pub(super) fn grouped<L: Layout>(panel: &[Line], tile: &[u32], rows: usize, out: &mut Tile) {
    let groups = panel.chunks_exact(const { L::FORM.lines() });
    let (values, _) = tile.as_chunks::<GROUP_WORDS>();
    if rows == 1 {
        let mut sums = [_mm512_setzero_ps(); 2];
        for (lines, values) in groups.zip(values) {
            let group = Group::unpack::<L>(lines, ahead(rows));
            sums = group.add::<L>(values, sums);
        }
        return store(&[sums], out);
    }
    let out = &mut out[..rows];
    out.fill([0.0; PANEL]);
    for (lines, values) in groups.zip(values.chunks_exact(rows)) {
        let group = Group::unpack::<L>(lines, ahead(rows));
        for (out, values) in out.iter_mut().zip(values) {
            let halves = out.as_chunks_mut::<{ PANEL / 2 }>().0;
            let sums = group.add::<L>(values, [load_sums(&halves[0]), load_sums(&halves[1])]);
            store_sums(sums[0], &mut halves[0]);
            store_sums(sums[1], &mut halves[1]);
        }
    }
}

/// Weights of a group of a panel in registers, those of outputs 0-15 and of outputs 16-31.
struct Group {
    scales: Scales,
    /// Four inputs of each output in a register.
    quants: [[__m512i; 8]; 2],
}

impl Group {
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx2")]
    fn unpack<L: Layout>(lines: &[Line], ahead: usize) -> Self {
        prefetch(lines, ahead);
        let quants = &lines[const { L::FORM.first_quants() }..];
        Self { scales: Scales::read::<L>(lines), quants: [unpack::<L>(quants, 0), unpack::<L>(quants, 1)] }
    }

    /// Adds the products with a row.
    #[inline]
    #[target_feature(enable = "avx512f,avx512vnni")]
    fn add<L: Layout>(&self, values: &[u32; GROUP_WORDS], sums: [__m512; 2]) -> [__m512; 2] {
        let word = |word: usize| _mm512_set1_epi32(values[word] as i32);
        let [low, high] = &self.quants;
        let dots = |start: __m512i, quads: std::ops::Range<usize>| {
            quads.fold([start; 2], |dots, quad| {
                let value = word(quad);
                [_mm512_dpbusd_epi32(dots[0], low[quad], value), _mm512_dpbusd_epi32(dots[1], high[quad], value)]
            })
        };
        if const { L::FORM.has_halves() } {
            let rest = _mm512_sub_epi32(word(NEGATIVE), word(NEGATIVE_FIRST));
            let first = dots(zeros::<L>(word(NEGATIVE_FIRST)), 0..4);
            let second = dots(zeros::<L>(rest), 4..8);
            scaled(second, self.scales.seconds, values, scaled(first, self.scales.scales, values, sums))
        } else {
            self.scales.add::<L>(dots(Scales::zero::<L>(values), 0..8), values, sums)
        }
    }
}

/// Scales of a group of a panel, and what else it has beside its quants.
pub(super) struct Scales {
    /// Scales, or those of the first half of the inputs.
    scales: [__m512; 2],
    /// Offsets, or scales of the second half of the inputs.
    seconds: [__m512; 2],
}

impl Scales {
    #[inline]
    #[target_feature(enable = "avx512f,avx2")]
    pub(super) fn read<L: Layout>(lines: &[Line]) -> Self {
        let scales = halves(&lines[0]);
        let seconds = if const { L::FORM.first_quants() == 2 } { halves(&lines[1]) } else { scales };
        Self { scales, seconds }
    }

    /// Start of a dot product: the product with the quant that stands for zero, negative.
    #[inline]
    #[target_feature(enable = "avx512f")]
    pub(super) fn zero<L: Layout>(values: &[u32; GROUP_WORDS]) -> __m512i {
        if const { L::FORM.has_offsets() } {
            _mm512_set1_epi32(0)
        } else {
            zeros::<L>(_mm512_set1_epi32(values[NEGATIVE] as i32))
        }
    }

    /// Adds the dot products of a group with one scale.
    #[inline]
    #[target_feature(enable = "avx512f")]
    pub(super) fn add<L: Layout>(
        &self,
        dots: [__m512i; 2],
        values: &[u32; GROUP_WORDS],
        sums: [__m512; 2],
    ) -> [__m512; 2] {
        let sums = scaled(dots, self.scales, values, sums);
        if const { !L::FORM.has_offsets() } {
            return sums;
        }
        let sum = _mm512_set1_ps(f32::from_bits(values[SUM]));
        [_mm512_fmadd_ps(self.seconds[0], sum, sums[0]), _mm512_fmadd_ps(self.seconds[1], sum, sums[1])]
    }
}

/// Adds dot products of integers, scaled.
#[inline]
#[target_feature(enable = "avx512f")]
fn scaled(dots: [__m512i; 2], scales: [__m512; 2], values: &[u32; GROUP_WORDS], sums: [__m512; 2]) -> [__m512; 2] {
    let scale = _mm512_set1_ps(f32::from_bits(values[SCALE]));
    [
        _mm512_fmadd_ps(_mm512_cvtepi32_ps(dots[0]), _mm512_mul_ps(scales[0], scale), sums[0]),
        _mm512_fmadd_ps(_mm512_cvtepi32_ps(dots[1]), _mm512_mul_ps(scales[1], scale), sums[1]),
    ]
}

/// Multiplies with the quant that stands for zero.
#[inline]
#[target_feature(enable = "avx512f")]
fn zeros<L: Layout>(values: __m512i) -> __m512i {
    match const { L::FORM.bits() } {
        4 => _mm512_slli_epi32::<3>(values),
        5 => _mm512_slli_epi32::<4>(values),
        6 => _mm512_slli_epi32::<5>(values),
        _ => _mm512_slli_epi32::<7>(values),
    }
}

/// Unpacks a group of 16 outputs: four inputs of each in a register.
#[inline]
#[target_feature(enable = "avx512f,avx512bw")]
pub(super) fn unpack<L: Layout>(quants: &[Line], half: usize) -> [__m512i; 8] {
    let mut weights = [_mm512_set1_epi8(15); 8];
    if const { L::FORM.bits() == 8 } {
        for (weights, lines) in weights.iter_mut().zip(quants.as_chunks::<2>().0) {
            *weights = load(&lines[half]);
        }
        return weights;
    }
    for (pair, lines) in weights.as_chunks_mut::<2>().0.iter_mut().zip(quants.as_chunks::<2>().0) {
        let (both, mask) = (load(&lines[half]), pair[0]);
        pair[0] = _mm512_and_si512(both, mask);
        pair[1] = _mm512_and_si512(_mm512_srli_epi16::<4>(both), mask);
    }
    if const { L::FORM.high_bits() == 0 } {
        return weights;
    }
    let [a, b, c, d, e, f, g, h] = weights;
    [
        add_high::<0, L>(a, quants, half),
        add_high::<1, L>(b, quants, half),
        add_high::<2, L>(c, quants, half),
        add_high::<3, L>(d, quants, half),
        add_high::<4, L>(e, quants, half),
        add_high::<5, L>(f, quants, half),
        add_high::<6, L>(g, quants, half),
        add_high::<7, L>(h, quants, half),
    ]
}

/// Adds the bits beyond the lowest four to the weights of a quad of inputs.
#[inline]
#[target_feature(enable = "avx512f,avx512bw")]
fn add_high<const QUAD: usize, L: Layout>(low: __m512i, quants: &[Line], half: usize) -> __m512i {
    let (line, shift) = const { L::FORM.high_place(QUAD) };
    let bits = load(&quants[line + half]);
    let bits = match shift {
        0 => _mm512_slli_epi16::<4>(bits),
        1 => _mm512_slli_epi16::<3>(bits),
        2 => _mm512_slli_epi16::<2>(bits),
        3 => _mm512_slli_epi16::<1>(bits),
        5 => _mm512_srli_epi16::<1>(bits),
        6 => _mm512_srli_epi16::<2>(bits),
        7 => _mm512_srli_epi16::<3>(bits),
        _ => bits,
    };
    let mask = _mm512_set1_epi8(const { ((1 << L::FORM.high_bits()) - 1) << 4 });
    // Bits of the first operand, or those of both others.
    _mm512_ternarylogic_epi32::<0b1111_1000>(low, bits, mask)
}

#[inline]
#[target_feature(enable = "avx512f")]
fn load(line: &Line) -> __m512i {
    // SAFETY: a line has 64 bytes and is aligned to them.
    unsafe { _mm512_load_si512(std::ptr::from_ref(line).cast()) }
}

#[inline]
#[target_feature(enable = "avx512f")]
pub(super) fn store_line(value: __m512i, line: &mut Line) {
    // SAFETY: a line has 64 bytes and is aligned to them.
    unsafe { _mm512_store_si512(std::ptr::from_mut(line).cast(), value) };
}

#[inline]
#[target_feature(enable = "avx512f")]
pub(super) fn load_dots(from: &[i32; PANEL / 2]) -> __m512i {
    // SAFETY: there are 16 integers.
    unsafe { _mm512_loadu_si512(from.as_ptr().cast()) }
}

/// Widens a line of f16.
#[inline]
#[target_feature(enable = "avx512f,avx2")]
fn halves(line: &Line) -> [__m512; 2] {
    let (halves, _) = line.0.as_chunks::<32>();
    // SAFETY: there are 32 bytes.
    let load = |bytes: &[u8; 32]| -> __m256i { unsafe { _mm256_loadu_si256(bytes.as_ptr().cast()) } };
    [_mm512_cvtph_ps(load(&halves[0])), _mm512_cvtph_ps(load(&halves[1]))]
}

/// Takes a register as one of pairs of bf16.
#[inline]
#[target_feature(enable = "avx512f,avx512bf16")]
fn pairs(value: __m512i) -> __m512bh {
    // SAFETY: both types are 512 bits, of which any are valid.
    unsafe { std::mem::transmute::<__m512i, __m512bh>(value) }
}

/// Fetches lines some way ahead.
#[inline]
#[target_feature(enable = "avx512f")]
fn prefetch(lines: &[Line], ahead: usize) {
    for line in lines {
        _mm_prefetch::<_MM_HINT_T0>(std::ptr::from_ref(line).wrapping_add(ahead).cast());
    }
}

#[inline]
#[target_feature(enable = "avx512f")]
pub(super) fn load_sums(from: &[f32; PANEL / 2]) -> __m512 {
    // SAFETY: there are 16 floats.
    unsafe { _mm512_loadu_ps(from.as_ptr()) }
}

#[inline]
#[target_feature(enable = "avx512f")]
pub(super) fn store_sums(sums: __m512, out: &mut [f32; PANEL / 2]) {
    // SAFETY: there are 16 floats.
    unsafe { _mm512_storeu_ps(out.as_mut_ptr(), sums) };
}

#[inline]
#[target_feature(enable = "avx512f")]
fn store<const ROWS: usize>(sums: &Sums<ROWS>, out: &mut Tile) {
    for (sums, out) in sums.iter().zip(out) {
        let halves = out.as_chunks_mut::<{ PANEL / 2 }>().0;
        store_sums(sums[0], &mut halves[0]);
        store_sums(sums[1], &mut halves[1]);
    }
}
