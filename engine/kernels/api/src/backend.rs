//! Operations of a backend. They are coarse, so that a card can record a whole step and a processor can fuse within it.
//!
//! ```text
//!  load (constructor) ──▶ reserve ──▶ step ──▶ logits of its rows ──▶ step …
//!                                       │
//!                                     sleep ──▶ wake
//! ```
//!
//! Invariant, **bit for bit**: logits and cached keys and values of a token depend on the tokens of its sequence up to it
//! alone: neither on other segments of the step, nor on the cut of the sequence into segments, layers and steps.

use crate::plan::{BlockId, StepPlan};

/// Facts of a loaded model.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Facts {
    /// Name of the backend and its level of instructions, such as `cpu avx512-bf16`.
    pub name: String,
    /// Bytes of the weights in memory.
    pub weight_bytes: u64,
    /// Bytes of a block of the key-value cache, over all layers.
    pub block_bytes: u64,
    /// Width of a row of logits, or of an embedding.
    pub row_width: usize,
    /// Layers of which a step may compute a part of a segment ([`StepPlan::part`]); 1: it computes segments whole.
    pub layers: usize,
}

/// Bounds of the steps that follow.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Capacity {
    /// Blocks of the key-value cache.
    pub blocks: u32,
    /// Most tokens of a step.
    pub tokens: usize,
    /// Most segments of a step.
    pub segments: usize,
    /// Most rows of logits of a step.
    pub logits: usize,
}

/// Failure of a backend.
#[derive(Debug, thiserror::Error)]
pub enum BackendError {
    /// The model cannot be computed by this backend.
    #[error("tensor {tensor}: {reason}")]
    Tensor {
        /// Name of the tensor.
        tensor: String,
        /// Cause.
        reason: String,
    },
    /// There is no memory for what was asked.
    #[error("{bytes} bytes for {purpose} are not to be had: {reason}")]
    Memory {
        /// Bytes.
        bytes: u64,
        /// Use of these bytes.
        purpose: &'static str,
        /// Cause.
        reason: String,
    },
    /// The plan is outside of the capacity, or the backend sleeps: a fault of the caller.
    #[error("a step that cannot be computed: {0}")]
    Plan(String),
}

/// Backend with a loaded model.
pub trait Backend: Send {
    /// Facts of the model.
    fn facts(&self) -> &Facts;

    /// Bytes of memory that [`Backend::reserve`] takes for this capacity, beside the weights.
    fn bytes(&self, capacity: Capacity) -> u64;

    /// Takes all memory that steps within this capacity need. Contents of an earlier cache are lost.
    ///
    /// # Errors
    /// The memory is not to be had.
    fn reserve(&mut self, capacity: Capacity) -> Result<(), BackendError>;

    /// Computes a step. Allocates nothing.
    ///
    /// # Errors
    /// The plan is outside of the capacity, or the backend sleeps.
    fn step(&mut self, plan: &StepPlan) -> Result<(), BackendError>;

    /// Row of logits of the last step, or the embedding of its segment of that number.
    fn row(&mut self, row: usize) -> &mut [f32];

    /// Copies a block's contents out; `into` has [`Facts::block_bytes`].
    fn export(&self, block: BlockId, into: &mut [u8]);

    /// Copies a block's contents in; `from` was exported by a backend of the same model, level and format.
    fn import(&mut self, block: BlockId, from: &[u8]);

    /// Gives the memory of cache and weights back. Returns the bytes.
    ///
    /// # Errors
    /// The backend cannot sleep now.
    fn sleep(&mut self) -> Result<u64, BackendError>;

    /// Takes the memory again; the cache is empty.
    ///
    /// # Errors
    /// The memory or the file is not to be had; the backend still sleeps.
    fn wake(&mut self) -> Result<(), BackendError>;
}
