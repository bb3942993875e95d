//! Backend: a loaded model with its memory.

use crate::cache::{Cache, CacheFormat, Layout};
use crate::forward::{Bounds, Buffers, Context, Forward, Times, Widths, check};
use crate::level::Level;
use crate::load::{Loader, Model};
use crate::matrix::Weights;
use crate::simd::Vectors;
use crate::threads::Threads;
use omni_checkpoint::Checkpoint;
use omni_kernels::model::{Mask, ModelSpec, Output};
use omni_kernels::{Backend, BackendError, BlockId, Capacity, Facts, StepPlan};
use std::sync::Arc;

/// Most tokens, segments or rows of logits of a capacity: far more than a machine computes in a second.
const MOST_ROWS: usize = 1 << 24;

/// Choices at the start of a backend.
#[derive(Debug, Clone, Copy)]
pub struct Options {
    /// Form of the weights in memory.
    pub weights: Weights,
    /// Instructions.
    pub level: Level,
    /// Number of threads, the caller's included; at least 1.
    pub threads: usize,
    /// Format of the key-value cache.
    pub cache: CacheFormat,
}

/// Backend on the processor.
#[derive(Debug)]
pub struct CpuBackend {
    spec: ModelSpec,
    checkpoint: Arc<Checkpoint>,
    options: Options,
    threads: Threads,
    vectors: Vectors,
    layout: Layout,
    widths: Widths,
    /// A layer sees all positions of its sequence.
    needs_whole: bool,
    facts: Facts,
    /// Weights, `None` while the backend sleeps.
    model: Option<Model>,
    /// Capacity, kept while the backend sleeps.
    capacity: Option<Capacity>,
    memory: Option<Memory>,
    times: Times,
}

/// Memory of a capacity.
#[derive(Debug)]
struct Memory {
    cache: Cache,
    buffers: Buffers,
}

impl CpuBackend {
    /// Loads a model. `progress` is told of the weights read so far, and of all.
    ///
    /// # Errors
    /// A tensor is missing or has another shape, there is no memory, or the system has no more threads.
    pub fn load(
        spec: &ModelSpec,
        checkpoint: Arc<Checkpoint>,
        options: Options,
        progress: &mut dyn FnMut(u64, u64),
    ) -> Result<Self, BackendError> {
        let threads = Threads::new(options.threads).map_err(|error| BackendError::Memory {
            bytes: 0,
            purpose: "threads",
            reason: error.to_string(),
        })?;
        let layout = Layout::new(spec, options.cache);
        let loader = Loader::new(&checkpoint, &layout, (options.weights, options.level), &threads, progress);
        let (model, weight_bytes) = loader.load(spec)?;
        let needs_whole = spec.layers.iter().any(|layer| layer.attention.mask == Mask::All);
        let facts = Facts {
            name: format!("cpu {}", options.level),
            weight_bytes,
            block_bytes: layout.block_bytes() as u64,
            row_width: match &spec.output {
                Output::Logits { weight, .. } => weight.outputs.min(spec.vocabulary),
                Output::Embedding { .. } => spec.hidden,
            },
            layers: match &spec.output {
                Output::Logits { .. } if !needs_whole => spec.layers.len().max(1),
                _ => 1,
            },
        };
        Ok(Self {
            spec: spec.clone(),
            checkpoint,
            options,
            threads,
            vectors: Vectors::of(options.level),
            widths: Widths::new(spec),
            needs_whole,
            layout,
            facts,
            model: Some(model),
            capacity: None,
            memory: None,
            times: Times::default(),
        })
    }

    /// Time of the parts of all steps so far.
    #[must_use]
    pub fn times(&self) -> &Times {
        &self.times
    }

    fn memory(&self, capacity: Capacity, model: &Model) -> Result<Memory, BackendError> {
        if rows(capacity) > MOST_ROWS {
            let reason = format!("steps of more than {MOST_ROWS} rows");
            return Err(BackendError::Memory { bytes: u64::MAX, purpose: "activations", reason });
        }
        let threads = self.threads.count();
        Ok(Memory {
            cache: Cache::new(&self.layout, capacity.blocks)?,
            buffers: Buffers::new(&self.widths, &model.ropes, capacity, self.options.level, threads)?,
        })
    }
}

/// Rows of the largest buffer.
fn rows(capacity: Capacity) -> usize {
    capacity.tokens.max(capacity.segments).max(capacity.logits)
}

impl Backend for CpuBackend {
    fn facts(&self) -> &Facts {
        &self.facts
    }

    fn bytes(&self, capacity: Capacity) -> u64 {
        if rows(capacity) > MOST_ROWS {
            return u64::MAX;
        }
        let cache = self.facts.block_bytes.saturating_mul(u64::from(capacity.blocks));
        cache.saturating_add(self.widths.bytes(capacity, self.threads.count()))
    }

    fn reserve(&mut self, capacity: Capacity) -> Result<(), BackendError> {
        let asleep = || BackendError::Plan("the backend sleeps".to_owned());
        self.memory = None;
        self.memory = Some(self.memory(capacity, self.model.as_ref().ok_or_else(asleep)?)?);
        self.capacity = Some(capacity);
        Ok(())
    }

    fn step(&mut self, plan: &StepPlan) -> Result<(), BackendError> {
        let (Some(model), Some(memory), Some(capacity)) = (&self.model, &mut self.memory, self.capacity) else {
            return Err(BackendError::Plan("the backend sleeps, or has no memory reserved".to_owned()));
        };
        let bounds = Bounds { capacity, spec: &self.spec, layers: self.facts.layers, needs_whole: self.needs_whole };
        check(plan, bounds, &mut memory.buffers).map_err(BackendError::Plan)?;
        for copy in &plan.copies {
            memory.cache.copy(copy.from, copy.to);
        }
        let context = Context {
            model,
            checkpoint: &self.checkpoint,
            layout: &self.layout,
            threads: &self.threads,
            vectors: self.vectors,
            hidden: self.spec.hidden,
        };
        Forward::new(context, plan, &mut memory.buffers, &mut memory.cache, &mut self.times).run()
    }

    fn row(&mut self, row: usize) -> &mut [f32] {
        let stride = match &self.spec.output {
            Output::Logits { weight, .. } => weight.outputs,
            Output::Embedding { .. } => self.spec.hidden,
        };
        let numbers = self.memory.as_mut().map_or(Default::default(), |memory| &mut *memory.buffers.output);
        let start = row.saturating_mul(stride);
        numbers.get_mut(start..start.saturating_add(self.facts.row_width)).unwrap_or_default()
    }

    fn export(&self, block: BlockId, into: &mut [u8]) {
        if let Some(memory) = &self.memory {
            into.copy_from_slice(memory.cache.block(block));
        }
    }

    fn import(&mut self, block: BlockId, from: &[u8]) {
        if let Some(memory) = &mut self.memory {
            memory.cache.block_mut(block).copy_from_slice(from);
        }
    }

    fn sleep(&mut self) -> Result<u64, BackendError> {
        let weights = self.model.take().map_or(0, |_| self.facts.weight_bytes);
        let memory = self.memory.take().and(self.capacity).map_or(0, |capacity| self.bytes(capacity));
        Ok(weights + memory)
    }

    fn wake(&mut self) -> Result<(), BackendError> {
        if self.model.is_some() {
            return Ok(());
        }
        let weights = (self.options.weights, self.options.level);
        let progress = &mut |_, _| ();
        let loader = Loader::new(&self.checkpoint, &self.layout, weights, &self.threads, progress);
        let (model, _) = loader.load(&self.spec)?;
        if let Some(capacity) = self.capacity {
            self.memory = Some(self.memory(capacity, &model)?);
        }
        self.model = Some(model);
        Ok(())
    }
}
