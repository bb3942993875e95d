//! Backend on the processor: packed weights, kernels for each level of instructions, threads of its own.
//!
//! ```text
//!  Checkpoint ─┐                      ┌─ matrix: products with packed weights
//!  ModelSpec ──┴─▶ load ─▶ forward ───┼─ attention ─▶ cache
//!                                     └─ elementwise: norms, activations, rotations
//! ```
//!
//! | module | contents |
//! | --- | --- |
//! | `backend` | [`CpuBackend`]: memory, steps, sleep |
//! | `load` | weights of a description, packed |
//! | `forward` | one step through all layers |
//! | `attention`, `cache` | paged attention, and the cache's layout |
//! | `elementwise` | operations on rows |
//! | `matrix` | products with packed weights |
//! | `level`, `simd` | levels of instructions, and vectors written once for all of them |
//! | `detect` | trial of the levels: which of them the processor has |
//! | `threads` | threads of a backend |
//! | `pages`, `shared` | memory of the system, and its use by several threads |
#![deny(unsafe_code)]

mod attention;
mod backend;
mod cache;
mod detect;
mod elementwise;
mod forward;
mod level;
mod load;
mod matrix;
mod pages;
mod shared;
mod simd;
mod threads;

pub use backend::{CpuBackend, Options};
pub use cache::CacheFormat;
pub use forward::{Operation, Times};
pub use level::Level;
pub use matrix::Weights;
pub use threads::Threads;
