//! Random schedules: every request gets what it gets alone, bit for bit, whatever happens around it.

use std::time::Duration;

use omni_batcher::{Limits, Request, RequestId};
use omni_kernels::BLOCK;
use omni_kernels_fake::{Cost, LAYERS};
use omni_kv_cache::Root;

use crate::engine::{Engine, alone, limits, prompt, request};

/// Random engine, small, so that everything is scarce.
fn random_engine(random: &mut fastrand::Rng) -> Engine {
    let sequences = random.usize(1..12);
    let limits = Limits {
        blocks: random.u32(6..40),
        tokens: sequences + random.usize(1..80),
        sequences,
        logits: sequences + random.usize(1..40),
        context: random.usize(50..400),
        queue: random.usize(1..40),
        ageing: Duration::from_millis(random.u64(1..300)),
        layers: LAYERS,
    };
    let cost = Cost {
        step: Duration::from_micros(random.u64(1..2000)),
        token: Duration::from_micros(random.u64(0..200)),
        thousand_positions: Duration::from_micros(random.u64(0..500)),
    };
    let mut engine = Engine::with_cost(limits, cost);
    engine.stop = random.choice([5, 23, 61, 1000]).unwrap_or(5);
    if random.bool() {
        let mut chance = random.fork();
        let (most, right) = (random.usize(1..30), chance.f64());
        engine.drafter = Some(Box::new(move |request, choice, answer| {
            let mut longer = request.clone();
            longer.max_tokens = answer.len() + chance.usize(0..=most);
            let known = alone(&longer, choice, u32::MAX);
            let guess = |token: &u32| if chance.f64() < right { *token } else { chance.u32(..97) };
            known[answer.len()..].iter().map(guess).collect()
        }));
    }
    engine
}

/// Random request. Many share a prefix.
fn random_request(id: u64, now: Duration, random: &mut fastrand::Rng) -> Request {
    let mut text = prompt(1000 + random.u64(..3), random.usize(0..120));
    text.extend(prompt(random.u64(..6), random.usize(1..60)));
    if random.bool() {
        text.truncate(text.len().div_ceil(BLOCK) * BLOCK);
    }
    let mut request = request(id, &text, random.usize(0..60));
    request.choices = if random.bool() { 1 } else { random.u32(1..6) };
    request.logprobs_from = (random.u8(..4) == 0).then(|| random.usize(..=text.len() + 1));
    request.whole = random.u8(..10) == 0;
    request.priority = random.i16(-2..3);
    request.deadline = (random.u8(..6) == 0).then(|| now + Duration::from_micros(random.u64(..300_000)));
    if random.u8(..5) == 0 {
        request.root = Root { salt: Some("other"), ..Root::default() }.digest();
    }
    request
}

/// Runs a schedule. Returns how many requests were answered to their end, and in how many steps a prompt went through some
/// layers only.
fn schedule(seed: u64) -> (usize, usize) {
    let mut random = fastrand::Rng::with_seed(seed);
    let mut engine = random_engine(&mut random);
    let requests = random.u64(1..25);
    let (arrivals, cancels, failures) = (random.f64(), random.f64() * 0.1, random.f64() * 0.1);
    let (mut next, mut ended) = (0, Vec::new());
    while next < requests || !engine.batcher.is_idle() {
        while next < requests && random.f64() < arrivals {
            let request = random_request(next, engine.clock.now(), &mut random);
            // Refusals have tests of their own.
            let _ = engine.add(request);
            next += 1;
        }
        if random.f64() < cancels {
            cancel(&mut engine, random.u64(..requests), &mut ended);
        }
        if random.f64() < cancels {
            let id = RequestId(random.u64(..requests));
            if engine.batcher.cancel_choice(id, random.u32(..5)) {
                engine.audit();
                ended.push(id);
            }
        }
        engine.batcher.expire(engine.clock.now(), &mut ended);
        if random.f64() < failures / 4.0 {
            engine.batcher.forget();
            engine.backend_lost();
        }
        engine.plan();
        if engine.plan.is_empty() {
            engine.clock.advance(Duration::from_millis(1));
            continue;
        }
        let fails = random.f64() < failures;
        if !fails {
            engine.compute();
        }
        if random.f64() < cancels * 3.0 {
            cancel(&mut engine, random.u64(..requests), &mut ended);
            if next < requests {
                // The new one may be where the cancelled one was.
                let _ = engine.add(random_request(next, engine.clock.now(), &mut random));
                next += 1;
            }
        }
        if fails {
            if random.bool() {
                engine.batcher.abandon();
            }
            continue;
        }
        engine.complete();
        assert!(engine.steps < 50_000, "requests starve");
    }
    assert_eq!(engine.batcher.status().used_blocks, 0);
    let mut answered = 0;
    for id in engine.records.keys() {
        if ended.contains(&RequestId(*id)) {
            engine.assert_prefixes(*id);
        } else {
            engine.assert_answered(*id);
            answered += 1;
        }
    }
    (answered, engine.parts)
}

fn cancel(engine: &mut Engine, id: u64, ended: &mut Vec<RequestId>) {
    if engine.cancel(id) {
        engine.audit();
        ended.push(RequestId(id));
    }
}

/// Schedules with these seeds. A failure names its seed.
fn schedules(seeds: std::ops::Range<u64>) {
    let (mut answered, mut parts) = (0, 0);
    for seed in seeds.clone() {
        let outcome = std::panic::catch_unwind(|| schedule(seed));
        let (answered_here, parts_here) = outcome.unwrap_or_else(|_| panic!("schedule {seed} fails"));
        answered += answered_here;
        parts += parts_here;
    }
    let count = (seeds.end - seeds.start) as usize;
    assert!(answered > 3 * count && parts > 3 * count, "{answered} requests were answered, with {parts} parts");
}

#[test]
fn b13_b16_b36_answers_are_the_same_alone_and_in_500_random_schedules() {
    schedules(0..500);
}

#[test]
#[ignore = "takes a minute"]
fn b13_b16_b36_answers_are_the_same_alone_and_in_10000_random_schedules() {
    schedules(500..10_500);
}

#[test]
fn b20_no_block_is_lost_in_a_storm_of_10000_requests_half_of_which_are_cancelled() {
    let mut random = fastrand::Rng::with_seed(20);
    let mut engine = Engine::new(Limits { blocks: 40, ..limits() });
    engine.stop = 23;
    let (mut victims, mut ended) = (Vec::new(), Vec::new());
    for id in 0..10_000 {
        let mut request = random_request(id, engine.clock.now(), &mut random);
        request.choices = request.choices.min(4);
        request.whole = false;
        engine.add(request).expect("room");
        if random.bool() {
            victims.push((id + random.u64(..30), id));
        }
        while engine.batcher.status().waiting > 20 {
            engine.batcher.expire(engine.clock.now(), &mut ended);
            engine.step();
        }
        for (_, victim) in victims.extract_if(.., |(when, _)| *when <= id) {
            cancel(&mut engine, victim, &mut ended);
        }
    }
    engine.run();
    let mut answered = 0;
    for id in engine.records.keys() {
        if ended.contains(&RequestId(*id)) {
            engine.assert_prefixes(*id);
        } else {
            engine.assert_answered(*id);
            answered += 1;
        }
    }
    println!("{} requests ended early, {answered} answered", ended.len());
    assert!(answered > 2000 && ended.len() > 3000);
}
