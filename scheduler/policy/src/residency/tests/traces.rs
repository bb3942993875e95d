//! 13 models that together are 400 % of the card, under 10,000 requests of random traces, in modelled time.
//!
//! Beside the policy, over the same requests from the same beginning:
//! - **LRU**: requests in the order of arrival, one at a time, each model moved as a whole, least recently used out
//!   first. The usual way; ours never moves more;
//! - **optimum**: requests in the order of arrival, one at a time, and whoever is not wanted for longest leaves (it
//!   knows the future), only as many bytes as needed. Every byte is a page and a request asks for all pages of its
//!   model, so this is Belady's rule itself, which no one that keeps this order can beat, with partial residency or
//!   without.
//!
//! Bytes are those of both directions. The policy may change the order: it serves what waits for a model while that is
//! on the card. This is why it can be below the optimum when requests queue up.

use super::world::{Faults, World};
use super::*;

const MODELS: usize = 13;
const REQUESTS: usize = 10_000;
const BUDGET: u64 = 24 * GIB;
/// PCIe 4 with 16 lanes, about.
const BANDWIDTH: f64 = 25e9;
/// Mean time of a request on the card.
const SERVICE: f64 = 0.1;

#[derive(Debug, Clone, Copy, PartialEq)]
enum Shape {
    Uniform,
    Zipf,
    Bursts,
}

struct Trace {
    sizes: Vec<u64>,
    /// When, whose, how long.
    requests: Vec<(Moment, usize, Duration)>,
}

impl Trace {
    /// `rate`: requests in a second.
    fn new(shape: Shape, rate: f64, seed: u64) -> Self {
        let mut rng = fastrand::Rng::with_seed(seed);
        let weights: Vec<f64> = (0..MODELS).map(|_| 0.2 + 0.8 * rng.f64()).collect();
        let sum: f64 = weights.iter().sum();
        // In pages of 2 MiB, the rest for the last one, so that the sum is 400 % to the byte.
        let page = |weight: &f64| ((weight / sum * (4 * BUDGET) as f64) as u64 >> 21) << 21;
        let mut sizes: Vec<u64> = weights.iter().map(page).collect();
        sizes[MODELS - 1] += 4 * BUDGET - sizes.iter().sum::<u64>();
        let exponential = |rng: &mut fastrand::Rng, mean: f64| Duration::from_secs_f64(-mean * (1.0 - rng.f64()).ln());
        let zipf: Vec<f64> = (1..=MODELS).map(|rank| 1.0 / rank as f64).collect();
        let (mut now, mut last) = (60 * SECOND, 0);
        let mut requests = Vec::with_capacity(REQUESTS);
        for _ in 0..REQUESTS {
            let in_burst = shape == Shape::Bursts && rng.f64() < 0.95;
            now += exponential(&mut rng, if in_burst { 0.2 / rate } else { 1.0 / rate });
            last = match shape {
                Shape::Uniform => rng.usize(..MODELS),
                Shape::Zipf => {
                    let mut left = rng.f64() * zipf.iter().sum::<f64>();
                    zipf.iter()
                        .position(|weight| {
                            left -= weight;
                            left < 0.0
                        })
                        .unwrap_or(MODELS - 1)
                }
                Shape::Bursts if in_burst => last,
                Shape::Bursts => {
                    now += exponential(&mut rng, 12.0 / rate);
                    rng.usize(..MODELS)
                }
            };
            requests.push((now, last, exponential(&mut rng, SERVICE)));
        }
        Self { sizes, requests }
    }
}

struct Result {
    ours: u64,
    lru: u64,
    optimum: u64,
    waits: Vec<Duration>,
    longest_want: Duration,
}

impl Result {
    fn wait(&self, per_mille: usize) -> Duration {
        self.waits[(self.waits.len() - 1) * per_mille / 1000]
    }
}

fn run(trace: &Trace) -> Result {
    let gib = [BUDGET / GIB];
    let mut world = World::new(settings(&gib), BANDWIDTH, Faults::default(), 0);
    for size in &trace.sizes {
        world.model(*size, *size, GpuMode::Unified);
    }
    // All of them start, one after the other, and then it counts.
    for model in 0..MODELS {
        world.request(Moment::ZERO, model, MS);
    }
    world.run();
    assert!(world.now < 60 * SECOND, "the starts took {:?}", world.now);
    let beginning = world.resident();
    (world.moved, world.longest_want) = (0, Duration::ZERO);
    world.waits.clear();
    for (at, model, service) in &trace.requests {
        world.request(*at, *model, *service);
    }
    world.run();
    assert_eq!((world.waits.len(), world.lost), (REQUESTS, 0), "every request was served");
    let mut waits = std::mem::take(&mut world.waits);
    waits.sort_unstable();
    Result {
        ours: world.moved,
        lru: lru(trace, beginning.clone()),
        optimum: optimum(trace, beginning),
        waits,
        longest_want: world.longest_want,
    }
}

fn lru(trace: &Trace, mut resident: Vec<u64>) -> u64 {
    let mut command: Vec<usize> = (0..MODELS).collect();
    let mut moved = 0;
    for (_, model, _) in &trace.requests {
        command.retain(|other| other != model);
        let mut out = command.iter();
        while resident.iter().sum::<u64>() - resident[*model] + trace.sizes[*model] > BUDGET {
            moved += std::mem::take(&mut resident[*out.next().expect("it fits alone")]);
        }
        moved += trace.sizes[*model] - resident[*model];
        resident[*model] = trace.sizes[*model];
        command.push(*model);
    }
    moved
}

fn optimum(trace: &Trace, mut resident: Vec<u64>) -> u64 {
    let mut next = vec![Vec::new(); MODELS];
    for (at, (_, model, _)) in trace.requests.iter().enumerate().rev() {
        next[*model].push(at);
    }
    let mut moved = 0;
    for (_, model, _) in &trace.requests {
        next[*model].pop();
        let holds = resident.iter().sum::<u64>() - resident[*model];
        let mut lacks = (holds + trace.sizes[*model]).saturating_sub(BUDGET);
        let mut others: Vec<usize> = (0..MODELS).filter(|other| other != model).collect();
        others.sort_by_key(|other| std::cmp::Reverse(next[*other].last().copied().unwrap_or(usize::MAX)));
        for other in others {
            let out = resident[other].min(lacks);
            (resident[other], lacks, moved) = (resident[other] - out, lacks - out, moved + out);
        }
        moved += trace.sizes[*model] - resident[*model];
        resident[*model] = trace.sizes[*model];
    }
    moved
}

/// Runs a shape of trace at three loads, compares every single run, and prints the sums: the figures of
/// `docs/decisions/gpu-residency.md` are those of `OMNI_SOAK=1` and `--no-capture`.
fn compare(shape: Shape, most_beside_optimum: f64) {
    let seeds = if std::env::var_os("OMNI_SOAK").is_some_and(|value| value == "1") { 40 } else { 2 };
    for rate in [0.2, 1.0, 4.0] {
        let (mut lru, mut ours, mut optimum) = (0, 0, 0);
        let (mut p50, mut p99, mut want, mut worst) = (Duration::ZERO, Duration::ZERO, Duration::ZERO, 0.0_f64);
        for seed in 0..seeds {
            let result = run(&Trace::new(shape, rate, seed));
            let beside = result.ours as f64 / result.optimum as f64;
            assert!(result.ours <= result.lru, "{shape:?} {rate} {seed}: {} of {} bytes", result.ours, result.lru);
            assert!(beside <= most_beside_optimum, "{shape:?} {rate} {seed}: {beside} times the optimum");
            assert!(result.longest_want <= bound(), "{shape:?} {rate} {seed}: {:?}", result.longest_want);
            (lru, ours, optimum) = (lru + result.lru / GIB, ours + result.ours / GIB, optimum + result.optimum / GIB);
            (p50, p99) = (p50.max(result.wait(500)), p99.max(result.wait(990)));
            (want, worst) = (want.max(result.longest_want), worst.max(beside));
        }
        let [of_lru, of_optimum] = [lru, optimum].map(|other| ours as f64 / other as f64);
        let [lru, ours, optimum] = [lru, ours, optimum].map(|sum| sum / seeds);
        println!(
            "| {shape:?} | {rate} | {lru} | {ours} | {optimum} | {of_lru:.2} | {of_optimum:.2} | {worst:.2} | \
             {p50:.2?} | {p99:.2?} | {want:.2?} |"
        );
    }
}

/// The bound of `turns` with what is known here: an exchange takes no longer than a whole card out and in, over links
/// that all share, and the longest request is the longest of the trace.
fn bound() -> Duration {
    let exchange = 2 * Duration::from_secs_f64(2.0 * BUDGET as f64 / BANDWIDTH);
    let longest = 20 * Duration::from_secs_f64(SERVICE);
    2 * SECOND + u32::try_from(MODELS).expect("few") * (2 * SECOND + longest + exchange)
}

#[test]
fn uniform_traces_move_less_than_lru() {
    compare(Shape::Uniform, 1.5);
}

#[test]
fn zipf_traces_move_less_than_lru_and_little_more_than_the_optimum() {
    compare(Shape::Zipf, 1.5);
}

#[test]
fn bursts_move_less_than_lru() {
    compare(Shape::Bursts, 1.6);
}
