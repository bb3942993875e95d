//! Behaviours of a sampler that peers have had wrong; numbers are those of the engine's list of behaviours.
#![allow(clippy::unwrap_used, reason = "helpers of tests fail as tests do")]

use omni_sampler::{
    Choice, LEAST_LOGPROB, ParameterError, Parameters, Progress, SampleError, Sampler, Vocabulary, Workspace,
    fresh_seed,
};
use proptest::prelude::*;

const SIZE: usize = 100;

fn vocabulary() -> Vocabulary {
    Vocabulary::new(SIZE, &[3, 4]).unwrap()
}

fn sampler(parameters: &Parameters, index: u32) -> Sampler {
    Sampler::new(parameters, &vocabulary(), Choice { index, ..Choice::default() }).unwrap()
}

fn greedy() -> Parameters {
    Parameters { temperature: 0.0, ..Parameters::default() }
}

fn row(seed: u64) -> Vec<f32> {
    let mut random = fastrand::Rng::with_seed(seed);
    (0..SIZE).map(|_| random.f32() * 4.0).collect()
}

/// Tokens of an answer whose rows are random.
fn answer(sampler: &mut Sampler, workspace: &mut Workspace, length: u64) -> Vec<u32> {
    let next = |position| {
        let sampled = sampler.sample(&mut row(position), workspace).unwrap();
        sampler.accept(sampled.token).unwrap();
        sampled.token
    };
    (0..length).map(next).collect()
}

#[test]
fn behaviour_11_a_seed_gives_the_same_tokens_whatever_else_is_sampled() {
    let seeded = Parameters { seed: Some(7), ..Parameters::default() };
    let mut workspace = Workspace::new(&vocabulary());
    let alone = answer(&mut sampler(&seeded, 0), &mut workspace, 50);
    let (mut beside, mut others) = (sampler(&seeded, 0), [sampler(&Parameters::default(), 0), sampler(&greedy(), 0)]);
    let mut together = Vec::new();
    for position in 0..50 {
        for other in &mut others {
            answer(other, &mut workspace, position % 3);
        }
        let token = beside.sample(&mut row(position), &mut workspace).unwrap().token;
        // Sampling again, as after a step that was thrown away, changes nothing.
        assert_eq!(beside.sample(&mut row(position), &mut workspace).unwrap().token, token);
        beside.accept(token).unwrap();
        together.push(token);
    }
    assert_eq!(alone, together);
    let unseeded = || answer(&mut sampler(&Parameters::default(), 0), &mut Workspace::new(&vocabulary()), 50);
    assert_ne!(unseeded(), unseeded());
    assert_ne!(fresh_seed(), fresh_seed());
}

#[test]
fn behaviour_12_each_choice_of_a_request_has_its_own_stream_of_the_seed() {
    let seeded = Parameters { seed: Some(7), ..Parameters::default() };
    let answers: Vec<Vec<u32>> =
        (0..8).map(|index| answer(&mut sampler(&seeded, index), &mut Workspace::new(&vocabulary()), 50)).collect();
    for (index, one) in answers.iter().enumerate() {
        assert_eq!(*one, answer(&mut sampler(&seeded, index as u32), &mut Workspace::new(&vocabulary()), 50));
        assert!(answers[..index].iter().all(|other| other != one));
    }
}

#[test]
fn behaviour_14_penalties_count_accepted_tokens_and_repetition_the_prompt() {
    let best = |parameters: &Parameters, prompt: &[u32], accepted: &[u32], row: &[f32]| {
        let choice = Choice { prompt, ..Choice::default() };
        let mut sampler = Sampler::new(parameters, &vocabulary(), choice).unwrap();
        accepted.iter().for_each(|&token| assert_eq!(sampler.accept(token), Ok(Progress::Continues)));
        let sampled = sampler.sample(&mut row.to_vec(), &mut Workspace::new(&vocabulary())).unwrap();
        (sampled.token, sampled.logprob)
    };
    let mut row = vec![-1.0; SIZE];
    (row[10], row[11], row[12]) = (2.0, 1.0, 0.1);
    let frequency = Parameters { frequency_penalty: 0.6, ..greedy() };
    let presence = Parameters { presence_penalty: 1.5, ..greedy() };
    let repetition = Parameters { repetition_penalty: 3.0, logprobs: Some(0), ..greedy() };
    for (parameters, prompt, accepted, expected) in [
        (&frequency, vec![10; 9], vec![], 10),
        (&frequency, vec![], vec![10], 10),
        (&frequency, vec![], vec![10, 10], 11),
        (&presence, vec![10], vec![], 10),
        (&presence, vec![], vec![10], 11),
        (&presence, vec![], vec![10; 5], 11),
        (&presence, vec![], vec![10, 11], 10),
        (&repetition, vec![10], vec![], 11),
        (&repetition, vec![], vec![10], 11),
        (&repetition, vec![11], vec![10, 12], 10),
    ] {
        assert_eq!(best(parameters, &prompt, &accepted, &row).0, expected, "{parameters:?} {prompt:?} {accepted:?}");
    }
    // A negative logit is multiplied; the log probability is of the model's own distribution.
    let negative: Vec<f32> = (0..SIZE).map(|id| if id == 20 { -1.0 } else { -2.0 }).collect();
    let (token, logprob) = best(&repetition, &[20], &[], &negative);
    let own = -2.0 - ((-1.0f32).exp() + 99.0 * (-2.0f32).exp()).ln();
    assert!(token == 0 && (logprob.unwrap() - own).abs() < 1e-5, "{token} {logprob:?} {own}");
}

#[test]
fn behaviours_14_and_30_min_tokens_and_ignore_eos_cover_all_end_tokens() {
    let mut wanting = vec![0.0; SIZE];
    (wanting[3], wanting[4], wanting[50]) = (9.0, 8.0, 1.0);
    let mut workspace = Workspace::new(&vocabulary());
    let mut next = |sampler: &mut Sampler| {
        let token = sampler.sample(&mut wanting.clone(), &mut workspace).unwrap().token;
        (token, sampler.accept(token).unwrap())
    };
    let mut patient = sampler(&Parameters { min_tokens: 2, ..greedy() }, 0);
    assert_eq!([next(&mut patient), next(&mut patient)], [(50, Progress::Continues); 2]);
    assert_eq!(next(&mut patient), (3, Progress::Ended));
    let mut endless = sampler(&Parameters { ignore_eos: true, min_tokens: 1, ..greedy() }, 0);
    assert_eq!(next(&mut endless), (50, Progress::Continues));
    assert_eq!([next(&mut endless), next(&mut endless)], [(3, Progress::Continues); 2]);
    let mut other = sampler(&Parameters { banned: vec![3], ..greedy() }, 0);
    assert_eq!(next(&mut other), (4, Progress::Ended));
}

#[test]
fn behaviour_15_biases_and_lists_of_ids_are_honoured() {
    let best = |parameters: Parameters| {
        sampler(&parameters, 0).sample(&mut row(1), &mut Workspace::new(&vocabulary())).unwrap().token
    };
    assert_eq!(best(Parameters { logit_bias: vec![(42, 100.0)], ..Parameters::default() }), 42);
    assert_eq!(
        best(Parameters { logit_bias: vec![(42, 50.0)], banned: vec![42], allowed: Some(vec![42, 43]), ..greedy() }),
        43
    );
    for _ in 0..100 {
        assert!([5, 64, 99].contains(&best(Parameters { allowed: Some(vec![64, 5, 99]), ..Parameters::default() })));
    }
}

#[test]
fn behaviour_17_padding_is_never_sampled() {
    let (mut workspace, mut padded) = (Workspace::new(&vocabulary()), row(1));
    padded.extend([1e9, f32::INFINITY, f32::NAN]);
    for parameters in [greedy(), Parameters::default(), Parameters { logprobs: Some(20), ..Parameters::default() }] {
        for index in 0..200 {
            let sampled = sampler(&parameters, index).sample(&mut padded.clone(), &mut workspace).unwrap();
            assert!(sampled.token < SIZE as u32);
            assert!(workspace.alternatives().iter().all(|alternative| alternative.token < SIZE as u32));
        }
    }
    let short = SampleError::Width { row: 99, vocabulary: SIZE };
    assert_eq!(sampler(&greedy(), 0).sample(&mut vec![0.0; 99], &mut workspace), Err(short));
}

#[test]
fn behaviour_24_ids_outside_of_the_vocabulary_are_refused_by_the_parameter_that_has_them() {
    let refused = |parameters: Parameters, prompt: &[u32]| {
        let choice = Choice { prompt, ..Choice::default() };
        Sampler::new(&parameters, &vocabulary(), choice).err().map(|error| error.to_string())
    };
    let default = Parameters::default;
    for (parameters, prompt, name) in [
        (default(), &[5, 100][..], "prompt"),
        (Parameters { logit_bias: vec![(100, 1.0)], ..default() }, &[], "logit_bias"),
        (Parameters { allowed: Some(vec![1, u32::MAX]), ..default() }, &[], "allowed_token_ids"),
        (Parameters { allowed: Some(vec![]), ..default() }, &[], "allowed_token_ids"),
        (Parameters { banned: vec![100], ..default() }, &[], "banned_token_ids"),
        (Parameters { temperature: f32::NAN, ..default() }, &[], "temperature"),
        (Parameters { temperature: -0.1, ..default() }, &[], "temperature"),
        (Parameters { temperature: f32::INFINITY, ..default() }, &[], "temperature"),
        (Parameters { top_k: Some(0), ..default() }, &[], "top_k"),
        (Parameters { top_p: 0.0, ..default() }, &[], "top_p"),
        (Parameters { top_p: f32::NAN, ..default() }, &[], "top_p"),
        (Parameters { min_p: 1.1, ..default() }, &[], "min_p"),
        (Parameters { frequency_penalty: 2.1, ..default() }, &[], "frequency_penalty"),
        (Parameters { presence_penalty: f32::NAN, ..default() }, &[], "presence_penalty"),
        (Parameters { repetition_penalty: 0.0, ..default() }, &[], "repetition_penalty"),
        (Parameters { repetition_penalty: f32::INFINITY, ..default() }, &[], "repetition_penalty"),
        (Parameters { logit_bias: vec![(1, f32::NAN)], ..default() }, &[], "logit_bias"),
        (Parameters { logprobs: Some(21), ..default() }, &[], "logprobs"),
    ] {
        let message = refused(parameters, prompt).unwrap();
        assert!(message.starts_with(name), "{name}: {message}");
    }
    assert_eq!(refused(Parameters { top_k: Some(u32::MAX), ..default() }, &[99]), None);
    assert_eq!(Vocabulary::new(0, &[]), Err(ParameterError::Vocabulary(0)));
    assert!(Vocabulary::new(10, &[10]).is_err());
    assert_eq!(sampler(&greedy(), 0).accept(100), Err(SampleError::Token(100)));
}

#[test]
fn behaviour_10_alternatives_are_the_most_probable_of_the_model_by_id() {
    let parameters =
        Parameters { temperature: 0.3, top_k: Some(2), banned: vec![60], logprobs: Some(5), ..Parameters::default() };
    let mut workspace = Workspace::new(&vocabulary());
    let mut logits = row(5);
    logits[60] = 9.0;
    logits.push(99.0);
    let sampled = sampler(&parameters, 0).sample(&mut logits.clone(), &mut workspace).unwrap();
    let exponentials: Vec<f64> = logits[..SIZE].iter().map(|&logit| f64::from(logit).exp()).collect();
    let total: f64 = exponentials.iter().sum();
    let exact = |token: u32| (exponentials[token as usize] / total).ln() as f32;
    let mut order: Vec<u32> = (0..SIZE as u32).collect();
    order.sort_by(|&a, &b| logits[b as usize].total_cmp(&logits[a as usize]));
    let alternatives = workspace.alternatives();
    assert_eq!(alternatives.iter().map(|alternative| alternative.token).collect::<Vec<_>>(), order[..5]);
    assert!(alternatives.iter().all(|alternative| (alternative.logprob - exact(alternative.token)).abs() < 1e-5));
    assert!((sampled.logprob.unwrap() - exact(sampled.token)).abs() < 1e-5);
    assert_ne!(sampled.token, 60);
    // A prompt's token is scored alike.
    let scored = Sampler::score(&vocabulary(), &mut logits, 77, 3, &mut workspace).unwrap();
    assert!((scored - exact(77)).abs() < 1e-5 && workspace.alternatives().len() == 3);
    assert_eq!(Sampler::score(&vocabulary(), &mut logits, 100, 0, &mut workspace), Err(SampleError::Token(100)));
}

#[test]
fn behaviour_26_rows_of_nothing_are_an_error_of_their_choice_only() {
    let mut workspace = Workspace::new(&vocabulary());
    for logit in [f32::NEG_INFINITY, f32::NAN] {
        for parameters in [greedy(), Parameters { logprobs: Some(3), ..Parameters::default() }] {
            let result = sampler(&parameters, 0).sample(&mut vec![logit; SIZE], &mut workspace);
            assert_eq!(result, Err(SampleError::NothingLeft));
            assert!(sampler(&parameters, 0).sample(&mut row(1), &mut workspace).is_ok());
        }
    }
    let scored = Sampler::score(&vocabulary(), &mut vec![f32::NEG_INFINITY; SIZE], 1, 5, &mut workspace);
    assert_eq!(scored, Ok(LEAST_LOGPROB));
}

fn any_logit() -> impl Strategy<Value = f32> {
    prop_oneof![
        4 => -20.0f32..20.0,
        1 => any::<u32>().prop_map(f32::from_bits),
        1 => prop::sample::select(vec![f32::NAN, f32::INFINITY, f32::NEG_INFINITY, f32::MAX, f32::MIN, 0.0, -0.0]),
    ]
}

proptest! {
    /// Behaviour 26: any bits as logits, any parameters, give a token that may be sampled and numbers that are some.
    #[test]
    fn behaviour_26_any_logits_give_a_token_and_finite_log_probabilities(
        mut row in prop::collection::vec(any_logit(), SIZE..SIZE + 30),
        temperature in prop_oneof![Just(0.0f32), Just(1e-30), Just(1e-5), Just(1.0), Just(f32::MAX), 0.0f32..2.0],
        top_k in prop::option::of(1u32..300), top_p in 1e-9f32..=1.0, min_p in 0.0f32..=1.0,
        penalties in (-2.0f32..=2.0, -2.0f32..=2.0, 1e-3f32..1e6), seed in any::<u64>(),
        accepted in prop::collection::vec(5u32..100, 0..20),
    ) {
        let parameters = Parameters {
            temperature, top_k, top_p, min_p, frequency_penalty: penalties.0, presence_penalty: penalties.1,
            repetition_penalty: penalties.2, logit_bias: vec![(7, 100.0), (8, -100.0)], logprobs: Some(5),
            seed: Some(seed), ..Parameters::default()
        };
        let mut sampler = sampler(&parameters, 0);
        for token in accepted {
            prop_assert_eq!(sampler.accept(token), Ok(Progress::Continues));
        }
        let mut workspace = Workspace::new(&vocabulary());
        let possible: Vec<bool> = row[..SIZE].iter().map(|&logit| logit > f32::NEG_INFINITY).collect();
        match sampler.sample(&mut row, &mut workspace) {
            Ok(sampled) => {
                prop_assert!(possible[sampled.token as usize]);
                prop_assert!(sampled.logprob.is_some_and(|logprob| (LEAST_LOGPROB..=0.0).contains(&logprob)));
            }
            Err(error) => prop_assert!(error == SampleError::NothingLeft && !possible.contains(&true)),
        }
        for alternative in workspace.alternatives() {
            prop_assert!((LEAST_LOGPROB..=0.0).contains(&alternative.logprob));
        }
    }
}
