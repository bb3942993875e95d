//! Steps of a backend.

use super::model::Model;
use omni_kernels::model::Output;
use omni_kernels::{BLOCK, Backend, BackendError, BlockCopy, BlockId, Capacity, Segment, StepPlan};
use omni_kernels_cpu::{CacheFormat, CpuBackend, Level, Options, Weights};
use std::ops::Range;
use std::sync::Arc;

/// Capacity of the tests.
pub(crate) const CAPACITY: Capacity = Capacity { blocks: 128, tokens: 700, segments: 8, logits: 700 };

/// Options of a combination.
pub(crate) fn options(level: Level, weights: Weights, cache: CacheFormat, threads: usize) -> Options {
    Options { weights, level, threads, cache }
}

/// Combinations that are computed differently.
pub(crate) fn combinations() -> Vec<Options> {
    let mut all = Vec::new();
    for level in Level::all_supported() {
        all.push(options(level, Weights::F32, CacheFormat::F32, 2));
        all.push(options(level, Weights::AsStored, CacheFormat::Bf16, 2));
        all.push(options(level, Weights::Int8, CacheFormat::Bf16, 1));
    }
    let best = Level::detect();
    all.push(options(best, Weights::Int4, CacheFormat::F32, 3));
    all
}

/// Backend that steps with its sequences' blocks.
pub(crate) struct Runner {
    pub(crate) backend: CpuBackend,
    plan: StepPlan,
    is_embedding: bool,
}

/// Tokens of a step.
#[derive(Clone)]
pub(crate) struct Part<'a> {
    pub(crate) tokens: &'a [u32],
    pub(crate) start: usize,
    pub(crate) blocks: &'a [BlockId],
    pub(crate) logits: usize,
}

impl Runner {
    pub(crate) fn new(model: &Model, options: Options) -> Self {
        let mut backend =
            CpuBackend::load(&model.spec, Arc::clone(&model.checkpoint), options, &mut |_, _| ()).unwrap();
        backend.reserve(CAPACITY).unwrap();
        let is_embedding = matches!(model.spec.output, Output::Embedding { .. });
        Self { backend, plan: StepPlan::default(), is_embedding }
    }

    /// Computes a step. Returns the rows of each part.
    pub(crate) fn step(&mut self, parts: &[Part<'_>]) -> Vec<Vec<Vec<u32>>> {
        self.try_step(&[], parts).unwrap()
    }

    /// Computes a step with copies of blocks before it.
    pub(crate) fn try_step(
        &mut self,
        copies: &[BlockCopy],
        parts: &[Part<'_>],
    ) -> Result<Vec<Vec<Vec<u32>>>, BackendError> {
        self.try_layers(None, copies, parts)
    }

    /// Computes a step whose last part goes through these layers.
    pub(crate) fn try_layers(
        &mut self,
        layers: Option<Range<usize>>,
        copies: &[BlockCopy],
        parts: &[Part<'_>],
    ) -> Result<Vec<Vec<Vec<u32>>>, BackendError> {
        self.plan.clear();
        self.plan.part = layers;
        self.plan.copies.extend_from_slice(copies);
        for part in parts {
            let (token, block) = (self.plan.tokens.len(), self.plan.blocks.len());
            self.plan.tokens.extend_from_slice(part.tokens);
            self.plan.blocks.extend_from_slice(part.blocks);
            self.plan.segments.push(Segment {
                tokens: token..self.plan.tokens.len(),
                start: part.start,
                blocks: block..self.plan.blocks.len(),
                logits: part.logits,
            });
        }
        self.backend.step(&self.plan)?;
        let mut row = 0;
        let mut rows = |part: &Part<'_>| {
            let count = if self.is_embedding { 1 } else { part.logits };
            let bits = |row: usize| self.backend.row(row).iter().map(|logit| logit.to_bits()).collect();
            row += count;
            (row - count..row).map(bits).collect()
        };
        Ok(parts.iter().map(&mut rows).collect())
    }

    /// Computes a sequence in one step. Returns the rows of all tokens, or the embedding.
    pub(crate) fn whole(&mut self, tokens: &[u32]) -> Vec<Vec<u32>> {
        let blocks = blocks(0, tokens.len());
        self.step(&[Part { tokens, start: 0, blocks: &blocks, logits: tokens.len() }]).remove(0)
    }

    /// Bytes of blocks.
    pub(crate) fn export(&self, blocks: &[BlockId]) -> Vec<Vec<u8>> {
        let bytes = self.backend.facts().block_bytes as usize;
        let export = |block: &BlockId| {
            let mut into = vec![0; bytes];
            self.backend.export(*block, &mut into);
            into
        };
        blocks.iter().map(export).collect()
    }
}

/// Blocks for so many positions, scattered.
pub(crate) fn blocks(first: u32, positions: usize) -> Vec<BlockId> {
    let block = |at: u32| BlockId((first + at * 37) % CAPACITY.blocks);
    (0..positions.div_ceil(BLOCK) as u32).map(block).collect()
}

/// Random tokens.
pub(crate) fn tokens(random: &mut fastrand::Rng, count: usize) -> Vec<u32> {
    (0..count).map(|_| random.u32(0..super::model::VOCABULARY as u32)).collect()
}
