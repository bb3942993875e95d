//! Products of every form and level: sums within their rounding, those of the scalar level and of a row alone; and how
//! weights and activations are packed.

use super::form::{Form, GROUP, Grouped};
use super::pack::{Packer, Rows};
use super::{Input, InputKind, PackedMatrix, Product, Weights, kernel, multiply};
use crate::level::Level;
use crate::threads::Threads;
use half::{bf16, f16};
use omni_checkpoint::testing::{GgufType, GgufWriter};
use omni_checkpoint::{Checkpoint, Matrix, Values};
use omni_kernels::model::RowOrder;
use std::ops::Range;

mod speed;
#[cfg(all(target_arch = "x86_64", target_os = "linux"))]
mod tiles;

/// Random numbers with the shape of weights: most are small, some are not.
fn numbers(random: &mut fastrand::Rng, count: usize) -> Vec<f32> {
    (0..count).map(|_| (random.f32() - 0.5) * (random.f32() * 2.0).powi(3)).collect()
}

/// Bytes of values as a checkpoint holds them for a form.
fn stored(form: Form, values: &[f32]) -> Vec<u8> {
    match form {
        Form::F16 => values.iter().flat_map(|value| f16::from_f32(*value).to_le_bytes()).collect(),
        Form::Bf16 => values.iter().flat_map(|value| bf16::from_f32(*value).to_le_bytes()).collect(),
        Form::F32 | Form::Grouped(_) => values.iter().flat_map(|value| value.to_le_bytes()).collect(),
    }
}

fn matrix(form: Form, bytes: &[u8], outputs: usize, inputs: usize) -> Matrix<'_> {
    let values = match form {
        Form::F16 => Values::F16(bytes),
        Form::Bf16 => Values::Bf16(bytes),
        Form::F32 | Form::Grouped(_) => Values::F32(bytes),
    };
    Matrix { rows: outputs, columns: inputs, values }
}

fn packed(form: Form, weights: &[f32], outputs: usize, level: Level, threads: &Threads) -> PackedMatrix {
    let bytes = stored(form, weights);
    let source = matrix(form, &bytes, outputs, weights.len() / outputs);
    Packer::new(level, threads).pack_in(form, &source, &Rows::all(outputs)).unwrap()
}

fn product(matrix: &PackedMatrix, values: &[f32], level: Level, threads: &Threads) -> Vec<f32> {
    let rows = values.len() / matrix.inputs();
    let mut input = Input::new(level);
    input.prepare(matrix.input_kind(), values, rows, matrix.inputs(), threads);
    let mut out = vec![f32::NAN; rows * matrix.outputs()];
    multiply(threads, &input, &mut [Product::new(matrix, &mut out, matrix.outputs())]);
    out
}

fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|value| value.to_bits()).collect()
}

fn forms_and_levels() -> impl Iterator<Item = (Form, Level)> {
    Form::ALL.into_iter().flat_map(|form| Level::all_supported().into_iter().map(move |level| (form, level)))
}

#[test]
fn a_row_is_the_same_alone_and_among_others_and_for_every_number_of_threads() {
    let mut random = fastrand::Rng::with_seed(1);
    let pools: Vec<Threads> = (1..4).map(|count| Threads::new(count).unwrap()).collect();
    for round in 0..12 {
        for (form, level) in forms_and_levels() {
            let (outputs, inputs) = (random.usize(1..100), random.usize(1..200));
            let rows = if round < 2 { 40 } else { random.usize(1..41) };
            let weights = numbers(&mut random, outputs * inputs);
            let values = numbers(&mut random, rows * inputs);
            let matrix = packed(form, &weights, outputs, level, &pools[0]);
            let together = product(&matrix, &values, level, &pools[0]);
            for threads in &pools[1..] {
                assert_eq!(bits(&product(&matrix, &values, level, threads)), bits(&together), "{form:?} {level}");
            }
            for (row, values) in values.chunks(inputs).enumerate() {
                let alone = product(&matrix, values, level, &pools[0]);
                let among = &together[row * outputs..][..outputs];
                assert_eq!(bits(&alone), bits(among), "{form:?} {level}: row {row} of {rows}, {outputs}x{inputs}");
            }
        }
    }
}

#[test]
fn every_level_computes_what_the_scalar_level_does() {
    let mut random = fastrand::Rng::with_seed(2);
    let threads = Threads::new(2).unwrap();
    for _ in 0..6 {
        for (form, level) in forms_and_levels() {
            let (outputs, inputs, rows) = (random.usize(1..100), random.usize(1..400), random.usize(1..30));
            let weights = numbers(&mut random, outputs * inputs);
            let mut values = numbers(&mut random, rows * inputs);
            let with_bf16 =
                packed(form, &weights, outputs, level, &threads).input_kind() != InputKind::F32 && form == Form::Bf16;
            if with_bf16 {
                values.iter_mut().for_each(|value| *value = bf16::from_f32(*value).to_f32());
            }
            let scalar = packed(form, &weights, outputs, Level::Scalar, &threads);
            let expected = product(&scalar, &values, Level::Scalar, &threads);
            let found = product(&packed(form, &weights, outputs, level, &threads), &values, level, &threads);
            if with_bf16 {
                // Both round each sum: they differ by some units in the last place of the sum of the magnitudes.
                let most = magnitudes(&scalar, &values).into_iter().map(|magnitude| magnitude * 4e-6 + 1e-30);
                for ((a, b), most) in expected.iter().zip(&found).zip(most) {
                    assert!((a - b).abs() <= most, "{form:?} {level}: {a} and {b}, {most} apart at most");
                }
            } else {
                assert_eq!(bits(&found), bits(&expected), "{form:?} {level} {outputs}x{inputs}, {rows} rows");
            }
        }
    }
}

/// Sums of the magnitudes of products.
fn magnitudes(matrix: &PackedMatrix, values: &[f32]) -> Vec<f32> {
    exact(matrix, values, |weight, value| f64::from(weight * value).abs()).into_iter().map(|sum| sum as f32).collect()
}

/// Sums in 64 bits, of the weights that the matrix says it has.
fn exact(matrix: &PackedMatrix, values: &[f32], product: impl Fn(f32, f32) -> f64) -> Vec<f64> {
    let mut weights = vec![0.0; matrix.inputs()];
    let mut out = Vec::new();
    for values in values.chunks(matrix.inputs()) {
        for output in 0..matrix.outputs() {
            matrix.row(output, &mut weights);
            out.push(weights.iter().zip(values).map(|(weight, value)| product(*weight, *value)).sum());
        }
    }
    out
}

#[test]
fn sums_are_those_of_the_weights_within_the_rounding_of_activations() {
    let mut random = fastrand::Rng::with_seed(3);
    let threads = Threads::new(1).unwrap();
    for (form, level) in forms_and_levels() {
        let (outputs, inputs, rows) = (33, 352, 13);
        let weights = numbers(&mut random, outputs * inputs);
        let values = numbers(&mut random, rows * inputs);
        let matrix = packed(form, &weights, outputs, level, &threads);
        // Half a unit of the last place that the activations keep, relative to the greatest of a group for integers.
        let step = match matrix.input_kind() {
            InputKind::F32 => 1e-6,
            InputKind::Bf16 | InputKind::Bf16Blocks => 1.0 / 256.0,
            InputKind::Int8 => 0.5 / 127.0,
        };
        let rounded: Vec<f32> = values
            .chunks(GROUP)
            .flat_map(|group| {
                let greatest = group.iter().fold(0.0, |greatest: f32, value| greatest.max(value.abs()));
                group.iter().map(move |value| if step == 0.5 / 127.0 { greatest } else { value.abs() })
            })
            .collect();
        let expected = exact(&matrix, &values, |weight, value| f64::from(weight) * f64::from(value));
        let bounds = exact(&matrix, &rounded, |weight, value| f64::from(weight.abs() * value));
        let found = product(&matrix, &values, level, &threads);
        for ((expected, found), bound) in expected.iter().zip(found).zip(bounds) {
            // Errors of single activations have random signs, so that the bound is far above what is met.
            let error = (expected - f64::from(found)).abs();
            assert!(
                error <= bound * step + bound * 1e-5,
                "{form:?} {level}: {found}, {expected} within {}",
                bound * step
            );
        }
    }
}

#[test]
fn floats_are_packed_as_they_are_and_integers_within_their_rounding() {
    let mut random = fastrand::Rng::with_seed(4);
    let threads = Threads::new(2).unwrap();
    for form in Form::ALL {
        let (outputs, inputs) = (70, 96);
        let weights = numbers(&mut random, outputs * inputs);
        let matrix = packed(form, &weights, outputs, Level::Scalar, &threads);
        let mut row = vec![0.0; inputs];
        for (output, weights) in weights.chunks(inputs).enumerate() {
            matrix.row(output, &mut row);
            for (group, found) in weights.chunks(GROUP).zip(row.chunks(GROUP)) {
                let greatest = group.iter().fold(0.0, |greatest: f32, value| greatest.max(value.abs()));
                let range = group.iter().copied().fold(0.0, f32::max) - group.iter().copied().fold(0.0, f32::min);
                for (weight, found) in group.iter().zip(found) {
                    let bound = match form {
                        Form::F32 => 0.0,
                        Form::F16 => weight.abs() / 2048.0 + 1e-7,
                        Form::Bf16 => weight.abs() / 256.0,
                        // Half a step, and the rounding of scale and offset.
                        Form::Grouped(Grouped::Int4) => greatest / 7.0 * 0.51,
                        Form::Grouped(Grouped::Int4Offset) => range / 15.0 * 0.51,
                        Form::Grouped(Grouped::Int5) => greatest / 15.0 * 0.51,
                        Form::Grouped(Grouped::Int5Offset) => range / 31.0 * 0.52,
                        Form::Grouped(Grouped::Int6Halves) => greatest / 31.0 * 0.52,
                        Form::Grouped(Grouped::Int8 | Grouped::Int8Halves) => greatest / 127.0 * 0.54,
                        Form::Grouped(Grouped::Int8Offset) => range / 255.0 * 0.7,
                    };
                    assert!((weight - found).abs() <= bound, "{form:?}: {weight} became {found}");
                }
            }
        }
    }
}

/// Checkpoint of one tensor `w`.
fn checkpoint(kind: GgufType, shape: [usize; 2], values: &[f32]) -> (tempfile::TempDir, Checkpoint) {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("model.gguf");
    GgufWriter::new().text("general.architecture", "llama").tensor("w", &shape, kind, values).write(&path).unwrap();
    let checkpoint = Checkpoint::open(&path).unwrap();
    (directory, checkpoint)
}

fn pack_all(source: &Matrix<'_>, rows: Range<usize>, order: RowOrder, weights: Weights) -> PackedMatrix {
    let threads = Threads::new(2).unwrap();
    Packer::new(Level::detect(), &threads).pack("w", source, rows, order, weights).unwrap()
}

#[test]
fn blocks_of_a_checkpoint_keep_their_values() {
    let mut random = fastrand::Rng::with_seed(5);
    let (rows, columns) = (40, 64);
    let values = numbers(&mut random, rows * columns);
    for (kind, bytes) in [(GgufType::Q8_0, 34), (GgufType::Q4_0, 18), (GgufType::Q4_1, 20), (GgufType::F16, 64)] {
        let (_directory, checkpoint) = checkpoint(kind, [rows, columns], &values);
        let source = checkpoint.matrix("w").unwrap();
        let matrix = pack_all(&source, 0..rows, RowOrder::Outputs, Weights::AsStored);
        // Two panels of 32 outputs, as many bytes for a group as the file has; a factor for each panel of integers.
        assert!(matrix.bytes().abs_diff(64 * 2 * bytes) <= 8, "{kind:?}: {} bytes", matrix.bytes());
        let (mut expected, mut found) = (vec![0.0; columns], vec![0.0; columns]);
        for row in 0..rows {
            source.row(row, &mut expected);
            matrix.row(row, &mut found);
            assert_eq!(found, expected, "{kind:?}");
        }
    }
}

#[test]
fn blocks_of_k_quants_keep_their_values_up_to_the_rounding_of_scales() {
    let mut random = fastrand::Rng::with_seed(10);
    let (rows, columns) = (33, 512);
    // Number of the type, bytes and values of a block, places of its scales in f16, and bytes of a packed group.
    for (number, bytes, values, scales, group) in [
        (6, 22, 32, vec![0], 22),
        (12, 144, 256, vec![0, 2], 20),
        (13, 176, 256, vec![0, 2], 24),
        (14, 210, 256, vec![208], 28),
    ] {
        let mut blocks: Vec<u8> = (0..rows * columns / values * bytes).map(|_| random.u8(..)).collect();
        for block in blocks.chunks_mut(bytes) {
            for place in &scales {
                block[*place..*place + 2].copy_from_slice(&f16::from_f32(random.f32() * 0.01).to_le_bytes());
            }
        }
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("model.gguf");
        let mut writer = GgufWriter::new();
        writer.text("general.architecture", "llama").raw("w", &[rows, columns], number, blocks).write(&path).unwrap();
        let checkpoint = Checkpoint::open(&path).unwrap();
        let source = checkpoint.matrix("w").unwrap();
        let matrix = pack_all(&source, 0..rows, RowOrder::Outputs, Weights::AsStored);
        assert!(matrix.bytes().abs_diff(64 * 16 * group) <= 8, "type {number}: {} bytes", matrix.bytes());
        let (mut expected, mut found) = (vec![0.0; columns], vec![0.0; columns]);
        for row in 0..rows {
            source.row(row, &mut expected);
            matrix.row(row, &mut found);
            let greatest = expected.iter().fold(0.0, |greatest: f32, value| greatest.max(value.abs()));
            for (expected, found) in expected.iter().zip(&found) {
                assert!((expected - found).abs() <= greatest / 1024.0, "type {number}: {expected} became {found}");
            }
        }
    }
}

#[test]
fn rows_are_a_range_in_the_order_of_the_outputs() {
    let (rows, columns, head_width) = (24, 32, 8);
    let values: Vec<f32> = (0..rows).flat_map(|row| vec![row as f32; columns]).collect();
    let (_directory, checkpoint) = checkpoint(GgufType::Q8_0, [rows, columns], &values);
    let bytes = stored(Form::F32, &values);
    for source in [checkpoint.matrix("w").unwrap(), matrix(Form::F32, &bytes, rows, columns)] {
        for (order, expected) in [
            (RowOrder::Outputs, [8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 21, 22, 23]),
            (RowOrder::Interleaved { head_width }, [8, 10, 12, 14, 9, 11, 13, 15, 16, 18, 20, 22, 17, 19, 21, 23]),
        ] {
            let matrix = pack_all(&source, 8..24, order, Weights::AsStored);
            assert_eq!((matrix.outputs(), matrix.inputs()), (16, 32));
            let mut row = vec![0.0; columns];
            for (output, expected) in expected.into_iter().enumerate() {
                matrix.row(output, &mut row);
                assert!((row[5] - expected as f32).abs() < 0.02, "output {output} is row {}", row[5]);
            }
        }
    }
}

#[test]
fn weights_are_converted_at_load() {
    let mut random = fastrand::Rng::with_seed(6);
    let values = numbers(&mut random, 32 * 64);
    let floats = stored(Form::Bf16, &values);
    let floats = matrix(Form::Bf16, &floats, 32, 64);
    let (_q8, eight) = checkpoint(GgufType::Q8_0, [32, 64], &values);
    let (_q4, four) = checkpoint(GgufType::Q4_0, [32, 64], &values);
    let (eight, four) = (eight.matrix("w").unwrap(), four.matrix("w").unwrap());
    let (int4, int8) = (Form::Grouped(Grouped::Int4), Form::Grouped(Grouped::Int8));
    let offset = Form::Grouped(Grouped::Int4Offset);
    for (weights, forms) in [
        (Weights::AsStored, [Form::Bf16, int8, int4]),
        (Weights::F32, [Form::F32; 3]),
        (Weights::Int8, [int8, int8, int4]),
        (Weights::Int4, [offset, offset, int4]),
    ] {
        for (source, form) in [floats, eight, four].into_iter().zip(forms) {
            assert_eq!(pack_all(&source, 0..32, RowOrder::Outputs, weights).form, form, "{weights:?}");
        }
    }
}

#[test]
fn several_products_share_an_input_and_keep_what_lies_between_their_rows() {
    let mut random = fastrand::Rng::with_seed(7);
    let threads = Threads::new(3).unwrap();
    let level = Level::detect();
    let (rows, inputs) = (14, 64);
    let values = numbers(&mut random, rows * inputs);
    let matrices: Vec<PackedMatrix> = [100, 8, 33]
        .map(|outputs| packed(Form::F32, &numbers(&mut random, outputs * inputs), outputs, level, &threads))
        .into_iter()
        .collect();
    let mut input = Input::new(level);
    input.prepare(InputKind::F32, &values, rows, inputs, &threads);
    let mut outs: Vec<Vec<f32>> = matrices.iter().map(|matrix| vec![-7.0; rows * (matrix.outputs() + 3)]).collect();
    let mut products: Vec<Product<'_>> =
        matrices.iter().zip(&mut outs).map(|(matrix, out)| Product::new(matrix, out, matrix.outputs() + 3)).collect();
    multiply(&threads, &input, &mut products);
    for (matrix, out) in matrices.iter().zip(outs) {
        let expected = product(matrix, &values, level, &threads);
        for (out, expected) in out.chunks(matrix.outputs() + 3).zip(expected.chunks(matrix.outputs())) {
            assert_eq!(out[..matrix.outputs()], *expected);
            assert_eq!(out[matrix.outputs()..], [-7.0; 3]);
        }
    }
}

#[test]
fn what_is_no_number_stays_none_and_harms_no_other_row() {
    let mut random = fastrand::Rng::with_seed(8);
    let threads = Threads::new(1).unwrap();
    for (form, level) in forms_and_levels() {
        let (outputs, inputs) = (40, 64);
        let matrix = packed(form, &numbers(&mut random, outputs * inputs), outputs, level, &threads);
        let mut values = numbers(&mut random, 3 * inputs);
        let clean = product(&matrix, &values, level, &threads);
        values[inputs + 7] = f32::NAN;
        let found = product(&matrix, &values, level, &threads);
        assert_eq!(bits(&found[..outputs]), bits(&clean[..outputs]));
        assert!(found[outputs..2 * outputs].iter().all(|value| value.is_nan()), "{form:?} {level}");
        assert_eq!(bits(&found[2 * outputs..]), bits(&clean[2 * outputs..]));
        // Infinities, zeros and the least numbers: no panic, and finite sums from finite inputs.
        values.fill(0.0);
        values[3] = f32::MIN_POSITIVE / 4.0;
        values[inputs] = f32::INFINITY;
        values[2 * inputs] = 1e-38;
        let found = product(&matrix, &values, level, &threads);
        assert!(
            found[..outputs].iter().chain(&found[2 * outputs..]).all(|value| value.is_finite()),
            "{form:?} {level}"
        );
    }
}

#[test]
fn every_level_packs_activations_alike() {
    let mut random = fastrand::Rng::with_seed(9);
    for level in Level::all_supported() {
        for kind in [InputKind::F32, InputKind::Bf16, InputKind::Bf16Blocks, InputKind::Int8] {
            for rows in 1..=kind.most_rows(level) {
                let width = random.usize(1..150);
                let mut values = numbers(&mut random, rows * width);
                values[random.usize(..rows * width)] = 0.0;
                values[random.usize(..rows * width)] =
                    [1e30, -1e-35, f32::NAN, f32::from_bits(u32::MAX)][random.usize(..4)];
                let words = rows * kind.words(width);
                let (mut expected, mut found) = (vec![7; words], vec![9; words]);
                kernel::packer(Level::Scalar, kind).pack(&values, width, &mut expected);
                kernel::packer(level, kind).pack(&values, width, &mut found);
                assert_eq!(found, expected, "{level} {kind:?} {rows}x{width}");
            }
        }
    }
}
