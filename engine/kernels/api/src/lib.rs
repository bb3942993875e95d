//! Contract of the engine's core and a backend, which computes on the processor, on a card, or on a simulated clock.
//!
//! ```text
//!  checkpoint ──▶ architectures ──▶ ModelSpec ─┐
//!                                              ├─▶ Backend ──▶ logits ──▶ sampler
//!             batcher ──▶ StepPlan ────────────┘
//! ```
//!
//! | module | contents |
//! | --- | --- |
//! | [`model`] | description of a model: layers, and the names of their tensors |
//! | [`plan`] | tokens of one step, and the blocks of the key-value cache that they read and write |
//! | [`backend`] | operations of a backend |
#![forbid(unsafe_code)]

pub mod backend;
pub mod model;
pub mod plan;

pub use backend::{Backend, BackendError, Capacity, Facts};
pub use plan::{BLOCK, BlockCopy, BlockId, Segment, StepPlan};
