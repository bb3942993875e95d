//! Prints where the time of steps goes, for a prompt of 512 tokens and for one token of 1, 8 and 16 sequences.
//!
//! `cargo run --release -p omni-kernels-cpu --example operations -- MODEL [as-stored|f32|int8|int4] [LEVEL] [POSITIONS]`

use omni_architectures::{Source, describe};
use omni_checkpoint::Checkpoint;
use omni_kernels::{BLOCK, Backend, BlockId, Capacity, Segment, StepPlan};
use omni_kernels_cpu::{CacheFormat, CpuBackend, Level, Operation, Options, Times, Weights};
use std::error::Error;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Steps of a measurement, of which the fastest counts.
const REPEATS: usize = 7;
/// Tokens of the prompt.
const PROMPT: usize = 512;
/// Most sequences of a step.
const SEQUENCES: usize = 16;

/// Step of `sequences` sequences with `tokens` tokens each from position `start` on.
fn plan(sequences: usize, start: usize, tokens: usize) -> StepPlan {
    let mut plan = StepPlan::default();
    let blocks = (start + tokens).div_ceil(BLOCK);
    for sequence in 0..sequences {
        let (first, block) = (plan.tokens.len(), plan.blocks.len());
        plan.tokens.extend((0..tokens).map(|at| 100 + ((start + at) * 31 + sequence * 7) as u32 % 1000));
        plan.blocks.extend((0..blocks).map(|at| BlockId((sequence * blocks + at) as u32)));
        let (tokens, blocks) = (first..plan.tokens.len(), block..plan.blocks.len());
        plan.segments.push(Segment { tokens, start, blocks, logits: 1 });
    }
    plan
}

/// Writes all blocks, each as a sequence of its own: memory that was never written would be one page of zeros, which is
/// always in the processor's cache.
fn fill(backend: &mut CpuBackend, blocks: u32) -> Result<(), Box<dyn Error>> {
    let numbers: Vec<BlockId> = (0..blocks).map(BlockId).collect();
    for blocks in numbers.chunks(SEQUENCES) {
        let mut plan = plan(blocks.len(), 0, BLOCK);
        plan.blocks.copy_from_slice(blocks);
        backend.step(&plan)?;
    }
    Ok(())
}

/// Fastest step, with the time of its parts.
fn measure(backend: &mut CpuBackend, plan: &StepPlan) -> Result<(Duration, Times), Box<dyn Error>> {
    let mut best = (Duration::MAX, Times::default());
    for _ in 0..REPEATS {
        let before = *backend.times();
        let start = Instant::now();
        backend.step(plan)?;
        let time = start.elapsed();
        if time < best.0 {
            best = (time, backend.times().since(&before));
        }
    }
    Ok(best)
}

fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    let path = arguments.next().ok_or("the model's path is missing")?;
    let weights = match arguments.next().as_deref() {
        None | Some("as-stored") => Weights::AsStored,
        Some("f32") => Weights::F32,
        Some("int8") => Weights::Int8,
        Some("int4") => Weights::Int4,
        Some(other) => return Err(format!("no form of weights: {other}").into()),
    };
    let level = match arguments.next() {
        None => Level::detect(),
        Some(name) => {
            Level::all_supported().into_iter().find(|level| level.to_string() == name).ok_or("no such level")?
        }
    };
    let positions = arguments.next().map_or(Ok(128), |text| text.parse::<usize>())?;
    let checkpoint = Arc::new(Checkpoint::open(path.as_ref())?);
    let spec = describe(&Source::of(&checkpoint)?)?;
    let threads = std::thread::available_parallelism()?.get();
    let start = Instant::now();
    let options = Options { weights, level, threads, cache: CacheFormat::Bf16 };
    let mut backend = CpuBackend::load(&spec, checkpoint, options, &mut |_, _| ())?;
    println!(
        "{} on {threads} threads, {} bytes of weights, loaded in {:?}",
        level,
        backend.facts().weight_bytes,
        start.elapsed()
    );
    let blocks = (SEQUENCES * (positions + 1).div_ceil(BLOCK)).max(PROMPT / BLOCK) as u32;
    backend.reserve(Capacity { blocks, tokens: PROMPT, segments: SEQUENCES, logits: SEQUENCES })?;
    fill(&mut backend, blocks)?;
    let steps = [
        ("prompt 512", plan(1, 0, PROMPT)),
        ("batch 1", plan(1, positions, 1)),
        ("batch 8", plan(8, positions, 1)),
        ("batch 16", plan(SEQUENCES, positions, 1)),
    ];
    let mut results = Vec::new();
    for (name, plan) in &steps {
        results.push((name, plan.tokens.len(), measure(&mut backend, plan)?));
    }
    print!("{:<20}", "microseconds");
    results.iter().for_each(|(name, ..)| print!("{name:>18}"));
    for operation in Operation::ALL {
        print!("\n{:<20}", format!("{operation:?}"));
        for (.., (time, times)) in &results {
            let part = times.of(operation);
            print!("{:>11.0} {:>5.1}%", part.as_secs_f64() * 1e6, 100.0 * part.as_secs_f64() / time.as_secs_f64());
        }
    }
    print!("\n{:<20}", "step");
    results.iter().for_each(|(.., (time, _))| print!("{:>11.0}       ", time.as_secs_f64() * 1e6));
    print!("\n{:<20}", "tokens per second");
    results.iter().for_each(|(_, tokens, (time, _))| print!("{:>11.0}       ", *tokens as f64 / time.as_secs_f64()));
    println!();
    Ok(())
}
