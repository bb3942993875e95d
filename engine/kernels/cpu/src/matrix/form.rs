//! Forms of packed weights.
//!
//! A panel holds the weights of [`PANEL`] outputs, step after step along the inputs, so that a kernel reads one stream:
//!
//! | form | step | lines of a step |
//! | --- | --- | --- |
//! | F32 | 1 input | outputs 0-15, outputs 16-31 |
//! | F16 | 1 input | outputs 0-31 |
//! | BF16 | 2 inputs | outputs 0-15, outputs 16-31, a pair of inputs for each: what `vdpbf16ps` and tiles of AMX read |
//! | integers | a group of 32 inputs | scales of 32 outputs, further scales or offsets, both in f16; quants |
//!
//! Quants of 8 bits: for each four inputs outputs 0-15, then outputs 16-31, four inputs for each output, as `vpdpbusd`
//! and tiles of AMX read them. Quants of 4 bits: the same for each eight inputs, the first four in the low halves of
//! bytes. Quants of 5 and 6 bits have their lowest four bits so; behind them come the others, of eight or of four quads
//! in a line that has a byte for each output and each input of a quad. Without offsets, zero is [`Grouped::zero`].

use super::line::Line;
use half::f16;

/// Outputs of a panel.
pub(crate) const PANEL: usize = 32;
/// Inputs of a group of integers. Every form but F32 and F16 is filled up with zeros to a multiple of it.
pub(crate) const GROUP: usize = 32;

/// Form of a packed matrix.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Form {
    /// Numbers of 32 bits.
    F32,
    /// Numbers of 16 bits, 5 of them the exponent. Widened in the kernels: bf16 would lose three bits of them.
    F16,
    /// Numbers of 16 bits, 8 of them the exponent.
    Bf16,
    /// Integers with a scale for each group.
    Grouped(Grouped),
}

/// Form of integers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Grouped {
    /// 4 bits, scales.
    Int4,
    /// 4 bits, scales and offsets.
    Int4Offset,
    /// 5 bits, scales.
    Int5,
    /// 5 bits, scales and offsets.
    Int5Offset,
    /// 6 bits, scales for groups of 16.
    Int6Halves,
    /// 8 bits, scales.
    Int8,
    /// 8 bits, scales and offsets.
    Int8Offset,
    /// 8 bits, scales for groups of 16.
    Int8Halves,
}

impl Form {
    /// All forms.
    pub(super) const ALL: [Self; 11] = [
        Self::F32,
        Self::F16,
        Self::Bf16,
        Self::Grouped(Grouped::Int4),
        Self::Grouped(Grouped::Int4Offset),
        Self::Grouped(Grouped::Int5),
        Self::Grouped(Grouped::Int5Offset),
        Self::Grouped(Grouped::Int6Halves),
        Self::Grouped(Grouped::Int8),
        Self::Grouped(Grouped::Int8Offset),
        Self::Grouped(Grouped::Int8Halves),
    ];

    /// Lines of a panel of a matrix with so many inputs.
    pub(super) fn panel_lines(self, inputs: usize) -> usize {
        match self {
            Self::F32 => inputs * 2,
            Self::F16 => inputs,
            Self::Bf16 => inputs.next_multiple_of(GROUP),
            Self::Grouped(grouped) => inputs.div_ceil(GROUP) * grouped.lines(),
        }
    }
}

impl Grouped {
    /// Bits of a quant.
    pub(super) const fn bits(self) -> u32 {
        match self {
            Self::Int4 | Self::Int4Offset => 4,
            Self::Int5 | Self::Int5Offset => 5,
            Self::Int6Halves => 6,
            Self::Int8 | Self::Int8Offset | Self::Int8Halves => 8,
        }
    }

    /// Lines of a group of a panel.
    pub(super) const fn lines(self) -> usize {
        self.first_quants() + 2 * self.bits() as usize
    }

    /// Line of a group at which its quants begin.
    pub(super) const fn first_quants(self) -> usize {
        if self.has_offsets() || self.has_halves() { 2 } else { 1 }
    }

    pub(super) const fn has_offsets(self) -> bool {
        matches!(self, Self::Int4Offset | Self::Int5Offset | Self::Int8Offset)
    }

    /// Scales are for groups of 16.
    pub(super) const fn has_halves(self) -> bool {
        matches!(self, Self::Int6Halves | Self::Int8Halves)
    }

    /// Quant that stands for zero where there are no offsets.
    pub(super) const fn zero(self) -> u8 {
        1 << (self.bits() - 1)
    }

    /// Bits of a quant beyond the lowest four, where they are apart from these.
    pub(super) const fn high_bits(self) -> usize {
        if self.bits() < 8 { self.bits() as usize - 4 } else { 0 }
    }

    /// Line of the high bits of a quad of inputs, among the lines of the quants, and their lowest bit in each byte.
    pub(super) const fn high_place(self, quad: usize) -> (usize, usize) {
        let quads = if self.high_bits() == 2 { 4 } else { 8 };
        (LOW_LINES + quad / quads * 2, quad % quads * self.high_bits())
    }
}

/// Layout of integers, for kernels that are compiled for each.
pub(super) trait Layout {
    const FORM: Grouped;
}

/// Declares the layouts.
macro_rules! layouts {
    ($($name:ident)*) => {
        $(pub(super) struct $name;
        impl Layout for $name {
            const FORM: Grouped = Grouped::$name;
        })*
    };
}

layouts! { Int4 Int4Offset Int5 Int5Offset Int6Halves Int8 Int8Offset Int8Halves }

/// Lines of the lowest four bits of a group's quants.
pub(super) const LOW_LINES: usize = 8;

/// Word of a line.
pub(super) fn word(line: &[u8; 64], index: usize) -> u32 {
    u32::from_le_bytes(line.as_chunks().0[index])
}

/// Half a word of a line.
pub(super) fn half_word(line: &[u8; 64], index: usize) -> u16 {
    u16::from_le_bytes(line.as_chunks().0[index])
}

/// Quant of an input of a group.
pub(super) fn quant(grouped: Grouped, group: &[Line], output: usize, input: usize) -> u8 {
    let (byte, half, quad) = (output % 16 * 4 + input % 4, output / 16, input / 4);
    let quants = &group[grouped.first_quants()..];
    if grouped.bits() == 8 {
        return quants[quad * 2 + half].0[byte];
    }
    let low = quants[quad / 2 * 2 + half].0[byte] >> (quad % 2 * 4) & 15;
    if grouped.high_bits() == 0 {
        return low;
    }
    let (line, shift) = grouped.high_place(quad);
    low | (quants[line + half].0[byte] >> shift & ((1 << grouped.high_bits()) - 1)) << 4
}

/// Scale of the group, or of the half of it, that an input is in.
pub(super) fn scale(grouped: Grouped, group: &[Line], output: usize, input: usize) -> f32 {
    let line = if grouped.has_halves() { input / 16 } else { 0 };
    f16::from_bits(half_word(&group[line].0, output)).to_f32()
}

/// Offset of the group.
pub(super) fn offset(group: &[Line], output: usize) -> f32 {
    f16::from_bits(half_word(&group[1].0, output)).to_f32()
}

/// Weight of an input of a group, before the factor of the panel.
pub(super) fn value(grouped: Grouped, group: &[Line], output: usize, input: usize) -> f32 {
    let (quant, scale) = (quant(grouped, group, output, input), scale(grouped, group, output, input));
    if grouped.has_offsets() {
        scale * f32::from(quant) + offset(group, output)
    } else {
        scale * f32::from(i16::from(quant) - i16::from(grouped.zero()))
    }
}
