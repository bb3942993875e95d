//! Answers with drafts are those without, token for token, for every parameter and grammar. The target is a function of
//! the tokens before a position, so that rows of a step are what a model would compute.
#![allow(clippy::unwrap_used, reason = "helpers of tests fail as tests do")]

use omni_sampler::{Choice, Format, Grammar, GrammarCompiler, Parameters, Progress, Sampler, Vocabulary, Workspace};
use omni_speculation::{PromptLookup, verify};
use proptest::prelude::*;
use std::collections::HashMap;

const END: u32 = 0;
const OTHER_END: u32 = 1;

/// Logits after a sequence: pseudo-random by its last tokens, with some padding behind the vocabulary that would win.
fn logits(sequence: &[u32], vocabulary: usize, salt: u64) -> Vec<f32> {
    let tail = &sequence[sequence.len().saturating_sub(2)..];
    let state = tail.iter().fold(salt, |state, &token| (state ^ u64::from(token)).wrapping_mul(0x9E37_79B9_7F4A_7C15));
    let mut random = fastrand::Rng::with_seed(state);
    let mut row: Vec<f32> = (0..vocabulary).map(|_| random.f32() * 6.0).collect();
    row.resize(vocabulary + 5, 1e9);
    row
}

/// Source of drafts.
type Drafter<'a> = &'a mut dyn FnMut(&[u32], &mut Vec<u32>);

struct Target {
    vocabulary: Vocabulary,
    salt: u64,
}

/// Tokens and their log probabilities, and the number of steps.
type Answer = (Vec<(u32, Option<f32>)>, usize);

impl Target {
    fn answer(&self, sampler: &mut Sampler, prompt: &[u32], most: usize, drafter: Drafter<'_>) -> Answer {
        let (mut sequence, mut answer, mut steps) = (prompt.to_vec(), Vec::new(), 0);
        let (mut workspace, mut draft) = (Workspace::new(&self.vocabulary), Vec::new());
        while answer.len() < most {
            draft.clear();
            drafter(&sequence, &mut draft);
            draft.truncate(most - answer.len() - 1);
            draft.truncate(sampler.plausible(&draft));
            let rows = 0..=draft.len();
            let row = |accepted| {
                let before: Vec<u32> = sequence.iter().chain(&draft[..accepted]).copied().collect();
                logits(&before, self.vocabulary.size(), self.salt)
            };
            let mut rows: Vec<Vec<f32>> = rows.map(row).collect();
            let each = |sampled: omni_sampler::Sampled, _: &Workspace| answer.push((sampled.token, sampled.logprob));
            let progress = verify(sampler, &draft, &mut rows, &mut workspace, each).unwrap();
            sequence.truncate(prompt.len());
            sequence.extend(answer.iter().map(|(token, _)| token));
            steps += 1;
            if progress == Progress::Ended {
                break;
            }
        }
        (answer, steps)
    }
}

fn nothing(_: &[u32], _: &mut Vec<u32>) {}

/// Drafts that are right with a chance, by the greedy token of the target itself.
fn guesses(target: &Target, right: f64, seed: u64) -> impl FnMut(&[u32], &mut Vec<u32>) + '_ {
    let mut random = fastrand::Rng::with_seed(seed);
    move |sequence, draft| {
        for _ in 0..random.usize(0..6) {
            let before: Vec<u32> = sequence.iter().chain(draft.iter()).copied().collect();
            let row = logits(&before, target.vocabulary.size(), target.salt);
            let best = (0..target.vocabulary.size()).max_by(|&a, &b| row[a].total_cmp(&row[b])).unwrap();
            let wrong = random.u32(..target.vocabulary.size() as u32);
            draft.push(if random.f64() < right { best as u32 } else { wrong });
        }
    }
}

fn parameters() -> impl Strategy<Value = Parameters> {
    let filters = (
        prop_oneof![Just(0.0f32), Just(0.3), Just(1.0), Just(1.7)],
        prop_oneof![Just(None), Just(Some(1)), Just(Some(5)), Just(Some(500))],
        prop_oneof![Just(1.0f32), Just(0.9), Just(0.4)],
        prop_oneof![Just(0.0f32), Just(0.1)],
    );
    let penalties = (
        prop_oneof![Just(0.0f32), Just(0.8), Just(-0.5)],
        prop_oneof![Just(0.0f32), Just(1.1)],
        prop_oneof![Just(1.0f32), Just(1.4), Just(0.8)],
    );
    let lists = (
        prop::collection::vec((0u32..40, -5.0f32..5.0), 0..4),
        prop::option::of(prop::collection::vec(0u32..40, 3..20)),
        prop::collection::vec(30u32..40, 0..3),
    );
    let ends = (0u32..20, any::<bool>(), any::<u64>(), prop::option::of(0u8..4));
    (filters, penalties, lists, ends).prop_map(|(filters, penalties, lists, ends)| Parameters {
        temperature: filters.0,
        top_k: filters.1,
        top_p: filters.2,
        min_p: filters.3,
        frequency_penalty: penalties.0,
        presence_penalty: penalties.1,
        repetition_penalty: penalties.2,
        logit_bias: lists.0,
        // Keeps one token in any case.
        allowed: lists.1.map(|allowed| allowed.into_iter().chain([7]).collect()),
        banned: lists.2,
        min_tokens: ends.0,
        ignore_eos: ends.1,
        seed: Some(ends.2),
        logprobs: ends.3,
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    /// Behaviours 14 to 17: penalties, min_tokens, logit_bias, min_p, allowed ids at every drafted position; greedy
    /// equal; no id beyond the vocabulary.
    #[test]
    fn drafts_of_any_source_change_no_token_and_no_log_probability(
        parameters in parameters(), right in 0.0f64..1.0, salt in any::<u64>(),
        prompt in prop::collection::vec(0u32..40, 1..30),
    ) {
        let target = Target { vocabulary: Vocabulary::new(40, &[END, OTHER_END]).unwrap(), salt };
        let choice = || Choice { index: 2, prompt: &prompt, max_tokens: 60, grammar: None };
        let sampler = || Sampler::new(&parameters, &target.vocabulary, choice()).unwrap();
        let (plain, steps) = target.answer(&mut sampler(), &prompt, 60, &mut nothing);
        prop_assert_eq!(plain.len(), steps);
        prop_assert!(plain.iter().all(|(token, _)| *token < 40));
        let ends = plain.iter().position(|(token, _)| [END, OTHER_END].contains(token));
        prop_assert!(parameters.ignore_eos || ends.is_none_or(|end| end + 1 == plain.len()));
        prop_assert!(ends.is_none_or(|end| end >= parameters.min_tokens as usize));
        let (guessed, _) = target.answer(&mut sampler(), &prompt, 60, &mut guesses(&target, right, salt));
        prop_assert_eq!(&plain, &guessed);
        let mut lookup = PromptLookup::default();
        let mut copied = |sequence: &[u32], draft: &mut Vec<u32>| {
            lookup.update(sequence);
            lookup.draft(sequence, 4, draft);
        };
        let (looked_up, _) = target.answer(&mut sampler(), &prompt, 60, &mut copied);
        prop_assert_eq!(&plain, &looked_up);
    }
}

#[test]
fn behaviour_16_greedy_drafts_that_are_right_save_steps_and_change_nothing() {
    let target = Target { vocabulary: Vocabulary::new(50, &[END]).unwrap(), salt: 3 };
    let parameters = Parameters { temperature: 0.0, ignore_eos: true, ..Parameters::default() };
    let sampler = || Sampler::new(&parameters, &target.vocabulary, Choice::default()).unwrap();
    let (plain, steps) = target.answer(&mut sampler(), &[4, 5], 200, &mut nothing);
    let (drafted, fewer) = target.answer(&mut sampler(), &[4, 5], 200, &mut guesses(&target, 1.0, 1));
    assert_eq!((&plain, steps), (&drafted, 200));
    assert!(fewer < 80, "{fewer}");
}

/// Chi-square of pairs of tokens against their exact probabilities, with and without drafts, over unseeded requests.
#[test]
fn sampling_keeps_the_distribution() {
    const TOKENS: usize = 6;
    const ANSWERS: u32 = 40_000;
    let target = Target { vocabulary: Vocabulary::new(TOKENS, &[]).unwrap(), salt: 8 };
    let probabilities = |sequence: &[u32]| {
        let weights: Vec<f64> =
            logits(sequence, TOKENS, 8)[..TOKENS].iter().map(|&x| (f64::from(x) / 2.0).exp()).collect();
        let total: f64 = weights.iter().sum();
        weights.into_iter().map(|weight| weight / total).collect::<Vec<f64>>()
    };
    let parameters = Parameters { temperature: 2.0, ..Parameters::default() };
    for right in [None, Some(0.9), Some(0.1)] {
        let mut counts: HashMap<(u32, u32), u32> = HashMap::new();
        for seed in 0..ANSWERS {
            let mut sampler = Sampler::new(&parameters, &target.vocabulary, Choice::default()).unwrap();
            let (answer, _) = match right {
                None => target.answer(&mut sampler, &[1, 2], 2, &mut nothing),
                Some(right) => target.answer(&mut sampler, &[1, 2], 2, &mut guesses(&target, right, seed.into())),
            };
            *counts.entry((answer[0].0, answer[1].0)).or_default() += 1;
        }
        let mut chi = 0.0;
        for first in 0..TOKENS as u32 {
            let given = probabilities(&[1, 2, first]);
            for second in 0..TOKENS as u32 {
                let expected = f64::from(ANSWERS) * probabilities(&[1, 2])[first as usize] * given[second as usize];
                let found = f64::from(counts.get(&(first, second)).copied().unwrap_or(0));
                chi += (found - expected).powi(2) / expected;
            }
        }
        // 35 degrees of freedom: 99.999 % of sums are below 90.
        assert!(chi < 90.0, "{right:?}: {chi}");
    }
}

/// A vocabulary of all printable characters, some longer tokens, and two markers that are no text.
fn grammar_vocabulary() -> (Vec<Option<Vec<u8>>>, u32) {
    let special = [None, None, None];
    let bytes = (9..=126u8).map(|byte| Some(vec![byte]));
    let words = ["{\"", "\":", "\"}", "ab", "true", "false", "null", ",\"", "[]", "{}", "}}"];
    let words = words.iter().map(|word| Some(word.as_bytes().to_vec()));
    (special.into_iter().chain(bytes).chain(words).collect(), 2)
}

fn text(tokens: &[Option<Vec<u8>>], answer: &[(u32, Option<f32>)]) -> String {
    let bytes = answer.iter().flat_map(|(token, _)| tokens[*token as usize].clone().unwrap_or_default());
    String::from_utf8(bytes.collect()).unwrap()
}

fn grammar_target(salt: u64) -> (Target, Vec<Option<Vec<u8>>>, Grammar, u32) {
    let (tokens, marker) = grammar_vocabulary();
    let vocabulary = Vocabulary::new(tokens.len(), &[END, OTHER_END]).unwrap();
    let compiler = GrammarCompiler::new(tokens.iter().map(Option::as_deref), &[END, OTHER_END]).unwrap();
    let schema = r#"{"type":"object","properties":{"a":{"type":"string","maxLength":6},"b":{"type":"array",
        "items":{"enum":["x",1,true,null]},"maxItems":3}},"required":["a","b"],"additionalProperties":false}"#;
    let grammar = compiler.compile(Format::JsonSchema(schema)).unwrap();
    (Target { vocabulary, salt }, tokens, grammar, marker)
}

#[test]
fn behaviours_14_and_15_grammars_hold_at_every_drafted_position() {
    for salt in 0..30 {
        let (target, tokens, grammar, _) = grammar_target(salt);
        let parameters = Parameters { seed: Some(salt), logit_bias: vec![(90, 1.0)], ..Parameters::default() };
        let parameters = Parameters { presence_penalty: 0.7, min_tokens: 12, ..parameters };
        let choice = || Choice { grammar: Some(grammar.clone()), ..Choice::default() };
        let sampler = || Sampler::new(&parameters, &target.vocabulary, choice()).unwrap();
        let (plain, _) = target.answer(&mut sampler(), &[5], 2000, &mut nothing);
        let (guessed, _) = target.answer(&mut sampler(), &[5], 2000, &mut guesses(&target, 0.7, salt));
        assert_eq!(plain, guessed);
        let answer = text(&tokens, &plain);
        assert!(answer.ends_with('}') && answer.starts_with('{'), "{answer}");
    }
}

#[test]
fn behaviour_18_the_grammar_begins_at_the_token_after_the_marker_also_within_a_draft() {
    for salt in 0..30 {
        let (target, tokens, grammar, marker) = grammar_target(salt);
        let grammar = grammar.after(&[marker]).unwrap();
        let parameters = Parameters { seed: Some(salt), logit_bias: vec![(marker, 3.0)], ..Parameters::default() };
        let choice = || Choice { grammar: Some(grammar.clone()), ..Choice::default() };
        let sampler = || Sampler::new(&parameters, &target.vocabulary, choice()).unwrap();
        let (plain, _) = target.answer(&mut sampler(), &[5], 2000, &mut nothing);
        // Drafts of the plain answer itself, across the marker, now and then with a wrong end.
        let mut random = fastrand::Rng::with_seed(salt);
        let mut copied = |sequence: &[u32], draft: &mut Vec<u32>| {
            let rest = &plain[sequence.len() - 1..];
            draft.extend(rest.iter().take(random.usize(0..8)).map(|(token, _)| token));
            draft.extend((random.f32() < 0.5).then_some(42));
        };
        let (drafted, steps) = target.answer(&mut sampler(), &[5], 2000, &mut copied);
        assert_eq!(plain, drafted);
        assert!(steps < plain.len());
        let at = plain.iter().position(|(token, _)| *token == marker).unwrap();
        let (reasoning, answer) = (&plain[..at], text(&tokens, &plain[at + 1..]));
        assert!(reasoning.iter().all(|(token, _)| ![END, OTHER_END].contains(token)));
        assert!(answer.starts_with('{') && !answer.starts_with("{{") && answer.ends_with('}'), "{answer}");
    }
}

/// Share of sampled drafts that are accepted where the draft's distribution is near the target's: by the same random
/// numbers more than by others, and near the most that any exact method accepts.
#[test]
fn drafts_sampled_by_the_same_numbers_are_accepted_nearly_as_often_as_possible() {
    const TOKENS: usize = 200;
    const ROUNDS: u32 = 4000;
    let vocabulary = Vocabulary::new(TOKENS, &[]).unwrap();
    let mut workspace = Workspace::new(&vocabulary);
    for top_k in [None, Some(40)] {
        let mut random = fastrand::Rng::with_seed(6);
        let (mut same, mut other, mut most) = (0.0, 0.0, 0.0);
        for round in 0..ROUNDS {
            let target: Vec<f32> = (0..TOKENS).map(|_| (random.f32() + random.f32()) * 8.0).collect();
            let near: Vec<f32> = target.iter().map(|logit| logit + random.f32() * 1.5).collect();
            let mut sample = |row: &[f32], seed: u32| {
                let parameters = Parameters { seed: Some(seed.into()), top_k, ..Parameters::default() };
                let mut sampler = Sampler::new(&parameters, &vocabulary, Choice::default()).unwrap();
                sampler.sample(&mut row.to_vec(), &mut workspace).unwrap().token
            };
            let wanted = sample(&target, round);
            same += f64::from(u8::from(wanted == sample(&near, round)));
            other += f64::from(u8::from(wanted == sample(&near, round + ROUNDS)));
            let probabilities = |row: &[f32]| {
                let weights: Vec<f64> = row.iter().map(|&logit| f64::from(logit).exp()).collect();
                let total: f64 = weights.iter().sum();
                weights.into_iter().map(move |weight| weight / total).collect::<Vec<f64>>()
            };
            most += probabilities(&target).iter().zip(probabilities(&near)).map(|(a, b)| a.min(b)).sum::<f64>();
        }
        let [same, other, most] = [same, other, most].map(|sum| sum / f64::from(ROUNDS));
        println!("top_k {top_k:?}: {same:.3} by the same numbers, {other:.3} by others, {most:.3} at most");
        assert!(same > other * 1.5);
    }
}
