//! Tiles: activations in the form that the kernels read, a few rows step after step along the inputs, all rows of the
//! tile in a step.
//!
//! | kind | step | words of a row in a step |
//! | --- | --- | --- |
//! | F32 | 1 input | its bits |
//! | BF16 | 2 inputs | the pair |
//! | BF16 in blocks | 32 inputs | 16 words of pairs, a row of a tile of AMX |
//! | Int8 | 32 inputs | 8 words of four quants, then what [`SCALE`] and the constants after it name |

use super::form::{Form, GROUP, PANEL};
use crate::level::Level;

/// Rows of the largest tile.
pub(super) const TILE_ROWS: usize = 32;

/// Sums of a tile: row after row, outputs of a panel.
pub(super) type Tile = [[f32; PANEL]; TILE_ROWS];

/// Words of a row in a group of integers.
pub(super) const GROUP_WORDS: usize = 12;
/// Word of the group's scale.
pub(super) const SCALE: usize = 8;
/// Word of the scale times the sum of the quants.
pub(super) const SUM: usize = 9;
/// Word of the sum of the quants, negative.
pub(super) const NEGATIVE: usize = 10;
/// Word of the sum of the first 16 quants, negative.
pub(super) const NEGATIVE_FIRST: usize = 11;

/// Form of activations.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum InputKind {
    /// Numbers of 32 bits.
    F32,
    /// Pairs of bf16.
    Bf16,
    /// Pairs of bf16, 16 of each row in a step.
    Bf16Blocks,
    /// Integers of 8 bits in groups of 32 with a scale.
    Int8,
}

impl InputKind {
    /// Form that the kernel of a level and a form of weights reads.
    pub(super) fn of(level: Level, form: Form) -> Self {
        match form {
            Form::Grouped(_) => Self::Int8,
            Form::Bf16 if level == Level::Amx => Self::Bf16Blocks,
            Form::Bf16 if level == Level::Avx512Bf16 => Self::Bf16,
            Form::F32 | Form::F16 | Form::Bf16 => Self::F32,
        }
    }

    /// Most rows of a tile: as many as have their sums in registers, or for integers in the first cache.
    pub(super) fn most_rows(self, level: Level) -> usize {
        match (self, level) {
            (Self::F32 | Self::Bf16, Level::Scalar | Level::Avx2) => 5,
            (Self::F32 | Self::Bf16, _) => 12,
            (Self::Bf16Blocks, _) => 32,
            (Self::Int8, Level::Scalar | Level::Avx2) => 4,
            (Self::Int8, _) => 32,
        }
    }

    /// Words of a row.
    pub(super) fn words(self, width: usize) -> usize {
        let groups = width.div_ceil(GROUP);
        match self {
            Self::F32 => groups * GROUP,
            Self::Bf16 | Self::Bf16Blocks => groups * (GROUP / 2),
            Self::Int8 => groups * GROUP_WORDS,
        }
    }
}

/// Evaluates a call with the number of rows of a tile as a constant.
macro_rules! for_rows {
    ($rows:expr, [$($count:literal)*], $constant:ident => $call:expr) => {
        match $rows {
            $($count => {
                const $constant: usize = $count;
                $call
            })*
            rows => unreachable!("a tile of {rows} rows"),
        }
    };
}
pub(super) use for_rows;

/// Words of each row that are written at a time.
const BLOCK: usize = 16;

/// Writes words of rows step after step, `block(row, first)` being the words of a row from `first` on.
#[inline(always)]
fn interleave<const ROWS: usize>(tile: &mut [u32], block: impl Fn(usize, usize) -> [u32; BLOCK]) {
    let (steps, _) = tile.as_chunks_mut::<ROWS>();
    for (index, steps) in steps.chunks_exact_mut(BLOCK).enumerate() {
        let blocks: [[u32; BLOCK]; ROWS] = std::array::from_fn(|row| block(row, index * BLOCK));
        for (step, out) in steps.iter_mut().enumerate() {
            for (out, block) in out.iter_mut().zip(&blocks) {
                *out = block[step];
            }
        }
    }
}

/// Values of a row from `first` on, filled up with zeros.
#[inline(always)]
fn take<const COUNT: usize>(values: &[f32], width: usize, row: usize, first: usize) -> [f32; COUNT] {
    let values = &values[row * width..][..width];
    let rest = values.get(first..).unwrap_or_default();
    rest.first_chunk().copied().unwrap_or_else(|| {
        let mut filled = [0.0; COUNT];
        filled[..rest.len()].copy_from_slice(rest);
        filled
    })
}

/// Packs rows of activations in 32 bits.
#[inline(always)]
pub(super) fn pack_f32(values: &[f32], width: usize, tile: &mut [u32]) {
    let block = |row, first| take::<BLOCK>(values, width, row, first).map(f32::to_bits);
    for_rows!(values.len() / width, [1 2 3 4 5 6 7 8 9 10 11 12], ROWS => interleave::<ROWS>(tile, block));
}

/// Packs rows of activations in pairs of bf16.
#[inline(always)]
pub(super) fn pack_bf16(values: &[f32], width: usize, tile: &mut [u32]) {
    let block = |row, first| pairs(values, width, row, first);
    for_rows!(values.len() / width, [1 2 3 4 5 6 7 8 9 10 11 12], ROWS => interleave::<ROWS>(tile, block));
}

/// Packs rows of activations in blocks of 16 pairs of bf16.
#[inline(always)]
pub(super) fn pack_bf16_blocks(values: &[f32], width: usize, tile: &mut [u32]) {
    let rows = values.len() / width;
    for (step, tile) in tile.chunks_exact_mut(BLOCK * rows).enumerate() {
        for (row, out) in tile.as_chunks_mut::<BLOCK>().0.iter_mut().enumerate() {
            *out = pairs(values, width, row, step * BLOCK);
        }
    }
}

/// Pairs of bf16 of a row, from a pair on.
#[inline(always)]
fn pairs(values: &[f32], width: usize, row: usize, first: usize) -> [u32; BLOCK] {
    let halves = take::<{ BLOCK * 2 }>(values, width, row, first * 2).map(round_to_bf16);
    std::array::from_fn(|pair| halves[pair * 2] | halves[pair * 2 + 1] << 16)
}

/// Bits of the nearest bf16, ties to even.
#[inline(always)]
fn round_to_bf16(value: f32) -> u32 {
    let bits = value.to_bits();
    let rounded = bits.wrapping_add(0x7fff + (bits >> 16 & 1)) >> 16;
    if value.is_nan() { bits >> 16 | 0x40 } else { rounded }
}

/// Packs rows of activations in groups of integers.
#[inline(always)]
pub(super) fn pack_int8(values: &[f32], width: usize, tile: &mut [u32]) {
    let rows = values.len() / width;
    let (tile, _) = tile.as_chunks_mut::<GROUP_WORDS>();
    for (row, values) in values.chunks_exact(width).enumerate() {
        let (groups, rest) = values.as_chunks::<GROUP>();
        let mut steps = tile[row..].iter_mut().step_by(rows);
        // The groups come first: a step that is taken and has no group would be lost to the rest.
        for (group, out) in groups.iter().zip(steps.by_ref()) {
            pack_group(group, out);
        }
        for out in steps {
            let mut group = [0.0; GROUP];
            group[..rest.len()].copy_from_slice(rest);
            pack_group(&group, out);
        }
    }
}

/// Added to a number below 2²², this leaves the nearest integer in the lowest byte.
pub(super) const ROUND: f32 = 12_582_912.0;

/// Rounds a group to integers of at most 127.
#[inline(always)]
fn pack_group(values: &[f32; GROUP], out: &mut [u32; GROUP_WORDS]) {
    // The greatest magnitude by its bits: a NaN counts as the greatest, and makes the scale one.
    let greatest = f32::from_bits(values.iter().fold(0, |greatest, value| greatest.max(value.to_bits() & 0x7fff_ffff)));
    let (scale, inverse) = scale_and_inverse(greatest);
    let quants = values.map(|value| (value * inverse + ROUND).to_bits() as i8);
    for (out, quad) in out.iter_mut().zip(quants.as_chunks::<4>().0) {
        *out = u32::from_le_bytes(quad.map(|quant| quant as u8));
    }
    let sum = |quants: &[i8]| quants.iter().map(|quant| i32::from(*quant)).sum::<i32>();
    let (first, second) = (sum(&quants[..GROUP / 2]), sum(&quants[GROUP / 2..]));
    out[SCALE..].copy_from_slice(&sums(scale, first, second));
}

/// Scale of a group by its greatest magnitude, and the inverse. Below the least magnitude whose inverse is finite, all
/// is zero.
#[inline(always)]
pub(super) fn scale_and_inverse(greatest: f32) -> (f32, f32) {
    const LEAST: f32 = 1e-30;
    if greatest < LEAST { (0.0, 0.0) } else { (greatest / 127.0, 127.0 / greatest) }
}

/// Words [`SCALE`] to [`NEGATIVE_FIRST`] of a group, by the sums of the quants of its halves.
#[inline(always)]
pub(super) fn sums(scale: f32, first: i32, second: i32) -> [u32; GROUP_WORDS - SCALE] {
    let sum = first + second;
    [scale.to_bits(), (scale * sum as f32).to_bits(), -sum as u32, -first as u32]
}
