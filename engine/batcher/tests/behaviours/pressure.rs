//! Requests that want more blocks, seats or time than there are.

use std::time::Duration;

use omni_kernels::BLOCK;

use crate::engine::{Engine, limits, prompt, request};

#[test]
fn b13_a_request_that_was_preempted_answers_as_if_it_never_was() {
    let mut few = limits();
    few.blocks = 12;
    let mut engine = Engine::new(few);
    for id in 0..6 {
        engine.add(request(id, &prompt(id, 20 + id as usize), 100)).expect("room");
    }
    engine.run();
    // Admission leaves room for those that run, else it were more.
    let preemptions = engine.batcher.status().preemptions;
    assert!((6..12).contains(&preemptions), "{preemptions} preemptions");
    (0..6).for_each(|id| engine.assert_answered(id));
}

#[test]
fn b13_choices_that_were_preempted_answer_as_if_they_never_were() {
    let mut few = limits();
    few.blocks = 9;
    let mut engine = Engine::new(few);
    for id in 0..2 {
        let mut several = request(id, &prompt(id, 37), 90);
        several.choices = 4;
        engine.add(several).expect("room");
    }
    engine.run();
    assert!(engine.batcher.status().preemptions > 3);
    (0..2).for_each(|id| engine.assert_answered(id));
}

#[test]
fn b23_the_most_senior_is_never_preempted() {
    let mut few = limits();
    few.blocks = 10;
    let mut engine = Engine::new(few);
    engine.add(request(0, &prompt(0, 50), 110)).expect("room");
    engine.step();
    for id in 1..20 {
        engine.add(request(id, &prompt(id, 40), 100)).expect("room");
    }
    let steps = (1..).find(|_| {
        engine.step();
        engine.records[&0].answers[0].has_ended
    });
    assert_eq!(steps, Some(109), "it got a token with every step");
    engine.run();
    (0..20).for_each(|id| engine.assert_answered(id));
}

#[test]
fn b23_a_request_as_long_as_the_cache_is_computed_among_others() {
    let mut few = limits();
    few.blocks = 16;
    let mut engine = Engine::new(few);
    for id in 0..10 {
        let length = if id == 4 { 16 * BLOCK - 30 } else { 30 };
        engine.add(request(id, &prompt(id, length), 30)).expect("room");
    }
    engine.run();
    (0..10).for_each(|id| engine.assert_answered(id));
}

#[test]
fn b23_a_big_request_does_not_stop_small_ones_nor_they_it() {
    let mut few = limits();
    few.blocks = 32;
    let mut engine = Engine::new(few);
    // Small ones take half of the cache at a time; the big one wants more than the other half.
    (10..18).for_each(|id| engine.add(request(id, &prompt(id, 20), 5)).expect("room"));
    engine.step();
    engine.add(request(1, &prompt(1, 320), 20)).expect("room");
    let mut next = 18;
    while engine.records[&1].answers[0].times.is_empty() {
        // Enough of them that the queue is never empty.
        while engine.batcher.status().waiting < 10 {
            let (length, tokens) = (17 + next as usize % 15, 2 + next as usize % 7);
            engine.add(request(next, &prompt(next, length), tokens)).expect("room");
            next += 1;
        }
        engine.step();
        assert!(engine.steps < 1000, "the big one starves");
    }
    let start = engine.records[&1].answers[0].times[0];
    let small = engine.records.values().skip(1);
    let before = small.filter(|record| record.answers[0].times.last().is_some_and(|end| *end < start)).count();
    assert!(before > 80, "{before} small ones ended before the big one began");
    engine.run();
    engine.assert_answered(1);
    (10..next).for_each(|id| engine.assert_answered(id));
}

#[test]
fn a_request_that_did_not_fit_is_admitted_once_others_share_its_prefix() {
    let mut few = limits();
    few.blocks = 20;
    let mut engine = Engine::new(few);
    let text = prompt(1, 10 * BLOCK);
    engine.add(request(0, &text, 100)).expect("room");
    let mut longer = text.clone();
    longer.extend(prompt(2, 9));
    engine.add(request(1, &longer, 5)).expect("room");
    engine.run();
    let [first, second] = [0, 1].map(|id| engine.records[&id].answers[0].times.clone());
    assert!(second.last() < first.last());
    assert_eq!(engine.records[&1].cached[0], text.len());
    (0..2).for_each(|id| engine.assert_answered(id));
}

#[test]
fn an_urgent_request_does_not_wait_for_the_prefix_of_one_that_is_not() {
    let mut engine = Engine::new(limits());
    let text = prompt(1, 400);
    engine.add(request(0, &text, 5)).expect("room");
    engine.step();
    let mut urgent = request(1, &text, 5);
    urgent.priority = 1;
    engine.add(urgent).expect("room");
    engine.step();
    assert_eq!(engine.scheduled[0].request.0, 1);
    engine.run();
    (0..2).for_each(|id| engine.assert_answered(id));
}

#[test]
fn b23_no_sequence_that_waits_holds_blocks() {
    let mut few = limits();
    few.blocks = 12;
    let mut engine = Engine::new(few);
    for id in 0..12 {
        engine.add(request(id, &prompt(id, 30), 60)).expect("room");
    }
    while !engine.batcher.is_idle() {
        engine.step();
        let status = engine.batcher.status();
        assert!(status.running > 0 || status.used_blocks == 0);
    }
    (0..12).for_each(|id| engine.assert_answered(id));
}

#[test]
fn priority_goes_first_and_waiting_makes_up_for_it() {
    let mut narrow = limits();
    narrow.sequences = 1;
    let mut engine = Engine::new(narrow);
    engine.add(request(0, &prompt(0, 10), 10)).expect("room");
    engine.step();
    for (id, priority) in [(1, 0), (2, 3), (3, -1), (4, 3), (5, 1)] {
        let mut ranked = request(id, &prompt(id, 10), 10);
        ranked.priority = priority;
        engine.add(ranked).expect("room");
    }
    engine.run();
    let mut order: Vec<_> = (0..6).map(|id| (engine.records[&id].answers[0].times[0], id)).collect();
    order.sort_unstable();
    assert_eq!(order.iter().map(|(_, id)| *id).collect::<Vec<_>>(), [0, 2, 4, 5, 1, 3]);

    // A stream of urgent requests, each as soon as the one before has ended: the others wait two seconds at most.
    let mut engine = Engine::new(narrow);
    engine.add(request(0, &prompt(0, 10), 10)).expect("room");
    for id in 1.. {
        let mut urgent = request(id, &prompt(id, 10), 10);
        urgent.priority = 2;
        engine.add(urgent).expect("room");
        (0..10).for_each(|_| engine.step());
        if engine.records[&0].answers[0].has_ended {
            break;
        }
        assert!(engine.clock.now() < Duration::from_millis(2400), "it starves");
    }
    assert!(engine.clock.now() > Duration::from_secs(2));
}

#[test]
fn every_step_serves_all_sequences_that_decode() {
    let mut engine = Engine::new(limits());
    for id in 0..7 {
        engine.add(request(id, &prompt(id, 10), 40)).expect("room");
    }
    engine.step();
    engine.step();
    engine.add(request(7, &prompt(7, 400), 10)).expect("room");
    while engine.records[&7].answers[0].times.is_empty() {
        engine.plan();
        let decoding = engine.plan.segments.iter().filter(|segment| segment.start >= 10).count();
        assert!(decoding >= 7, "step {}", engine.steps);
        assert!(engine.plan.tokens.len() <= 64);
        engine.compute();
        engine.complete();
    }
    engine.run();
    (0..8).for_each(|id| engine.assert_answered(id));
}
