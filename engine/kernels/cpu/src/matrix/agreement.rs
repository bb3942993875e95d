//! Comparison of a level's kernels with the scalar ones.

use super::form::{Form, PANEL};
use super::pack::{Packer, Rows};
use super::{Input, Product, multiply};
use crate::level::Level;
use crate::threads::Threads;
use half::{bf16, f16};
use omni_checkpoint::{Matrix, Values};

const OUTPUTS: usize = PANEL + 7;
const INPUTS: usize = 96;
/// A full tile of every kind, and one of a single row.
const ROWS: usize = 25;

/// Returns true if every kernel of the level gives what the scalar one gives: the same bits, or for products of bf16
/// with bf16 the same sums up to their rounding.
pub(crate) fn agrees(level: Level) -> bool {
    let mut seed = 1_u32;
    let mut number = || {
        seed = seed.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (seed >> 16) as f32 / 32_768.0 - 1.0
    };
    let weights: Vec<f32> = (0..OUTPUTS * INPUTS).map(|_| number()).collect();
    // Numbers that are bf16 already, so that all levels multiply the same.
    let values: Vec<f32> = (0..ROWS * INPUTS).map(|_| bf16::from_f32(number()).to_f32()).collect();
    Form::ALL.into_iter().all(|form| {
        let tolerance = if form == Form::Bf16 && level >= Level::Avx512Bf16 { 1e-4 } else { 0.0 };
        let expected = products(&weights, &values, form, Level::Scalar);
        let found = products(&weights, &values, form, level);
        // The last row alone has the same bits.
        let alone = products(&weights, &values[values.len() - INPUTS..], form, level);
        expected.zip(found).zip(alone).is_some_and(|((expected, found), alone)| {
            found.ends_with(&alone) && expected.iter().zip(&found).all(|(a, b)| (a - b).abs() <= tolerance)
        })
    })
}

/// Computes the products of a form at a level that the processor may not have.
fn products(weights: &[f32], values: &[f32], form: Form, level: Level) -> Option<Vec<f32>> {
    let threads = Threads::new(1).ok()?;
    let bytes: Vec<u8> = match form {
        Form::F16 => weights.iter().flat_map(|weight| f16::from_f32(*weight).to_le_bytes()).collect(),
        Form::Bf16 => weights.iter().flat_map(|weight| bf16::from_f32(*weight).to_le_bytes()).collect(),
        Form::F32 | Form::Grouped(_) => weights.iter().flat_map(|weight| weight.to_le_bytes()).collect(),
    };
    let stored = match form {
        Form::F16 => Values::F16(&bytes),
        Form::Bf16 => Values::Bf16(&bytes),
        Form::F32 | Form::Grouped(_) => Values::F32(&bytes),
    };
    let source = Matrix { rows: OUTPUTS, columns: INPUTS, values: stored };
    let matrix = Packer::new(level, &threads).pack_in(form, &source, &Rows::all(OUTPUTS)).ok()?;
    let mut input = Input::new(level);
    let rows = values.len() / INPUTS;
    input.prepare(matrix.input_kind(), values, rows, INPUTS, &threads);
    let mut out = vec![f32::NAN; rows * OUTPUTS];
    multiply(&threads, &input, &mut [Product::new(&matrix, &mut out, OUTPUTS)]);
    Some(out)
}
