//! Memory of a step.

use super::Place;
use crate::attention::{self, Heads, Limits, Plan, Scratch};
use crate::level::Level;
use crate::matrix::Input;
use crate::pages::Buffer;
use omni_kernels::model::{FeedForward, Layer, ModelSpec, Output, Rope};
use omni_kernels::{BLOCK, BackendError, BlockId, Capacity, Segment, StepPlan};

/// Splits of long sequences that are computed at the same time, for each thread.
const SLOTS_PER_THREAD: usize = 32;

/// Widths of a model's activations.
#[derive(Debug)]
pub(crate) struct Widths {
    hidden: usize,
    query: usize,
    kv: usize,
    intermediate: usize,
    /// Cosines and sines of all rotations.
    angles: usize,
    experts: usize,
    chosen: usize,
    /// Row of the output, padding included.
    output: usize,
    /// The output is one row for each segment.
    is_embedding: bool,
    heads: Vec<Heads>,
}

/// Buffers of a step, each row by row, a row for a token where nothing else is said.
#[derive(Debug)]
pub(crate) struct Buffers {
    /// Residual stream.
    pub(super) x: Buffer,
    /// Norm of the residual stream.
    pub(super) h: Buffer,
    /// Queries, and the attention's output.
    pub(super) query: Buffer,
    pub(super) key: Buffer,
    pub(super) value: Buffer,
    /// Output of attention or network before it is added.
    pub(super) delta: Buffer,
    pub(super) gate: Buffer,
    pub(super) up: Buffer,
    /// Cosines and sines of each token for each rotation.
    pub(super) angles: Vec<Buffer>,
    /// Logits or embeddings.
    pub(crate) output: Buffer,
    pub(super) places: Vec<Place>,
    /// Blocks that the step writes, while it is checked.
    pub(super) written: Vec<bool>,
    pub(super) input: Input,
    pub(super) mixture: Mixture,
    pub(super) plan: Plan,
    pub(super) scratch: Vec<Scratch>,
    pub(super) slots: Buffer,
    /// Segment that went through some layers.
    pub(super) kept: Option<Kept>,
    /// Residual stream of that segment.
    pub(super) kept_rows: Buffer,
}

/// Segment that went through some layers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Kept {
    /// Position of its first token.
    start: usize,
    tokens: usize,
    /// Block of its first token.
    block: BlockId,
    /// Layers that it went through.
    pub(super) layers: usize,
}

impl Kept {
    /// A segment that went through so many layers.
    pub(super) fn of(plan: &StepPlan, segment: &Segment, layers: usize) -> Self {
        let (start, tokens) = (segment.start, segment.tokens.len());
        Self { start, tokens, block: plan.blocks[segment.blocks.start + start / BLOCK], layers }
    }
}

/// Buffers of a network of experts.
#[derive(Debug)]
pub(crate) struct Mixture {
    /// Scores of all experts.
    pub(super) scores: Buffer,
    /// Chosen experts of each token with their factors.
    pub(super) chosen: Vec<(u32, f32)>,
    /// Row and factor of each token among those of an expert.
    pub(super) places: Vec<Option<(u32, f32)>>,
    /// Inputs of an expert.
    pub(super) gathered: Buffer,
    /// Outputs of an expert.
    pub(super) outputs: Buffer,
}

impl Widths {
    pub(crate) fn new(spec: &ModelSpec) -> Self {
        let greatest = |of: &dyn Fn(&Layer) -> usize| spec.layers.iter().map(of).max().unwrap_or(0);
        let mixture = |layer: &Layer| match &layer.feed_forward {
            FeedForward::Mixture { experts, chosen, .. } => (experts.len(), (*chosen).min(experts.len())),
            _ => (0, 0),
        };
        let mut ropes: Vec<&Rope> = Vec::new();
        for rope in spec.layers.iter().filter_map(|layer| layer.attention.rope.as_ref()) {
            if !ropes.contains(&rope) {
                ropes.push(rope);
            }
        }
        let (output, is_embedding) = match &spec.output {
            Output::Logits { weight, .. } => (weight.outputs, false),
            Output::Embedding { .. } => (spec.hidden, true),
        };
        Self {
            hidden: spec.hidden,
            query: greatest(&|layer| layer.attention.heads * layer.attention.head_width),
            kv: greatest(&|layer| layer.attention.kv_heads * layer.attention.head_width),
            intermediate: greatest(&|layer| match &layer.feed_forward {
                FeedForward::Gated(gated) => gated.up.outputs,
                FeedForward::Plain { up, .. } => up.outputs,
                FeedForward::Mixture { experts, .. } => experts.first().map_or(0, |expert| expert.up.outputs),
            }),
            angles: ropes.iter().map(|rope| 2 * rope.frequencies.len()).sum(),
            experts: greatest(&|layer| mixture(layer).0),
            chosen: greatest(&|layer| mixture(layer).1),
            output,
            is_embedding,
            heads: spec.layers.iter().map(|layer| Heads::of(&layer.attention)).collect(),
        }
    }

    /// Rows of the output.
    fn outputs(&self, capacity: Capacity) -> usize {
        if self.is_embedding { capacity.segments } else { capacity.logits }
    }

    fn inputs(&self) -> usize {
        self.hidden.max(self.query).max(self.intermediate)
    }

    /// Numbers of a segment that is kept between steps.
    fn kept(&self) -> usize {
        BLOCK * self.hidden
    }

    fn limits(capacity: Capacity, threads: usize) -> Limits {
        Limits { tokens: capacity.tokens, slots: SLOTS_PER_THREAD * threads }
    }

    /// Bytes of the buffers for steps within a capacity.
    pub(crate) fn bytes(&self, capacity: Capacity, threads: usize) -> u64 {
        let has_experts = self.experts > 0;
        let of_token = 3 * self.hidden + self.query + 2 * self.kv + 2 * self.intermediate + self.angles + self.experts;
        let of_experts = if has_experts { 2 * self.hidden } else { 0 };
        let places = if has_experts { size_of::<Option<(u32, f32)>>() } else { 0 };
        let limits = Self::limits(capacity, threads);
        let numbers = capacity.tokens * (of_token + of_experts)
            + self.outputs(capacity) * self.output
            + limits.slots * attention::slot_size(&self.heads)
            + self.kept();
        let chosen = self.chosen * size_of::<(u32, f32)>();
        (numbers * size_of::<f32>() + capacity.tokens * (chosen + places + size_of::<Place>())) as u64
            + u64::from(capacity.blocks)
            + Input::bytes(capacity.tokens.max(capacity.logits), self.inputs())
            + Plan::bytes(limits)
            + threads as u64 * Scratch::new(&self.heads).bytes()
    }
}

/// Empty vector with room for so many elements.
fn with_capacity<T>(count: usize) -> Result<Vec<T>, BackendError> {
    let mut vector = Vec::new();
    vector.try_reserve_exact(count).map_err(|error| BackendError::Memory {
        bytes: count as u64 * size_of::<T>() as u64,
        purpose: "tables of a step",
        reason: error.to_string(),
    })?;
    Ok(vector)
}

fn filled<T: Clone>(value: T, count: usize) -> Result<Vec<T>, BackendError> {
    let mut vector = with_capacity(count)?;
    vector.resize(count, value);
    Ok(vector)
}

impl Buffers {
    /// Takes the memory of steps within a capacity.
    pub(crate) fn new(
        widths: &Widths,
        ropes: &[Rope],
        capacity: Capacity,
        level: Level,
        threads: usize,
    ) -> Result<Self, BackendError> {
        let tokens = |width: usize| Buffer::new(capacity.tokens.saturating_mul(width), "activations");
        let limits = Widths::limits(capacity, threads);
        let has_experts = widths.experts > 0;
        let experts = |width: usize| tokens(if has_experts { width } else { 0 });
        let mut input = Input::new(if level.is_supported() { level } else { Level::Scalar });
        input.reserve(capacity.tokens.max(capacity.logits), widths.inputs())?;
        Ok(Self {
            x: tokens(widths.hidden)?,
            h: tokens(widths.hidden)?,
            query: tokens(widths.query)?,
            key: tokens(widths.kv)?,
            value: tokens(widths.kv)?,
            delta: tokens(widths.hidden)?,
            gate: tokens(widths.intermediate)?,
            up: tokens(widths.intermediate)?,
            angles: ropes.iter().map(|rope| tokens(2 * rope.frequencies.len())).collect::<Result<_, _>>()?,
            output: Buffer::new(widths.outputs(capacity).saturating_mul(widths.output), "logits")?,
            places: with_capacity(capacity.tokens)?,
            written: filled(false, capacity.blocks as usize)?,
            input,
            mixture: Mixture {
                scores: tokens(widths.experts)?,
                chosen: filled((0, 0.0), capacity.tokens.saturating_mul(widths.chosen))?,
                places: filled(None, if has_experts { capacity.tokens } else { 0 })?,
                gathered: experts(widths.hidden)?,
                outputs: experts(widths.hidden)?,
            },
            plan: Plan::new(with_capacity(limits.tasks())?, limits),
            scratch: (0..threads).map(|_| Scratch::new(&widths.heads)).collect(),
            slots: Buffer::new(limits.slots * attention::slot_size(&widths.heads), "attention")?,
            kept: None,
            kept_rows: Buffer::new(widths.kept(), "a prompt's part")?,
        })
    }
}
