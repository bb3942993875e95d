//! `tests/golden.gguf`, which the `gguf` package has written with its own values of every block (`tests/golden.py`).

use crate::{Checkpoint, GroupedRow, Values};
use std::path::Path;

fn golden() -> Checkpoint {
    Checkpoint::open(&Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden.gguf")).unwrap()
}

/// Values of a matrix, row after row.
fn values(checkpoint: &Checkpoint, name: &str) -> Vec<f32> {
    let matrix = checkpoint.matrix(name).unwrap();
    let mut values = vec![0.0; matrix.rows * matrix.columns];
    for (row, out) in values.chunks_exact_mut(matrix.columns).enumerate() {
        matrix.row(row, out);
    }
    values
}

fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|value| value.to_bits()).collect()
}

#[test]
fn every_type_has_the_values_of_ggml_bit_for_bit() {
    let checkpoint = golden();
    for name in ["Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q4_K", "Q5_K", "Q6_K"] {
        let (found, wanted) =
            (values(&checkpoint, &format!("{name}.blocks")), values(&checkpoint, &format!("{name}.values")));
        assert_eq!(found.len(), 1024, "{name}");
        assert_eq!(bits(&found), bits(&wanted), "{name}");
    }
    for name in ["F16", "BF16"] {
        let (found, wanted) =
            (values(&checkpoint, &format!("{name}.numbers")), values(&checkpoint, &format!("{name}.values")));
        assert_eq!(bits(&found), bits(&wanted), "{name}");
    }
}

#[test]
fn unpacked_rows_have_the_values_of_the_reference() {
    let checkpoint = golden();
    let mut unpacked = GroupedRow::default();
    for (name, bits, group, symmetric) in [
        ("Q8_0", 8, 32, true),
        ("Q4_0", 4, 32, true),
        ("Q4_1", 4, 32, false),
        ("Q5_0", 5, 32, true),
        ("Q4_K", 4, 32, false),
        ("Q5_K", 5, 32, false),
        ("Q6_K", 6, 16, true),
    ] {
        let matrix = checkpoint.matrix(&format!("{name}.blocks")).unwrap();
        let wanted = values(&checkpoint, &format!("{name}.values"));
        let Values::Grouped(grouped) = matrix.values else { panic!("{name} is not grouped") };
        assert_eq!((grouped.bits(), grouped.group(), grouped.symmetric()), (bits, group, symmetric), "{name}");
        for (row, wanted) in wanted.chunks_exact(matrix.columns).enumerate() {
            grouped.row(row, &mut unpacked);
            assert_eq!(unpacked.quants.len(), matrix.columns, "{name}");
            for (at, wanted) in wanted.iter().enumerate() {
                let (quant, scale) = (unpacked.quants[at], unpacked.scales[at / group]);
                assert!(u32::from(quant) < 1 << bits, "{name}: {quant}");
                assert_eq!(scale * f32::from(quant) + unpacked.offsets[at / group], *wanted, "{name}, value {at}");
                if symmetric {
                    assert_eq!(
                        scale * (f32::from(quant) - f32::from(1_u8 << (bits - 1))),
                        *wanted,
                        "{name}, value {at}"
                    );
                }
            }
        }
    }
}

#[test]
fn dimensions_are_the_outermost_first() {
    let checkpoint = golden();
    assert_eq!(checkpoint.shape("stacked"), Some([2, 3, 4].as_slice()));
    let matrix = checkpoint.matrix("stacked").unwrap();
    assert_eq!((matrix.rows, matrix.columns), (6, 4));
    let mut row = [0.0; 4];
    matrix.row(4, &mut row); // matrix 1, row 1
    assert_eq!(row, [16.0, 17.0, 18.0, 19.0]);
}

#[test]
fn metadata_of_every_type_is_read() {
    let checkpoint = golden();
    let metadata = checkpoint.gguf().unwrap();
    assert_eq!(metadata.text("general.architecture"), Some("golden"));
    let integers = [("u8", 200), ("u16", 60000), ("u32", 4_000_000_000), ("u64", 1 << 63), ("i64", 1 << 40)];
    for (key, value) in integers {
        assert_eq!(metadata.u64(&format!("test.{key}")), Some(value), "{key}");
    }
    for key in ["test.i8", "test.i16", "test.i32", "test.f32", "test.text", "test.i32s"] {
        assert!(metadata.has(key) && metadata.u64(key).is_none(), "{key} is no number that is not negative");
    }
    assert_eq!(metadata.f32("test.f32"), Some(0.1));
    assert_eq!(metadata.f32("test.f64"), Some(0.1));
    assert_eq!(metadata.f32("test.u8"), None);
    assert_eq!(metadata.bool("test.bool"), Some(true));
    assert_eq!(metadata.text("test.text"), Some("grüße"));
    assert_eq!(metadata.texts("test.texts"), Some(vec!["a", "", "ĠĠ", "日本"]));
    assert_eq!(metadata.f32s("test.f32s"), Some(vec![0.5, -1.5]));
    assert_eq!(metadata.i32s("test.i32s"), Some(vec![1, -2, 3]));
    assert_eq!(metadata.f32s("test.i32s"), None);
    assert!(!metadata.has("test.none") && metadata.text("test.none").is_none());
    assert!(metadata.keys().any(|key| key == "test.texts"));
}
