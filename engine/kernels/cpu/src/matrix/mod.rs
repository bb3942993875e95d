//! Products of activations with packed weights.
//!
//! ```text
//!  checkpoint ──▶ Packer::pack ────────▶ panels of 32 outputs ─┐
//!                                                              ├─▶ multiply ──▶ rows of outputs
//!  activations ──▶ Input::prepare ────▶ tiles of some rows ────┘
//! ```
//!
//! Invariant, **bit for bit**: an output is one chain of additions along the inputs (or pairs, or groups of them), the
//! same for every number of rows, place of the row and number of threads. But for products of bf16 with bf16 it is even
//! the same for all levels: sums of integers are exact, and floats are added by fused multiplication in one order.
//!
//! Sums, for inputs `x` and weights `w` of one output:
//!
//! | form | level | sum |
//! | --- | --- | --- |
//! | F32, F16 | all | `s = fma(x[k], w[k], s)` |
//! | BF16 | up to AVX-512 | the same, `x` in f32 |
//! | BF16 | AVX-512 with BF16 | `x` rounded to bf16; `s` plus each pair's products, as the instruction rounds |
//! | BF16 | AMX | the same for each 32 inputs |
//! | integers | all | `x` rounded to 8 bits; for each group of 32 `s = fma(dot, scale of w * scale of x, s)` |
//! | with offsets | all | for each group also `s = fma(offset of w, sum of x, s)` |
//!
//! | module | contents |
//! | --- | --- |
//! | `form`, `line` | layouts of panels, and their memory |
//! | `tile` | layouts of tiles, and their packing without instructions of a level |
//! | `pack`, `quantise` | weights of a checkpoint into panels |
//! | `input` | activations into tiles, split among threads |
//! | `agreement` | comparison of the levels with the scalar one |
//! | `kernel` | choice of the kernel of a level and a form |
//! | `scalar`, `simd_avx2`, `simd_avx512`, `simd_amx` | kernels: one panel times one tile |
//! | `multiply` | panels and tiles of a product, split among threads |

mod agreement;
mod form;
mod input;
mod kernel;
mod line;
mod multiply;
mod pack;
mod quantise;
mod scalar;
#[cfg(target_arch = "x86_64")]
mod simd_amx;
#[cfg(target_arch = "x86_64")]
mod simd_avx2;
#[cfg(target_arch = "x86_64")]
mod simd_avx512;
#[cfg(target_arch = "x86_64")]
mod simd_avx512_input;
#[cfg(test)]
mod tests;
mod tile;

pub(crate) use agreement::agrees;
pub(crate) use input::Input;
pub(crate) use multiply::{Product, multiply};
pub(crate) use pack::Packer;
#[cfg(target_arch = "x86_64")]
pub(crate) use simd_amx::request as request_tiles;
pub(crate) use tile::InputKind;

use crate::level::Level;
use form::{Form, GROUP, PANEL};
use half::{bf16, f16};
use kernel::Kernel;
use line::{Line, Lines};

/// Form in which weights are held.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Weights {
    /// As the checkpoint stores them. Scales and offsets are rounded to 11 bits, which is exact for those stored as
    /// f16, and an error of at most 2⁻¹¹ of each for the K-quants of GGUF and for offsets of AWQ and GPTQ.
    #[default]
    AsStored,
    /// 32 bits, for reference.
    F32,
    /// 8 bits: in groups of 32 inputs, `scale * (quant - 128)` with the scale of the greatest magnitude. Integers of
    /// the checkpoint stay as they are.
    Int8,
    /// 4 bits: in groups of 32 inputs, `scale * quant + offset` from the least to the greatest value. Integers of 4
    /// bits stay as they are.
    Int4,
}

/// Matrix of a linear operation in the form that the kernels read.
#[derive(Debug)]
pub(crate) struct PackedMatrix {
    outputs: usize,
    inputs: usize,
    form: Form,
    level: Level,
    kernel: Kernel,
    lines: Lines,
    /// Factor of each panel's sums, a power of two; integers only.
    factors: Vec<f32>,
}

impl PackedMatrix {
    /// Number of outputs: rows of the matrix.
    pub(crate) fn outputs(&self) -> usize {
        self.outputs
    }

    /// Number of inputs: columns of the matrix.
    pub(crate) fn inputs(&self) -> usize {
        self.inputs
    }

    /// Bytes of memory.
    pub(crate) fn bytes(&self) -> u64 {
        (size_of_val(self.lines.as_slice()) + size_of_val(&*self.factors)) as u64
    }

    /// Form of the activations that the kernel reads.
    pub(crate) fn input_kind(&self) -> InputKind {
        InputKind::of(self.level, self.form)
    }

    fn panels(&self) -> usize {
        self.outputs.div_ceil(PANEL)
    }

    fn panel(&self, panel: usize) -> &[Line] {
        let length = self.form.panel_lines(self.inputs);
        &self.lines.as_slice()[panel * length..][..length]
    }

    fn factor(&self, panel: usize) -> f32 {
        self.factors.get(panel).copied().unwrap_or(1.0)
    }

    /// Writes the weights of an output: for an embedding that shares its matrix with the output.
    ///
    /// # Panics
    /// If there is no such output, or `out` is not as long as a row.
    pub(crate) fn row(&self, output: usize, out: &mut [f32]) {
        assert!(output < self.outputs && out.len() == self.inputs, "row {output} of {}x{}", self.outputs, self.inputs);
        let (panel, place) = (self.panel(output / PANEL), output % PANEL);
        for (input, out) in out.iter_mut().enumerate() {
            *out = match self.form {
                Form::F32 => {
                    let line = &panel[input * 2 + place / 16].0;
                    f32::from_bits(form::word(line, place % 16))
                }
                Form::F16 => f16::from_bits(form::half_word(&panel[input].0, place)).to_f32(),
                Form::Bf16 => {
                    let line = &panel[input / 2 * 2 + place / 16].0;
                    bf16::from_bits(form::half_word(line, place % 16 * 2 + input % 2)).to_f32()
                }
                Form::Grouped(grouped) => {
                    let group = &panel[input / GROUP * grouped.lines()..][..grouped.lines()];
                    form::value(grouped, group, place, input % GROUP) * self.factor(output / PANEL)
                }
            };
        }
    }
}
