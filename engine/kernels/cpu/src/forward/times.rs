//! Time of the parts of a step.

use std::time::{Duration, Instant};

/// Part of a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Operation {
    /// Vectors of the tokens, and angles of their positions.
    Embedding,
    /// Products for queries, keys and values.
    Projection,
    /// Norms and rotation of queries and keys, and their way into the cache.
    Rotation,
    /// Attention.
    Attention,
    /// Product after the attention.
    AttentionOutput,
    /// Residual sums and norms.
    Residual,
    /// Choice of experts.
    Router,
    /// Products with gate and up.
    FeedForwardInput,
    /// Activation.
    Activation,
    /// Product with down.
    FeedForwardOutput,
    /// Logits or embeddings.
    Output,
}

impl Operation {
    /// All parts.
    pub const ALL: [Self; 11] = [
        Self::Embedding,
        Self::Projection,
        Self::Rotation,
        Self::Attention,
        Self::AttentionOutput,
        Self::Residual,
        Self::Router,
        Self::FeedForwardInput,
        Self::Activation,
        Self::FeedForwardOutput,
        Self::Output,
    ];
}

/// Time of each part, summed over all steps.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Times([Duration; Operation::ALL.len()]);

impl Times {
    /// Time of a part.
    #[must_use]
    pub fn of(&self, operation: Operation) -> Duration {
        self.0[operation as usize]
    }

    /// Time since an earlier reading.
    #[must_use]
    pub fn since(&self, earlier: &Self) -> Self {
        Self(std::array::from_fn(|at| self.0[at].saturating_sub(earlier.0[at])))
    }
}

/// Clock that gives the time since its last reading to a part.
pub(super) struct Clock<'a> {
    times: &'a mut Times,
    last: Instant,
}

impl<'a> Clock<'a> {
    pub(super) fn start(times: &'a mut Times) -> Self {
        Self { times, last: Instant::now() }
    }

    pub(super) fn end(&mut self, operation: Operation) {
        let now = Instant::now();
        self.times.0[operation as usize] += now - self.last;
        self.last = now;
    }
}
