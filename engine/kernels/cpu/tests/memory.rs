//! Memory: a step allocates nothing, on any thread; what a backend says of its memory is what it takes.
#![allow(clippy::unwrap_used, reason = "helpers of tests fail by panics")]
#![allow(unsafe_code, reason = "an allocator that counts is unsafe to implement")]

#[path = "forward/model.rs"]
#[allow(dead_code, reason = "weights as numbers are for other tests")]
mod model;

use model::Model;
use omni_kernels::{BLOCK, Backend, BlockCopy, BlockId, Capacity, Segment, StepPlan};
use omni_kernels_cpu::{CacheFormat, CpuBackend, Level, Options, Weights};
use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

struct Counting;

static ALLOCATIONS: AtomicUsize = AtomicUsize::new(0);
/// Held by the test that runs: both count for the whole process.
static ALONE: Mutex<()> = Mutex::new(());

// SAFETY: every call goes to the system's allocator as it is.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.fetch_add(1, Ordering::Relaxed);
        // SAFETY: by the caller.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: by the caller.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Adds tokens of a sequence with blocks of its own.
fn add(plan: &mut StepPlan, first_block: u32, start: usize, tokens: usize, logits: usize) {
    let (token, block) = (plan.tokens.len(), plan.blocks.len());
    plan.tokens.extend((0..tokens).map(|at| (at * 7 % model::VOCABULARY) as u32));
    plan.blocks.extend((0..(start + tokens).div_ceil(BLOCK) as u32).map(|at| BlockId(first_block + at)));
    let (tokens, blocks) = (token..plan.tokens.len(), block..plan.blocks.len());
    plan.segments.push(Segment { tokens, start, blocks, logits });
}

#[test]
fn a_step_allocates_nothing() {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let capacity = Capacity { blocks: 64, tokens: 200, segments: 8, logits: 8 };
    for (name, shape) in model::all() {
        let model = Model::new(name, &shape, 1);
        for cache in [CacheFormat::F32, CacheFormat::Bf16] {
            let options = Options { weights: Weights::AsStored, level: Level::detect(), threads: 3, cache };
            let checkpoint = Arc::clone(&model.checkpoint);
            let mut backend = CpuBackend::load(&model.spec, checkpoint, options, &mut |_, _| ()).unwrap();
            backend.reserve(capacity).unwrap();
            let mut plans = [StepPlan::default(), StepPlan::default(), StepPlan::default()];
            add(&mut plans[0], 0, 0, 200, 1);
            for sequence in 0..8 {
                add(&mut plans[1], sequence * 8, if shape.all { 0 } else { 100 }, 1, 1);
            }
            add(&mut plans[2], 0, if shape.all { 0 } else { 600 }, 4, 4);
            plans[2].copies.push(BlockCopy { from: BlockId(50), to: BlockId(51) });
            for (at, plan) in plans.iter().enumerate() {
                let before = ALLOCATIONS.load(Ordering::Relaxed);
                backend.step(plan).unwrap();
                backend.row(0);
                assert_eq!(ALLOCATIONS.load(Ordering::Relaxed) - before, 0, "{name}, {cache:?}, plan {at}");
            }
        }
    }
}

/// Bytes of the process's address space.
fn address_space() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmSize:")).unwrap();
    line.trim().trim_end_matches(" kB").parse::<u64>().unwrap() * 1024
}

#[test]
fn bytes_of_a_capacity_are_those_that_it_takes() {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    // SAFETY: a setting of the allocator. Large allocations are mappings of their own, which go back when they are freed.
    unsafe { libc::mallopt(libc::M_MMAP_THRESHOLD, 64 << 10) };
    for (name, shape) in model::all() {
        let model = Model::new(name, &shape, 2);
        let options =
            Options { weights: Weights::AsStored, level: Level::detect(), threads: 2, cache: CacheFormat::Bf16 };
        let mut backend =
            CpuBackend::load(&model.spec, Arc::clone(&model.checkpoint), options, &mut |_, _| ()).unwrap();
        for capacity in [
            Capacity { blocks: 100_000, tokens: 4096, segments: 256, logits: 256 },
            Capacity { blocks: 100, tokens: 200_000, segments: 16, logits: 200_000 },
        ] {
            let before = address_space();
            backend.reserve(capacity).unwrap();
            let taken = address_space() - before;
            let said = backend.bytes(capacity);
            assert!(said.abs_diff(taken) * 100 < said, "{name}: {said} bytes said, {taken} taken");
            assert_eq!(backend.sleep().unwrap(), backend.facts().weight_bytes + said);
            assert!(address_space() <= before, "{name}");
            backend.wake().unwrap();
            backend.reserve(Capacity { blocks: 0, tokens: 0, segments: 0, logits: 0 }).unwrap();
        }
    }
}
