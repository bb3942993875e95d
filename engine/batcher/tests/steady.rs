//! Cost of a step with 256 sequences: no allocation, and little time.
#![allow(clippy::expect_used, clippy::panic, reason = "a test stops at the first surprise")]

use std::time::{Duration, Instant};

use omni_batcher::{Batcher, Limits, Outcome, Request, RequestId, Scheduled};
use omni_kernels::StepPlan;
use omni_kv_cache::Root;

/// Allocator that counts.
#[allow(unsafe_code, reason = "an allocator is an unsafe trait")]
mod counting {
    use std::alloc::{GlobalAlloc, Layout, System};
    use std::sync::atomic::{AtomicU64, Ordering};

    pub(super) struct Counting;

    /// Number of allocations.
    pub(super) static COUNT: AtomicU64 = AtomicU64::new(0);

    // SAFETY: all calls go to the system's allocator, with the caller's arguments.
    unsafe impl GlobalAlloc for Counting {
        unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
            COUNT.fetch_add(1, Ordering::Relaxed);
            // SAFETY: the caller keeps the contract of `alloc`.
            unsafe { System.alloc(layout) }
        }

        unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
            // SAFETY: the pointer is of `alloc`, which is the system's.
            unsafe { System.dealloc(pointer, layout) }
        }

        unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, size: usize) -> *mut u8 {
            COUNT.fetch_add(1, Ordering::Relaxed);
            // SAFETY: the pointer is of `alloc`, which is the system's.
            unsafe { System.realloc(pointer, layout, size) }
        }
    }
}

#[global_allocator]
static ALLOCATOR: counting::Counting = counting::Counting;

const SEQUENCES: usize = 256;

/// Batcher with sequences that decode, at most 256.
struct Bench {
    batcher: Batcher,
    plan: StepPlan,
    scheduled: Vec<Scheduled>,
    outcomes: Vec<Outcome>,
    now: Duration,
    drafts: usize,
    /// Time in the batcher of each step.
    times: Vec<Duration>,
}

impl Bench {
    /// Batcher with prompts of about so many tokens, of which `waiting` more do not fit, and drafts for each step.
    fn new(prompt: usize, drafts: usize, waiting: usize) -> Self {
        let limits = Limits {
            blocks: if waiting > 0 { (200 * (prompt / 16 + 2)) as u32 } else { 100_000 },
            tokens: 4096,
            sequences: SEQUENCES,
            logits: 4096,
            context: 8192,
            queue: 2000,
            ageing: Duration::from_secs(1),
            layers: 30,
        };
        let mut batcher = Batcher::new(limits).expect("limits");
        for id in 0..(SEQUENCES + waiting) as u64 {
            let request = Request {
                id: RequestId(id),
                prompt: (0..(prompt as u32 + id as u32 % 16)).map(|token| token + 7 * id as u32).collect(),
                max_tokens: 4096,
                choices: 1,
                logprobs_from: None,
                whole: false,
                priority: 0,
                deadline: None,
                root: Root::default().digest(),
            };
            batcher.add(request, Duration::ZERO).expect("room");
        }
        let (plan, scheduled, outcomes) = (StepPlan::default(), Vec::new(), Vec::with_capacity(SEQUENCES));
        let mut bench =
            Self { batcher, plan, scheduled, outcomes, now: Duration::ZERO, drafts, times: Vec::with_capacity(10_000) };
        while bench.scheduled.len() < 150 || bench.plan.tokens.len() != bench.scheduled.len() * (1 + drafts) {
            bench.step();
        }
        bench
    }

    fn step(&mut self) {
        let start = Instant::now();
        self.batcher.step(self.now, &mut self.plan, &mut self.scheduled);
        let planned = start.elapsed();
        self.outcomes.clear();
        for scheduled in &self.scheduled {
            for choice in scheduled.choices.clone() {
                let (request, accepted) = (scheduled.request, scheduled.drafts / 2);
                self.outcomes.push(Outcome { request, choice, accepted, next: Some(scheduled.position as u32) });
            }
        }
        self.now += Duration::from_millis(10);
        let start = Instant::now();
        self.batcher.complete(self.now, &self.outcomes);
        let drafts = [1, 2, 3, 4];
        for outcome in &self.outcomes {
            self.batcher.draft(outcome.request, outcome.choice, &drafts[..self.drafts]);
        }
        self.times.push(planned + start.elapsed());
    }
}

#[test]
fn steps_allocate_nothing() {
    for drafts in [0, 4] {
        let mut bench = Bench::new(200, drafts, 0);
        let before = counting::COUNT.load(std::sync::atomic::Ordering::Relaxed);
        for _ in 0..500 {
            bench.step();
            assert_eq!(bench.scheduled.len(), SEQUENCES);
        }
        let after = counting::COUNT.load(std::sync::atomic::Ordering::Relaxed);
        assert_eq!(after - before, 0, "with {drafts} drafts");
        bench.batcher.audit().expect("no block is lost");
    }
}

#[test]
#[ignore = "measures: run it alone, with --release"]
fn a_step_takes_at_most_20_microseconds() {
    for (prompt, drafts, waiting) in [(64, 0, 0), (512, 0, 0), (2048, 0, 0), (512, 4, 0), (1024, 0, 1000)] {
        let mut bench = Bench::new(prompt, drafts, waiting);
        bench.times.clear();
        (0..1000).for_each(|_| bench.step());
        bench.times.sort_unstable();
        let [median, last] = [50, 99].map(|percent| bench.times[bench.times.len() * percent / 100]);
        println!("prompts of {prompt} tokens, {drafts} drafts, {waiting} waiting: median {median:?}, p99 {last:?}");
        assert!(drafts > 0 || median <= Duration::from_micros(20), "{median:?}");
    }
}
