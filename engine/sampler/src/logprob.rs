//! Log probabilities of the model's own distribution: before temperature, penalties, biases, grammars and filters, as
//! OpenAI and vLLM report them. A token that a request's parameters exclude may thus be among the alternatives.

use crate::row;
use crate::selection::{largest, token_of};
use crate::workspace::{Alternative, Workspace};

/// Log probability that stands for all smaller ones, as in OpenAI's API: JSON has no -∞.
pub const LEAST_LOGPROB: f32 = -9999.0;

/// Logarithm of the sum of a row's exponentials.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Normaliser(f64);

impl Normaliser {
    /// Log probability of a logit.
    pub(crate) fn logprob(self, logit: f32) -> f32 {
        let logprob = (f64::from(logit) - self.0) as f32;
        // Rows of -∞ alone have no distribution, and their differences are NaN.
        if logprob > LEAST_LOGPROB { logprob.min(0.0) } else { LEAST_LOGPROB }
    }
}

/// Leaves the `count` most probable tokens of a clean row in the workspace and returns its normaliser.
#[inline(always)]
pub(crate) fn normalise(row: &[f32], count: usize, workspace: &mut Workspace) -> Normaliser {
    let maximum = row::maxima(row, &mut workspace.maxima);
    let normaliser = if maximum == f32::NEG_INFINITY {
        Normaliser(f64::NEG_INFINITY)
    } else {
        Normaliser(f64::from(maximum) + row::exponential_sum(row, maximum).ln())
    };
    workspace.alternatives.clear();
    if count > 0 {
        largest(row, count, f32::NEG_INFINITY, workspace);
        workspace.keys.sort_unstable_by(|a, b| b.cmp(a));
        let keys = workspace.keys.iter().map(|&key| token_of(key));
        let alternative = |token| Alternative { token, logprob: normaliser.logprob(row[token as usize]) };
        workspace.alternatives.extend(keys.map(alternative));
    }
    normaliser
}
