//! Quantisation by the formulas of `quantize_row_*_ref` in `ggml-quants.c`, with blocks of 32 values.

use half::f16;

/// Values of a block.
pub(super) const BLOCK: usize = 32;

/// Blocks of Q8_0.
pub(super) fn q8_0(values: &[f32], out: &mut Vec<u8>) {
    for block in values.as_chunks::<BLOCK>().0 {
        let greatest = block.iter().fold(0.0_f32, |greatest, value| greatest.max(value.abs()));
        let scale = greatest / 127.0;
        let inverse = if scale == 0.0 { 0.0 } else { 1.0 / scale };
        out.extend(f16::from_f32(scale).to_le_bytes());
        out.extend(block.iter().map(|value| ((value * inverse).round() as i8).cast_unsigned()));
    }
}

/// Blocks of Q4_0.
pub(super) fn q4_0(values: &[f32], out: &mut Vec<u8>) {
    for block in values.as_chunks::<BLOCK>().0 {
        let farther = |far: f32, value: &f32| if value.abs() > far.abs() { *value } else { far };
        let scale = block.iter().fold(0.0, farther) / -8.0;
        let inverse = if scale == 0.0 { 0.0 } else { 1.0 / scale };
        out.extend(f16::from_f32(scale).to_le_bytes());
        nibbles(block, out, |value| value * inverse + 8.5);
    }
}

/// Blocks of Q4_1.
pub(super) fn q4_1(values: &[f32], out: &mut Vec<u8>) {
    for block in values.as_chunks::<BLOCK>().0 {
        let least = block.iter().copied().fold(f32::INFINITY, f32::min);
        let greatest = block.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        let scale = (greatest - least) / 15.0;
        let inverse = if scale == 0.0 { 0.0 } else { 1.0 / scale };
        out.extend(f16::from_f32(scale).to_le_bytes());
        out.extend(f16::from_f32(least).to_le_bytes());
        nibbles(block, out, |value| (value - least) * inverse + 0.5);
    }
}

/// Quants of 4 bits: value `i` beside value `i + 16`.
fn nibbles(block: &[f32; BLOCK], out: &mut Vec<u8>, quant: impl Fn(f32) -> f32) {
    let quant = |value: f32| (quant(value) as u8).min(15);
    let (low, high) = block.split_at(BLOCK / 2);
    out.extend(low.iter().zip(high).map(|(low, high)| quant(*low) | quant(*high) << 4));
}
