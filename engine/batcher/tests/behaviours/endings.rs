//! Ends of requests: cancellation in every state, deadlines, refusals.

use std::time::Duration;

use omni_batcher::{Batcher, LimitsError, Outcome, Refusal, RequestId};
use omni_kernels_fake::{Cost, LAYERS};

use crate::engine::{Engine, limits, prompt, request};

#[test]
fn b20_a_request_is_cancelled_in_every_state_and_all_blocks_come_back() {
    // States: queued; planned; prompt in part; decoding; several choices; preempted; unknown.
    for state in 0..7 {
        for planned in [false, true] {
            let mut few = limits();
            few.blocks = 14;
            let mut engine = Engine::new(few);
            let mut victim = request(1, &prompt(1, 100), 50);
            victim.choices = if state == 4 { 3 } else { 1 };
            engine.add(victim).expect("room");
            engine.add(request(2, &prompt(2, 40), 20)).expect("room");
            (0..[0, 0, 1, 4, 6, 2, 3][state]).for_each(|_| engine.step());
            if state == 5 {
                engine.batcher.forget();
                engine.backend_lost();
            }
            if planned || state == 1 {
                engine.plan();
                engine.compute();
            }
            assert!(engine.cancel(1), "state {state}");
            engine.audit();
            if planned || state == 1 {
                engine.complete();
            }
            assert!(!engine.cancel(1));
            engine.run();
            engine.assert_answered(2);
            engine.assert_prefixes(1);
        }
    }
}

/// Steps until a prompt went through some layers of a block.
fn until_a_part(engine: &mut Engine) {
    while engine.plan.part.as_ref().is_none_or(|part| part.end == LAYERS) {
        engine.step();
    }
}

#[test]
fn b20_a_prompt_that_went_through_some_layers_is_cancelled_or_lost_and_others_go_on() {
    let cost = Cost {
        step: Duration::from_millis(2),
        token: Duration::from_millis(1),
        thousand_positions: Duration::from_millis(1),
    };
    for end in 0..4 {
        let mut engine = Engine::with_cost(limits(), cost);
        engine.add(request(1, &prompt(1, 20), 300)).expect("room");
        (0..10).for_each(|_| engine.step());
        engine.add(request(2, &prompt(2, 100), 5)).expect("room");
        until_a_part(&mut engine);
        match end {
            0 => assert!(engine.cancel(2)),
            1 => assert!(engine.cancel(1), "what is left goes through the other layers at once"),
            2 => {
                engine.batcher.forget();
                engine.backend_lost();
            }
            _ => {
                engine.plan();
                engine.batcher.abandon();
            }
        }
        engine.audit();
        engine.add(request(3, &prompt(3, 90), 5)).expect("room");
        engine.run();
        for id in [1, 2, 3] {
            if (end, id) != (0, 2) && (end, id) != (1, 1) {
                engine.assert_answered(id);
            }
        }
    }
}

#[test]
fn b20_the_number_of_a_cancelled_request_can_be_used_again_in_the_same_step() {
    let mut engine = Engine::new(limits());
    engine.add(request(1, &prompt(1, 20), 50)).expect("room");
    engine.step();
    engine.plan();
    engine.compute();
    assert!(engine.cancel(1));
    engine.records.clear();
    engine.add(request(1, &prompt(2, 30), 10)).expect("room");
    engine.complete();
    engine.run();
    engine.assert_answered(1);
}

#[test]
fn b20_a_step_that_failed_is_computed_again() {
    let mut engine = Engine::new(limits());
    for id in 0..4 {
        let mut several = request(id, &prompt(id, 30), 20);
        several.choices = 2;
        engine.add(several).expect("room");
    }
    for step in 0..200 {
        engine.plan();
        if engine.plan.is_empty() {
            break;
        }
        match step % 5 {
            0 => engine.batcher.abandon(),
            1 => {}
            _ => {
                engine.compute();
                engine.complete();
            }
        }
        engine.audit();
    }
    (0..4).for_each(|id| engine.assert_answered(id));
}

#[test]
fn b20_a_choice_without_an_outcome_ends_and_one_gets_at_most_one() {
    let mut engine = Engine::new(limits());
    let mut several = request(1, &prompt(1, 20), 50);
    several.choices = 3;
    engine.add(several).expect("room");
    let outcome = |choice, next| Outcome { request: RequestId(1), choice, accepted: 0, next };
    engine.plan();
    engine.compute();
    // Out of order, twice, and of choices and requests that are not there.
    let other = Outcome { request: RequestId(2), choice: 0, accepted: 0, next: Some(1) };
    let outcomes = [outcome(2, Some(5)), other, outcome(9, Some(1)), outcome(2, None), outcome(0, Some(6))];
    engine.batcher.complete(engine.clock.now(), &outcomes);
    engine.audit();
    assert_eq!(engine.batcher.status().running, 2);
    engine.plan();
    assert_eq!(engine.plan.tokens, [6, 5]);
    engine.batcher.complete(engine.clock.now(), &[]);
    assert!(engine.batcher.is_idle());
    engine.audit();
}

#[test]
fn b21_a_cancelled_request_is_in_no_later_step() {
    let mut engine = Engine::new(limits());
    for id in 0..30 {
        engine.add(request(id, &prompt(id, 50), 20)).expect("room");
    }
    for id in 0..30 {
        engine.step();
        engine.cancel(id);
        engine.plan();
        assert!(engine.scheduled.iter().all(|scheduled| scheduled.request.0 > id));
        engine.batcher.abandon();
    }
    assert!(engine.batcher.is_idle());
}

#[test]
fn requests_end_with_their_deadline_running_or_not() {
    let mut engine = Engine::new(limits());
    for id in 0..20 {
        let mut hasty = request(id, &prompt(id, 60), 100);
        hasty.deadline = (id % 3 > 0).then(|| Duration::from_millis(50 * id));
        engine.add(hasty).expect("room");
    }
    let mut ended = Vec::new();
    while !engine.batcher.is_idle() {
        engine.step();
        let now = engine.clock.now();
        let before = ended.len();
        engine.batcher.expire(now, &mut ended);
        for id in &ended[before..] {
            let deadline = Duration::from_millis(50 * id.0);
            assert!(deadline <= now && now < deadline + Duration::from_millis(10));
        }
        engine.audit();
    }
    for id in (0..20).filter(|id| !ended.iter().any(|ended| ended.0 == *id)) {
        engine.assert_answered(id);
    }
    assert!(ended.len() >= 10 && ended.iter().all(|id| id.0 % 3 > 0), "{ended:?}");
}

#[test]
fn b25_an_empty_prompt_is_refused() {
    assert_eq!(Engine::new(limits()).add(request(1, &[], 5)), Err(Refusal::EmptyPrompt));
}

#[test]
fn b27_a_request_that_never_fits_is_refused_with_both_numbers() {
    let mut engine = Engine::new(limits());
    let refusal = engine.add(request(1, &prompt(1, 500), 13)).expect_err("it is too long");
    assert_eq!(refusal, Refusal::TooLong { tokens: 513, most: 512 });
    assert_eq!(refusal.to_string(), "prompt and answer have 513 tokens, of which at most 512 fit");
    let mut few = limits();
    few.blocks = 10;
    let mut engine = Engine::new(few);
    assert_eq!(engine.add(request(1, &prompt(1, 100), 61)), Err(Refusal::TooLong { tokens: 161, most: 160 }));
    assert_eq!(engine.add(request(1, &[1], usize::MAX)), Err(Refusal::TooLong { tokens: usize::MAX, most: 160 }));
    engine.add(request(1, &prompt(1, 100), 60)).expect("it fits");
    engine.run();
    engine.assert_answered(1);
}

#[test]
fn the_queue_has_a_bound_and_numbers_are_unique() {
    let mut small = limits();
    small.queue = 3;
    let mut engine = Engine::new(small);
    for id in 0..3 {
        engine.add(request(id, &[1, 2], 5)).expect("room");
    }
    assert_eq!(engine.add(request(3, &[1, 2], 5)), Err(Refusal::QueueFull { waiting: 3 }));
    let same = request(2, &[1, 2], 5);
    assert_eq!(engine.batcher.add(same.clone(), Duration::ZERO), Err(Refusal::Duplicate(same.id)));
    engine.step();
    engine.add(request(3, &[1, 2], 5)).expect("room again");
    engine.run();
    (0..4).for_each(|id| engine.assert_answered(id));
}

#[test]
fn limits_without_room_for_progress_are_refused() {
    let refused = |change: fn(&mut omni_batcher::Limits)| {
        let mut limits = limits();
        change(&mut limits);
        Batcher::new(limits).expect_err("no room").to_string()
    };
    assert_eq!(refused(|limits| limits.blocks = 0), "the limit blocks of the batcher is zero");
    assert_eq!(refused(|limits| limits.ageing = Duration::ZERO), "the limit ageing of the batcher is zero");
    let mut narrow = limits();
    narrow.logits = 8;
    let error = Batcher::new(narrow).expect_err("no room");
    assert_eq!(error, LimitsError::NoRoom { sequences: 8, room: 8, what: "rows of logits" });
}
