//! Speed of a model on this machine: prompts, answers, and answers beside each other.

use omni_kernels::{BLOCK, Backend, BackendError, BlockId, Capacity, Segment, StepPlan};
use serde::Serialize;
use std::hint::black_box;
use std::ops::Range;
use std::time::{Duration, Instant};

/// Bytes that the bandwidth is measured with: more than the processors' caches.
const MEASURED: usize = 512 << 20;
/// Time of a measurement of decoding.
const SPAN: Duration = Duration::from_millis(1500);
/// Positions before an answer that a step computes.
const FILLED: usize = 512;

/// Lengths and batches to be measured.
#[derive(Debug, Clone)]
pub struct Measurements {
    /// Lengths of prompts.
    pub prompts: Vec<usize>,
    /// Numbers of sequences that are answered beside each other.
    pub batches: Vec<usize>,
    /// Positions of each sequence before the measured ones.
    pub depth: usize,
    /// Repetitions, whose median is reported.
    pub rounds: usize,
}

/// Result.
#[derive(Debug, Serialize)]
pub struct Report {
    /// Backend and instructions.
    pub backend: String,
    /// Bytes of the weights in memory.
    pub weight_bytes: u64,
    /// Bytes a second that one pass over memory reads, with as many threads.
    pub bandwidth: f64,
    /// Prompts.
    pub prefill: Vec<Prefill>,
    /// Answers.
    pub decode: Vec<Decode>,
}

/// Speed with a prompt.
#[derive(Debug, Serialize)]
pub struct Prefill {
    /// Length of the prompt.
    pub tokens: usize,
    /// Tokens a second: median of the rounds.
    pub tokens_per_second: f64,
}

/// Speed with answers.
#[derive(Debug, Serialize)]
pub struct Decode {
    /// Sequences.
    pub batch: usize,
    /// Tokens a second of all of them: median of the rounds.
    pub tokens_per_second: f64,
    /// Bytes of weights read each second, as a share of the bandwidth.
    pub of_bandwidth: f64,
}

/// Measures. The backend's memory is reserved anew.
///
/// # Errors
/// The backend has no memory for it, or fails.
pub fn run<B: Backend>(
    backend: &mut B,
    vocabulary: usize,
    threads: usize,
    measured: &Measurements,
) -> Result<Report, BackendError> {
    let longest = measured.prompts.iter().copied().max().unwrap_or(1);
    let widest = measured.batches.iter().copied().max().unwrap_or(1);
    let of_sequence = (measured.depth + 4096).div_ceil(BLOCK);
    let blocks = (widest * of_sequence).max(longest.div_ceil(BLOCK));
    let capacity = Capacity {
        blocks: u32::try_from(blocks).unwrap_or(u32::MAX),
        tokens: longest.max(widest).max(FILLED),
        segments: widest,
        logits: widest,
    };
    backend.reserve(capacity)?;
    let mut plan = StepPlan::default();
    let mut prefill = Vec::new();
    for &tokens in &measured.prompts {
        let rounds = (0..=measured.rounds).map(|_| {
            prompt(&mut plan, 0..tokens, 0, vocabulary);
            let begun = Instant::now();
            backend.step(&plan)?;
            Ok(tokens as f64 / begun.elapsed().as_secs_f64())
        });
        let speeds = rounds.skip(1).collect::<Result<Vec<_>, BackendError>>()?;
        prefill.push(Prefill { tokens, tokens_per_second: median(speeds) });
    }
    let bandwidth = bandwidth(threads);
    let mut decode = Vec::new();
    for &batch in &measured.batches {
        for sequence in 0..batch {
            before(backend, &mut plan, sequence * of_sequence, measured.depth, vocabulary)?;
        }
        let mut speeds = Vec::new();
        for _ in 0..measured.rounds.max(1) {
            speeds.push(answers(backend, &mut plan, batch, (measured.depth, of_sequence), vocabulary)?);
        }
        let tokens_per_second = median(speeds);
        let bytes = backend.facts().weight_bytes as f64 * tokens_per_second / batch as f64;
        decode.push(Decode { batch, tokens_per_second, of_bandwidth: bytes / bandwidth });
    }
    let facts = backend.facts();
    Ok(Report { backend: facts.name.clone(), weight_bytes: facts.weight_bytes, bandwidth, prefill, decode })
}

/// Plans some positions of a prompt, whose blocks begin with `first_block`, as one step.
fn prompt(plan: &mut StepPlan, positions: Range<usize>, first_block: usize, vocabulary: usize) {
    plan.clear();
    plan.tokens.extend(positions.clone().map(|at| token(at, vocabulary)));
    let blocks = first_block..first_block + positions.end.div_ceil(BLOCK);
    plan.blocks.extend(blocks.filter_map(|block| u32::try_from(block).ok()).map(BlockId));
    let (tokens, blocks) = (0..plan.tokens.len(), 0..plan.blocks.len());
    plan.segments.push(Segment { tokens, start: positions.start, blocks, logits: 1 });
}

/// Computes the positions before an answer. Memory that was never written would be one page of zeros, which is always in
/// the processor's cache.
fn before<B: Backend>(
    backend: &mut B,
    plan: &mut StepPlan,
    first_block: usize,
    depth: usize,
    vocabulary: usize,
) -> Result<(), BackendError> {
    for start in (0..depth).step_by(FILLED) {
        prompt(plan, start..depth.min(start + FILLED), first_block, vocabulary);
        backend.step(plan)?;
    }
    Ok(())
}

/// Tokens a second of sequences that are answered beside each other.
fn answers<B: Backend>(
    backend: &mut B,
    plan: &mut StepPlan,
    batch: usize,
    (depth, of_sequence): (usize, usize),
    vocabulary: usize,
) -> Result<f64, BackendError> {
    let (begun, mut steps) = (Instant::now(), 0);
    while begun.elapsed() < SPAN && depth + steps < of_sequence * BLOCK {
        let start = depth + steps;
        plan.clear();
        for sequence in 0..batch {
            let (first_token, first_block) = (plan.tokens.len(), plan.blocks.len());
            plan.tokens.push(token(start + sequence, vocabulary));
            let blocks = sequence * of_sequence..sequence * of_sequence + (start + 1).div_ceil(BLOCK);
            plan.blocks.extend(blocks.filter_map(|block| u32::try_from(block).ok()).map(BlockId));
            plan.segments.push(Segment {
                tokens: first_token..first_token + 1,
                start,
                blocks: first_block..plan.blocks.len(),
                logits: 1,
            });
        }
        backend.step(plan)?;
        steps += 1;
    }
    Ok((batch * steps) as f64 / begun.elapsed().as_secs_f64())
}

fn token(at: usize, vocabulary: usize) -> u32 {
    u32::try_from((at * 7919 + 13) % vocabulary.max(1)).unwrap_or(0)
}

/// Bytes a second that threads read from memory.
fn bandwidth(threads: usize) -> f64 {
    let words = vec![1_u64; MEASURED / 8];
    let pass = || {
        let begun = Instant::now();
        std::thread::scope(|scope| {
            for part in words.chunks(words.len().div_ceil(threads.max(1))) {
                scope.spawn(move || black_box(sum(part)));
            }
        });
        MEASURED as f64 / begun.elapsed().as_secs_f64()
    };
    (0..5).map(|_| pass()).fold(0.0, f64::max)
}

fn sum(words: &[u64]) -> u64 {
    let mut lanes = [0_u64; 32];
    for words in words.as_chunks::<32>().0 {
        for (lane, word) in lanes.iter_mut().zip(words) {
            *lane = lane.wrapping_add(*word);
        }
    }
    lanes.iter().fold(0, |sum, lane| sum.wrapping_add(*lane))
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(0.0)
}
