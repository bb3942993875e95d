//! Prefixes that requests share.

use omni_batcher::Refusal;
use omni_kernels::BLOCK;
use omni_kv_cache::Root;

use crate::engine::{Engine, limits, prompt, request};

#[test]
fn b04_requests_share_prefixes_with_the_same_root_only() {
    let mut engine = Engine::new(limits());
    let text = prompt(1, 5 * BLOCK);
    let roots = [
        (Root { adapter: Some("x"), ..Root::default() }, 0),
        (Root { salt: Some("x"), ..Root::default() }, 0),
        (Root { adapter: Some("content after a reload"), ..Root::default() }, 0),
        (Root { adapter: Some("x"), ..Root::default() }, 4 * BLOCK),
    ];
    for (id, (root, cached)) in (0..).zip(roots) {
        let mut request = request(id, &text, 3);
        request.root = root.digest();
        engine.add(request).expect("room");
        engine.run();
        assert_eq!(engine.records[&id].cached[0], cached, "request {id}");
        engine.assert_answered(id);
    }
}

#[test]
fn b07_of_a_prompt_that_is_cached_to_its_end_at_least_one_token_is_computed() {
    for length in [1, BLOCK - 1, BLOCK, BLOCK + 1, 4 * BLOCK - 1, 4 * BLOCK, 4 * BLOCK + 1] {
        let mut engine = Engine::new(limits());
        let text = prompt(2, length);
        for id in 0..3 {
            engine.add(request(id, &text, 2)).expect("room");
            engine.run();
            engine.assert_answered(id);
        }
        let cached = (length - 1) / BLOCK * BLOCK;
        assert_eq!(engine.records[&1].cached[0], cached, "length {length}");
        assert_eq!(engine.records[&1].computed, length - cached + 1);
    }
}

#[test]
fn b08_cached_tokens_are_those_that_were_not_computed_told_once_for_all_choices() {
    let mut engine = Engine::new(limits());
    let text = prompt(3, 6 * BLOCK + 5);
    engine.add(request(1, &text, 1)).expect("room");
    engine.run();
    let mut several = request(2, &text, 4);
    several.choices = 3;
    engine.add(several).expect("room");
    engine.run();
    let record = &engine.records[&2];
    assert!(record.cached.iter().all(|cached| *cached == 6 * BLOCK));
    // Five tokens of the prompt, then three tokens of each answer.
    assert_eq!(record.computed, 5 + 3 * 3);
    assert_eq!(engine.batcher.status().prompt_tokens, 2 * text.len() as u64);
    assert_eq!(engine.batcher.status().cached_tokens, 6 * BLOCK as u64);
    engine.assert_answered(2);
}

#[test]
fn b08_a_request_that_is_preempted_keeps_its_number_of_cached_tokens() {
    let mut engine = Engine::new(limits());
    let text = prompt(4, 4 * BLOCK);
    engine.add(request(1, &text, 40)).expect("room");
    engine.step();
    engine.step();
    engine.batcher.forget();
    engine.backend_lost();
    engine.run();
    assert!(engine.records[&1].cached.iter().all(|cached| *cached == 0));
    engine.assert_answered(1);
    assert_eq!(engine.batcher.status().prompt_tokens, text.len() as u64);
}

#[test]
fn b09_rows_of_the_prompt_are_computed_where_its_prefix_is_cached() {
    for (from, cached) in [(0, 0), (1, 0), (17, BLOCK), (18, BLOCK), (40, 2 * BLOCK), (78, 4 * BLOCK), (500, 4 * BLOCK)]
    {
        for tokens in [0, 3] {
            let mut engine = Engine::new(limits());
            let text = prompt(5, 78);
            engine.add(request(1, &text, 1)).expect("room");
            engine.run();
            let mut echo = request(2, &text, tokens);
            echo.logprobs_from = Some(from);
            engine.add(echo).expect("room");
            engine.run();
            engine.assert_answered(2);
            let record = &engine.records[&2];
            assert_eq!(record.cached[0], cached, "from {from}");
            let scores = (from.max(1)..text.len()).len();
            assert_eq!(record.scores.iter().filter(|(position, _)| *position < text.len()).count(), scores);
        }
    }
}

#[test]
fn b09_rows_of_the_prompt_come_once_though_the_request_is_preempted() {
    let mut engine = Engine::new(limits());
    let mut echo = request(1, &prompt(6, 200), 2);
    echo.logprobs_from = Some(0);
    engine.add(echo).expect("room");
    engine.step();
    engine.batcher.forget();
    engine.backend_lost();
    engine.step();
    engine.plan();
    engine.batcher.abandon();
    engine.audit();
    engine.run();
    engine.assert_answered(1);
    assert_eq!(engine.records[&1].scores.len(), 199);
}

#[test]
fn b36_a_prompt_answers_the_same_again_and_a_shorter_one_after_a_longer_one() {
    let mut engine = Engine::new(limits());
    let text = prompt(7, 100);
    for (id, length) in (0..).zip([100, 100, 50, 16, 33, 100, 99]) {
        engine.add(request(id, &text[..length], 60)).expect("room");
        engine.run();
        engine.assert_answered(id);
    }
    // The answer is part of the prefix of the next turn.
    let mut turn = text.clone();
    turn.extend_from_slice(&engine.records[&0].answers[0].tokens);
    turn.extend_from_slice(&prompt(8, 10));
    engine.add(request(100, &turn, 5)).expect("room");
    engine.run();
    engine.assert_answered(100);
    assert_eq!(engine.records[&100].cached[0], 144);
}

#[test]
fn a_prefix_that_is_being_computed_is_awaited_not_computed_again() {
    let mut engine = Engine::new(limits());
    for id in 0..7 {
        let mut text = prompt(10, 10 * BLOCK);
        text.extend(prompt(20 + id, 9));
        engine.add(request(id, &text, 5)).expect("room");
    }
    engine.add(request(7, &prompt(30, 30), 5)).expect("room");
    engine.step();
    let status = engine.batcher.status();
    assert_eq!((status.running, status.waiting), (2, 6), "the one with another prompt passes");
    engine.run();
    for id in 0..8 {
        engine.assert_answered(id);
        let cached = if (1..7).contains(&id) { 10 * BLOCK } else { 0 };
        assert_eq!(engine.records[&id].cached[0], cached);
    }

    // Requests that wait for a prefix go on where its request is cancelled.
    for id in 10..13 {
        engine.add(request(id, &prompt(40, 300), 5)).expect("room");
    }
    engine.step();
    assert!(engine.cancel(10));
    engine.run();
    assert!((1..300).contains(&engine.records[&11].cached[0]));
    (11..13).for_each(|id| engine.assert_answered(id));
}

#[test]
fn embeddings_are_computed_in_one_step_and_share_nothing() {
    let mut engine = Engine::new(limits());
    let text = prompt(9, 50);
    let mut whole = request(0, &text, 7);
    whole.whole = true;
    engine.add(whole).expect("room");
    engine.run();
    assert_eq!(engine.batcher.status().cached_blocks, 0);
    engine.add(request(1, &text, 1)).expect("room");
    engine.run();
    assert_eq!(engine.records[&1].cached[0], 0);
    for id in 2..6 {
        let mut whole = request(id, &text, 7);
        whole.whole = true;
        engine.add(whole).expect("room");
    }
    engine.run();
    for id in 2..6 {
        let record = &engine.records[&id];
        assert_eq!((record.segments, record.computed, record.cached[0], record.scores.len()), (1, 50, 0, 1));
        engine.assert_answered(id);
    }
    let mut long = request(9, &prompt(9, 57), 0);
    long.whole = true;
    assert_eq!(engine.add(long), Err(Refusal::TooLong { tokens: 57, most: 56 }));
}
