//! Draft models over simulated backends: steps that are saved, costs, blocks, failures.

use crate::asked::{ask, assert_blocks_back, collect, greedy, ids, submit};
use crate::double::{Double, VOCABULARY};
use omni_batcher::Limits;
use omni_engine::engine::{Draft, Drafting, Engine, Settings};
use omni_kernels_fake::{LAYERS, Reference};
use omni_sampler::{Parameters, Vocabulary};
use std::sync::atomic::Ordering;
use std::time::Duration;

fn limits() -> Limits {
    Limits {
        blocks: 256,
        tokens: 64,
        sequences: 8,
        logits: 72,
        context: 4000,
        queue: 1000,
        ageing: Duration::from_secs(1),
        layers: LAYERS,
    }
}

fn start(limits: Limits, model: Double, draft: Double, drafting: Drafting) -> Engine {
    let draft = Draft { backend: Box::new(draft.backend()), context: limits.context };
    let settings = Settings { drafting, ..Settings::new(limits, Vocabulary::new(VOCABULARY, &[]).unwrap()) };
    Engine::with_draft(model.backend(), Some(draft), settings).unwrap()
}

fn quick(shift: usize) -> Double {
    Double::new(Duration::ZERO, shift)
}

fn prompt(seed: u64, length: usize) -> Vec<u32> {
    let mut random = fastrand::Rng::with_seed(seed);
    (0..length).map(|_| random.u32(..VOCABULARY as u32)).collect()
}

#[test]
fn drafts_that_are_right_save_steps_and_those_that_are_wrong_change_nothing() {
    for (shift, length) in [(0, 1), (0, 4), (0, 8), (1, 4)] {
        let engine = start(limits(), quick(0), quick(shift), Drafting::Fixed(length));
        for (seed, size) in [(1, 1), (2, 40), (3, 200)] {
            let prompt = prompt(seed, size);
            let before = engine.status();
            let answer = ask(&engine, &prompt, &greedy(160));
            assert_eq!(ids(&answer), Reference::answer(&prompt, 160, VOCABULARY));
            let after = engine.status();
            let (steps, drafted) = (after.steps - before.steps, after.drafted_tokens - before.drafted_tokens);
            let accepted = after.accepted_tokens - before.accepted_tokens;
            if shift == 0 {
                assert_eq!(accepted, drafted, "all are right");
                // Steps of the prompt, then one for each draft and the token after it.
                let least = 160 / (length as u64 + 1);
                assert!((least..least + size as u64 / 56 + 6).contains(&steps), "{steps} steps for drafts of {length}");
            } else {
                assert!(accepted < drafted / 8, "{accepted} of {drafted}");
            }
        }
        assert_blocks_back(&engine, 256);
    }
}

#[test]
fn sequences_beside_each_other_have_drafts_of_their_own() {
    let engine = start(limits(), quick(0), quick(0), Drafting::Fixed(3));
    let prompts: Vec<Vec<u32>> = (0..20).map(|seed| prompt(seed, 5 + 11 * seed as usize)).collect();
    let all: Vec<_> = prompts.iter().map(|prompt| submit(&engine, prompt, &greedy(70))).collect();
    for (prompt, events) in prompts.iter().zip(all) {
        assert_eq!(ids(&collect(events, 1)), Reference::answer(prompt, 70, VOCABULARY));
    }
    let status = engine.status();
    assert!(status.accepted_tokens > 300, "{status:?}");
    assert_blocks_back(&engine, 256);
}

#[test]
fn sampled_drafts_are_right_by_the_same_random_numbers() {
    let engine = start(limits(), quick(0), quick(0), Drafting::Fixed(4));
    let parameters = Parameters { temperature: 1.3, seed: Some(4), ..greedy(1).parameters };
    let generation = omni_engine::engine::Generation { parameters, choices: 3, ..greedy(100) };
    let answer = ask(&engine, &prompt(1, 30), &generation);
    assert!(answer.choices.iter().all(|(tokens, _)| tokens.len() == 100));
    assert_ne!(answer.choices[0].0, answer.choices[1].0);
    let status = engine.status();
    assert!(status.drafted_tokens > 150 && status.accepted_tokens == status.drafted_tokens, "{status:?}");
    let plain =
        Settings { drafting: Drafting::Off, ..Settings::new(limits(), Vocabulary::new(VOCABULARY, &[]).unwrap()) };
    let plain = Engine::start(quick(0).backend(), plain).unwrap();
    assert_eq!(ask(&plain, &prompt(1, 30), &generation), answer);
}

#[test]
fn a_draft_model_without_blocks_or_positions_is_done_without() {
    // Half of the blocks are those of a long sequence: others have none for it.
    let few = Limits { blocks: 12, context: 150, ..limits() };
    let engine = start(few, quick(0), quick(0), Drafting::Fixed(4));
    let prompts: Vec<Vec<u32>> = (0..12).map(|seed| prompt(seed, 20 + 5 * seed as usize)).collect();
    let all: Vec<_> = prompts.iter().map(|prompt| submit(&engine, prompt, &greedy(60))).collect();
    for (prompt, events) in prompts.iter().zip(all) {
        assert_eq!(ids(&collect(events, 1)), Reference::answer(prompt, 60, VOCABULARY));
    }
    assert_blocks_back(&engine, 12);
    let draft = Draft { backend: Box::new(quick(0).backend()), context: 100 };
    let vocabulary = Vocabulary::new(VOCABULARY, &[]).unwrap();
    let settings = Settings { drafting: Drafting::Fixed(4), ..Settings::new(limits(), vocabulary) };
    let engine = Engine::with_draft(quick(0).backend(), Some(draft), settings).unwrap();
    let prompt = prompt(5, 60);
    assert_eq!(ids(&ask(&engine, &prompt, &greedy(100))), Reference::answer(&prompt, 100, VOCABULARY));
    let drafted = engine.status().drafted_tokens;
    assert!((20..60).contains(&drafted), "{drafted}: up to its last position");
}

#[test]
fn a_draft_model_that_fails_is_done_without() {
    let engine = start(limits(), quick(0), quick(0).failing_after(20), Drafting::Fixed(2));
    let prompt = prompt(5, 60);
    assert_eq!(ids(&ask(&engine, &prompt, &greedy(200))), Reference::answer(&prompt, 200, VOCABULARY));
    assert!(engine.status().drafted_tokens < 80);
}

#[test]
fn answers_go_on_after_a_sleep() {
    let engine = start(limits(), Double::new(Duration::from_micros(200), 0), quick(0), Drafting::Fixed(2));
    let prompt = prompt(6, 100);
    let events = submit(&engine, &prompt, &greedy(600));
    while engine.status().accepted_tokens < 20 {
        std::thread::yield_now();
    }
    assert!(engine.sleep().unwrap() > 0);
    while engine.status().draft_blocks > 0 {
        std::thread::yield_now();
    }
    engine.wake().unwrap();
    assert_eq!(ids(&collect(events, 1)), Reference::answer(&prompt, 600, VOCABULARY));
    assert_blocks_back(&engine, 256);
}

/// Time of a step of the model in the tests of costs.
const STEP: Duration = Duration::from_millis(1);

#[test]
fn a_draft_model_that_is_wrong_is_hardly_asked() {
    let draft = Double::new(STEP / 4, 1);
    let rounds = draft.steps();
    let engine = start(limits(), Double::new(STEP, 0), draft, Drafting::Adaptive);
    for seed in 0..6 {
        ask(&engine, &prompt(seed, 50), &greedy(400));
    }
    let (rounds, steps) = (rounds.load(Ordering::Relaxed), engine.status().steps);
    // A step of its own is a quarter of the model's, and takes 2 % of the time beside a quarter of a second at the start.
    let allowed = 4.0 * 0.04 * steps as f64 + 250.0;
    assert!((rounds as f64) < allowed, "{rounds} steps of the draft model beside {steps}");
    assert!(steps > 2300, "{steps}");
}

#[test]
fn a_draft_model_as_slow_as_the_model_is_never_asked() {
    let draft = Double::new(STEP, 0);
    let rounds = draft.steps();
    let engine = start(limits(), Double::new(STEP, 0), draft, Drafting::Adaptive);
    for seed in 0..3 {
        ask(&engine, &prompt(seed, 50), &greedy(300));
    }
    let (rounds, steps) = (rounds.load(Ordering::Relaxed), engine.status().steps);
    assert!((rounds as u64) < steps / 10, "{rounds} steps of the draft model beside {steps}");
}

#[test]
fn a_draft_model_that_is_right_and_quick_is_asked() {
    let draft = Double::new(Duration::ZERO, 0);
    let engine = start(limits(), Double::new(STEP, 0), draft, Drafting::Adaptive);
    for seed in 0..4 {
        ask(&engine, &prompt(seed, 50), &greedy(400));
    }
    let status = engine.status();
    assert!(status.steps < 1000, "{} steps for 1600 tokens", status.steps);
    assert!(status.accepted_tokens > 600, "{status:?}");
}
