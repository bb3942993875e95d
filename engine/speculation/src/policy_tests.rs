//! Simulations of answers under the policy: time lost at worst, gain where texts repeat, and borders of its decisions.

use super::*;

/// Text whose drafts are accepted token by token with a chance that may change, and how often there is a draft at all.
struct Text {
    acceptance: fn(f64) -> f64,
    found: f64,
    cost: f64,
}

/// Tokens for each plain step's time over an answer of `tokens` tokens.
fn speed(text: &Text, longest: usize, tokens: usize, seed: u64) -> f64 {
    let mut random = fastrand::Rng::with_seed(seed);
    let mut policy = DraftPolicy::new(longest);
    let (mut made, mut time) = (0, 0.0);
    while made < tokens {
        let length = policy.length(text.cost);
        let length = if random.f64() < text.found { length } else { 0 };
        let chance = (text.acceptance)(made as f64 / tokens as f64);
        let accepted = (0..length).take_while(|_| random.f64() < chance).count();
        if length == 0 {
            policy.plain();
        } else {
            policy.drafted(length, accepted, text.cost);
        }
        made += 1 + accepted;
        time += 1.0 + text.cost * length as f64;
    }
    made as f64 / time
}

#[test]
fn free_text_is_never_below_097() {
    let mut worst = f64::INFINITY;
    for cost in [0.0, 0.02, 0.05, 0.1, 0.2, 0.4, 0.7, 1.0] {
        for found in [0.05, 0.3, 1.0] {
            for acceptance in
                [|_| 0.0, |_| 0.05, |_| 0.1, |_| 0.2, |_| 0.3, |_| 0.5, |at: f64| if at < 0.5 { 0.9 } else { 0.0 }]
            {
                let text = Text { acceptance, found, cost };
                for seed in 0..20 {
                    for tokens in [40, 200, 2000] {
                        worst = worst.min(speed(&text, 8, tokens, seed));
                    }
                }
            }
        }
    }
    assert!(worst >= 0.97, "{worst}");
}

#[test]
fn copying_text_pays() {
    // Costs as on a processor (0.1 to 0.2 for a row) and on a card (0.02).
    for (cost, acceptance, least) in
        [(0.02, (|_| 0.9) as fn(f64) -> f64, 4.0), (0.1, |_| 0.85, 2.2), (0.2, |_| 0.85, 1.6), (0.1, |_| 0.7, 1.5)]
    {
        let text = Text { acceptance, found: 0.95, cost };
        let mean = (0..20).map(|seed| speed(&text, 8, 500, seed)).sum::<f64>() / 20.0;
        assert!(mean >= least, "{cost}: {mean}");
    }
}

#[test]
fn drafts_come_back_where_the_text_begins_to_repeat() {
    let text = Text { acceptance: |at| if at < 0.5 { 0.0 } else { 0.9 }, found: 1.0, cost: 0.05 };
    let mean = (0..20).map(|seed| speed(&text, 8, 1000, seed)).sum::<f64>() / 20.0;
    // All of the second half at best: half of the tokens at some 4.4 a step's time.
    assert!(mean > 1.4, "{mean}");
}

#[test]
fn length_follows_acceptance_and_cost() {
    let with = |acceptance: f64, cost: f64| {
        let mut policy = DraftPolicy::new(8);
        (policy.acceptance, policy.time) = (acceptance, 1000.0);
        policy.length(cost)
    };
    assert_eq!(with(0.95, 0.0), 8);
    assert!(with(0.9, 0.05) > with(0.6, 0.05) && with(0.6, 0.05) > 0);
    assert!(with(0.8, 0.02) > with(0.8, 0.3));
    assert_eq!(DraftPolicy::new(0).length(0.0), 0);
}

#[test]
fn a_rate_on_the_border_does_not_switch_on_every_step() {
    let mut random = fastrand::Rng::with_seed(7);
    let (mut policy, mut switches) = (DraftPolicy::new(4), 0);
    for _ in 0..10_000 {
        let before = policy.on;
        match policy.length(0.25) {
            0 => policy.plain(),
            length => {
                let accepted = (0..length).take_while(|_| random.f64() < 0.27).count();
                policy.drafted(length, accepted, 0.25);
            }
        }
        switches += usize::from(before != policy.on);
    }
    assert!(switches < 300, "{switches}");
}
