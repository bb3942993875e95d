//! Checks of a step's plan: everything that later code relies on.

use super::{Buffers, Kept};
use omni_kernels::model::ModelSpec;
use omni_kernels::{BLOCK, BlockId, Capacity, Segment, StepPlan};

/// Bounds of a plan.
#[derive(Clone, Copy)]
pub(crate) struct Bounds<'a> {
    pub(crate) capacity: Capacity,
    pub(crate) spec: &'a ModelSpec,
    /// Layers, if a part of them can be computed.
    pub(crate) layers: usize,
    /// Only whole sequences can be computed.
    pub(crate) needs_whole: bool,
}

/// Checks a plan. Afterwards all ranges are within their vectors, and no position of the cache is written twice, or written
/// in one segment and read in another.
pub(crate) fn check(plan: &StepPlan, bounds: Bounds<'_>, buffers: &mut Buffers) -> Result<(), String> {
    let Bounds { capacity, spec, needs_whole, .. } = bounds;
    let at_most = |what: &str, count: usize, most: usize| {
        if count > most { Err(format!("{count} {what}, and there is room for {most}")) } else { Ok(()) }
    };
    at_most("tokens", plan.tokens.len(), capacity.tokens)?;
    at_most("segments", plan.segments.len(), capacity.segments)?;
    let mut logits = 0;
    let mut next = 0;
    for (number, segment) in plan.segments.iter().enumerate() {
        check_segment(plan, segment, next, spec, needs_whole).map_err(|reason| format!("segment {number} {reason}"))?;
        next = segment.tokens.end;
        logits += segment.logits;
    }
    if next != plan.tokens.len() {
        return Err(format!("{} tokens, of which segments cover {next}", plan.tokens.len()));
    }
    at_most("rows of logits", logits, capacity.logits)?;
    if let Some(token) = plan.tokens.iter().find(|token| **token as usize >= spec.vocabulary) {
        return Err(format!("token {token}, and the vocabulary has {}", spec.vocabulary));
    }
    let copied = plan.copies.iter().flat_map(|copy| [copy.from, copy.to]);
    if let Some(block) = plan.blocks.iter().copied().chain(copied).find(|block| block.0 >= capacity.blocks) {
        return Err(format!("block {}, and there are {}", block.0, capacity.blocks));
    }
    check_part(plan, bounds.layers, buffers.kept.as_ref())?;
    check_written(plan, &mut buffers.written)
}

/// Checks that a part begins a segment, or continues the one that is kept.
fn check_part(plan: &StepPlan, layers: usize, kept: Option<&Kept>) -> Result<(), String> {
    let Some(part) = &plan.part else { return Ok(()) };
    let Some(segment) = plan.segments.last() else { return Err("a part of no segment".to_owned()) };
    let is_last = part.end == layers;
    if part.start >= part.end || part.end > layers || part.len() == layers || segment.tokens.len() > BLOCK {
        return Err(format!("{} tokens through layers {part:?} of {layers}", segment.tokens.len()));
    }
    if !is_last && segment.logits > 0 {
        return Err(format!("logits after layers {part:?} of {layers}"));
    }
    let expected = Kept::of(plan, segment, part.start);
    if part.start > 0 && kept != Some(&expected) {
        return Err(format!("layers {part:?} of {expected:?}, and {kept:?} is kept"));
    }
    Ok(())
}

fn check_segment(
    plan: &StepPlan,
    segment: &Segment,
    next: usize,
    spec: &ModelSpec,
    needs_whole: bool,
) -> Result<(), String> {
    let (tokens, blocks) = (&segment.tokens, &segment.blocks);
    if tokens.start != next || tokens.end <= tokens.start || tokens.end > plan.tokens.len() {
        return Err(format!("has tokens {tokens:?}, and its first should be {next}"));
    }
    if segment.logits > tokens.len() {
        return Err(format!("wants {} rows of logits of {} tokens", segment.logits, tokens.len()));
    }
    let end = segment.start.saturating_add(tokens.len());
    if end > spec.context {
        return Err(format!("ends at position {end}, and the context has {}", spec.context));
    }
    if blocks.start > blocks.end || blocks.end > plan.blocks.len() || blocks.len() < end.div_ceil(BLOCK) {
        return Err(format!("has blocks {blocks:?} for {end} positions"));
    }
    if needs_whole && segment.start != 0 {
        return Err(format!("begins at position {}, and the model needs whole sequences", segment.start));
    }
    Ok(())
}

/// Checks that a block which a segment writes is nowhere else.
fn check_written(plan: &StepPlan, written: &mut [bool]) -> Result<(), String> {
    let of = |segment: &Segment| -> (&[BlockId], &[BlockId]) {
        let blocks = &plan.blocks[segment.blocks.clone()];
        let end = (segment.start + segment.tokens.len()).div_ceil(BLOCK);
        let (read, written) = blocks[..end].split_at(segment.start / BLOCK);
        (read, written)
    };
    let mut result = Ok(());
    for block in plan.segments.iter().flat_map(|segment| of(segment).1) {
        if std::mem::replace(&mut written[block.0 as usize], true) {
            result = Err(format!("block {} is written twice", block.0));
        }
    }
    if let Some(block) = plan.segments.iter().flat_map(|segment| of(segment).0).find(|block| written[block.0 as usize])
    {
        result = Err(format!("block {} is written by one segment and read by another", block.0));
    }
    for block in plan.segments.iter().flat_map(|segment| of(segment).1) {
        written[block.0 as usize] = false;
    }
    result
}
