//! Step through all layers.
//!
//! ```text
//!  embed ─▶ ┌ project ─▶ rotate, cache ─▶ attend ─▶ output ─▶ residual ─▶ network ─▶ residual ┐ ─▶ logits
//!           └────────────────────────────── each layer ───────────────────────────────────────┘
//! ```
//!
//! Threads meet after each product and after the attention: five times a layer when few rows are computed, whose other
//! operations one thread does alone. After the attention of the last layer only rows go on whose logits are wanted.

mod attend;
mod buffers;
mod check;
mod network;
mod output;
mod rows;
mod times;

use buffers::Kept;
pub(crate) use buffers::{Buffers, Widths};
pub(crate) use check::{Bounds, check};
pub use times::{Operation, Times};

use crate::cache::{Cache, CacheFormat, Layout};
use crate::elementwise::{self, NormWeights};
use crate::load::{AttentionWeights, LayerWeights, Model, OutputWeights, Tokens, refused};
use crate::matrix::{Input, PackedMatrix, Product, multiply};
use crate::simd::Vectors;
use crate::threads::Threads;
use half::bf16;
use omni_checkpoint::Checkpoint;
use omni_kernels::{BLOCK, BackendError, BlockId, StepPlan};
use rows::{Rows, each_row};
use times::Clock;

/// Position of a row of the step.
#[derive(Debug, Clone, Copy)]
struct Place {
    position: usize,
    block: BlockId,
}

/// Parts of a backend that a step reads.
#[derive(Clone, Copy)]
pub(crate) struct Context<'a> {
    pub(crate) model: &'a Model,
    pub(crate) checkpoint: &'a Checkpoint,
    pub(crate) layout: &'a Layout,
    pub(crate) threads: &'a Threads,
    pub(crate) vectors: Vectors,
    pub(crate) hidden: usize,
}

/// Step.
pub(crate) struct Forward<'a> {
    context: Context<'a>,
    step: &'a StepPlan,
    buffers: &'a mut Buffers,
    cache: &'a mut Cache,
    clock: Clock<'a>,
}

impl<'a> Forward<'a> {
    pub(crate) fn new(
        context: Context<'a>,
        step: &'a StepPlan,
        buffers: &'a mut Buffers,
        cache: &'a mut Cache,
        times: &'a mut Times,
    ) -> Self {
        Self { context, step, buffers, cache, clock: Clock::start(times) }
    }

    /// Computes the step.
    pub(crate) fn run(mut self) -> Result<(), BackendError> {
        let model = self.context.model;
        let mut rows = 0;
        self.embed()?;
        for (number, layer) in model.layers.iter().enumerate() {
            rows = self.rows(number);
            if rows == 0 {
                continue;
            }
            if self.step.part.as_ref().is_some_and(|part| part.start == number && number > 0) {
                self.resume(layer);
            }
            let is_last = number + 1 == model.layers.len() && matches!(model.output, OutputWeights::Logits { .. });
            match self.context.layout.format {
                CacheFormat::F32 => self.attention::<f32>(layer, rows, is_last),
                CacheFormat::Bf16 => self.attention::<bf16>(layer, rows, is_last),
            }
            if is_last {
                rows = self.select(&layer.attention);
                if rows == 0 {
                    return Ok(());
                }
            }
            self.attention_output(layer, rows);
            self.network(layer, rows);
            let next = model.layers.get(number + 1).map_or(model.norm.as_ref(), |next| next.attention_norm.as_ref());
            let norms = Norms {
                output: layer.feed_forward_output_norm.as_ref(),
                sum: layer.feed_forward_sum_norm.as_ref(),
                next,
            };
            self.residual(rows, None, norms);
            if self.step.part.as_ref().is_some_and(|part| part.end == number + 1) {
                self.keep(number + 1);
            }
        }
        if rows > 0 {
            self.output(rows);
        }
        Ok(())
    }

    /// Returns the number of rows that go through a layer.
    fn rows(&self, layer: usize) -> usize {
        let rows = self.step.tokens.len();
        match (&self.step.part, self.step.segments.last()) {
            (Some(part), Some(last)) if !part.contains(&layer) => rows - last.tokens.len(),
            _ => rows,
        }
    }

    /// Keeps the residual stream of the last segment, which went through so many layers.
    fn keep(&mut self, layers: usize) {
        let Some(segment) = self.step.segments.last() else { return };
        let hidden = self.context.hidden;
        let Buffers { x, kept, kept_rows, .. } = &mut *self.buffers;
        let rows = &x[segment.tokens.start * hidden..segment.tokens.end * hidden];
        kept_rows[..rows.len()].copy_from_slice(rows);
        *kept = Some(Kept::of(self.step, segment, layers));
    }

    /// Takes the residual stream that was kept before a layer, and writes its norm.
    fn resume(&mut self, layer: &LayerWeights) {
        let Some(segment) = self.step.segments.last() else { return };
        let Context { threads, vectors, hidden, .. } = self.context;
        let Buffers { x, h, kept, kept_rows, .. } = &mut *self.buffers;
        let numbers = segment.tokens.start * hidden..segment.tokens.end * hidden;
        x[numbers.clone()].copy_from_slice(&kept_rows[..numbers.len()]);
        *kept = None;
        let buffers = [&mut x[numbers.clone()], &mut h[numbers]].map(|numbers| Rows { numbers, width: hidden });
        each_row(threads, segment.tokens.len(), buffers, |_, [x, h]| {
            if let Some(norm) = &layer.attention_norm {
                h.copy_from_slice(x);
                norm.apply(vectors, h);
            }
        });
        self.clock.end(Operation::Residual);
    }

    /// Writes the tokens' vectors, their norm, and the angles of their positions.
    fn embed(&mut self) -> Result<(), BackendError> {
        let Context { model, checkpoint, threads, vectors, hidden, .. } = self.context;
        let Buffers { x, h, places, angles, .. } = &mut *self.buffers;
        places.clear();
        for segment in &self.step.segments {
            let blocks = &self.step.blocks[segment.blocks.clone()];
            let positions = segment.start..segment.start + segment.tokens.len();
            places.extend(positions.map(|position| Place { position, block: blocks[position / BLOCK] }));
        }
        let read = |name: &String| checkpoint.matrix(name).map_err(|error| refused(name, &error));
        let weights = &model.embedding;
        let positions = weights.positions.as_ref().map(read).transpose()?;
        let packed = match (&weights.tokens, &model.output) {
            (Tokens::Output, OutputWeights::Logits { weight, .. }) => Some(&weight.matrix),
            _ => None,
        };
        let tokens = match &weights.tokens {
            Tokens::Checkpoint(name) => Some(read(name)?),
            Tokens::Output => None,
        };
        let first = model.layers.first().map_or(model.norm.as_ref(), |layer| layer.attention_norm.as_ref());
        let rows = self.step.tokens.len();
        let buffers = [Rows { numbers: x, width: hidden }, Rows { numbers: h, width: hidden }];
        each_row(threads, rows, buffers, |row, [x, h]| {
            let token = self.step.tokens[row] as usize;
            match (&tokens, packed) {
                (Some(matrix), _) => matrix.row(token, x),
                (None, Some(matrix)) => matrix.row(token, x),
                (None, None) => x.fill(0.0),
            }
            if weights.scale != 1.0 {
                elementwise::scale(x, weights.scale);
            }
            if let Some(matrix) = &positions {
                matrix.row(places[row].position, h);
                elementwise::add(vectors, x, h);
            }
            if let Some(token_type) = &weights.token_type {
                elementwise::add(vectors, x, token_type);
            }
            if let Some(norm) = &weights.norm {
                norm.apply(vectors, x);
            }
            if let Some(norm) = first {
                h.copy_from_slice(x);
                norm.apply(vectors, h);
            }
        });
        for (rope, numbers) in model.ropes.iter().zip(angles) {
            let width = 2 * rope.frequencies.len();
            each_row(threads, rows, [Rows { numbers, width }], |row, [row_angles]| {
                elementwise::angles(rope, places[row].position, row_angles);
            });
        }
        self.clock.end(Operation::Embedding);
        Ok(())
    }

    /// Moves the rows whose logits are wanted to the front. Returns their number.
    fn select(&mut self, weights: &AttentionWeights) -> usize {
        let Buffers { x, query, .. } = &mut *self.buffers;
        let (hidden, width) = (self.context.hidden, weights.query.matrix.outputs());
        let mut rows = 0;
        for segment in &self.step.segments {
            for row in segment.tokens.end - segment.logits..segment.tokens.end {
                x.copy_within(row * hidden..(row + 1) * hidden, rows * hidden);
                query.copy_within(row * width..(row + 1) * width, rows * width);
                rows += 1;
            }
        }
        rows
    }

    fn attention_output(&mut self, layer: &LayerWeights, rows: usize) {
        let weights = &layer.attention.output;
        let Buffers { query, delta, input, .. } = &mut *self.buffers;
        let values = &query[..rows * weights.matrix.inputs()];
        project(self.context.threads, input, values, rows, [(&weights.matrix, &mut **delta)]);
        self.clock.end(Operation::AttentionOutput);
        let norms = Norms {
            output: layer.attention_output_norm.as_ref(),
            sum: layer.attention_sum_norm.as_ref(),
            next: layer.feed_forward_norm.as_ref(),
        };
        self.residual(rows, weights.bias.as_deref(), norms);
    }

    /// Adds `delta` to the residual stream, and writes the norm of the sum.
    fn residual(&mut self, rows: usize, bias: Option<&[f32]>, norms: Norms<'_>) {
        let Context { threads, vectors, hidden, .. } = self.context;
        let Buffers { x, h, delta, .. } = &mut *self.buffers;
        let buffers = [x, h, delta].map(|buffer| Rows { numbers: buffer, width: hidden });
        each_row(threads, rows, buffers, |_, [x, h, delta]| {
            if let Some(bias) = bias {
                elementwise::add(vectors, delta, bias);
            }
            if let Some(norm) = norms.output {
                norm.apply(vectors, delta);
            }
            elementwise::add(vectors, x, delta);
            if let Some(norm) = norms.sum {
                norm.apply(vectors, x);
            }
            if let Some(norm) = norms.next {
                h.copy_from_slice(x);
                norm.apply(vectors, h);
            }
        });
        self.clock.end(Operation::Residual);
    }
}

/// Norms around a residual sum.
#[derive(Clone, Copy)]
struct Norms<'a> {
    /// Norm of what is added.
    output: Option<&'a NormWeights>,
    /// Norm of the sum, which stays in the residual stream.
    sum: Option<&'a NormWeights>,
    /// Norm of the sum for the next operation.
    next: Option<&'a NormWeights>,
}

/// Computes the products of some rows with matrices of one width.
fn project<const N: usize>(
    threads: &Threads,
    input: &mut Input,
    values: &[f32],
    rows: usize,
    products: [(&PackedMatrix, &mut [f32]); N],
) {
    let Some(kind) = products.first().map(|(matrix, _)| matrix.input_kind()) else { return };
    let width = products[0].0.inputs();
    if products.iter().all(|(matrix, _)| matrix.input_kind() == kind) {
        input.prepare(kind, values, rows, width, threads);
        multiply(threads, input, &mut products.map(|(matrix, out)| Product::new(matrix, out, matrix.outputs())));
        return;
    }
    for (matrix, out) in products {
        input.prepare(matrix.input_kind(), values, rows, width, threads);
        multiply(threads, input, &mut [Product::new(matrix, out, matrix.outputs())]);
    }
}
