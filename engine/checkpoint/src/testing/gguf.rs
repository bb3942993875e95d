//! Writer of GGUF files.

use super::quantise;
use half::{bf16, f16};
use std::io;
use std::path::Path;

/// Writer of a GGUF file, version 3, with the values of metadata and the tensors that it is given, in this order.
#[derive(Debug, Clone)]
pub struct GgufWriter {
    version: u32,
    alignment: usize,
    values: Vec<Vec<u8>>,
    tensors: Vec<Tensor>,
}

#[derive(Debug, Clone)]
struct Tensor {
    name: String,
    shape: Vec<usize>,
    kind: u32,
    bytes: Vec<u8>,
}

/// Type of a tensor to which values are converted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum GgufType {
    /// Numbers of 32 bits.
    F32,
    /// Numbers of 16 bits, rounded.
    F16,
    /// Numbers of 16 bits with 8 bits of exponent, rounded.
    Bf16,
    /// Blocks of 32 quants of 8 bits.
    Q8_0,
    /// Blocks of 32 quants of 4 bits, symmetric.
    Q4_0,
    /// Blocks of 32 quants of 4 bits with a minimum.
    Q4_1,
}

impl GgufType {
    /// Number of the type in the format.
    fn number(self) -> u32 {
        match self {
            Self::F32 => 0,
            Self::F16 => 1,
            Self::Q4_0 => 2,
            Self::Q4_1 => 3,
            Self::Q8_0 => 8,
            Self::Bf16 => 30,
        }
    }

    fn convert(self, values: &[f32]) -> Vec<u8> {
        let mut bytes = Vec::new();
        match self {
            Self::F32 => bytes.extend(values.iter().flat_map(|value| value.to_le_bytes())),
            Self::F16 => bytes.extend(values.iter().flat_map(|value| f16::from_f32(*value).to_le_bytes())),
            Self::Bf16 => bytes.extend(values.iter().flat_map(|value| bf16::from_f32(*value).to_le_bytes())),
            Self::Q8_0 => quantise::q8_0(values, &mut bytes),
            Self::Q4_0 => quantise::q4_0(values, &mut bytes),
            Self::Q4_1 => quantise::q4_1(values, &mut bytes),
        }
        bytes
    }
}

impl Default for GgufWriter {
    fn default() -> Self {
        Self { version: 3, alignment: 32, values: Vec::new(), tensors: Vec::new() }
    }
}

impl GgufWriter {
    /// Writer without values and tensors.
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets the version of the format.
    pub fn version(&mut self, version: u32) -> &mut Self {
        self.version = version;
        self
    }

    /// Sets the alignment of tensors, and says it in the metadata.
    pub fn alignment(&mut self, alignment: u32) -> &mut Self {
        self.alignment = alignment as usize;
        self.u32("general.alignment", alignment)
    }

    /// Adds a value of metadata with the number of its type and its bytes.
    pub fn value(&mut self, key: &str, kind: u32, bytes: &[u8]) -> &mut Self {
        let mut value = string(key);
        value.extend(kind.to_le_bytes());
        value.extend(bytes);
        self.values.push(value);
        self
    }

    /// Adds a string.
    pub fn text(&mut self, key: &str, text: &str) -> &mut Self {
        self.value(key, 8, &string(text))
    }

    /// Adds a whole number of 32 bits.
    pub fn u32(&mut self, key: &str, number: u32) -> &mut Self {
        self.value(key, 4, &number.to_le_bytes())
    }

    /// Adds a whole number of 64 bits.
    pub fn u64(&mut self, key: &str, number: u64) -> &mut Self {
        self.value(key, 10, &number.to_le_bytes())
    }

    /// Adds a floating-point number.
    pub fn f32(&mut self, key: &str, number: f32) -> &mut Self {
        self.value(key, 6, &number.to_le_bytes())
    }

    /// Adds a truth value.
    pub fn bool(&mut self, key: &str, value: bool) -> &mut Self {
        self.value(key, 7, &[u8::from(value)])
    }

    /// Adds an array with the number of its elements' type.
    pub fn array(&mut self, key: &str, kind: u32, elements: &[Vec<u8>]) -> &mut Self {
        let mut bytes = kind.to_le_bytes().to_vec();
        bytes.extend((elements.len() as u64).to_le_bytes());
        bytes.extend(elements.concat());
        self.value(key, 9, &bytes)
    }

    /// Adds an array of strings.
    pub fn texts(&mut self, key: &str, texts: &[&str]) -> &mut Self {
        self.array(key, 8, &texts.iter().map(|text| string(text)).collect::<Vec<_>>())
    }

    /// Adds an array of floating-point numbers.
    pub fn f32s(&mut self, key: &str, numbers: &[f32]) -> &mut Self {
        self.array(key, 6, &numbers.iter().map(|number| number.to_le_bytes().to_vec()).collect::<Vec<_>>())
    }

    /// Adds an array of whole numbers.
    pub fn i32s(&mut self, key: &str, numbers: &[i32]) -> &mut Self {
        self.array(key, 5, &numbers.iter().map(|number| number.to_le_bytes().to_vec()).collect::<Vec<_>>())
    }

    /// Adds a tensor, its shape the outermost dimension first, its values converted. Rows of quantised types are whole
    /// blocks of 32.
    pub fn tensor(&mut self, name: &str, shape: &[usize], kind: GgufType, values: &[f32]) -> &mut Self {
        self.raw(name, shape, kind.number(), kind.convert(values))
    }

    /// Adds a tensor with the number of its type and its bytes.
    pub fn raw(&mut self, name: &str, shape: &[usize], kind: u32, bytes: Vec<u8>) -> &mut Self {
        self.tensors.push(Tensor { name: name.to_owned(), shape: shape.to_vec(), kind, bytes });
        self
    }

    /// Contents of the file.
    pub fn bytes(&self) -> Vec<u8> {
        let mut file = b"GGUF".to_vec();
        file.extend(self.version.to_le_bytes());
        file.extend((self.tensors.len() as u64).to_le_bytes());
        file.extend((self.values.len() as u64).to_le_bytes());
        file.extend(self.values.concat());
        let mut offset = 0;
        for tensor in &self.tensors {
            file.extend(string(&tensor.name));
            file.extend((tensor.shape.len() as u32).to_le_bytes());
            file.extend(tensor.shape.iter().rev().flat_map(|size| (*size as u64).to_le_bytes()));
            file.extend(tensor.kind.to_le_bytes());
            file.extend((offset as u64).to_le_bytes());
            offset = (offset + tensor.bytes.len()).next_multiple_of(self.alignment);
        }
        for tensor in &self.tensors {
            file.resize(file.len().next_multiple_of(self.alignment), 0);
            file.extend(&tensor.bytes);
        }
        file
    }

    /// Writes the file.
    ///
    /// # Errors
    ///
    /// If the file cannot be written.
    pub fn write(&self, path: &Path) -> io::Result<()> {
        std::fs::write(path, self.bytes())
    }
}

/// String of the format: its length, then its bytes.
fn string(text: &str) -> Vec<u8> {
    let mut bytes = (text.len() as u64).to_le_bytes().to_vec();
    bytes.extend(text.as_bytes());
    bytes
}
