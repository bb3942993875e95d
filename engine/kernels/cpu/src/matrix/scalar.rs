//! Kernels without instructions of their own: the definition of every sum.

use super::form::{self, GROUP, Grouped, Layout, PANEL};
use super::line::Line;
use super::tile::{GROUP_WORDS, NEGATIVE, NEGATIVE_FIRST, SCALE, SUM, Tile};
use half::f16;

pub(super) fn f32(panel: &[Line], tile: &[u32], rows: usize, out: &mut Tile) {
    let weight =
        |input: usize, output: usize| f32::from_bits(form::word(&panel[input * 2 + output / 16].0, output % 16));
    float(panel.len() / 2, weight, tile, rows, out);
}

pub(super) fn f16(panel: &[Line], tile: &[u32], rows: usize, out: &mut Tile) {
    let weight = |input: usize, output: usize| f16::from_bits(form::half_word(&panel[input].0, output)).to_f32();
    float(panel.len(), weight, tile, rows, out);
}

pub(super) fn bf16(panel: &[Line], tile: &[u32], rows: usize, out: &mut Tile) {
    let weight = |input: usize, output: usize| {
        let bits = form::half_word(&panel[input / 2 * 2 + output / 16].0, output % 16 * 2 + input % 2);
        f32::from_bits(u32::from(bits) << 16)
    };
    float(panel.len(), weight, tile, rows, out);
}

/// Sums of fused multiplications, input after input.
fn float(inputs: usize, weight: impl Fn(usize, usize) -> f32, tile: &[u32], rows: usize, out: &mut Tile) {
    for (row, out) in out[..rows].iter_mut().enumerate() {
        for (output, out) in out.iter_mut().enumerate() {
            let values = tile[row..].iter().step_by(rows).take(inputs);
            *out = values
                .enumerate()
                .fold(0.0, |sum, (input, value)| f32::from_bits(*value).mul_add(weight(input, output), sum));
        }
    }
}

pub(super) fn grouped<L: Layout>(panel: &[Line], tile: &[u32], rows: usize, out: &mut Tile) {
    out[..rows].fill([0.0; PANEL]);
    let (tile, _) = tile.as_chunks::<GROUP_WORDS>();
    for (group, tile) in panel.chunks_exact(L::FORM.lines()).zip(tile.chunks_exact(rows)) {
        for (out, values) in out.iter_mut().zip(tile) {
            for (output, out) in out.iter_mut().enumerate() {
                *out = add_group(L::FORM, group, output, values, *out);
            }
        }
    }
}

/// Adds the product of a group to a sum.
fn add_group(grouped: Grouped, group: &[Line], output: usize, values: &[u32; GROUP_WORDS], sum: f32) -> f32 {
    let dot = |inputs: std::ops::Range<usize>| -> i32 {
        inputs
            .map(|input| {
                let value = values[input / 4].to_le_bytes()[input % 4] as i8;
                i32::from(form::quant(grouped, group, output, input)) * i32::from(value)
            })
            .sum()
    };
    let scale = |input| form::scale(grouped, group, output, input) * f32::from_bits(values[SCALE]);
    let (negative, negative_first) = (values[NEGATIVE] as i32, values[NEGATIVE_FIRST] as i32);
    let zero = grouped.bits() - 1;
    if grouped.has_offsets() {
        let sum = (dot(0..GROUP) as f32).mul_add(scale(0), sum);
        form::offset(group, output).mul_add(f32::from_bits(values[SUM]), sum)
    } else if grouped.has_halves() {
        let first = dot(0..GROUP / 2) + (negative_first << zero);
        let second = dot(GROUP / 2..GROUP) + ((negative - negative_first) << zero);
        let sum = (first as f32).mul_add(scale(0), sum);
        (second as f32).mul_add(scale(GROUP / 2), sum)
    } else {
        ((dot(0..GROUP) + (negative << zero)) as f32).mul_add(scale(0), sum)
    }
}
