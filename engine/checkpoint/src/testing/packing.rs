//! Quantisation and packing as AWQ and GPTQ do it: one scale and zero for each group of inputs.

use half::f16;

/// Matrix of integers with scales and zeros, values `scale * (quant - zero)`.
pub(super) struct Quantised {
    /// `[outputs, inputs]`.
    pub(super) quants: Vec<u8>,
    /// `[inputs / group, outputs]`.
    pub(super) scales: Vec<f16>,
    /// `[inputs / group, outputs]`.
    pub(super) zeros: Vec<u8>,
}

/// Quantises a row-major matrix from the least to the greatest value of each group, 0 among them. Zeros are at least 1:
/// GPTQ stores them less 1.
pub(super) fn quantise(values: &[f32], [rows, columns]: [usize; 2], bits: u8, group: usize) -> Quantised {
    let most = f32::from(u8::MAX >> (8 - bits));
    let groups = columns / group;
    let mut quantised = Quantised {
        quants: vec![0; rows * columns],
        scales: vec![f16::ZERO; groups * rows],
        zeros: vec![0; groups * rows],
    };
    for (at, values) in values.chunks_exact(group).enumerate() {
        let (row, number) = (at / groups, at % groups);
        let least = values.iter().copied().fold(0.0, f32::min);
        let greatest = values.iter().copied().fold(0.0, f32::max);
        let scale = f16::from_f32(((greatest - least) / (most - 1.0)).max(1e-6));
        let zero = (-least / scale.to_f32()).round().clamp(1.0, most);
        quantised.scales[number * rows + row] = scale;
        quantised.zeros[number * rows + row] = zero as u8;
        for (quant, value) in quantised.quants[at * group..].iter_mut().zip(values) {
            *quant = (value / scale.to_f32() + zero).round().clamp(0.0, most) as u8;
        }
    }
    quantised
}

/// Packs the elements `get(0) … get(count - 1)` of each line into words, `order[i]` the element at place `i` of a word.
pub(super) fn pack(
    lines: usize,
    count: usize,
    bits: u8,
    order: &[usize],
    get: impl Fn(usize, usize) -> u8,
) -> Vec<i32> {
    let mut words = Vec::with_capacity(lines * count / order.len());
    for line in 0..lines {
        for first in (0..count).step_by(order.len()) {
            let join = |word: u32, (place, element): (usize, &usize)| {
                word | u32::from(get(line, first + element)) << (place * usize::from(bits))
            };
            words.push(order.iter().enumerate().fold(0, join).cast_signed());
        }
    }
    words
}
