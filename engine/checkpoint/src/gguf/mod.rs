//! GGUF files: `"GGUF" │ version: u32 │ tensors: u64 │ values: u64 │ metadata │ tensors' descriptions │ data`.
//!
//! Dimensions are stored the innermost first; here they are the outermost first, as in safetensors. Files of version 1
//! (counts of 32 bits), of big-endian machines, and those that are one of several parts are refused.

mod cursor;
mod metadata;

pub use metadata::Metadata;

use crate::blocks::Block;
use crate::error::Defect;
use crate::float::Float;
use crate::map::MappedFile;
use crate::tensor::{Format, MOST_TENSORS, Tensor, check_name, check_places, elements};
use cursor::Cursor;
use omni_gguf::{Header, Source, header};
use std::sync::Arc;

/// Alignment of the data where the metadata does not say another.
const ALIGNMENT: u64 = 32;
/// Greatest alignment: a page of any machine is smaller.
const GREATEST_ALIGNMENT: u64 = 1 << 20;
/// Most dimensions of a tensor.
const MOST_DIMENSIONS: u32 = 4;
/// Least bytes of a tensor's description: a name's length, a dimension and its number, a type, an offset.
const LEAST_DESCRIPTION: usize = 8 + 4 + 8 + 4 + 8;
/// Types of tensors that are read, for messages.
const SUPPORTED: &str = "F32, F16, BF16, Q8_0, Q4_0, Q4_1, Q5_0, Q4_K, Q5_K, Q6_K";
/// Names of ggml's types by number, for messages; empty where a number was given up.
const TYPES: &[&str] = &[
    "F32", "F16", "Q4_0", "Q4_1", "", "", "Q5_0", "Q5_1", "Q8_0", "Q8_1", "Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K",
    "Q8_K", "IQ2_XXS", "IQ2_XS", "IQ3_XXS", "IQ1_S", "IQ4_NL", "IQ3_S", "IQ2_S", "IQ4_XS", "I8", "I16", "I32", "I64",
    "F64", "IQ1_M", "BF16", "", "", "", "TQ1_0", "TQ2_0", "", "", "", "MXFP4",
];

/// Tensors of a file by name.
type Tensors = Vec<(String, Tensor)>;

/// Reads metadata and descriptions of a file, the only one of its checkpoint.
pub(crate) fn parse(file: &Arc<MappedFile>) -> Result<(Metadata, Tensors), Defect> {
    let bytes = file.bytes();
    let cursor = &mut Cursor::new(bytes);
    let Header { tensors, values } = header(cursor)?;
    let metadata = Metadata::parse(file, cursor, values)?;
    if let Some(parts) = metadata.u64("split.count").filter(|parts| *parts > 1) {
        return Err(Defect::file(format!(
            "is one of {parts} parts; join them into one file (llama-gguf-split --merge)"
        )));
    }
    let alignment = alignment(&metadata)?;
    let most = cursor.rest() / LEAST_DESCRIPTION;
    let Some(count) = usize::try_from(tensors).ok().filter(|count| *count <= most.min(MOST_TENSORS)) else {
        return Err(Defect::file(format!("says that it has {tensors} tensors, more than fit into it")));
    };
    let mut descriptions = Vec::with_capacity(count);
    for number in 0..count {
        descriptions.push(Description::parse(cursor, number)?);
    }
    let start = cursor.position().next_multiple_of(alignment);
    let tensors = descriptions.into_iter().map(|description| description.place(start, alignment, bytes.len()));
    let tensors: Tensors = tensors.collect::<Result<_, _>>()?;
    check_places(&tensors, start, true)?;
    Ok((metadata, tensors))
}

fn alignment(metadata: &Metadata) -> Result<usize, Defect> {
    const KEY: &str = "general.alignment";
    if !metadata.has(KEY) {
        return Ok(ALIGNMENT as usize);
    }
    let valid = |alignment: &u64| alignment.is_power_of_two() && (8..=GREATEST_ALIGNMENT).contains(alignment);
    match metadata.u64(KEY).filter(valid) {
        Some(alignment) => Ok(alignment as usize),
        None => {
            Err(Defect::file(format!("has a value of {KEY:?} that is not a power of 2 from 8 to {GREATEST_ALIGNMENT}")))
        }
    }
}

/// Description of a tensor.
struct Description {
    name: String,
    shape: Vec<usize>,
    kind: u32,
    offset: u64,
}

impl Description {
    fn parse(cursor: &mut Cursor<'_>, number: usize) -> Result<Self, Defect> {
        let name = cursor.string(&|| format!("the name of tensor number {number}"))?;
        check_name(name)?;
        let part = || format!("the description of tensor {name:?}");
        let dimensions = cursor.u32(&part)?;
        if dimensions > MOST_DIMENSIONS {
            return Err(Defect::tensor(name, format!("has {dimensions} dimensions, more than {MOST_DIMENSIONS}")));
        }
        let mut shape = Vec::new();
        for _ in 0..dimensions {
            let size = cursor.u64(&part)?;
            let size = usize::try_from(size)
                .map_err(|_| Defect::tensor(name, format!("has a dimension of {size}, beyond any memory")))?;
            shape.insert(0, size);
        }
        Ok(Self { name: name.to_owned(), shape, kind: cursor.u32(&part)?, offset: cursor.u64(&part)? })
    }

    /// Finds the place of the tensor in a file of `length` bytes whose data begins at `start`.
    fn place(self, start: usize, alignment: usize, length: usize) -> Result<(String, Tensor), Defect> {
        let (format, values, bytes) = self.format()?;
        let size = self.size(values, bytes)?;
        let offset = self.offset;
        if !offset.is_multiple_of(alignment as u64) {
            let reason = format!("has the offset {offset}, which is not a multiple of the alignment, {alignment}");
            return Err(Defect::tensor(&self.name, reason));
        }
        let first = usize::try_from(offset).ok().and_then(|offset| start.checked_add(offset));
        let place = first.and_then(|first| Some((first, first.checked_add(size)?))).filter(|(_, end)| *end <= length);
        let Some((first, end)) = place else {
            let reason = format!(
                "has {size} bytes at offset {offset} of the data at byte {start}, beyond the file's end at byte {length}"
            );
            return Err(Defect::tensor(&self.name, reason));
        };
        Ok((self.name, Tensor { file: 0, bytes: first..end, shape: self.shape, format }))
    }

    /// Form, and the values and bytes of a block of it.
    fn format(&self) -> Result<(Format, usize, usize), Defect> {
        let float = |float: Float| (Format::Float(float), 1, float.size());
        let block = |block: Block| (Format::Block(block), block.values(), block.bytes());
        Ok(match self.kind {
            0 => float(Float::F32),
            1 => float(Float::F16),
            2 => block(Block::Q4_0),
            3 => block(Block::Q4_1),
            6 => block(Block::Q5_0),
            8 => block(Block::Q8_0),
            12 => block(Block::Q4K),
            13 => block(Block::Q5K),
            14 => block(Block::Q6K),
            30 => float(Float::Bf16),
            number => {
                let known = TYPES.get(number as usize).filter(|name| !name.is_empty());
                let known = known.map_or_else(|| number.to_string(), |name| format!("{number} ({name})"));
                let reason = format!("has the type {known}, which is not one of {SUPPORTED}");
                return Err(Defect::tensor(&self.name, reason));
            }
        })
    }

    /// Bytes of the tensor.
    fn size(&self, values: usize, bytes: usize) -> Result<usize, Defect> {
        let elements = elements(&self.name, &self.shape)?;
        let columns = self.shape.last().copied().unwrap_or(1);
        if columns % values != 0 {
            let reason = format!("has rows of {columns} values, which is not a multiple of a block's {values}");
            return Err(Defect::tensor(&self.name, reason));
        }
        (elements / values).checked_mul(bytes).ok_or_else(|| {
            Defect::tensor(&self.name, format!("has a size beyond any memory: its shape is {:?}", self.shape))
        })
    }
}
