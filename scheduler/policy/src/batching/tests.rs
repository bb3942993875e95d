//! Tables of decisions, and a simulated instance with clients in a closed loop or at random.

use super::*;
use proptest::prelude::*;
use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};
use std::time::Duration;

const BOUNDS: BatchBounds = BatchBounds { requests: 64, cost: u64::MAX };

fn micros(time: u64) -> Moment {
    Duration::from_micros(time)
}

fn waiting(requests: usize) -> impl Iterator<Item = Candidate> {
    std::iter::repeat_n(Candidate { cost: 1, deadline: Moment::MAX }, requests)
}

/// Runs batches whose clients all return, the last of them after half of the window, and stops after the end of the last, which
/// has this size: that moment.
fn trained(batcher: &mut Batcher, requests: usize) -> Moment {
    let mut now = Moment::ZERO;
    for round in 0..40 {
        let size = if round % 2 == 0 { 1 } else { requests };
        batcher.on_sent(size, now);
        now += micros(5000 + 200 * size as u64);
        batcher.on_end(now);
        for place in 1..=size as u32 {
            batcher.on_arrival(now + window(size) * place / size as u32 / 2);
        }
        now += 2 * window(size);
        batcher.decide(waiting(0), BOUNDS, now);
    }
    batcher.on_sent(requests, now);
    now += micros(5000 + 200 * requests as u64);
    batcher.on_end(now);
    now
}

#[test]
fn a_lone_request_never_waits() {
    let mut batcher = Batcher::default();
    batcher.on_arrival(micros(1));
    assert_eq!(batcher.decide(waiting(1), BOUNDS, micros(1)), BatchDecision::Send(1));
    let end = trained(&mut batcher, 1);
    batcher.on_arrival(end + micros(300));
    assert_eq!(batcher.decide(waiting(1), BOUNDS, end + micros(300)), BatchDecision::Send(1));
    let mut busy = Batcher::default();
    let end = trained(&mut busy, 8);
    let later = end + window(8);
    busy.on_arrival(later);
    assert_eq!(busy.decide(waiting(1), BOUNDS, later), BatchDecision::Send(1), "the window is over");
}

#[test]
fn the_first_of_clients_that_return_waits_for_the_others() {
    let mut batcher = Batcher::default();
    let end = trained(&mut batcher, 8);
    assert_eq!(batcher.decide(waiting(0), BOUNDS, end), BatchDecision::Idle);
    let last = end + window(8) / 2;
    for (arrived, now, expected) in [
        (1, end + micros(50), BatchDecision::Wait(last)),
        (2, end + micros(100), BatchDecision::Wait(last)),
        (7, last - micros(1), BatchDecision::Wait(last)),
        (5, last, BatchDecision::Wait(end + window(8))),
        (7, last, BatchDecision::Send(7)),
        (8, last, BatchDecision::Send(8)),
    ] {
        for _ in batcher.returned()..arrived {
            batcher.on_arrival(now);
        }
        assert_eq!(batcher.decide(waiting(arrived), BOUNDS, now), expected, "{arrived} have returned");
    }
}

#[test]
fn no_batch_waits_when_the_wait_costs_more_than_it_saves() {
    let mut batcher = Batcher::default();
    let end = trained(&mut batcher, 4);
    // 4 joiners save 4 × 5 ms at most; 44 requests that are delayed for 0.62 ms cost 27 ms.
    let last = end + window(4) / 2;
    assert_eq!(batcher.decide(waiting(40), BOUNDS, end), BatchDecision::Send(40));
    assert_eq!(batcher.decide(waiting(40), BOUNDS, end + micros(200)), BatchDecision::Wait(last), "0.42 ms cost 18 ms");
    assert_eq!(batcher.decide(waiting(4), BOUNDS, end), BatchDecision::Wait(last));
}

#[test]
fn a_batch_leaves_early_enough_for_its_earliest_deadline() {
    let mut batcher = Batcher::default();
    let end = trained(&mut batcher, 4);
    let candidate = |in_micros| [Candidate { cost: 1, deadline: end + micros(in_micros) }].into_iter();
    let BatchDecision::Wait(until) = batcher.decide(candidate(6300), BOUNDS, end) else { panic!("it waits") };
    assert!(until < end + window(4) / 2, "{:?}", until.checked_sub(end));
    assert_eq!(batcher.decide(candidate(5000), BOUNDS, end), BatchDecision::Send(1));
}

#[test]
fn a_batch_is_within_its_bounds_unless_it_is_one_request() {
    let mut batcher = Batcher::default();
    let costs = |costs: &'static [u64]| costs.iter().map(|cost| Candidate { cost: *cost, deadline: Moment::MAX });
    let bounds = BatchBounds { requests: 3, cost: 10 };
    for (queue, expected) in
        [(&[4, 4, 4][..], 2), (&[5, 5, 1], 2), (&[1, 1, 1, 1], 3), (&[50, 1], 1), (&[1, 50], 1), (&[u64::MAX, 1], 1)]
    {
        let decision = batcher.decide(costs(queue), bounds, Moment::ZERO);
        assert_eq!(decision, BatchDecision::Send(expected), "{queue:?}");
    }
}

proptest! {
    /// Steps: time that passes, requests that arrive then, and whether a running batch ends before.
    #[test]
    fn waits_are_within_the_window_and_the_deadline(
        steps in prop::collection::vec((0_u64..3000, 0_usize..4, any::<bool>()), 0..200),
        patience in 0_u64..20_000,
    ) {
        let (mut batcher, mut queue) = (Batcher::default(), Vec::new());
        let (mut now, mut running, mut window_end) = (Moment::ZERO, None, Moment::ZERO);
        for (passed, arrivals, ends) in steps {
            now += micros(passed);
            if let Some(requests) = running.take_if(|_| ends) {
                batcher.on_end(now);
                window_end = now + window(requests);
            }
            for _ in 0..arrivals {
                batcher.on_arrival(now);
                queue.push(Candidate { cost: 1, deadline: now + micros(patience) });
            }
            if running.is_some() {
                continue;
            }
            match batcher.decide(queue.iter().copied(), BOUNDS, now) {
                BatchDecision::Idle => prop_assert!(queue.is_empty()),
                BatchDecision::Send(requests) => {
                    prop_assert!(0 < requests && requests <= queue.len().min(64));
                    queue.drain(..requests);
                    batcher.on_sent(requests, now);
                    running = Some(requests);
                }
                BatchDecision::Wait(until) => {
                    prop_assert!(now < until && until <= window_end);
                    prop_assert!(queue.iter().all(|candidate| until <= candidate.deadline));
                }
            }
        }
    }
}

/// Policy of a simulated instance.
#[derive(Debug, Clone, Copy)]
enum Rule {
    Returns,
    /// All that wait, at once.
    Greedy,
    /// Up to this time after the first arrival, or a full batch of this size.
    Fixed(u64, usize),
}

/// Arrivals of a simulation.
#[derive(Debug, Clone, Copy)]
enum Load {
    /// Clients that send the next request 0.1 to 0.6 ms after the last answer.
    Closed(usize),
    /// Requests per second, at random.
    Poisson(f64),
}

/// Time between two answers of a batch in microseconds: a node writes them to its clients one after the other.
const WRITE: u64 = 30;

/// Instance with batches of 5 ms + 0.2 ms for each request, for ten simulated seconds.
struct World {
    rule: Rule,
    load: Load,
    random: u64,
    arrivals: BinaryHeap<Reverse<u64>>,
    queue: VecDeque<u64>,
    batcher: Batcher,
    busy: Option<(u64, Vec<u64>)>,
    latencies: Vec<u64>,
}

impl World {
    /// Uniform in 0 to 1 (xorshift64*).
    fn random(&mut self) -> f64 {
        self.random ^= self.random >> 12;
        self.random ^= self.random << 25;
        self.random ^= self.random >> 27;
        (self.random.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 11) as f64 / (1_u64 << 53) as f64
    }

    /// Answers per second and the mean time of an answer in milliseconds.
    fn run(rule: Rule, load: Load) -> (f64, f64) {
        let (arrivals, queue, batcher) = (BinaryHeap::new(), VecDeque::new(), Batcher::default());
        let (busy, latencies) = (None, Vec::new());
        let mut world = Self { rule, load, random: 0x9e37_79b9_7f4a_7c15, arrivals, queue, batcher, busy, latencies };
        let first = if let Load::Closed(clients) = load { clients } else { 1 };
        for _ in 0..first {
            let at = (world.random() * 1000.0) as u64;
            world.arrivals.push(Reverse(at));
        }
        let (mut now, seconds) = (0, 10);
        while now < seconds * 1_000_000 {
            let wake = world.step(now);
            let next = [wake, world.busy.as_ref().map(|(end, _)| *end), world.arrivals.peek().map(|Reverse(at)| *at)];
            now = next.into_iter().flatten().min().unwrap().max(now);
        }
        let mean = world.latencies.iter().sum::<u64>() as f64 / world.latencies.len() as f64 / 1000.0;
        (world.latencies.len() as f64 / seconds as f64, mean)
    }

    /// Handles everything that is due now. Returns the moment that the rule waits for.
    fn step(&mut self, now: u64) -> Option<u64> {
        while self.arrivals.peek().is_some_and(|Reverse(at)| *at <= now) {
            self.arrivals.pop();
            self.queue.push_back(now);
            self.batcher.on_arrival(micros(now));
            if let Load::Poisson(rate) = self.load {
                let gap = -(1.0 - self.random()).ln() / rate * 1e6;
                self.arrivals.push(Reverse(now + gap as u64 + 1));
            }
        }
        if let Some((_, batch)) = self.busy.take_if(|(end, _)| *end <= now) {
            self.batcher.on_end(micros(now));
            for (place, arrived) in (1..).zip(batch) {
                let answered = now + place * WRITE;
                self.latencies.push(answered - arrived);
                if let Load::Closed(_) = self.load {
                    let back = answered + 100 + (self.random() * 500.0) as u64;
                    self.arrivals.push(Reverse(back));
                }
            }
        }
        if self.busy.is_some() {
            return None;
        }
        let waits = self.queue.len();
        let (send, wake) = match self.rule {
            Rule::Greedy => (waits.min(64), None),
            Rule::Fixed(wait, most) => {
                let due = self.queue.front().map(|first| first + wait);
                if waits >= most || due.is_some_and(|due| due <= now) { (waits.min(64), None) } else { (0, due) }
            }
            Rule::Returns => match self.batcher.decide(waiting(waits), BOUNDS, micros(now)) {
                BatchDecision::Idle => (0, None),
                BatchDecision::Send(requests) => (requests, None),
                BatchDecision::Wait(until) => (0, Some(until.as_nanos().div_ceil(1000) as u64)),
            },
        };
        if send > 0 {
            self.batcher.on_sent(send, micros(now));
            let batch: Vec<u64> = self.queue.drain(..send).collect();
            self.busy = Some((now + 5000 + 200 * send as u64, batch));
        }
        wake
    }
}

#[test]
fn closed_loops_reach_the_throughput_of_the_best_fixed_size() {
    for clients in [1, 2, 4, 8, 16, 32, 64] {
        let load = Load::Closed(clients);
        // The best that a fixed size can do: all clients in one batch, which nothing but their return delays.
        let (best, _) = World::run(Rule::Fixed(1_000_000, clients), load);
        let (greedy, _) = World::run(Rule::Greedy, load);
        let (returns, _) = World::run(Rule::Returns, load);
        println!("{clients} clients: fixed size {best:.0}, greedy {greedy:.0}, returns {returns:.0} answers/s");
        assert!(returns >= 0.95 * best, "{clients} clients: {returns:.0} of {best:.0}");
    }
}

#[test]
fn random_arrivals_wait_no_longer_than_without_a_window() {
    for rate in [20.0, 300.0, 1000.0, 3300.0] {
        let (_, greedy) = World::run(Rule::Greedy, Load::Poisson(rate));
        let (_, returns) = World::run(Rule::Returns, Load::Poisson(rate));
        println!("{rate} requests/s: greedy {greedy:.2}, returns {returns:.2} ms");
        assert!(returns <= 1.02 * greedy, "{rate}: {returns:.2} ms, {greedy:.2} ms");
    }
}
