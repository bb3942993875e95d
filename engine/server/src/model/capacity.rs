//! Bounds of steps and cache from the memory that there is. Pure.

use crate::engine::{Draft, draft_capacity};
use omni_batcher::Limits;
use omni_kernels::{BLOCK, Backend};
use std::time::Duration;

/// Share of the memory that is left to all else: buffers of connections, texts, the allocator.
const SPARE: u64 = 16;
/// Part of the spare memory that requests which wait may take.
const QUEUED: u64 = 4;
/// Fewest and most bytes of requests that wait.
const LEAST_QUEUED: usize = 1 << 20;
const MOST_QUEUED: usize = 256 << 20;
/// Fewest positions of the cache with which a model is of use.
const LEAST: usize = 256;

/// Bounds of an engine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Plan {
    /// Bounds of the batcher.
    pub limits: Limits,
    /// Bytes that the backends take for them.
    pub bytes: u64,
    /// Bytes that requests which wait may take: a part of what is left to all else.
    pub queued_bytes: usize,
}

impl Plan {
    /// Most tokens of a sequence: prompt and answer.
    #[must_use]
    pub fn longest(&self) -> usize {
        self.limits.context.min(self.limits.blocks as usize * BLOCK)
    }

    /// A line for the log.
    #[must_use]
    pub fn describe(&self, backend: &impl Backend, draft: Option<&Draft>, architecture: &str) -> String {
        let facts = backend.facts();
        let draft = draft
            .map_or_else(String::new, |draft| format!(" and of {} MiB of a draft model", draft.weight_bytes() >> 20));
        format!(
            "{architecture} on {}: weights of {} MiB{draft}, {} MiB for steps and a cache of {} positions, at most {} of a \
             sequence, {} sequences at a time",
            facts.name,
            facts.weight_bytes >> 20,
            self.bytes >> 20,
            self.limits.blocks as usize * BLOCK,
            self.longest(),
            self.limits.sequences,
        )
    }
}

/// Memory that does not suffice.
#[derive(Debug, thiserror::Error)]
#[error(
    "{available} MiB are left beside weights of {weights} MiB, and {needed} MiB are needed for {least} positions: give \
     the model {missing} MiB more"
)]
pub struct CapacityError {
    available: u64,
    weights: u64,
    needed: u64,
    least: usize,
    missing: u64,
}

/// Finds the bounds: the steps' own memory first, then as many blocks of the cache as fit, at most those that all
/// sequences need; a draft model has as many blocks of its own. `available`: bytes beside the weights, which are loaded.
///
/// # Errors
/// Even the smallest cache does not fit.
pub fn plan(
    backend: &impl Backend,
    draft: Option<&Draft>,
    context: usize,
    sequences: usize,
    available: u64,
) -> Result<Plan, CapacityError> {
    let most = context.div_ceil(BLOCK).saturating_mul(sequences);
    let least = context.min(LEAST).div_ceil(BLOCK);
    let bounds = bounds(context, sequences, backend.facts().layers);
    let bytes = |blocks: u32| {
        let limits = Limits { blocks, ..bounds };
        let of_draft = draft.map_or(0, |draft| draft.backend.bytes(draft_capacity(&limits)));
        backend.bytes(limits.capacity()).saturating_add(of_draft)
    };
    let spare = available / SPARE;
    let usable = available - spare;
    let fits = |blocks: usize| u32::try_from(blocks).is_ok_and(|blocks| bytes(blocks) <= usable);
    if !fits(least) {
        let needed = bytes(u32::try_from(least).unwrap_or(u32::MAX));
        let needed = needed.saturating_add(needed / (SPARE - 1));
        let mib = |bytes: u64| bytes.div_ceil(1 << 20);
        let of_draft = draft.map_or(0, Draft::weight_bytes);
        return Err(CapacityError {
            available: available >> 20,
            weights: mib(backend.facts().weight_bytes + of_draft),
            needed: mib(needed),
            least: least * BLOCK,
            missing: mib(needed.saturating_sub(available)),
        });
    }
    // Invariant: `low` blocks fit, `high` do not or are more than are of use.
    let (mut low, mut high) = (least, most.max(least) + 1);
    while low + 1 < high {
        let middle = low + (high - low) / 2;
        if fits(middle) { low = middle } else { high = middle }
    }
    let blocks = u32::try_from(low).unwrap_or(u32::MAX);
    let limits = Limits { blocks, ..bounds };
    let queued = usize::try_from(spare / QUEUED).unwrap_or(MOST_QUEUED).clamp(LEAST_QUEUED, MOST_QUEUED);
    Ok(Plan { limits, bytes: bytes(blocks), queued_bytes: queued })
}

/// Bounds without the cache.
fn bounds(context: usize, sequences: usize, layers: usize) -> Limits {
    Limits {
        blocks: 0,
        // Texts of 512 tokens, which most models of embeddings take, fit into a step.
        tokens: (512 + sequences).max(4 * sequences),
        sequences,
        logits: 64.max(4 * sequences),
        context,
        queue: 1024,
        ageing: Duration::from_secs(10),
        layers,
    }
}
