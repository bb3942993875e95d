//! Drafted tokens, which a step verifies.

use omni_kernels::BLOCK;

use crate::engine::{Drafter, Engine, alone, limits, prompt, request};

/// Guesses `count` tokens, of which each is right with a probability.
fn drafter(count: usize, right: f64, seed: u64) -> Drafter {
    let mut random = fastrand::Rng::with_seed(seed);
    Box::new(move |request, choice, answer| {
        let mut longer = request.clone();
        longer.max_tokens = answer.len() + count;
        let known = alone(&longer, choice, u32::MAX);
        known[answer.len()..].iter().map(|token| if random.f64() < right { *token } else { (token + 1) % 97 }).collect()
    })
}

#[test]
fn b16_answers_with_drafts_are_those_without() {
    for (count, right) in [(1, 1.0), (4, 1.0), (4, 0.0), (5, 0.7), (40, 0.95), (100, 0.9)] {
        let mut engine = Engine::new(limits());
        engine.stop = 41;
        engine.drafter = Some(drafter(count, right, count as u64));
        for id in 0..4 {
            engine.add(request(id, &prompt(id, 10 + 7 * id as usize), 60)).expect("room");
        }
        engine.run();
        (0..4).for_each(|id| engine.assert_answered(id));
        assert!(engine.drafted > 0 && (engine.accepted > 0) == (right > 0.0));
    }
}

#[test]
fn b16_drafts_that_are_right_save_steps() {
    let mut engine = Engine::new(limits());
    engine.drafter = Some(drafter(4, 1.0, 0));
    engine.add(request(1, &prompt(1, 10), 51)).expect("room");
    engine.run();
    engine.assert_answered(1);
    assert_eq!(engine.steps, 1 + 50 / 5);
}

#[test]
fn b14_blocks_of_refused_drafts_are_given_back() {
    let mut engine = Engine::new(limits());
    engine.drafter = Some(drafter(3 * BLOCK, 0.0, 3));
    engine.add(request(1, &prompt(1, 10), 60)).expect("room");
    while engine.records[&1].answers[0].tokens.len() < 20 {
        engine.step();
        let known = 10 + engine.records[&1].answers[0].tokens.len();
        assert_eq!(engine.batcher.status().used_blocks, known.div_ceil(BLOCK));
    }
    assert!(engine.drafted > 0);
    engine.run();
    engine.assert_answered(1);
}

#[test]
fn b23_drafts_never_take_the_blocks_of_others() {
    let mut few = limits();
    few.blocks = 8;
    let mut engine = Engine::new(few);
    engine.drafter = Some(drafter(60, 0.5, 4));
    for id in 0..2 {
        engine.add(request(id, &prompt(id, 17), 40)).expect("room");
    }
    engine.run();
    assert_eq!(engine.batcher.status().preemptions, 0);
    (0..2).for_each(|id| engine.assert_answered(id));
}

#[test]
fn b23_drafts_leave_room_for_prompts() {
    let mut engine = Engine::new(limits());
    engine.drafter = Some(drafter(60, 0.0, 5));
    for id in 0..3 {
        engine.add(request(id, &prompt(id, 10), 200)).expect("room");
    }
    engine.step();
    engine.add(request(9, &prompt(9, 300), 5)).expect("room");
    let steps = (1..200).find(|_| {
        engine.step();
        !engine.records[&9].answers[0].tokens.is_empty()
    });
    assert!(steps.is_some_and(|steps| steps <= 300 / BLOCK), "{steps:?}");
    engine.run();
    engine.assert_answered(9);
}

#[test]
fn b23_drafts_do_not_hold_up_a_prompt_that_is_computed_whole() {
    let mut engine = Engine::new(limits());
    engine.drafter = Some(drafter(60, 0.0, 6));
    for id in 0..2 {
        engine.add(request(id, &prompt(id, 10), 200)).expect("room");
    }
    (0..3).for_each(|_| engine.step());
    let mut whole = request(9, &prompt(9, 56), 0);
    whole.whole = true;
    engine.add(whole).expect("room");
    engine.step();
    engine.step();
    assert_eq!(engine.records[&9].computed, 56);
}
