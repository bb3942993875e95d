//! Matrices of AWQ and GPTQ: integers of 4 or 8 bits in words of 32, read in place.
//!
//! A matrix `X` of O outputs and I inputs is three tensors; with P quants in a word (8 or 4) and groups of G inputs:
//!
//! | tensor | AWQ, "gemm" | GPTQ |
//! | --- | --- | --- |
//! | `X.qweight`, I32 | `[I, O / P]`: a word holds P outputs of an input | `[I / P, O]`: a word holds P inputs of an output |
//! | `X.qzeros`, I32 | `[I / G, O / P]` | `[I / G, O / P]` |
//! | `X.scales`, F16 | `[I / G, O]` | `[I / G, O]` |
//! | order in a word | outputs 0, 2, 4, 6, 1, 3, 5, 7 (of 8 bits: 0, 2, 1, 3) | ascending |
//! | zero | as stored | v1: stored less 1; v2: as stored |
//! | `X.g_idx`, I32 | | `[I]`: group of each input; ascending, or the matrix is refused |
//!
//! Value: `scale * (quant - zero)`. Sources: `awq/modules/linear/gemm.py` of AutoAWQ, `qlinear_cuda.py` of AutoGPTQ. A
//! stored zero of 15 means 16 in v1, as in the kernels of ExLlama and vLLM.

use crate::error::{CheckpointError, Defect};
use crate::float::Float;
use crate::map::MappedFile;
use crate::quantization::{Method, Quantization};
use crate::row::GroupedRow;
use crate::tensor::{Format, Tensor};
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

/// Bytes of a word.
const WORD: usize = 4;
/// Inputs that are unpacked for all rows before the next: their cache lines stay in the first cache.
const TILE: usize = 128;

/// Matrix of AWQ or GPTQ as three tensors of a checkpoint.
#[derive(Debug)]
pub(crate) struct PackedTensor {
    quantization: Quantization,
    /// Outputs and inputs.
    shape: [usize; 2],
    group: usize,
    weights: Place,
    zeros: Place,
    scales: Place,
    scale: Float,
}

/// Place of a tensor: number of the file, and bytes.
#[derive(Debug)]
struct Place {
    file: usize,
    bytes: Range<usize>,
}

/// Matrix of AWQ or GPTQ, its bytes at hand.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Packed<'a> {
    quantization: Quantization,
    rows: usize,
    columns: usize,
    group: usize,
    symmetric: bool,
    weights: &'a [u8],
    zeros: &'a [u8],
    scales: &'a [u8],
    scale: Float,
}

/// Words of one column of a tile of inputs: in AWQ those of several neighbouring outputs.
struct Tile {
    /// Number of the column and of the first input, `None` before the first.
    place: Option<(usize, usize)>,
    words: [u32; TILE],
}

impl Default for Tile {
    fn default() -> Self {
        Self { place: None, words: [0; TILE] }
    }
}

/// Tensors of a checkpoint, with its files.
pub(crate) struct Tensors<'a> {
    pub(crate) by_name: &'a BTreeMap<String, Tensor>,
    pub(crate) files: &'a [Arc<MappedFile>],
}

impl Tensors<'_> {
    fn path_of(&self, tensor: &Tensor) -> &std::path::Path {
        self.files[tensor.file].path()
    }

    /// Finds a part of a matrix, whose shape must be as given.
    fn part(&self, name: &str, weights: &Tensor, shape: [usize; 2]) -> Result<&Tensor, CheckpointError> {
        let Some(part) = self.by_name.get(name) else {
            return Err(Defect::tensor(name, "is missing, a part of a packed matrix").in_file(self.path_of(weights)));
        };
        if part.shape != shape {
            let reason = format!("has the shape {:?}, and its matrix wants {shape:?}", part.shape);
            return Err(Defect::tensor(name, reason).in_file(self.path_of(part)));
        }
        Ok(part)
    }
}

impl Quantization {
    /// Quants in a word.
    fn per_word(self) -> usize {
        32 / usize::from(self.bits)
    }

    /// Place in a word of the output with a number below `per_word`.
    fn place(self, output: usize) -> usize {
        match (self.method, self.bits) {
            (Method::Awq, 4) => [0, 4, 1, 5, 2, 6, 3, 7][output],
            (Method::Awq, _) => [0, 2, 1, 3][output],
            (Method::Gptq { .. }, _) => output,
        }
    }

    /// Addend of a stored zero.
    fn zero_addend(self) -> u16 {
        match self.method {
            Method::Gptq { v1: true } => 1,
            Method::Gptq { v1: false } | Method::Awq => 0,
        }
    }
}

impl PackedTensor {
    /// Puts together the matrix of a prefix, whose part `prefix.qweight` is `weights`, and checks its parts.
    pub(crate) fn new(
        prefix: &str,
        weights: &Tensor,
        quantization: Quantization,
        tensors: &Tensors<'_>,
    ) -> Result<Self, CheckpointError> {
        let name = format!("{prefix}.qweight");
        let refuse = |reason: String| Defect::tensor(&name, reason).in_file(tensors.path_of(weights));
        let &[first, second] = weights.shape.as_slice() else {
            return Err(refuse(format!("has the shape {:?}, and a packed matrix has two dimensions", weights.shape)));
        };
        let per_word = quantization.per_word();
        // The words are in a file: eight times their number fits.
        let (rows, columns) = match quantization.method {
            Method::Awq => (second * per_word, first),
            Method::Gptq { .. } => (second, first * per_word),
        };
        let group = quantization.group.unwrap_or(columns);
        if columns % group != 0 || !(group == 16 || group.is_multiple_of(32)) {
            return Err(refuse(format!(
                "has {columns} inputs in groups of {group}, which must divide them and be 16 or a multiple of 32"
            )));
        }
        if rows % per_word != 0 {
            return Err(refuse(format!("has {rows} outputs, which is not a multiple of a word's {per_word}")));
        }
        let zeros = tensors.part(&format!("{prefix}.qzeros"), weights, [columns / group, rows / per_word])?;
        let scales = tensors.part(&format!("{prefix}.scales"), weights, [columns / group, rows])?;
        for (part, end) in [(weights, "qweight"), (zeros, "qzeros")] {
            if part.format != Format::I32 {
                let defect = Defect::tensor(&format!("{prefix}.{end}"), "has another type than I32");
                return Err(defect.in_file(tensors.path_of(part)));
            }
        }
        let Format::Float(scale) = scales.format else {
            let defect = Defect::tensor(&format!("{prefix}.scales"), "has another type than F16, BF16 or F32");
            return Err(defect.in_file(tensors.path_of(scales)));
        };
        check_order(prefix, columns, group, tensors)?;
        let place = |tensor: &Tensor| Place { file: tensor.file, bytes: tensor.bytes.clone() };
        let (weights, zeros, scales) = (place(weights), place(zeros), place(scales));
        Ok(Self { quantization, shape: [rows, columns], group, weights, zeros, scales, scale })
    }

    /// Outputs and inputs.
    pub(crate) fn shape(&self) -> &[usize; 2] {
        &self.shape
    }

    /// Matrix with its bytes.
    pub(crate) fn read<'a>(&self, files: &'a [Arc<MappedFile>]) -> Packed<'a> {
        let bytes = |place: &Place| &files[place.file].bytes()[place.bytes.clone()];
        let [rows, columns] = self.shape;
        let zeros = bytes(&self.zeros);
        Packed {
            quantization: self.quantization,
            rows,
            columns,
            group: self.group,
            symmetric: all_in_the_middle(self.quantization, zeros),
            weights: bytes(&self.weights),
            zeros,
            scales: bytes(&self.scales),
            scale: self.scale,
        }
    }
}

/// Refuses a matrix of GPTQ whose inputs are grouped in another order than ascending ("act-order").
fn check_order(prefix: &str, columns: usize, group: usize, tensors: &Tensors<'_>) -> Result<(), CheckpointError> {
    let name = format!("{prefix}.g_idx");
    let Some(order) = tensors.by_name.get(&name) else { return Ok(()) };
    let refuse = |reason: String| Defect::tensor(&name, reason).in_file(tensors.path_of(order));
    if order.format != Format::I32 || order.shape != [columns] {
        return Err(refuse(format!("is not {columns} numbers of type I32, one for each input")));
    }
    let bytes = &tensors.files[order.file].bytes()[order.bytes.clone()];
    let numbers = bytes.as_chunks().0.iter().map(|bytes| u32::from_le_bytes(*bytes));
    for (input, found) in numbers.enumerate() {
        if found as usize != input / group {
            let reason = format!(
                "puts input {input} into group {found}, not {}: matrices quantised in the order of activations \
                 (desc_act) are not supported",
                input / group
            );
            return Err(refuse(reason));
        }
    }
    Ok(())
}

/// Tells if every zero is `2^(bits - 1)`.
fn all_in_the_middle(quantization: Quantization, zeros: &[u8]) -> bool {
    let addend = quantization.zero_addend() as u8;
    let middle = if quantization.bits == 4 { 0x11 * (8 - addend) } else { 128 - addend };
    zeros.iter().all(|byte| *byte == middle)
}

impl Packed<'_> {
    pub(crate) fn rows_and_columns(&self) -> (usize, usize) {
        (self.rows, self.columns)
    }

    pub(crate) fn bits(&self) -> u8 {
        self.quantization.bits
    }

    pub(crate) fn group(&self) -> usize {
        self.group
    }

    pub(crate) fn symmetric(&self) -> bool {
        self.symmetric
    }

    /// Unpacks neighbouring rows, a tile of inputs of all of them after the other.
    pub(crate) fn rows(&self, first: usize, out: &mut [GroupedRow]) {
        for (row, out) in (first..).zip(out.iter_mut()) {
            out.quants.resize(self.columns, 0);
            out.scales.clear();
            out.offsets.clear();
            for group in 0..self.columns / self.group {
                let scale = self.scale(row, group);
                out.scales.push(scale);
                out.offsets.push(-scale * f32::from(self.zero(row, group)));
            }
        }
        let mut tile = Tile::default();
        for start in (0..self.columns).step_by(TILE) {
            let end = self.columns.min(start + TILE);
            for (row, out) in (first..).zip(out.iter_mut()) {
                self.quants(row, start, &mut tile, &mut out.quants[start..end]);
            }
        }
    }

    /// Writes the values of a row.
    pub(crate) fn dequantise(&self, row: usize, out: &mut [f32]) {
        let (mut tile, mut quants) = (Tile::default(), [0; TILE]);
        for (group, out) in out.chunks_mut(self.group).enumerate() {
            let (scale, zero) = (self.scale(row, group), self.zero(row, group).cast_signed());
            for (number, out) in out.chunks_mut(TILE).enumerate() {
                let quants = &mut quants[..out.len()];
                self.quants(row, group * self.group + number * TILE, &mut tile, quants);
                for (out, quant) in out.iter_mut().zip(quants) {
                    *out = scale * f32::from(i16::from(*quant) - zero);
                }
            }
        }
    }

    /// Unpacks the quants of a row from an input on. Start and length are multiples of a word's quants, the length is at
    /// most a tile's.
    fn quants(&self, row: usize, start: usize, tile: &mut Tile, out: &mut [u8]) {
        match (self.quantization.method, self.quantization.bits) {
            (Method::Awq, bits) => {
                let (word, shift) = self.place_of(row);
                if tile.place != Some((word, start)) {
                    tile.place = Some((word, start));
                    let line = self.rows / self.quantization.per_word() * WORD;
                    let lines = self.weights[start * line..].chunks_exact(line);
                    for (out, line) in tile.words.iter_mut().zip(lines) {
                        *out = word_at(line, word);
                    }
                }
                let mask = u8::MAX >> (8 - bits);
                for (out, word) in out.iter_mut().zip(&tile.words) {
                    *out = (word >> shift) as u8 & mask;
                }
            }
            (Method::Gptq { .. }, 4) => self.inputs(row, start, out, |word| {
                let [a, b, c, d] = word;
                [a & 15, a >> 4, b & 15, b >> 4, c & 15, c >> 4, d & 15, d >> 4]
            }),
            (Method::Gptq { .. }, _) => self.inputs(row, start, out, |word| word),
        }
    }

    /// Unpacks words of `PER_WORD` inputs of an output.
    fn inputs<const PER_WORD: usize>(
        &self,
        row: usize,
        start: usize,
        out: &mut [u8],
        unpack: impl Fn([u8; WORD]) -> [u8; PER_WORD],
    ) {
        let line = self.rows * WORD;
        let lines = self.weights[start / PER_WORD * line..].chunks_exact(line);
        for (out, line) in out.as_chunks_mut::<PER_WORD>().0.iter_mut().zip(lines) {
            *out = unpack(word_at(line, row).to_le_bytes());
        }
    }

    fn scale(&self, row: usize, group: usize) -> f32 {
        self.scale.get(self.scales, group * self.rows + row)
    }

    fn zero(&self, row: usize, group: usize) -> u16 {
        let (word, shift) = self.place_of(row);
        let word = word_at(self.zeros, group * (self.rows / self.quantization.per_word()) + word);
        let stored = (word >> shift) as u16 & u16::MAX >> (16 - self.quantization.bits);
        stored + self.quantization.zero_addend()
    }

    /// Number of the word of an output in a line, and the first bit of its quant in the word.
    fn place_of(&self, row: usize) -> (usize, usize) {
        let per_word = self.quantization.per_word();
        (row / per_word, self.quantization.place(row % per_word) * usize::from(self.quantization.bits))
    }
}

fn word_at(words: &[u8], index: usize) -> u32 {
    let at = index * WORD;
    u32::from_le_bytes([words[at], words[at + 1], words[at + 2], words[at + 3]])
}
