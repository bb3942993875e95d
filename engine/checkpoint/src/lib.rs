//! Weights of models as their files hold them: safetensors, GGUF, and the quantised forms of both.
//!
//! [`Checkpoint::open`] maps the files into memory and checks everything that they say about themselves: sizes, offsets,
//! counts, names. Weights are then read where they lie: [`Checkpoint::matrix`] copies nothing, and a backend unpacks a
//! row at a time, [`Matrix::row`] to values, [`Grouped::row`] to quants, scales and offsets.
//!
//! ```no_run
//! # fn main() -> Result<(), omni_checkpoint::CheckpointError> {
//! let checkpoint = omni_checkpoint::Checkpoint::open("/models/smollm2".as_ref())?;
//! let matrix = checkpoint.matrix("model.embed_tokens.weight")?;
//! let mut row = vec![0.0; matrix.columns];
//! matrix.row(0, &mut row);
//! # Ok(())
//! # }
//! ```
//!
//! Formats:
//!
//! | files | tensors |
//! | --- | --- |
//! | safetensors, one file or shards with an index | F32, F16, BF16; AWQ ("gemm") and GPTQ (v1, v2) of 4 and 8 bits |
//! | GGUF, versions 2 and 3, one file | F32, F16, BF16, Q8_0, Q4_0, Q4_1, Q5_0, Q4_K, Q5_K, Q6_K |
//!
//! Invariants:
//! - a foreign file never causes a panic, nor an allocation larger than a small multiple of its own size;
//! - a file is refused with a sentence that names it, and the tensor where one is to blame;
//! - every tensor lies within its file and shares no byte with another.

#![deny(unsafe_code)]

mod blocks;
mod checkpoint;
mod directory;
mod error;
mod float;
pub mod gguf;
mod map;
mod matrix;
mod packed;
mod quantization;
mod row;
mod safetensors;
mod tensor;
#[cfg(any(test, feature = "testing"))]
pub mod testing;
#[cfg(test)]
mod tests;

pub use checkpoint::Checkpoint;
pub use error::CheckpointError;
pub use matrix::{Grouped, Matrix, Values};
pub use row::GroupedRow;
