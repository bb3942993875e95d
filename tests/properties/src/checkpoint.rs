//! Properties of every checkpoint that is opened: its tensors lie in its files, apart from each other, and can be read.

use crate::{memory, sentence};
use omni_checkpoint::{Checkpoint, Grouped, GroupedRow, Matrix, Values};
use std::ops::Range;
use std::path::Path;

/// Bytes of memory for each byte of the files, and those that a file without contents takes.
const FACTOR: usize = 128;
const BASE: usize = 64 << 10;
/// Fewest bits of an element of a tensor.
const FEWEST_BITS: usize = 4;

/// Opens a checkpoint whose files have so many bytes. `None`: it is refused.
pub(crate) fn open(path: &Path, size: usize) -> Option<Checkpoint> {
    match memory::at_most(BASE + FACTOR * size, || Checkpoint::open(path)) {
        Ok(checkpoint) => {
            holds(&checkpoint, size);
            Some(checkpoint)
        }
        Err(error) => {
            sentence::holds(&error.to_string());
            None
        }
    }
}

fn holds(checkpoint: &Checkpoint, size: usize) {
    let mut places = Vec::new();
    for name in checkpoint.names() {
        let shape = checkpoint.shape(name).expect("a shape of each tensor");
        let elements = shape.iter().try_fold(1_usize, |product, size| product.checked_mul(*size));
        let elements = elements.filter(|elements| *elements > 0).expect("elements that can be counted");
        assert!(elements <= size * 8 / FEWEST_BITS, "{name}: {elements} elements in {size} bytes");
        match checkpoint.vector(name) {
            Ok(vector) => assert_eq!([vector.len()].as_slice(), shape, "{name}"),
            Err(error) => sentence::holds(&error.to_string()),
        }
        match checkpoint.matrix(name) {
            Ok(matrix) => {
                assert_eq!(matrix.rows * matrix.columns, elements, "{name}");
                places.extend(place(&matrix));
                read(name, &matrix);
            }
            Err(error) => sentence::holds(&error.to_string()),
        }
    }
    places.sort_unstable_by_key(|place| place.start);
    assert!(places.is_sorted_by(|one, next| one.end <= next.start), "tensors that share bytes: {places:?}");
    assert!(places.iter().map(ExactSizeIterator::len).sum::<usize>() <= size, "more bytes than the files have");
    let missing = "no such tensor\n";
    assert!(checkpoint.shape(missing).is_none());
    sentence::holds(&checkpoint.matrix(missing).expect_err("a refusal").to_string());
}

/// Addresses of the values of a matrix of numbers.
fn place(matrix: &Matrix<'_>) -> Option<Range<usize>> {
    let (bytes, size) = match matrix.values {
        Values::F32(bytes) => (bytes, 4),
        Values::F16(bytes) | Values::Bf16(bytes) => (bytes, 2),
        Values::Grouped(_) => return None,
    };
    assert_eq!(bytes.len(), matrix.rows * matrix.columns * size);
    let start = bytes.as_ptr().addr();
    Some(start..start + bytes.len())
}

/// Reads the first rows and the last one.
fn read(name: &str, matrix: &Matrix<'_>) {
    let mut values = vec![0.0; matrix.columns];
    for row in (0..matrix.rows.min(8)).chain([matrix.rows - 1]) {
        matrix.row(row, &mut values);
        if let Values::Grouped(grouped) = &matrix.values {
            quants(name, grouped, row, &values);
        }
    }
}

/// Compares the quants of a row, with their scales and offsets, with its values.
fn quants(name: &str, grouped: &Grouped<'_>, row: usize, values: &[f32]) {
    let mut unpacked = GroupedRow::default();
    grouped.row(row, &mut unpacked);
    let (columns, group) = (values.len(), grouped.group());
    assert!(matches!(grouped.bits(), 4..=8) && columns.is_multiple_of(group), "{name}: groups of {group}");
    assert_eq!(unpacked.quants.len(), columns, "{name}");
    assert_eq!((unpacked.scales.len(), unpacked.offsets.len()), (columns / group, columns / group), "{name}");
    for (at, (quant, value)) in unpacked.quants.iter().zip(values).enumerate() {
        assert!(u32::from(*quant) < 1 << grouped.bits(), "{name}: a quant of {quant}");
        let (scale, offset) = (unpacked.scales[at / group], unpacked.offsets[at / group]);
        let product = scale * f32::from(*quant);
        let difference = (product + offset - value).abs();
        let bound = (product.abs() + offset.abs()) * 1e-6;
        assert!(!bound.is_finite() || difference <= bound, "{name}: {product} + {offset} is {value}");
    }
}
