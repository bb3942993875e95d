//! Attention of a layer: products, rotation, cache, softmax.
#![allow(unsafe_code, reason = "threads write different positions of the cache")]

use super::rows::{Rows, each_row_weighted};
use super::{Buffers, Context, Forward, Operation, Place, project};
use crate::attention::{Call, attend};
use crate::cache::{Element, Lent};
use crate::elementwise::{self, LOG2_E, NormWeights};
use crate::load::{AttentionWeights, LayerWeights, LinearWeights};
use crate::shared::Shared;
use crate::simd::Vectors;
use omni_kernels::BLOCK;

/// Work of a row that goes to the cache: keys are written to as many lines of memory as they have elements.
const CACHE_WEIGHT: usize = 5;

impl Forward<'_> {
    /// Computes queries, keys and values, and the attention in place of the queries.
    pub(super) fn attention<E: Element>(&mut self, layer: &LayerWeights, rows: usize, is_last: bool) {
        let Context { model, threads, vectors, hidden, layout, .. } = self.context;
        let weights = &layer.attention;
        let Buffers { x, h, query, key, value, input, places, angles, plan, scratch, slots, .. } = &mut *self.buffers;
        let values = if layer.attention_norm.is_some() { &**h } else { &**x };
        let products = [
            (&weights.query.matrix, &mut **query),
            (&weights.key.matrix, &mut **key),
            (&weights.value.matrix, &mut **value),
        ];
        project(threads, input, &values[..rows * hidden], rows, products);
        self.clock.end(Operation::Projection);

        let lent: Lent<'_, E> = self.cache.lend(layout);
        let angles = weights.rope.map(|rope| (&*angles[rope], 2 * model.ropes[rope].frequencies.len()));
        let (query_width, kv_width) = (weights.query.matrix.outputs(), weights.key.matrix.outputs());
        let buffers = [
            Rows { numbers: query, width: query_width },
            Rows { numbers: key, width: kv_width },
            Rows { numbers: value, width: kv_width },
        ];
        each_row_weighted(threads, (rows, CACHE_WEIGHT), buffers, |row, [query, key, value]| {
            let angles = angles.map(|(angles, width)| &angles[row * width..(row + 1) * width]);
            rotate(vectors, weights, &lent, places[row], (query, key, value), angles);
        });
        self.clock.end(Operation::Rotation);

        plan.fill(self.step, weights.heads, threads.count(), |segment| match is_last {
            _ if segment.tokens.end > rows => 0,
            true => segment.logits,
            false => segment.tokens.len(),
        });
        plan.restart();
        let call = Call {
            vectors,
            heads: weights.heads,
            mask: weights.mask,
            layer: weights.cache,
            cache: &lent,
            step: self.step,
            plan,
            queries: &Shared::new(query),
            scratch: &Shared::new(scratch),
            slots: &Shared::new(slots),
        };
        threads.run(|thread, _| attend(&call, thread));
        self.clock.end(Operation::Attention);
    }
}

/// Adds biases, normalises, rotates, and writes key and value to the cache.
fn rotate<E: Element>(
    vectors: Vectors,
    weights: &AttentionWeights,
    cache: &Lent<'_, E>,
    place: Place,
    (query, key, value): (&mut [f32], &mut [f32], &mut [f32]),
    angles: Option<&[f32]>,
) {
    let width = weights.heads.width;
    let heads = |linear: &LinearWeights, norm: Option<&NormWeights>, row: &mut [f32]| {
        if let Some(bias) = &linear.bias {
            elementwise::add(vectors, row, bias);
        }
        for head in row.chunks_exact_mut(width) {
            if let Some(norm) = norm {
                norm.apply(vectors, head);
            }
            if let Some(angles) = angles {
                elementwise::rotate(vectors, head, angles);
            }
        }
    };
    heads(&weights.query, weights.query_norm.as_ref(), query);
    elementwise::scale(query, weights.scale * LOG2_E);
    heads(&weights.key, weights.key_norm.as_ref(), key);
    if let Some(bias) = &weights.value.bias {
        elementwise::add(vectors, value, bias);
    }
    let position = place.position % BLOCK;
    for (head, (key, value)) in key.chunks_exact(width).zip(value.chunks_exact(width)).enumerate() {
        // SAFETY: `check` has made sure that no other row has the position, and nobody reads before all are written.
        unsafe { cache.write(weights.cache, head, (place.block, position), (key, value), vectors) };
    }
}
