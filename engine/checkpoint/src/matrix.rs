//! Matrices read in place, in every form that a checkpoint may hold.

use crate::blocks::{Block, Sink, Unpacked};
use crate::float::Float;
use crate::packed::Packed;
use crate::row::GroupedRow;

/// Matrix of a checkpoint, row-major.
#[derive(Debug, Clone, Copy)]
pub struct Matrix<'a> {
    /// Number of rows, which are the outputs of a linear operation. Stacked matrices follow one another.
    pub rows: usize,
    /// Number of columns, which are the inputs.
    pub columns: usize,
    /// Values of all rows.
    pub values: Values<'a>,
}

/// Values of a matrix as the file holds them: little-endian, at any address.
#[derive(Debug, Clone, Copy)]
pub enum Values<'a> {
    /// Numbers of 32 bits.
    F32(&'a [u8]),
    /// Numbers of 16 bits, 5 of them the exponent.
    F16(&'a [u8]),
    /// Numbers of 16 bits, 8 of them the exponent.
    Bf16(&'a [u8]),
    /// Integers with a scale for each group of columns.
    Grouped(Grouped<'a>),
}

impl Matrix<'_> {
    /// Writes the values of a row. The reference for every form: blocks of GGUF have ggml's values bit for bit.
    ///
    /// # Panics
    ///
    /// If there is no such row, or `out` is not as long as a row.
    pub fn row(&self, row: usize, out: &mut [f32]) {
        assert_eq!(out.len(), self.columns, "a row has {} values", self.columns);
        let (format, bytes) = match self.values {
            Values::F32(bytes) => (Float::F32, bytes),
            Values::F16(bytes) => (Float::F16, bytes),
            Values::Bf16(bytes) => (Float::Bf16, bytes),
            Values::Grouped(grouped) => return grouped.dequantise(row, out),
        };
        let length = self.columns * format.size();
        format.widen(&bytes[row * length..][..length], out);
    }
}

/// Quantised matrix, every form seen the same way: `value = scale * (quant - zero)` with unsigned quants, and one scale
/// and zero for each group of columns.
#[derive(Debug, Clone, Copy)]
pub struct Grouped<'a> {
    columns: usize,
    storage: Storage<'a>,
}

#[derive(Debug, Clone, Copy)]
enum Storage<'a> {
    /// Rows of blocks, one after the other.
    Blocks {
        block: Block,
        bytes: &'a [u8],
    },
    Packed(Packed<'a>),
}

impl<'a> Grouped<'a> {
    /// Matrix of blocks, whose rows `bytes` holds.
    pub(crate) fn of_blocks(block: Block, columns: usize, bytes: &'a [u8]) -> Self {
        Self { columns, storage: Storage::Blocks { block, bytes } }
    }

    /// Matrix of AWQ or GPTQ.
    pub(crate) fn of_packed(packed: Packed<'a>) -> Self {
        Self { columns: packed.rows_and_columns().1, storage: Storage::Packed(packed) }
    }
}

impl Grouped<'_> {
    /// Bits of a quant: 4, 5, 6 or 8.
    pub fn bits(&self) -> u8 {
        match &self.storage {
            Storage::Blocks { block, .. } => block.bits(),
            Storage::Packed(packed) => packed.bits(),
        }
    }

    /// Columns of a group: 16 or a multiple of 32, a divisor of the number of columns.
    pub fn group(&self) -> usize {
        match &self.storage {
            Storage::Blocks { block, .. } => block.group(),
            Storage::Packed(packed) => packed.group(),
        }
    }

    /// Zero is `2^(bits - 1)` in every group.
    pub fn symmetric(&self) -> bool {
        match &self.storage {
            Storage::Blocks { block, .. } => block.zero().is_some(),
            Storage::Packed(packed) => packed.symmetric(),
        }
    }

    /// Unpacks a row. The vectors of `out` are reused.
    ///
    /// # Panics
    ///
    /// If there is no such row.
    pub fn row(&self, row: usize, out: &mut GroupedRow) {
        match &self.storage {
            Storage::Blocks { block, bytes } => {
                out.quants.clear();
                out.scales.clear();
                out.offsets.clear();
                block.unpack(blocks_of_row(*block, bytes, self.columns, row), out);
            }
            Storage::Packed(packed) => packed.rows(row, std::slice::from_mut(out)),
        }
    }

    /// Unpacks as many rows as `out` has, from `first` on. AWQ and GPTQ hold neighbouring rows in the same words and
    /// cache lines: 8 or more at a time are several times faster than one by one.
    ///
    /// # Panics
    ///
    /// If there are not so many rows.
    pub fn rows(&self, first: usize, out: &mut [GroupedRow]) {
        match &self.storage {
            Storage::Blocks { .. } => {
                for (at, out) in out.iter_mut().enumerate() {
                    self.row(first + at, out);
                }
            }
            Storage::Packed(packed) => packed.rows(first, out),
        }
    }

    fn dequantise(&self, row: usize, out: &mut [f32]) {
        match &self.storage {
            Storage::Blocks { block, bytes } => {
                let bytes = blocks_of_row(*block, bytes, self.columns, row);
                match block.zero() {
                    Some(zero) => block.unpack(bytes, &mut Symmetric { zero: i16::from(zero), out }),
                    None => block.unpack(bytes, &mut Asymmetric { out }),
                }
            }
            Storage::Packed(packed) => packed.dequantise(row, out),
        }
    }
}

fn blocks_of_row(block: Block, bytes: &[u8], columns: usize, row: usize) -> &[u8] {
    let length = columns / block.values() * block.bytes();
    &bytes[row * length..][..length]
}

/// Values by `scale * (quant - zero)`, which keeps the sign of a zero.
struct Symmetric<'a> {
    zero: i16,
    out: &'a mut [f32],
}

/// Values by `scale * quant + offset`.
struct Asymmetric<'a> {
    out: &'a mut [f32],
}

impl Sink for Symmetric<'_> {
    fn block<const VALUES: usize, const GROUPS: usize>(&mut self, block: &Unpacked<VALUES, GROUPS>) {
        let zero = self.zero;
        let out = next(&mut self.out, VALUES);
        for (group, (out, quants)) in groups::<VALUES, GROUPS>(out, &block.quants).enumerate() {
            let scale = block.scales[group];
            for (out, quant) in out.iter_mut().zip(quants) {
                *out = scale * f32::from(i16::from(*quant) - zero);
            }
        }
    }
}

impl Sink for Asymmetric<'_> {
    fn block<const VALUES: usize, const GROUPS: usize>(&mut self, block: &Unpacked<VALUES, GROUPS>) {
        let out = next(&mut self.out, VALUES);
        for (group, (out, quants)) in groups::<VALUES, GROUPS>(out, &block.quants).enumerate() {
            let (scale, offset) = (block.scales[group], block.offsets[group]);
            for (out, quant) in out.iter_mut().zip(quants) {
                *out = scale * f32::from(*quant) + offset;
            }
        }
    }
}

/// Takes the next values off an output.
fn next<'a>(out: &mut &'a mut [f32], values: usize) -> &'a mut [f32] {
    let (taken, rest) = std::mem::take(out).split_at_mut(values);
    *out = rest;
    taken
}

/// Pairs the output and the quants of each group.
fn groups<'a, const VALUES: usize, const GROUPS: usize>(
    out: &'a mut [f32],
    quants: &'a [u8; VALUES],
) -> impl Iterator<Item = (&'a mut [f32], &'a [u8])> {
    out.chunks_exact_mut(VALUES / GROUPS).zip(quants.chunks_exact(VALUES / GROUPS))
}
