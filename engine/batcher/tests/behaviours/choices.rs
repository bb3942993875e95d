//! Several answers to one prompt.

use omni_batcher::{Refusal, RequestId};
use omni_kernels::BLOCK;

use crate::engine::{Engine, limits, prompt, request};

#[test]
fn b12_choices_share_the_blocks_of_their_prompt_and_each_has_its_own_answer() {
    let mut engine = Engine::new(limits());
    for (id, length) in (0..).zip([1, 5, BLOCK, 3 * BLOCK, 3 * BLOCK + 1, 100]) {
        let mut several = request(id, &prompt(id, length), 30);
        several.choices = 5;
        engine.add(several).expect("room");
        engine.run();
        engine.assert_answered(id);
        let answers = &engine.records[&id].answers;
        assert!((1..5).all(|choice| answers[choice].tokens != answers[0].tokens));
    }
}

#[test]
fn b12_the_prompt_of_several_choices_is_computed_and_held_once() {
    let mut engine = Engine::new(limits());
    let mut several = request(1, &prompt(1, 2 * BLOCK + 3), 3);
    several.choices = 4;
    engine.add(several).expect("room");
    engine.step();
    assert_eq!(engine.batcher.status().used_blocks, 3);
    assert_eq!((engine.batcher.status().running, engine.records[&1].computed), (4, 2 * BLOCK + 3));
    engine.step();
    // The last block is copied for all but one, which writes to it itself.
    assert_eq!(engine.plan.copies.len(), 3);
    assert_eq!(engine.batcher.status().used_blocks, 2 + 4);
    engine.run();
    engine.assert_answered(1);
}

#[test]
fn b12_choices_end_one_by_one_and_one_cancellation_ends_all() {
    let mut engine = Engine::new(limits());
    engine.stop = 5;
    let mut several = request(1, &prompt(3, 20), 200);
    several.choices = 8;
    engine.add(several.clone()).expect("room");
    engine.run();
    engine.assert_answered(1);
    let lengths: Vec<_> = engine.records[&1].answers.iter().map(|answer| answer.tokens.len()).collect();
    assert!(lengths.iter().any(|length| *length != lengths[0]), "{lengths:?}");

    engine.stop = u32::MAX;
    several.id.0 = 2;
    engine.add(several).expect("room");
    for _ in 0..5 {
        engine.step();
    }
    assert!(engine.cancel(2));
    assert!(!engine.cancel(2));
    engine.audit();
    assert!(engine.batcher.is_idle());
    assert_eq!(engine.batcher.status().used_blocks, 0);
}

#[test]
fn b12_a_choice_that_is_cancelled_gives_its_blocks_back_while_the_others_go_on() {
    let mut engine = Engine::new(limits());
    let mut several = request(1, &prompt(4, 2 * BLOCK + 1), 60);
    several.choices = 4;
    engine.add(several).expect("room");
    assert!(!engine.batcher.cancel_choice(RequestId(1), 0), "the prompt is that of all");
    for _ in 0..20 {
        engine.step();
    }
    // Blocks of the prompt once, and of each choice those after them.
    let own = engine.batcher.status().used_blocks - 2;
    assert_eq!(own % 4, 0);
    for (ended, choice) in (1..).zip([2, 0]) {
        engine.plan();
        engine.compute();
        assert!(engine.batcher.cancel_choice(RequestId(1), choice) && engine.batcher.is_live(RequestId(1)));
        assert!(!engine.batcher.cancel_choice(RequestId(1), choice), "once");
        assert!(engine.batcher.status().used_blocks <= 2 + (own / 4 + 1) * (4 - ended));
        engine.complete();
        assert_eq!(engine.batcher.status().running, 4 - ended);
    }
    assert!(!engine.batcher.cancel_choice(RequestId(1), 4) && !engine.batcher.cancel_choice(RequestId(2), 0));
    engine.run();
    engine.assert_prefixes(1);
    let lengths: Vec<_> = engine.records[&1].answers.iter().map(|answer| answer.tokens.len()).collect();
    assert!(lengths[0] < 60 && lengths[2] < 60 && (lengths[1], lengths[3]) == (60, 60), "{lengths:?}");
}

#[test]
fn b12_a_request_ends_with_the_last_of_its_choices_that_is_cancelled() {
    let mut engine = Engine::new(limits());
    let mut several = request(1, &prompt(5, 20), 60);
    several.choices = 3;
    engine.add(several).expect("room");
    engine.step();
    // All of them wait.
    engine.batcher.forget();
    engine.backend_lost();
    for choice in [1, 2, 0] {
        assert!(engine.batcher.is_live(RequestId(1)));
        assert!(engine.batcher.cancel_choice(RequestId(1), choice));
        engine.audit();
    }
    assert!(engine.batcher.is_idle());
    engine.run();
}

#[test]
fn b12_more_choices_than_ever_run_together_are_refused() {
    let mut engine = Engine::new(limits());
    for choices in [0, 9] {
        let mut several = request(1, &[1], 1);
        several.choices = choices;
        assert_eq!(engine.add(several), Err(Refusal::Choices { choices, most: 8 }));
    }
}
