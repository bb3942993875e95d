//! Feed-forward network of a layer: one for all tokens, or experts of which a router chooses some for each.

use super::rows::{Rows, each_row};
use super::times::Clock;
use super::{Buffers, Context, Forward, Operation, project};
use crate::elementwise;
use crate::load::{DenseWeights, FeedForwardWeights, LayerWeights, LinearWeights};
use crate::matrix::Input;

impl Forward<'_> {
    /// Writes the network's output to `delta`.
    pub(super) fn network(&mut self, layer: &LayerWeights, rows: usize) {
        let has_norm = layer.feed_forward_norm.is_some();
        match &layer.feed_forward {
            FeedForwardWeights::Dense(dense) => {
                let Buffers { x, h, gate, up, delta, input, .. } = &mut *self.buffers;
                let values = if has_norm { &**h } else { &**x };
                let mut work = Work { context: self.context, input, gate, up, clock: &mut self.clock };
                work.compute(dense, &values[..rows * self.context.hidden], rows, delta);
            }
            FeedForwardWeights::Mixture { router, experts, chosen, normalised } => {
                self.choose(router, (*chosen, *normalised), has_norm, rows);
                self.buffers.delta[..rows * self.context.hidden].fill(0.0);
                for (number, expert) in experts.iter().enumerate() {
                    self.expert(expert, number, *chosen, has_norm, rows);
                }
            }
        }
    }

    /// Chooses the experts of each row.
    fn choose(&mut self, router: &LinearWeights, (chosen, normalised): (usize, bool), has_norm: bool, rows: usize) {
        let Context { threads, vectors, hidden, .. } = self.context;
        let Buffers { x, h, input, mixture, .. } = &mut *self.buffers;
        let values = if has_norm { &**h } else { &**x };
        let experts = router.matrix.outputs();
        project(threads, input, &values[..rows * hidden], rows, [(&router.matrix, &mut *mixture.scores)]);
        let scores = mixture.scores.chunks_exact_mut(experts).zip(mixture.chosen.chunks_exact_mut(chosen.max(1)));
        for (scores, chosen) in scores.take(rows) {
            if let Some(bias) = &router.bias {
                elementwise::add(vectors, scores, bias);
            }
            choose(scores, chosen, normalised);
        }
        self.clock.end(Operation::Router);
    }

    /// Adds an expert's output to the rows that have chosen it. A row adds its experts in the order of their numbers.
    fn expert(&mut self, expert: &DenseWeights, number: usize, chosen: usize, has_norm: bool, rows: usize) {
        let Context { threads, vectors, hidden, .. } = self.context;
        let Buffers { x, h, gate, up, delta, input, mixture, .. } = &mut *self.buffers;
        let values = if has_norm { &**h } else { &**x };
        let mut count = 0;
        for (row, chosen) in mixture.chosen.chunks_exact(chosen.max(1)).take(rows).enumerate() {
            let factor = chosen.iter().find(|(expert, _)| *expert as usize == number).map(|(_, factor)| *factor);
            mixture.places[row] = factor.map(|factor| (count as u32, factor));
            if factor.is_some() {
                let values = &values[row * hidden..(row + 1) * hidden];
                mixture.gathered[count * hidden..(count + 1) * hidden].copy_from_slice(values);
                count += 1;
            }
        }
        if count == 0 {
            return;
        }
        let mut work = Work { context: self.context, input, gate, up, clock: &mut self.clock };
        work.compute(expert, &mixture.gathered[..count * hidden], count, &mut mixture.outputs);
        let (places, outputs) = (&mixture.places, &mixture.outputs);
        each_row(threads, rows, [Rows { numbers: delta, width: hidden }], |row, [delta]| {
            if let Some((place, factor)) = places[row] {
                let output = &outputs[place as usize * hidden..][..hidden];
                elementwise::add_scaled(vectors, delta, factor, output);
            }
        });
        self.clock.end(Operation::Residual);
    }
}

/// Computation of a network.
struct Work<'a, 'b> {
    context: Context<'a>,
    input: &'a mut Input,
    gate: &'a mut [f32],
    up: &'a mut [f32],
    clock: &'a mut Clock<'b>,
}

impl Work<'_, '_> {
    /// Computes `down(activation(gate x) * up x)`, or `down(activation(up x))` where there is no gate.
    fn compute(&mut self, weights: &DenseWeights, values: &[f32], rows: usize, out: &mut [f32]) {
        let Context { threads, vectors, hidden, .. } = self.context;
        let width = weights.up.matrix.outputs();
        if let Some(gate) = &weights.gate {
            let products = [(&gate.matrix, &mut *self.gate), (&weights.up.matrix, &mut *self.up)];
            project(threads, self.input, values, rows, products);
            self.clock.end(Operation::FeedForwardInput);
            let buffers = [&mut *self.gate, &mut *self.up].map(|numbers| Rows { numbers, width });
            each_row(threads, rows, buffers, |_, [gated, up]| {
                if let Some(bias) = &gate.bias {
                    elementwise::add(vectors, gated, bias);
                }
                if let Some(bias) = &weights.up.bias {
                    elementwise::add(vectors, up, bias);
                }
                elementwise::activate(vectors, weights.activation, gated, Some(up));
            });
        } else {
            project(threads, self.input, values, rows, [(&weights.up.matrix, &mut *self.gate)]);
            self.clock.end(Operation::FeedForwardInput);
            each_row(threads, rows, [Rows { numbers: self.gate, width }], |_, [up]| {
                if let Some(bias) = &weights.up.bias {
                    elementwise::add(vectors, up, bias);
                }
                elementwise::activate(vectors, weights.activation, up, None);
            });
        }
        self.clock.end(Operation::Activation);
        project(threads, self.input, &self.gate[..rows * width], rows, [(&weights.down.matrix, &mut *out)]);
        if let Some(bias) = &weights.down.bias {
            for row in out.chunks_exact_mut(hidden).take(rows) {
                elementwise::add(vectors, row, bias);
            }
        }
        self.clock.end(Operation::FeedForwardOutput);
    }
}

/// Chooses the experts of the greatest probabilities, of equal ones those with the smaller numbers. `scores` are lost.
fn choose(scores: &mut [f32], chosen: &mut [(u32, f32)], normalised: bool) {
    let greatest = scores.iter().fold(f32::NEG_INFINITY, |greatest, score| greatest.max(*score));
    let mut sum = 0.0;
    for score in &mut *scores {
        *score = (*score - greatest).exp();
        sum += *score;
    }
    let mut chosen_sum = 0.0;
    for chosen in &mut *chosen {
        let mut best = 0;
        for (expert, score) in scores.iter().enumerate() {
            if *score > scores[best] {
                best = expert;
            }
        }
        *chosen = (best as u32, scores[best] / sum);
        chosen_sum += chosen.1;
        scores[best] = f32::NEG_INFINITY;
    }
    if normalised {
        chosen.iter_mut().for_each(|chosen| chosen.1 /= chosen_sum);
    }
}

#[cfg(test)]
mod tests {
    use super::choose;

    #[test]
    fn the_greatest_are_chosen_and_the_first_of_equal_ones() {
        let mut chosen = [(0, 0.0); 3];
        choose(&mut [1.0, 3.0, 2.0, 3.0], &mut chosen, true);
        assert_eq!(chosen.map(|chosen| chosen.0), [1, 3, 2]);
        assert!((chosen.iter().map(|chosen| chosen.1).sum::<f32>() - 1.0).abs() < 1e-6);
        choose(&mut [1.0, 3.0, 2.0, 3.0], &mut chosen, false);
        let sum = 2.0 + (-1.0_f32).exp() + (-2.0_f32).exp();
        assert!((chosen[0].1 - 1.0 / sum).abs() < 1e-6);
    }

    #[test]
    fn scores_that_are_no_numbers_choose_some_expert() {
        let mut chosen = [(0, 0.0); 2];
        choose(&mut [f32::NAN; 3], &mut chosen, true);
        assert!(chosen.iter().all(|chosen| chosen.0 < 3 && chosen.1.is_nan()));
        choose(&mut [f32::NEG_INFINITY; 3], &mut chosen, true);
        assert!(chosen.iter().all(|chosen| chosen.0 < 3));
    }
}
