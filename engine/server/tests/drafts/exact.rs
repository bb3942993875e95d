//! Drafts on the processor: answers with a draft model are those without it, bit for bit.

use crate::asked::{Answer, ask, assert_blocks_back, collect, greedy, submit};
use crate::models;
use crate::tiny::{self, CONTEXT, Shape, TINY};
use omni_batcher::Limits;
use omni_engine::engine::{Draft, Drafting, Engine, Event, Events, Generation, Settings};
use omni_engine::model::{Grammars, LoadOptions, Model, load_draft, open_draft};
use omni_kernels::Backend;
use omni_sampler::{Format, Parameters};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

fn options() -> LoadOptions {
    LoadOptions { threads: 2, ..LoadOptions::default() }
}

fn limits(blocks: u32) -> Limits {
    Limits {
        blocks,
        tokens: 64,
        sequences: 8,
        logits: 72,
        context: CONTEXT,
        queue: 1000,
        ageing: Duration::from_secs(1),
        layers: 1,
    }
}

fn start(model: &Model, draft: Option<Draft>, limits: Limits, drafting: Drafting) -> Engine {
    let backend = model.load(&options(), &mut |_, _| {}).unwrap();
    let limits = Limits { layers: backend.facts().layers, ..limits };
    let settings = Settings { drafting, ..Settings::new(limits, model.vocabulary.clone()) };
    Engine::with_draft(backend, draft, settings).unwrap()
}

/// Engines of a model: without drafts, and with those of a draft model.
fn engines(path: &Path, draft: &Path, limits: Limits, length: usize) -> (Model, Engine, Engine) {
    let model = Model::open(path).unwrap();
    let plain = start(&model, None, limits, Drafting::Off);
    let draft = load_draft(&open_draft(&model, draft).unwrap(), &options()).unwrap();
    let drafted = start(&model, Some(draft), limits, Drafting::Fixed(length));
    (model, plain, drafted)
}

/// Forms of requests whose answers drafts could change.
fn generations(model: &Model) -> Vec<Generation> {
    let grammars = Grammars::new(Arc::clone(&model.tokenizer), model.vocabulary.clone());
    let schema = r#"{"type": "object", "properties": {"a": {"type": "string", "maxLength": 9}, "b": {"type": "boolean"}},
        "required": ["a", "b"], "additionalProperties": false}"#;
    let grammar = grammars.compile(Format::JsonSchema(schema)).unwrap();
    let seeded = Parameters { seed: Some(11), ignore_eos: true, ..Parameters::default() };
    let with = |parameters: Parameters| Generation { parameters, ..greedy(70) };
    vec![
        greedy(70),
        with(seeded.clone()),
        Generation { choices: 3, ..with(seeded.clone()) },
        with(Parameters { temperature: 0.4, top_k: Some(40), top_p: 0.9, min_p: 0.01, ..seeded.clone() }),
        with(Parameters {
            frequency_penalty: 0.7,
            presence_penalty: 0.4,
            repetition_penalty: 1.2,
            logit_bias: vec![(40, 4.0), (41, -7.0)],
            ..seeded.clone()
        }),
        Generation { prompt_logprobs: true, ..with(Parameters { logprobs: Some(3), ..seeded.clone() }) },
        with(Parameters { ignore_eos: false, min_tokens: 5, ..seeded.clone() }),
        Generation { grammar: Some(grammar), ..with(Parameters { ignore_eos: false, ..seeded }) },
    ]
}

#[test]
fn a_draft_model_changes_no_bit_of_an_answer() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name);
    let model = tiny::bytes(&path("model.gguf"), TINY, 0);
    let smaller = tiny::bytes(&path("smaller.gguf"), Shape { hidden: 16, heads: 2, seed: 3 }, 0);
    for (draft, length) in [(&model, 1), (&model, 5), (&smaller, 4)] {
        let (model, plain, drafted) = engines(&path("model.gguf"), draft, limits(256), length);
        for generation in generations(&model) {
            for text in ["a", "the quick brown fox jumps over the lazy dog, again and again"] {
                let prompt = model.tokenizer.encode(text, true, &[]).unwrap();
                assert_eq!(ask(&drafted, &prompt, &generation), ask(&plain, &prompt, &generation), "{generation:?}");
            }
        }
        let status = drafted.status();
        assert!(status.drafted_tokens > 500, "{status:?}");
        assert_eq!(status.accepted_tokens == status.drafted_tokens, draft.ends_with("model.gguf"), "{status:?}");
        assert_blocks_back(&plain, 256);
        assert_blocks_back(&drafted, 256);
    }
}

/// Answers in a random schedule, in which every third request is dropped or has a choice stopped on the way.
fn schedule(engine: &Engine, requests: &[(Vec<u32>, Generation)], seed: u64) -> Vec<Option<Answer>> {
    let mut random = fastrand::Rng::with_seed(seed);
    let mut running: Vec<(usize, Events)> = Vec::new();
    let mut answers: Vec<Option<Answer>> = requests.iter().map(|_| None).collect();
    for (number, (prompt, generation)) in requests.iter().enumerate() {
        running.push((number, submit(engine, prompt, generation)));
        if random.u8(..3) == 0 {
            let (number, mut events) = running.swap_remove(random.usize(..running.len()));
            let seen: Vec<_> = (0..random.usize(..20)).map_while(|_| events.blocking_recv()).collect();
            let has_ended = seen.iter().any(|event| matches!(event, Event::Ended(_)));
            if requests[number].1.choices > 1 && !has_ended {
                events.stop(random.u32(..requests[number].1.choices));
                collect(events, requests[number].1.choices);
            }
        }
        if running.len() > 12 {
            let (number, events) = running.remove(0);
            answers[number] = Some(collect(events, requests[number].1.choices));
        }
    }
    for (number, events) in running {
        answers[number] = Some(collect(events, requests[number].1.choices));
    }
    answers
}

#[test]
fn answers_beside_others_with_few_blocks_and_cancellations_are_those_alone() {
    let folder = tempfile::tempdir().unwrap();
    let path = tiny::bytes(&folder.path().join("model.gguf"), TINY, 0);
    // Some ten sequences wait for the blocks of four.
    let (model, plain, drafted) = engines(&path, &path, limits(60), 4);
    let mut random = fastrand::Rng::with_seed(1);
    let generations = generations(&model);
    let request = |_| {
        let length = random.usize(1..120);
        let prompt: Vec<u32> = (0..length).map(|_| random.u32(3..259)).collect();
        let generation = generations[random.usize(..generations.len())].clone();
        (prompt, Generation { max_tokens: random.usize(1..60), ..generation })
    };
    let requests: Vec<_> = (0..150).map(request).collect();
    let answers = schedule(&drafted, &requests, 2);
    let mut compared = 0;
    for ((prompt, generation), answer) in requests.iter().zip(answers) {
        let Some(mut answer) = answer else { continue };
        let mut expected = ask(&plain, prompt, generation);
        // The cache depends on the others.
        (answer.usage.cached, expected.usage.cached) = (0, 0);
        assert_eq!(answer, expected);
        compared += 1;
    }
    assert!(compared > 80, "{compared}");
    assert_blocks_back(&drafted, 60);
    let status = drafted.status();
    assert!(status.accepted_tokens > 1000, "{status:?}");
}

#[test]
#[ignore = "reads SmolLM2-135M-Instruct in GGUF from the path in OMNI_SMOLLM2"]
fn smollm2_answers_the_same_with_any_draft_model() {
    let path = std::env::var("OMNI_SMOLLM2").unwrap();
    let path = Path::new(&path);
    let folder = tempfile::tempdir().unwrap();
    let noise = folder.path().join("noise.gguf");
    models::with_vocabulary_of(path, &noise, Shape { hidden: 64, heads: 4, seed: 5 });
    let text = "<|im_start|>user\nWhat is the capital of France?<|im_end|>\n<|im_start|>assistant\n";
    for draft in [path, &noise] {
        let (model, plain, drafted) = engines(path, draft, limits(256), 4);
        let prompt = model.tokenizer.encode(text, false, &[]).unwrap();
        let seeded = Parameters { seed: Some(3), ignore_eos: true, logprobs: Some(2), ..Parameters::default() };
        for generation in [
            Generation { max_tokens: 40, ..greedy(40) },
            Generation { parameters: seeded.clone(), choices: 2, ..greedy(40) },
        ] {
            assert_eq!(ask(&drafted, &prompt, &generation), ask(&plain, &prompt, &generation));
        }
        let status = drafted.status();
        println!("{}: {} of {} drafted tokens", draft.display(), status.accepted_tokens, status.drafted_tokens);
        assert!(status.drafted_tokens > 60, "{status:?}");
        assert_eq!(status.accepted_tokens == status.drafted_tokens, draft == path);
    }
}
