//! Tensors as files declare them, and the checks that all formats share.

pub(crate) use omni_gguf::beginning;

use crate::blocks::Block;
use crate::error::Defect;
use crate::float::Float;
use std::ops::Range;

/// Most tensors of a file.
pub(crate) const MOST_TENSORS: usize = 1 << 20;
/// Longest name of a tensor, in bytes.
pub(crate) const LONGEST_NAME: usize = 1024;
/// Most dimensions of a tensor.
pub(crate) const MOST_DIMENSIONS: usize = 8;

/// Tensor of a file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Tensor {
    /// Number of its file.
    pub(crate) file: usize,
    /// Place in the file.
    pub(crate) bytes: Range<usize>,
    /// Dimensions, the outermost first.
    pub(crate) shape: Vec<usize>,
    /// Form of the values.
    pub(crate) format: Format,
}

/// Form of the values of a tensor.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Format {
    Float(Float),
    Block(Block),
    /// Integers of 32 bits, of which AWQ and GPTQ are made.
    I32,
    /// Type that is known by name only.
    Other(String),
}

/// Number of elements of a shape: not zero, and not beyond what a computer could address.
pub(crate) fn elements(name: &str, shape: &[usize]) -> Result<usize, Defect> {
    if shape.len() > MOST_DIMENSIONS {
        return Err(Defect::tensor(name, format!("has {} dimensions, more than {MOST_DIMENSIONS}", shape.len())));
    }
    if shape.contains(&0) {
        return Err(Defect::tensor(name, format!("has no elements: its shape is {shape:?}")));
    }
    let product = shape.iter().try_fold(1_usize, |product, size| product.checked_mul(*size));
    product.filter(|elements| *elements <= isize::MAX as usize).ok_or_else(|| {
        Defect::tensor(name, format!("has a shape whose number of elements is beyond any memory: {shape:?}"))
    })
}

/// Checks a name by its length. The message has its beginning only.
pub(crate) fn check_name(name: &str) -> Result<(), Defect> {
    if name.is_empty() {
        return Err(Defect::tensor(name, "has no name"));
    }
    if name.len() > LONGEST_NAME {
        let reason = format!("has a name of {} bytes that begins like this, more than {LONGEST_NAME}", name.len());
        return Err(Defect::tensor(beginning(name), reason));
    }
    Ok(())
}

/// Refuses tensors of a file that share a byte, or, without `gaps`, leave one before the next.
pub(crate) fn check_places(tensors: &[(String, Tensor)], start: usize, gaps: bool) -> Result<(), Defect> {
    let mut order: Vec<_> = tensors.iter().collect();
    order.sort_unstable_by_key(|(_, tensor)| (tensor.bytes.start, tensor.bytes.end));
    let (mut before, mut end) = (None, start);
    for (name, tensor) in order {
        let first = tensor.bytes.start;
        if first < end {
            let before = before.unwrap_or("");
            return Err(Defect::tensor(name, format!("begins at byte {first}, within tensor {before:?}")));
        }
        if first > end && !gaps {
            return Err(Defect::tensor(name, format!("begins at byte {first} after a gap: nothing is at byte {end}")));
        }
        (before, end) = (Some(name.as_str()), tensor.bytes.end);
    }
    Ok(())
}
