//! Writers of small checkpoints, for tests of the crates that read some.
//!
//! ```
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! use omni_checkpoint::Checkpoint;
//! use omni_checkpoint::testing::{GgufType, GgufWriter};
//!
//! let directory = tempfile::tempdir()?;
//! let path = directory.path().join("model.gguf");
//! let values: Vec<f32> = (0..128).map(|i| i as f32 / 128.0).collect();
//! GgufWriter::new()
//!     .text("general.architecture", "llama")
//!     .tensor("token_embd.weight", &[4, 32], GgufType::Q8_0, &values)
//!     .write(&path)?;
//! assert_eq!(Checkpoint::open(&path)?.shape("token_embd.weight"), Some([4, 32].as_slice()));
//! # Ok(())
//! # }
//! ```

mod gguf;
mod packing;
mod quantise;
mod safetensors;

pub use gguf::{GgufType, GgufWriter};
pub use safetensors::SafetensorsWriter;
