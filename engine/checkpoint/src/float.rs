//! Numbers of 16 and 32 bits as bytes, little-endian and at any address.

use half::f16;
use half::slice::HalfFloatSliceExt;

/// Floating-point format.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Float {
    F32,
    F16,
    Bf16,
}

impl Float {
    /// Bytes of a number.
    pub(crate) const fn size(self) -> usize {
        match self {
            Self::F32 => 4,
            Self::F16 | Self::Bf16 => 2,
        }
    }

    /// Number at an index.
    pub(crate) fn get(self, bytes: &[u8], index: usize) -> f32 {
        let at = index * self.size();
        match self {
            Self::F32 => f32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]),
            Self::F16 => half_at([bytes[at], bytes[at + 1]]),
            Self::Bf16 => bf16_at([bytes[at], bytes[at + 1]]),
        }
    }

    /// Writes all numbers of `bytes`, which are as many as `out` has room for.
    pub(crate) fn widen(self, bytes: &[u8], out: &mut [f32]) {
        match self {
            Self::F32 => {
                for (out, bytes) in out.iter_mut().zip(bytes.as_chunks().0) {
                    *out = f32::from_le_bytes(*bytes);
                }
            }
            Self::F16 => widen_f16(bytes, out),
            Self::Bf16 => {
                for (out, bytes) in out.iter_mut().zip(bytes.as_chunks().0) {
                    *out = bf16_at(*bytes);
                }
            }
        }
    }
}

/// Value of a number of the type F16.
pub(crate) fn half_at(bytes: [u8; 2]) -> f32 {
    f16::from_le_bytes(bytes).to_f32()
}

fn bf16_at(bytes: [u8; 2]) -> f32 {
    f32::from_bits(u32::from(u16::from_le_bytes(bytes)) << 16)
}

/// Widens in pieces that are copied to an aligned place first, for the processor's conversion of many at once.
fn widen_f16(bytes: &[u8], out: &mut [f32]) {
    const PIECE: usize = 64;
    let mut aligned = [f16::ZERO; PIECE];
    for (out, bytes) in out.chunks_mut(PIECE).zip(bytes.chunks(2 * PIECE)) {
        let aligned = &mut aligned[..out.len()];
        for (number, bytes) in aligned.iter_mut().zip(bytes.as_chunks().0) {
            *number = f16::from_le_bytes(*bytes);
        }
        aligned.convert_to_f32_slice(out);
    }
}
