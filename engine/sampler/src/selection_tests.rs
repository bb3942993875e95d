//! Tests of the filters and the choice against full sorts, with equal, excluded and extreme logits.

use super::*;
use crate::parameters::Vocabulary;

fn filters(temperature: f32, top_k: Option<u32>, top_p: f32, min_p: f32) -> Filters {
    Filters::new(&Parameters { temperature, top_k, top_p, min_p, ..Parameters::default() })
}

fn workspace(tokens: usize) -> Workspace {
    Workspace::new(&Vocabulary::new(tokens, &[]).unwrap())
}

/// Probabilities by full sorts, in the order of vLLM: temperature, min_p, top_k, top_p.
fn reference(row: &[f32], temperature: f32, top_k: Option<u32>, top_p: f32, min_p: f32) -> Vec<f64> {
    let mut order: Vec<usize> = (0..row.len()).filter(|&id| row[id] > f32::NEG_INFINITY).collect();
    order.sort_by(|&a, &b| row[b].total_cmp(&row[a]).then(a.cmp(&b)));
    let weight = |id: usize| (f64::from(row[id] - row[order[0]]) / f64::from(temperature)).exp();
    let mut kept: Vec<usize> = order.iter().copied().filter(|&id| weight(id) >= f64::from(min_p)).collect();
    kept.truncate(top_k.map_or(usize::MAX, |top_k| top_k as usize));
    let total: f64 = kept.iter().map(|&id| weight(id)).sum();
    let mut passed = 0.0;
    let reached = kept.iter().position(|&id| {
        passed += weight(id);
        passed >= total * f64::from(top_p)
    });
    kept.truncate(reached.map_or(usize::MAX, |last| last + 1));
    let total: f64 = kept.iter().map(|&id| weight(id)).sum();
    let mut probabilities = vec![0.0; row.len()];
    kept.iter().for_each(|&id| probabilities[id] = weight(id) / total);
    probabilities
}

/// Probabilities by an even grid of numbers.
fn measured(row: &[f32], filters: Filters, draws: u32) -> Vec<f64> {
    let mut workspace = workspace(row.len());
    let mut counts = vec![0.0; row.len()];
    for draw in 0..draws {
        let uniform = (f64::from(draw) + 0.5) / f64::from(draws);
        counts[choose(row, filters, uniform, &mut workspace).unwrap() as usize] += 1.0 / f64::from(draws);
    }
    counts
}

fn random_row(size: usize, spread: f32, seed: u64) -> Vec<f32> {
    let mut random = fastrand::Rng::with_seed(seed);
    let mut row: Vec<f32> = (0..size).map(|_| (random.f32() + random.f32() + random.f32() - 1.5) * spread).collect();
    // Equal logits, and excluded ones.
    for _ in 0..size / 8 {
        let (from, to) = (random.usize(..size), random.usize(..size));
        row[to] = row[from];
        row[random.usize(..size)] = f32::NEG_INFINITY;
    }
    row[size / 2] = 1.0;
    row
}

#[test]
fn every_filter_keeps_the_tokens_of_a_full_sort() {
    let combinations = [
        (1.0, None, 1.0, 0.0),
        (0.7, None, 1.0, 0.0),
        (1.0, Some(1), 1.0, 0.0),
        (1.0, Some(7), 1.0, 0.0),
        (1.3, Some(500), 1.0, 0.0),
        (1.0, Some(1_000_000), 1.0, 0.0),
        (1.0, None, 0.9, 0.0),
        (1.5, None, 0.5, 0.0),
        (1.0, None, 1e-6, 0.0),
        (1.0, None, 1.0, 0.1),
        (1.0, None, 1.0, 1.0),
        (2.0, Some(40), 0.8, 0.05),
        (50.0, None, 0.95, 0.0),
        (1e30, None, 0.5, 0.0),
    ];
    for (size, spread) in [(1, 1.0), (10, 8.0), (300, 20.0), (2000, 4.0), (2000, 40.0)] {
        for (at, &(temperature, top_k, top_p, min_p)) in combinations.iter().enumerate() {
            let row = random_row(size, spread, at as u64);
            let expected = reference(&row, temperature, top_k, top_p, min_p);
            let found = measured(&row, filters(temperature, top_k, top_p, min_p), 1_000);
            for (id, (found, expected)) in found.iter().zip(&expected).enumerate() {
                // A grid counts each token within one draw on either side.
                assert!((found - expected).abs() < 2.2e-3, "{size} {spread} {at} {id}: {found} {expected}");
            }
        }
    }
}

#[test]
fn many_equal_logits_are_kept_in_the_order_of_their_ids() {
    let row = vec![0.5; 5000];
    for (filters, kept) in [
        (filters(1.0, None, 0.5, 0.0), 2500),
        (filters(1.0, Some(3000), 1.0, 0.0), 3000),
        (filters(1.0, Some(3000), 0.5, 0.0), 1500),
    ] {
        let probabilities = measured(&row, filters, 6_000);
        let last = probabilities.iter().rposition(|&probability| probability > 0.0);
        assert_eq!(last, Some(kept - 1));
        assert!(probabilities[..kept].iter().all(|&probability| probability > 0.0));
    }
}

#[test]
fn greedy_takes_the_first_of_the_largest() {
    let mut workspace = workspace(200);
    let mut row = vec![-1.0; 200];
    (row[77], row[150]) = (3.0, 3.0);
    for filters in [filters(0.0, None, 1.0, 0.0), filters(1e-6, None, 1.0, 0.0), filters(1.0, Some(1), 1.0, 0.0)] {
        assert_eq!(choose(&row, filters, 0.99, &mut workspace), Some(77));
    }
    (row[77], row[150], row[3], row[100]) = (-1.0, -1.0, -0.0, 0.0);
    assert_eq!(choose(&row, filters(0.0, None, 1.0, 0.0), 0.0, &mut workspace), Some(3));
}

#[test]
fn extreme_logits_and_temperatures_always_give_a_token_that_is_not_excluded() {
    let mut workspace = workspace(200);
    let extremes = [f32::NEG_INFINITY, f32::MIN, -1e30, -0.0, 0.0, 1e-40, 1.0, 1e30, f32::MAX];
    let mut random = fastrand::Rng::with_seed(9);
    for _ in 0..20_000 {
        let row: Vec<f32> = (0..random.usize(1..150)).map(|_| extremes[random.usize(..extremes.len())]).collect();
        let temperature = [1e-5, 1e-4, 0.5, 1.0, 2.0, 1e10, f32::MAX][random.usize(..7)];
        let top_k = [None, Some(1), Some(2), Some(u32::MAX)][random.usize(..4)];
        let top_p = [1.0, 0.999_999, 0.5, f32::MIN_POSITIVE][random.usize(..4)];
        let min_p = [0.0, f32::MIN_POSITIVE, 0.3, 1.0][random.usize(..4)];
        let uniform = [0.0, random.f64(), 1.0 - f64::EPSILON / 2.0][random.usize(..3)];
        let chosen = choose(&row, filters(temperature, top_k, top_p, min_p), uniform, &mut workspace);
        let possible = row.iter().any(|&logit| logit > f32::NEG_INFINITY);
        assert_eq!(chosen.is_some(), possible, "{row:?} {temperature} {top_k:?} {top_p} {min_p} {uniform}");
        assert!(chosen.is_none_or(|token| row[token as usize] > f32::NEG_INFINITY));
    }
}
