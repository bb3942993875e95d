//! Choice of one token of a row, without sorting it.
//!
//! Every filter keeps the tokens from a least one on, in the order of their logits and, where these are equal, of their
//! ids:
//!
//! ```text
//!  maxima of blocks ─▶ top_k: k-th largest logit ┐
//!                      min_p: bound of the logit ┴▶ weights of the kept ─▶ top_p: histogram ─▶ sums of blocks ─▶ token
//! ```
//!
//! Blocks without a kept token are passed over. The random number goes along the kept tokens in the order of their ids,
//! so that a small change of the logits seldom changes the token: drafts sampled by the same number are accepted more
//! often than in the order of logits.
//!
//! A key has a logit in its upper half, in a form whose integers have the order of the numbers, and the complement of
//! its id in the lower half: more probable tokens have larger keys.

use crate::parameters::Parameters;
use crate::row::{self, BLOCK, Least};
use crate::workspace::{BUCKET_SHIFT, BUCKETS, Workspace};

/// Logarithms of weights down to which `top_p` looks for its least token, one after the other.
const TOP_P_BOUNDS: [f32; 4] = [-4.0, -10.0, -25.0, f32::NEG_INFINITY];

/// Filters of the distribution.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Filters {
    /// Inverse of the temperature; `None`: greedy.
    scale: Option<f32>,
    top_k: usize,
    top_p: f64,
    /// Logarithm of `min_p`; -∞: no bound.
    min_p: f32,
}

impl Filters {
    pub(crate) fn new(parameters: &Parameters) -> Self {
        let scale = (!parameters.is_greedy()).then(|| 1.0 / parameters.temperature);
        let top_k = parameters.top_k.map_or(usize::MAX, |top_k| top_k as usize);
        Self { scale, top_k, top_p: parameters.top_p.into(), min_p: parameters.min_p.ln() }
    }
}

/// Token of a clean row by a number from 0 and below 1; `None` if all logits are -∞.
#[inline(always)]
pub(crate) fn choose(row: &[f32], filters: Filters, uniform: f64, workspace: &mut Workspace) -> Option<u32> {
    let maximum = row::maxima(row, &mut workspace.maxima);
    if maximum == f32::NEG_INFINITY {
        return None;
    }
    let Some(scale) = filters.scale else {
        return row::first_largest(row, &workspace.maxima, maximum).map(|id| id as u32);
    };
    let mut least = Least { logit: (maximum + filters.min_p / scale).max(f32::MIN), id: u32::MAX };
    if filters.top_k < row.len() {
        largest(row, filters.top_k, least.logit, workspace);
        least = workspace.keys.iter().min().map_or(least, |&key| least_of(key));
    }
    let Workspace { maxima, weights, sums, .. } = workspace;
    weights.resize(row.len(), 0.0);
    let mut mass = row::weights(row, maxima, maximum, scale, least, weights, sums);
    if filters.top_p < 1.0 {
        least = nucleus(row, |log_weight| maximum + log_weight / scale, filters.top_p * mass, workspace);
        let Workspace { maxima, weights, sums, .. } = workspace;
        mass = row::restrict(row, maxima, least, weights, sums);
    }
    token_at(uniform * mass, workspace)
}

/// Collects the `count` largest logits that are at least `bound` and above -∞, in no order. The maxima are the row's.
#[inline(always)]
pub(crate) fn largest(row: &[f32], count: usize, bound: f32, workspace: &mut Workspace) {
    let Workspace { maxima, order, keys, .. } = workspace;
    let mut bound = bound.max(f32::MIN);
    if count < maxima.len() {
        // As many blocks have a logit of at least the count-th largest maximum, so that smaller ones are not needed.
        order.clone_from(maxima);
        let (_, nth, _) = order.select_nth_unstable_by(count.saturating_sub(1), |a, b| b.total_cmp(a));
        bound = bound.max(*nth);
    }
    keys.clear();
    for (block, logits) in row.chunks(BLOCK).enumerate() {
        if maxima[block] >= bound {
            let ids = (block * BLOCK) as u32..;
            keys.extend(ids.zip(logits).filter(|(_, logit)| **logit >= bound).map(|(id, &logit)| key(id, logit)));
        }
    }
    if count < keys.len() {
        keys.select_nth_unstable_by(count.saturating_sub(1), |a, b| b.cmp(a));
        keys.truncate(count);
    }
}

/// Token of a key.
pub(crate) fn token_of(key: u64) -> u32 {
    !(key as u32)
}

fn key(id: u32, logit: f32) -> u64 {
    // The sum makes one zero of both.
    let bits = (logit + 0.0).to_bits();
    let ordered = if bits >> 31 == 0 { bits | 1 << 31 } else { !bits };
    u64::from(ordered) << 32 | u64::from(!id)
}

fn least_of(key: u64) -> Least {
    let ordered = (key >> 32) as u32;
    let bits = if ordered >> 31 == 1 { ordered & !(1 << 31) } else { !ordered };
    Least { logit: f32::from_bits(bits), id: token_of(key) }
}

/// Least of the fewest tokens whose weights reach `goal`, from the most probable one on. A histogram of the weights
/// finds the bucket that has it, and only that is sorted. `bound` is the logit of a weight, by its logarithm.
#[inline(always)]
fn nucleus(row: &[f32], bound: impl Fn(f32) -> f32, goal: f64, workspace: &mut Workspace) -> Least {
    let Workspace { maxima, weights, sums, keys, histogram, .. } = workspace;
    let bucket_of = |weight: f32| ((weight.to_bits() >> BUCKET_SHIFT) as usize).min(BUCKETS - 1);
    let (mut mass, mut last, mut lowest) = (0.0, 0, f32::MIN);
    for log_weight in TOP_P_BOUNDS {
        lowest = bound(log_weight);
        histogram.clear();
        histogram.resize(BUCKETS, 0.0);
        for (block, weights) in weights.chunks(BLOCK).enumerate() {
            if sums[block] > 0.0 && maxima[block] >= lowest {
                weights.iter().for_each(|&weight| histogram[bucket_of(weight)] += f64::from(weight));
            }
        }
        (mass, last) = (0.0, BUCKETS - 1);
        while last > 0 && mass + histogram[last] < goal {
            mass += histogram[last];
            last -= 1;
        }
        // The histogram has all tokens of the buckets above that of the bound.
        if last > bucket_of(row::exp(log_weight)) {
            break;
        }
    }
    keys.clear();
    for (block, (logits, weights)) in row.chunks(BLOCK).zip(weights.chunks(BLOCK)).enumerate() {
        if sums[block] > 0.0 && maxima[block] >= lowest {
            let tokens = ((block * BLOCK) as u32..).zip(logits.iter().zip(weights));
            let of_bucket = tokens.filter(|(_, (_, weight))| **weight > 0.0 && bucket_of(**weight) == last);
            keys.extend(of_bucket.map(|(id, (&logit, _))| key(id, logit)));
        }
    }
    keys.sort_unstable_by(|a, b| b.cmp(a));
    let reaches = keys.iter().find(|&&key| {
        mass += f64::from(weights[token_of(key) as usize]);
        mass >= goal
    });
    reaches.or(keys.last()).map_or(Least { logit: f32::MIN, id: u32::MAX }, |&key| least_of(key))
}

/// Token at which the sum of the weights passes `target`, else the last one with a weight.
#[inline(always)]
fn token_at(target: f64, workspace: &Workspace) -> Option<u32> {
    let (mut passed, mut found) = (0.0, None);
    for (block, sum) in workspace.sums.iter().enumerate().filter(|(_, sum)| **sum > 0.0) {
        let before = passed;
        passed += f64::from(*sum);
        found = Some((block, target - before));
        if passed > target {
            break;
        }
    }
    let (block, target) = found?;
    let (mut passed, mut token) = (0.0, None);
    let weights = workspace.weights[block * BLOCK..].iter().take(BLOCK).enumerate();
    for (index, weight) in weights.filter(|(_, weight)| **weight > 0.0) {
        passed += f64::from(*weight);
        token = Some((block * BLOCK + index) as u32);
        if passed > target {
            break;
        }
    }
    token
}

#[cfg(test)]
#[path = "selection_tests.rs"]
mod tests;
