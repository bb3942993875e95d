//! Blocks of GGUF's quantised types.
//!
//! Layouts are those of `ggml-common.h` (`block_q4_0` to `block_q6_K`), values those of `dequantize_row_*` in
//! `ggml-quants.c`, bit for bit. With `d`, `m` of type F16 and a block of values numbered from 0:
//!
//! | type | bytes | contents | value |
//! | --- | --- | --- | --- |
//! | Q8_0 | 34 for 32 | `d`, 32 quants of 8 bits, signed | `d q` |
//! | Q4_0 | 18 for 32 | `d`, 16 bytes: low nibbles first, then high | `d (q - 8)` |
//! | Q4_1 | 20 for 32 | `d`, `m`, nibbles | `d q + m` |
//! | Q5_0 | 22 for 32 | `d`, 32 fifth bits, nibbles | `d (q - 16)` |
//! | Q4_K | 144 for 256 | `d`, `m`, 8 scales `s` and minima `t` of 6 bits, nibbles of 64 values each 32 bytes | `(d s) q - (m t)` |
//! | Q5_K | 176 for 256 | `d`, `m`, scales, minima, 32 bytes of fifth bits, nibbles | `(d s) q - (m t)` |
//! | Q6_K | 210 for 256 | low nibbles, pairs of high bits, 16 signed scales `s`, `d` | `(d s) (q - 32)` |
//!
//! Products of a scale and a quant are exact in f32 (11 + 6 + 5 bits at most), so whether a compiler joins the product
//! and the addition makes no difference.

use crate::float::half_at;

/// Quantised type of GGUF.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Block {
    Q8_0,
    Q4_0,
    Q4_1,
    Q5_0,
    Q4K,
    Q5K,
    Q6K,
}

/// Receiver of unpacked blocks.
pub(crate) trait Sink {
    /// Takes the next block: values, and groups of the same number of values.
    fn block<const VALUES: usize, const GROUPS: usize>(&mut self, block: &Unpacked<VALUES, GROUPS>);
}

/// Block whose value number `i` is `scales[g] * quants[i] + offsets[g]`, `g` its group.
pub(crate) struct Unpacked<const VALUES: usize, const GROUPS: usize> {
    pub(crate) quants: [u8; VALUES],
    pub(crate) scales: [f32; GROUPS],
    pub(crate) offsets: [f32; GROUPS],
}

impl Block {
    /// Values of a block.
    pub(crate) const fn values(self) -> usize {
        match self {
            Self::Q8_0 | Self::Q4_0 | Self::Q4_1 | Self::Q5_0 => 32,
            Self::Q4K | Self::Q5K | Self::Q6K => 256,
        }
    }

    /// Bytes of a block.
    pub(crate) const fn bytes(self) -> usize {
        match self {
            Self::Q8_0 => 34,
            Self::Q4_0 => 18,
            Self::Q4_1 => 20,
            Self::Q5_0 => 22,
            Self::Q4K => 144,
            Self::Q5K => 176,
            Self::Q6K => 210,
        }
    }

    /// Bits of a quant.
    pub(crate) const fn bits(self) -> u8 {
        match self {
            Self::Q4_0 | Self::Q4_1 | Self::Q4K => 4,
            Self::Q5_0 | Self::Q5K => 5,
            Self::Q6K => 6,
            Self::Q8_0 => 8,
        }
    }

    /// Values of a group.
    pub(crate) const fn group(self) -> usize {
        match self {
            Self::Q6K => 16,
            _ => 32,
        }
    }

    /// Quant that stands for 0 in every group, `None` where groups have offsets of their own.
    pub(crate) const fn zero(self) -> Option<u8> {
        match self {
            Self::Q8_0 => Some(128),
            Self::Q4_0 => Some(8),
            Self::Q5_0 => Some(16),
            Self::Q6K => Some(32),
            Self::Q4_1 | Self::Q4K | Self::Q5K => None,
        }
    }

    /// Unpacks whole blocks.
    pub(crate) fn unpack(self, blocks: &[u8], sink: &mut impl Sink) {
        match self {
            Self::Q8_0 => each(blocks, sink, q8_0),
            Self::Q4_0 => each(blocks, sink, q4_0),
            Self::Q4_1 => each(blocks, sink, q4_1),
            Self::Q5_0 => each(blocks, sink, q5_0),
            Self::Q4K => each(blocks, sink, q4_k),
            Self::Q5K => each(blocks, sink, q5_k),
            Self::Q6K => each(blocks, sink, q6_k),
        }
    }
}

fn each<const BYTES: usize, const VALUES: usize, const GROUPS: usize>(
    blocks: &[u8],
    sink: &mut impl Sink,
    unpack: impl Fn(&[u8; BYTES]) -> Unpacked<VALUES, GROUPS>,
) {
    for block in blocks.as_chunks().0 {
        sink.block(&unpack(block));
    }
}

fn q8_0(block: &[u8; 34]) -> Unpacked<32, 1> {
    let scale = half_at([block[0], block[1]]);
    let mut quants = [0; 32];
    for (quant, byte) in quants.iter_mut().zip(&block[2..]) {
        *quant = byte ^ 128; // the signed byte, plus 128
    }
    Unpacked { quants, scales: [scale], offsets: [-128.0 * scale] }
}

fn q4_0(block: &[u8; 18]) -> Unpacked<32, 1> {
    let scale = half_at([block[0], block[1]]);
    let mut quants = [0; 32];
    nibbles(&block[2..], &mut quants);
    Unpacked { quants, scales: [scale], offsets: [-8.0 * scale] }
}

fn q4_1(block: &[u8; 20]) -> Unpacked<32, 1> {
    let mut quants = [0; 32];
    nibbles(&block[4..], &mut quants);
    Unpacked { quants, scales: [half_at([block[0], block[1]])], offsets: [half_at([block[2], block[3]])] }
}

fn q5_0(block: &[u8; 22]) -> Unpacked<32, 1> {
    let scale = half_at([block[0], block[1]]);
    let high = u32::from_le_bytes([block[2], block[3], block[4], block[5]]);
    let mut quants = [0; 32];
    nibbles(&block[6..], &mut quants);
    for (at, quant) in quants.iter_mut().enumerate() {
        *quant |= ((high >> at & 1) << 4) as u8;
    }
    Unpacked { quants, scales: [scale], offsets: [-16.0 * scale] }
}

fn q4_k(block: &[u8; 144]) -> Unpacked<256, 8> {
    let (scales, offsets) = scales_and_minima(&block[..16]);
    let mut quants = [0; 256];
    for (quants, bytes) in quants.as_chunks_mut::<64>().0.iter_mut().zip(block[16..].as_chunks::<32>().0) {
        nibbles(bytes, quants);
    }
    Unpacked { quants, scales, offsets }
}

fn q5_k(block: &[u8; 176]) -> Unpacked<256, 8> {
    let (scales, offsets) = scales_and_minima(&block[..16]);
    let high = &block[16..48];
    let mut quants = [0; 256];
    for (quants, bytes) in quants.as_chunks_mut::<64>().0.iter_mut().zip(block[48..].as_chunks::<32>().0) {
        nibbles(bytes, quants);
    }
    for (group, quants) in quants.as_chunks_mut::<32>().0.iter_mut().enumerate() {
        for (quant, high) in quants.iter_mut().zip(high) {
            *quant |= (high >> group & 1) << 4;
        }
    }
    Unpacked { quants, scales, offsets }
}

fn q6_k(block: &[u8; 210]) -> Unpacked<256, 16> {
    let scale = half_at([block[208], block[209]]);
    let mut scales = [0.0; 16];
    for (out, byte) in scales.iter_mut().zip(&block[192..208]) {
        *out = scale * f32::from(byte.cast_signed());
    }
    let mut quants = [0; 256];
    let halves = block[..128].as_chunks::<64>().0.iter().zip(block[128..192].as_chunks::<32>().0);
    for (quants, (low, high)) in quants.as_chunks_mut::<128>().0.iter_mut().zip(halves) {
        nibbles(low, quants);
        for (group, quants) in quants.as_chunks_mut::<32>().0.iter_mut().enumerate() {
            for (quant, high) in quants.iter_mut().zip(high) {
                *quant |= (high >> (2 * group) & 3) << 4;
            }
        }
    }
    Unpacked { quants, scales, offsets: scales.map(|scale| -32.0 * scale) }
}

/// Low nibbles of all bytes, then high ones.
fn nibbles(bytes: &[u8], quants: &mut [u8]) {
    let (low, high) = quants.split_at_mut(bytes.len());
    for ((low, high), byte) in low.iter_mut().zip(high).zip(bytes) {
        *low = byte & 15;
        *high = byte >> 4;
    }
}

/// Scales and offsets of a block of Q4_K or Q5_K, from its first 16 bytes: `get_scale_min_k4` of `ggml-quants.c`. Scales
/// and minima of the groups 0 to 3 are the low 6 bits of 8 bytes; those of the groups 4 to 7 have their low nibbles in
/// 4 more bytes and their high bits in the first 8.
fn scales_and_minima(head: &[u8]) -> ([f32; 8], [f32; 8]) {
    let scale = half_at([head[0], head[1]]);
    let minimum = half_at([head[2], head[3]]);
    let packed = &head[4..16];
    let (mut scales, mut offsets) = ([0.0; 8], [0.0; 8]);
    for at in 0..4 {
        let (first, second, both) = (packed[at], packed[at + 4], packed[at + 8]);
        scales[at] = scale * f32::from(first & 63);
        scales[at + 4] = scale * f32::from(both & 15 | first >> 6 << 4);
        offsets[at] = -(minimum * f32::from(second & 63));
        offsets[at + 4] = -(minimum * f32::from(both >> 4 | second >> 6 << 4));
    }
    (scales, offsets)
}
