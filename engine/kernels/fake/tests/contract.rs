//! The simulated backend keeps the contract of a backend, and refuses plans that break it.
#![allow(clippy::expect_used, reason = "a test stops at the first surprise")]

use std::time::Duration;

use omni_kernels::{BLOCK, Backend, BlockCopy, BlockId, Capacity, Segment, StepPlan};
use omni_kernels_fake::{Cost, Reference, SimulatedBackend};

const VOCABULARY: usize = 50;
const COST: Cost = Cost {
    step: Duration::from_millis(5),
    token: Duration::from_micros(10),
    thousand_positions: Duration::from_millis(1),
};

fn backend() -> SimulatedBackend {
    let mut backend = SimulatedBackend::new(VOCABULARY, COST);
    backend.reserve(Capacity { blocks: 8, tokens: 64, segments: 4, logits: 64 }).expect("memory");
    backend
}

/// Appends a segment with a row for each token.
fn push(plan: &mut StepPlan, start: usize, tokens: &[u32], blocks: &[u32]) {
    let (first, first_block) = (plan.tokens.len(), plan.blocks.len());
    plan.tokens.extend_from_slice(tokens);
    plan.blocks.extend(blocks.iter().map(|block| BlockId(*block)));
    plan.segments.push(Segment {
        tokens: first..plan.tokens.len(),
        start,
        blocks: first_block..plan.blocks.len(),
        logits: tokens.len(),
    });
}

fn plan(segments: &[(usize, &[u32], &[u32])]) -> StepPlan {
    let mut plan = StepPlan::default();
    segments.iter().for_each(|(start, tokens, blocks)| push(&mut plan, *start, tokens, blocks));
    plan
}

/// Rows of the last step.
fn rows(backend: &mut SimulatedBackend, count: usize) -> Vec<Vec<f32>> {
    (0..count).map(|row| backend.row(row).to_vec()).collect()
}

fn tokens(count: u32) -> Vec<u32> {
    (0..count).map(|token| token * token % 47).collect()
}

#[test]
fn rows_do_not_depend_on_the_cut_into_segments_and_steps_nor_on_others() {
    let text = tokens(40);
    let mut whole = backend();
    whole.step(&plan(&[(0, &text, &[3, 1, 2])])).expect("a right plan");
    let expected = rows(&mut whole, 40);

    let mut cut = backend();
    let mut found = Vec::new();
    cut.step(&plan(&[(0, &text[..15], &[0]), (0, &[9, 9], &[7])])).expect("a right plan");
    found.extend(rows(&mut cut, 15));
    cut.step(&plan(&[(2, &[9], &[7]), (15, &text[15..33], &[0, 5, 4])])).expect("a right plan");
    found.extend(rows(&mut cut, 19).split_off(1));
    cut.step(&plan(&[(33, &text[33..], &[0, 5, 4])])).expect("a right plan");
    found.extend(rows(&mut cut, 7));
    assert_eq!(found, expected);
}

#[test]
fn the_greatest_logit_is_that_of_the_reference() {
    let text = tokens(30);
    let mut backend = backend();
    backend.step(&plan(&[(0, &text, &[0, 1])])).expect("a right plan");
    let mut reference = Reference::default();
    for (row, token) in text.iter().enumerate() {
        reference.push(*token);
        let row = backend.row(row);
        let best = (0..VOCABULARY).max_by(|a, b| row[*a].total_cmp(&row[*b])).expect("a vocabulary");
        assert_eq!(best as u32, reference.next(VOCABULARY));
        assert!(row.iter().all(|logit| (-8.0..=2.0).contains(logit)));
    }
    let answer = Reference::answer(&text, 3, VOCABULARY);
    assert_eq!((answer.len(), answer[0]), (3, reference.next(VOCABULARY)));
}

#[test]
fn copies_come_before_the_tokens_and_in_order() {
    let text = tokens(20);
    let mut backend = backend();
    backend.step(&plan(&[(0, &text[..18], &[0, 1])])).expect("a right plan");
    let mut copied = plan(&[(18, &text[18..], &[0, 3]), (18, &[1], &[0, 1])]);
    let copy = |from, to| BlockCopy { from: BlockId(from), to: BlockId(to) };
    copied.copies.extend([copy(1, 2), copy(2, 3)]);
    copied.segments[1].blocks = 2..4;
    backend.step(&copied).expect("a right plan");
    let found = rows(&mut backend, 2);
    let mut alone = self::backend();
    alone.step(&plan(&[(0, &text, &[4, 5])])).expect("a right plan");
    assert_eq!(found, rows(&mut alone, 20)[18..]);
}

#[test]
fn plans_that_break_the_contract_are_refused() {
    let text = tokens(64);
    let mut gap = plan(&[(0, &text[..3], &[0]), (0, &text[..3], &[1])]);
    gap.segments[1].tokens = 4..6;
    let mut loose = plan(&[(0, &text[..3], &[0])]);
    loose.tokens.push(1);
    let mut greedy = plan(&[(0, &text[..3], &[0])]);
    greedy.segments[0].logits = 4;
    let mut outside = plan(&[(0, &text[..3], &[0])]);
    outside.copies.push(BlockCopy { from: BlockId(0), to: BlockId(8) });
    let five = [(0, &text[..1], &[0][..]), (0, &text[..1], &[1]), (0, &text[..1], &[2]), (0, &text[..1], &[3])];
    let mut crowd = plan(&five);
    push(&mut crowd, 0, &text[..1], &[4]);
    let broken = [
        ("segment 1", gap),
        ("no segment", loose),
        ("segment 0", greedy),
        ("block 8 of 8", outside),
        ("capacity", crowd),
        ("capacity", plan(&[(0, &tokens(65), &[0, 1, 2, 3, 4])])),
        ("segment 0", plan(&[(0, &[], &[])])),
        ("segment 0", plan(&[(0, &text[..BLOCK + 1], &[0])])),
        ("block 9 of 8", plan(&[(0, &text[..3], &[9])])),
        ("0 and 1 write to block 2", plan(&[(0, &text[..3], &[2]), (0, &text[..3], &[2])])),
        ("0 and 0 write to block 2", plan(&[(0, &text[..BLOCK + 1], &[2, 2])])),
        ("segment 1 reads block 2", plan(&[(0, &text[..3], &[2]), (BLOCK, &text[..3], &[2, 3])])),
        ("position 0 is read", plan(&[(1, &text[..3], &[2])])),
    ];
    for (words, plan) in broken {
        let error = backend().step(&plan).expect_err(words).to_string();
        assert!(error.contains(words), "{error}, not {words}");
    }
}

#[test]
fn the_clock_advances_by_the_cost_of_each_step() {
    let mut backend = backend();
    let clock = backend.clock();
    backend.step(&plan(&[(0, &tokens(10), &[0])])).expect("a right plan");
    assert_eq!(clock.now(), Duration::from_micros(5000 + 100 + 55));
    backend.step(&plan(&[(10, &[1], &[0])])).expect("a right plan");
    assert_eq!(clock.now(), Duration::from_micros(5155 + 5000 + 10 + 11));
}

#[test]
fn blocks_are_exported_and_imported_and_a_sleep_loses_them() {
    let text = tokens(20);
    let mut first = backend();
    first.step(&plan(&[(0, &text[..19], &[0, 1])])).expect("a right plan");
    let mut second = backend();
    let mut bytes = vec![0; first.facts().block_bytes as usize];
    for (from, to) in [(0, 6), (1, 7)] {
        first.export(BlockId(from), &mut bytes);
        second.import(BlockId(to), &bytes);
    }
    first.step(&plan(&[(19, &text[19..], &[0, 1])])).expect("a right plan");
    second.step(&plan(&[(19, &text[19..], &[6, 7])])).expect("a right plan");
    assert_eq!(rows(&mut first, 1), rows(&mut second, 1));

    let capacity = Capacity { blocks: 8, tokens: 64, segments: 4, logits: 64 };
    assert_eq!(second.sleep().expect("it can sleep"), second.bytes(capacity));
    let next = plan(&[(20, &[1], &[6, 7])]);
    assert!(second.step(&next).is_err());
    second.wake().expect("it can wake");
    let error = second.step(&next).expect_err("the contents are lost").to_string();
    assert!(error.contains("position 0 is read"), "{error}");
}
