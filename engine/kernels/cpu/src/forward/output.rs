//! Logits of rows, or embeddings of segments.

use super::rows::{Rows, each_row};
use super::{Buffers, Context, Forward, Operation, project};
use crate::elementwise;
use crate::load::OutputWeights;
use crate::simd::Vectors;
use omni_kernels::model::Pooling;

impl Forward<'_> {
    /// Writes the output of the last layer's rows.
    pub(super) fn output(&mut self, rows: usize) {
        let Context { model, threads, vectors, hidden, .. } = self.context;
        let Buffers { x, h, output, input, .. } = &mut *self.buffers;
        let values = if model.norm.is_some() { &**h } else { &**x };
        match &model.output {
            OutputWeights::Logits { weight, cap } => {
                let width = weight.matrix.outputs();
                project(threads, input, &values[..rows * hidden], rows, [(&weight.matrix, &mut **output)]);
                if weight.bias.is_some() || cap.is_some() {
                    each_row(threads, rows, [Rows { numbers: output, width }], |_, [logits]| {
                        if let Some(bias) = &weight.bias {
                            elementwise::add(vectors, logits, bias);
                        }
                        if let Some(cap) = cap {
                            elementwise::cap(vectors, logits, *cap);
                        }
                    });
                }
            }
            OutputWeights::Embedding { pooling, normalised } => {
                let segments = &self.step.segments;
                let buffers = [Rows { numbers: output, width: hidden }];
                each_row(threads, segments.len(), buffers, |segment, [out]| {
                    let tokens = segments[segment].tokens.clone();
                    pool(vectors, *pooling, &values[tokens.start * hidden..tokens.end * hidden], out);
                    if *normalised {
                        normalise(out);
                    }
                });
            }
        }
        self.clock.end(Operation::Output);
    }
}

/// Writes one vector for those of all tokens.
fn pool(vectors: Vectors, pooling: Pooling, values: &[f32], out: &mut [f32]) {
    let width = out.len();
    match pooling {
        Pooling::First => out.copy_from_slice(&values[..width]),
        Pooling::Last => out.copy_from_slice(&values[values.len() - width..]),
        Pooling::Mean => {
            out.fill(0.0);
            for row in values.chunks_exact(width) {
                elementwise::add(vectors, out, row);
            }
            elementwise::scale(out, width as f32 / values.len() as f32);
        }
    }
}

/// Divides a vector by its length.
fn normalise(vector: &mut [f32]) {
    // The least divisor is that of other implementations.
    let length = vector.iter().map(|x| x * x).sum::<f32>().sqrt().max(1e-12);
    vector.iter_mut().for_each(|x| *x /= length);
}
