//! Times, on the simulated clock.

use std::time::Duration;

use omni_batcher::Limits;
use omni_kernels_fake::{Cost, LAYERS};

use crate::engine::{Engine, prompt, request};

/// A small model on a processor, as measured with SmolLM2 135M: behind some thousand positions a token of a prompt takes
/// many times as long as the first ones.
const COST: Cost = Cost {
    step: Duration::from_micros(4000),
    token: Duration::from_micros(120),
    thousand_positions: Duration::from_micros(250),
};

fn engine(cost: Cost) -> Engine {
    let limits = Limits {
        blocks: 2048,
        tokens: 512,
        sequences: 64,
        logits: 128,
        context: 8192,
        queue: 1000,
        ageing: Duration::from_secs(1),
        layers: LAYERS,
    };
    Engine::with_cost(limits, cost)
}

/// Times between tokens of a request, from a moment to another.
fn gaps(engine: &Engine, id: u64, from: Duration, to: Duration) -> Vec<Duration> {
    let times = &engine.records[&id].answers[0].times;
    let pairs = times.windows(2).filter(|pair| pair[0] >= from && pair[1] <= to);
    pairs.map(|pair| pair[1] - pair[0]).collect()
}

fn percentile(mut values: Vec<Duration>, percent: usize) -> Duration {
    values.sort_unstable();
    values[(values.len() - 1) * percent / 100]
}

#[test]
fn the_99th_percentile_between_tokens_at_most_doubles_while_a_prompt_of_4096_tokens_is_computed() {
    for sequences in [1, 4, 16] {
        let mut engine = engine(COST);
        for id in 0..sequences {
            engine.add(request(id, &prompt(id, 50), 3000)).expect("room");
        }
        (0..60).for_each(|_| engine.step());
        let arrival = engine.clock.now();
        engine.add(request(100, &prompt(100, 4096), 5)).expect("room");
        while engine.records[&100].answers[0].times.is_empty() {
            engine.step();
        }
        let start = engine.records[&100].answers[0].times[0];
        let alone = COST.of(4096.0, 4096.0 * 4097.0 / 2.0) + COST.step * 8;
        (0..60).for_each(|_| engine.step());
        let (mut idle, mut busy) = (Vec::new(), Vec::new());
        for id in 0..sequences {
            busy.extend(gaps(&engine, id, arrival, start));
            // Behind the prompt, as each token takes longer than the one before it.
            idle.extend(gaps(&engine, id, start, Duration::MAX));
        }
        let (idle, busy) = (percentile(idle, 50), percentile(busy, 99));
        println!("{sequences} sequences: {idle:?} between tokens, p99 {busy:?}; prompt {:?}", start - arrival);
        assert!(busy <= idle * 2, "{sequences} sequences: {busy:?}, idle {idle:?}");
        assert!(start - arrival < alone * 4, "the prompt takes {:?}, alone {alone:?}", start - arrival);
        assert!(engine.cancel(0));
    }
}

/// Late in such a prompt a single token takes more than a step has left for it.
#[test]
fn tokens_come_in_time_beside_a_prompt_of_which_one_token_is_too_much_for_a_step() {
    let cost = Cost { thousand_positions: COST.step, ..COST };
    let mut engine = engine(cost);
    engine.add(request(1, &prompt(1, 16), 4000)).expect("room");
    (0..60).for_each(|_| engine.step());
    let arrival = engine.clock.now();
    engine.add(request(2, &prompt(2, 2000), 1)).expect("room");
    while engine.records[&2].answers[0].times.is_empty() {
        engine.step();
    }
    let start = engine.records[&2].answers[0].times[0];
    (0..60).for_each(|_| engine.step());
    let busy = percentile(gaps(&engine, 1, arrival, start), 99);
    let idle = percentile(gaps(&engine, 1, start, Duration::MAX), 50);
    assert!(cost.thousand_positions * 2 > idle / 2, "the last token of the prompt, and {idle:?} between tokens");
    assert!(busy <= idle * 2, "{busy:?}, idle {idle:?}");
    let alone = cost.of(2000.0, 2000.0 * 2001.0 / 2.0);
    assert!(start - arrival < alone * 4, "the prompt takes {:?}, alone {alone:?}", start - arrival);
    engine.run();
    engine.assert_answered(1);
    engine.assert_answered(2);
}

#[test]
fn the_time_to_the_first_token_is_a_tenth_where_2000_of_2100_tokens_are_cached() {
    let mut engine = engine(COST);
    let text = prompt(1, 2000);
    let mut times = Vec::new();
    for id in 0..3 {
        let mut longer = text.clone();
        longer.extend(prompt(10 + id, 100));
        engine.add(request(id, &longer, 5)).expect("room");
        engine.run();
        let record = &engine.records[&id];
        times.push(record.answers[0].times[0] - record.arrival);
        engine.assert_answered(id);
    }
    println!("first token: cold {:?}, warm {:?}", times[0], times[1]);
    assert!(times[1] * 10 <= times[0] && times[2] * 10 <= times[0], "{times:?}");
}

#[test]
fn b23_a_short_prompt_does_not_wait_for_the_end_of_a_long_one() {
    let mut engine = engine(COST);
    engine.add(request(0, &prompt(0, 8000), 5)).expect("room");
    engine.step();
    engine.add(request(1, &prompt(1, 40), 5)).expect("room");
    while engine.records[&1].answers[0].times.is_empty() {
        engine.step();
    }
    let record = &engine.records[&1];
    let first = record.answers[0].times[0] - record.arrival;
    assert!(first < COST.of(1024.0, 1_000_000.0), "{first:?}");
    assert!(engine.records[&0].answers[0].times.is_empty());
    engine.run();
    (0..2).for_each(|id| engine.assert_answered(id));
}

#[test]
fn none_starves_while_short_requests_arrive_without_end() {
    let mut engine = engine(COST);
    let mut random = fastrand::Rng::with_seed(1);
    engine.add(request(0, &prompt(0, 6000), 20)).expect("room");
    for id in 1..3000 {
        engine.add(request(id, &prompt(id, random.usize(1..100)), random.usize(1..20))).expect("room");
        engine.step();
        if engine.records[&0].answers[0].has_ended {
            break;
        }
    }
    engine.assert_answered(0);
    let took = engine.clock.now();
    assert!(took < COST.of(6000.0, 6000.0 * 6001.0 / 2.0) * 8, "{took:?}");
}
