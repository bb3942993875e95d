//! Matrices of AWQ and GPTQ.

use super::{numbers, open, refusal};
use crate::testing::SafetensorsWriter;
use crate::{Checkpoint, GroupedRow, Values};

const AWQ: &str = r#"{"quantization_config": {"quant_method": "awq", "bits": 4, "group_size": 32, "version": "gemm", "zero_point": true}}"#;
const GPTQ: &str =
    r#"{"quantization_config": {"quant_method": "gptq", "bits": 4, "group_size": 32, "desc_act": false}}"#;

fn packed(config: &str, writer: &SafetensorsWriter) -> Checkpoint {
    open(&[("model.safetensors", &writer.bytes()), ("config.json", config.as_bytes())]).unwrap()
}

/// Writer of a matrix of 8 outputs and 32 inputs, quants of 4 bits, with these tensors.
fn parts(weights: (&[usize], &[i32]), zeros: (&[usize], &[i32]), scales: &[f32]) -> SafetensorsWriter {
    let mut writer = SafetensorsWriter::new();
    writer.i32("x.qweight", weights.0, weights.1).i32("x.qzeros", zeros.0, zeros.1);
    writer.f16("x.scales", &[1, 8], scales);
    writer
}

fn row(checkpoint: &Checkpoint, row: usize) -> Vec<f32> {
    let matrix = checkpoint.matrix("x").unwrap();
    let mut values = vec![0.0; matrix.columns];
    matrix.row(row, &mut values);
    values
}

/// A word of AutoAWQ: output `order[i]` is at bits `4 i`, order 0, 2, 4, 6, 1, 3, 5, 7.
#[test]
fn words_of_awq_have_their_order() {
    // From the lowest nibble on: the outputs 0, 2, 4, 6, 1, 3, 5, 7, each with its number as quant.
    let mut weights = vec![0_i32; 32];
    weights[3] = 0x7531_6420;
    let zeros = [0x1111_1111];
    let scales = [1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0];
    let checkpoint = packed(AWQ, &parts((&[32, 1], &weights), (&[1, 1], &zeros), &scales));
    assert_eq!(checkpoint.shape("x"), Some([8, 32].as_slice()));
    for (output, scale) in scales.into_iter().enumerate() {
        let mut wanted = vec![-scale; 32];
        wanted[3] = scale * (output as f32 - 1.0);
        assert_eq!(row(&checkpoint, output), wanted, "output {output}");
    }
}

/// A word of AutoGPTQ: eight inputs of an output, and zeros of eight outputs, both ascending; zeros less 1.
#[test]
fn words_of_gptq_have_their_order() {
    let mut weights = vec![0_i32; 4 * 8];
    weights[8 + 5] = 0x7654_3210; // inputs 8 to 15 of output 5
    let zeros = [0x7654_3210]; // less 1: zeros 1 to 8
    for (config, addend) in
        [(GPTQ.to_owned(), 1.0), (GPTQ.replace("false", "false, \"checkpoint_format\": \"gptq_v2\""), 0.0)]
    {
        let checkpoint = packed(&config, &parts((&[4, 8], &weights), (&[1, 1], &zeros), &[0.5; 8]));
        assert_eq!(checkpoint.shape("x"), Some([8, 32].as_slice()));
        let zero = 5.0 + addend;
        let mut wanted = vec![-0.5 * zero; 32];
        for (input, wanted) in wanted[8..16].iter_mut().enumerate() {
            *wanted = 0.5 * (input as f32 - zero);
        }
        assert_eq!(row(&checkpoint, 5), wanted);
        assert_eq!(row(&checkpoint, 2)[0], -0.5 * (2.0 + addend));
    }
}

#[test]
fn packed_matrices_are_near_their_values_and_rows_come_as_one() {
    let (rows, columns) = (24, 320);
    let values = numbers(rows * columns);
    for (method, bits, group) in
        [("awq", 4, 32), ("awq", 8, 64), ("awq", 4, 160), ("gptq", 4, 32), ("gptq", 8, 64), ("gptq", 4, -1)]
    {
        let size = usize::try_from(group).unwrap_or(columns);
        let mut writer = SafetensorsWriter::new();
        match method {
            "awq" => writer.awq("x", [rows, columns], bits, size, &values),
            _ => writer.gptq("x", [rows, columns], bits, size, &values),
        };
        let config = format!(
            r#"{{"quantization_config": {{"quant_method": "{method}", "bits": {bits}, "group_size": {group}}}}}"#
        );
        let checkpoint = packed(&config, &writer);
        let matrix = checkpoint.matrix("x").unwrap();
        assert_eq!((matrix.rows, matrix.columns), (rows, columns));
        let Values::Grouped(grouped) = matrix.values else { panic!("not grouped") };
        assert_eq!((grouped.bits(), grouped.group(), grouped.symmetric()), (bits, size, false));
        let mut together = vec![GroupedRow::default(); 11];
        grouped.rows(5, &mut together);
        let mut alone = GroupedRow::default();
        for (at, together) in together.iter().enumerate() {
            grouped.row(5 + at, &mut alone);
            assert_eq!(alone.quants, together.quants);
            assert_eq!((&alone.scales, &alone.offsets), (&together.scales, &together.offsets));
            let found = row(&checkpoint, 5 + at);
            let most = 1.05 * if bits == 4 { 2.0 / 14.0 } else { 2.0 / 254.0 };
            for (column, found) in found.iter().enumerate() {
                let wanted = values[(5 + at) * columns + column];
                assert!((found - wanted).abs() < most, "{method} {bits}: {found} for {wanted}");
                let (scale, offset) = (alone.scales[column / size], alone.offsets[column / size]);
                assert_eq!(scale * f32::from(alone.quants[column]) + offset, *found);
            }
        }
    }
}

#[test]
fn zeros_in_the_middle_are_symmetric() {
    let weights = [0x1234_5678; 32];
    let symmetric = |config: &str, shape: &[usize], zeros: i32| {
        let checkpoint = packed(config, &parts((shape, &weights), (&[1, 1], &[zeros]), &[1.0; 8]));
        let Values::Grouped(grouped) = checkpoint.matrix("x").unwrap().values else { panic!("not grouped") };
        grouped.symmetric()
    };
    assert!(symmetric(AWQ, &[32, 1], 0x8888_8888_u32.cast_signed()));
    assert!(!symmetric(AWQ, &[32, 1], 0x8888_8788_u32.cast_signed()));
    assert!(symmetric(GPTQ, &[4, 8], 0x7777_7777));
    assert!(!symmetric(GPTQ, &[4, 8], 0x8888_8888_u32.cast_signed()));
}

#[test]
fn an_order_of_activations_is_refused() {
    let order: Vec<i32> = (0..32).map(|input| input % 2).collect();
    let mut writer = parts((&[4, 8], &[0; 32]), (&[1, 1], &[0]), &[1.0; 8]);
    writer.i32("x.g_idx", &[32], &order);
    let message = refusal(&[("model.safetensors", &writer.bytes()), ("config.json", GPTQ.as_bytes())]);
    assert_eq!(
        message,
        "model.safetensors: tensor \"x.g_idx\": puts input 1 into group 1, not 0: matrices quantised in the order of \
         activations (desc_act) are not supported."
    );
}

#[test]
fn parts_that_do_not_fit_are_refused() {
    let good = || parts((&[32, 1], &[0; 32]), (&[1, 1], &[0]), &[1.0; 8]);
    let check = |config: &str, writer: &SafetensorsWriter, message: &str| {
        let files: &[(&str, &[u8])] = &[("model.safetensors", &writer.bytes()), ("config.json", config.as_bytes())];
        let found = refusal(files);
        assert!(found.contains(message), "{found}");
    };
    check("{}", &good(), "tensor \"x.qweight\": is a packed matrix, and config.json has no quantization_config");
    let mut writer = good();
    writer.f32("x", &[1], &[0.0]);
    check(AWQ, &writer, "tensor \"x.qweight\": is a packed matrix, and there is a tensor of its name");
    let mut writer = SafetensorsWriter::new();
    writer.i32("x.qweight", &[32, 1], &[0; 32]);
    check(AWQ, &writer, "tensor \"x.qzeros\": is missing, a part of a packed matrix.");
    writer.i32("x.qzeros", &[1, 1], &[0]);
    check(AWQ, &writer, "tensor \"x.scales\": is missing");
    writer.f32("x.scales", &[1, 4], &[0.0; 4]);
    check(AWQ, &writer, "tensor \"x.scales\": has the shape [1, 4], and its matrix wants [1, 8].");
    check(GPTQ, &good(), "tensor \"x.qweight\": has 1 outputs, which is not a multiple of a word's 8.");
    let writer = parts((&[31, 1], &[0; 31]), (&[1, 1], &[0]), &[1.0; 8]);
    check(AWQ, &writer, "tensor \"x.qweight\": has 31 inputs in groups of 32, which must divide them");
    let writer = parts((&[32], &[0; 32]), (&[1, 1], &[0]), &[1.0; 8]);
    check(AWQ, &writer, "tensor \"x.qweight\": has the shape [32], and a packed matrix has two dimensions.");
    let writer = parts((&[4, 7], &[0; 28]), (&[1, 1], &[0]), &[1.0; 8]);
    check(GPTQ, &writer, "tensor \"x.qweight\": has 7 outputs, which is not a multiple of a word's 8.");
    let mut writer = SafetensorsWriter::new();
    writer.f32("x.qweight", &[32, 1], &[0.0; 32]).i32("x.qzeros", &[1, 1], &[0]).f32("x.scales", &[1, 8], &[0.0; 8]);
    check(AWQ, &writer, "tensor \"x.qweight\": has another type than I32.");
    let mut writer = SafetensorsWriter::new();
    writer.i32("x.qweight", &[32, 1], &[0; 32]).i32("x.qzeros", &[1, 1], &[0]).i32("x.scales", &[1, 8], &[0; 8]);
    check(AWQ, &writer, "tensor \"x.scales\": has another type than F16, BF16 or F32.");
    let mut writer = parts((&[4, 8], &[0; 32]), (&[1, 1], &[0]), &[1.0; 8]);
    writer.i32("x.g_idx", &[31], &[0; 31]);
    check(GPTQ, &writer, "tensor \"x.g_idx\": is not 32 numbers of type I32, one for each input.");
}

#[test]
fn quantisations_of_other_forms_are_refused() {
    let writer = SafetensorsWriter::new();
    for (config, message) in [
        (
            r#"{"quant_method": "fp8"}"#,
            "says \"fp8\" for quantization_config.quant_method; \"awq\" and \"gptq\" are supported.",
        ),
        (r#"{"bits": 4, "group_size": 32}"#, "says nothing for quantization_config.quant_method"),
        (
            r#"{"quant_method": "awq", "bits": 3, "group_size": 32}"#,
            "says 3 for quantization_config.bits; 4 and 8 are supported.",
        ),
        (r#"{"quant_method": "awq", "bits": 4, "group_size": 0}"#, "says 0 for quantization_config.group_size"),
        (r#"{"quant_method": "awq", "bits": 4}"#, "says nothing for quantization_config.group_size"),
        (
            r#"{"quant_method": "awq", "bits": 4, "group_size": 32, "version": "gemv"}"#,
            "says \"gemv\" for quantization_config.version",
        ),
        (
            r#"{"quant_method": "gptq", "bits": 4, "group_size": 32, "checkpoint_format": "marlin"}"#,
            "says \"marlin\" for quantization_config.checkpoint_format",
        ),
        (
            r#"{"quant_method": "gptq", "bits": 4, "group_size": 32, "pack_dtype": "int64"}"#,
            "says \"int64\" for quantization_config.pack_dtype",
        ),
        (
            r#"{"quant_method": "gptq", "bits": 4, "group_size": 32, "dynamic": {"x": {"bits": 8}}}"#,
            "exceptions for single matrices",
        ),
        (
            r#"{"quant_method": "gptq", "bits": "four", "group_size": 32}"#,
            "cannot be read: invalid type: string \"four\"",
        ),
    ] {
        let config = format!("{{\"quantization_config\": {config}}}");
        let found = refusal(&[("model.safetensors", &writer.bytes()), ("config.json", config.as_bytes())]);
        assert!(found.starts_with("config.json: ") && found.contains(message), "{found}");
    }
    let none = [("model.safetensors", writer.bytes()), ("config.json", b"{\"quantization_config\": null}".to_vec())];
    assert!(open(&[(none[0].0, &none[0].1), (none[1].0, &none[1].1)]).is_ok());
}
