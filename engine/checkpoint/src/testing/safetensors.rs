//! Writer of safetensors files.

use super::packing::{pack, quantise};
use half::{bf16, f16};
use std::io;
use std::path::Path;

/// Writer of a safetensors file with the tensors that it is given, in this order.
#[derive(Debug, Clone, Default)]
pub struct SafetensorsWriter {
    tensors: Vec<(String, &'static str, Vec<usize>, Vec<u8>)>,
}

impl SafetensorsWriter {
    /// Writer without tensors.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a tensor of any type with its bytes.
    pub fn raw(&mut self, name: &str, dtype: &'static str, shape: &[usize], bytes: Vec<u8>) -> &mut Self {
        self.tensors.push((name.to_owned(), dtype, shape.to_vec(), bytes));
        self
    }

    /// Adds a tensor of type F32.
    pub fn f32(&mut self, name: &str, shape: &[usize], values: &[f32]) -> &mut Self {
        self.raw(name, "F32", shape, values.iter().flat_map(|value| value.to_le_bytes()).collect())
    }

    /// Adds a tensor of type F16, to which the values are rounded.
    pub fn f16(&mut self, name: &str, shape: &[usize], values: &[f32]) -> &mut Self {
        self.raw(name, "F16", shape, values.iter().flat_map(|value| f16::from_f32(*value).to_le_bytes()).collect())
    }

    /// Adds a tensor of type BF16, to which the values are rounded.
    pub fn bf16(&mut self, name: &str, shape: &[usize], values: &[f32]) -> &mut Self {
        self.raw(name, "BF16", shape, values.iter().flat_map(|value| bf16::from_f32(*value).to_le_bytes()).collect())
    }

    /// Adds a tensor of type I32.
    pub fn i32(&mut self, name: &str, shape: &[usize], values: &[i32]) -> &mut Self {
        self.raw(name, "I32", shape, values.iter().flat_map(|value| value.to_le_bytes()).collect())
    }

    /// Adds a matrix of `[outputs, inputs]` as AWQ packs it: `name.qweight`, `name.qzeros`, `name.scales`. `config.json`
    /// must say `"quantization_config": {"quant_method": "awq", "bits": 4, "group_size": 32}`.
    pub fn awq(&mut self, name: &str, shape: [usize; 2], bits: u8, group: usize, values: &[f32]) -> &mut Self {
        let order: &[usize] = if bits == 4 { &[0, 2, 4, 6, 1, 3, 5, 7] } else { &[0, 2, 1, 3] };
        let ([rows, columns], groups, words) = (shape, shape[1] / group, shape[0] / order.len());
        let quantised = quantise(values, shape, bits, group);
        let weights = pack(columns, rows, bits, order, |input, output| quantised.quants[output * columns + input]);
        let zeros = pack(groups, rows, bits, order, |group, output| quantised.zeros[group * rows + output]);
        self.i32(&format!("{name}.qweight"), &[columns, words], &weights);
        self.i32(&format!("{name}.qzeros"), &[groups, words], &zeros);
        self.scales(name, &[groups, rows], &quantised.scales)
    }

    /// Adds a matrix of `[outputs, inputs]` as GPTQ packs it (v1): `name.qweight`, `name.qzeros`, `name.scales`,
    /// `name.g_idx`. `config.json` must say `"quantization_config": {"quant_method": "gptq", "bits": 4, "group_size": 32}`.
    pub fn gptq(&mut self, name: &str, shape: [usize; 2], bits: u8, group: usize, values: &[f32]) -> &mut Self {
        let order = &[0, 1, 2, 3, 4, 5, 6, 7][..32 / usize::from(bits)];
        let ([rows, columns], groups, per_word) = (shape, shape[1] / group, order.len());
        let quantised = quantise(values, shape, bits, group);
        // A line is the inputs of a word, the words of a line are the outputs.
        let weights = pack(columns / per_word, rows * per_word, bits, order, |line, at| {
            quantised.quants[at / per_word * columns + line * per_word + at % per_word]
        });
        let zeros = pack(groups, rows, bits, order, |group, output| quantised.zeros[group * rows + output] - 1);
        self.i32(&format!("{name}.qweight"), &[columns / per_word, rows], &weights);
        self.i32(&format!("{name}.qzeros"), &[groups, rows / per_word], &zeros);
        let order: Vec<i32> = (0..columns).map(|input| (input / group) as i32).collect();
        self.i32(&format!("{name}.g_idx"), &[columns], &order);
        self.scales(name, &[groups, rows], &quantised.scales)
    }

    fn scales(&mut self, name: &str, shape: &[usize], scales: &[f16]) -> &mut Self {
        let bytes = scales.iter().flat_map(|scale| scale.to_le_bytes()).collect();
        self.raw(&format!("{name}.scales"), "F16", shape, bytes)
    }

    /// Contents of the file.
    pub fn bytes(&self) -> Vec<u8> {
        let (mut entries, mut end) = (Vec::new(), 0);
        for (name, dtype, shape, bytes) in &self.tensors {
            let start = end;
            end += bytes.len();
            let name = serde_json::Value::from(name.as_str());
            entries.push(format!(r#"{name}:{{"dtype":"{dtype}","shape":{shape:?},"data_offsets":[{start},{end}]}}"#));
        }
        let mut header = format!("{{{}}}", entries.join(","));
        while !header.len().is_multiple_of(8) {
            header.push(' ');
        }
        let mut file = (header.len() as u64).to_le_bytes().to_vec();
        file.extend(header.into_bytes());
        file.extend(self.tensors.iter().flat_map(|(.., bytes)| bytes));
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
