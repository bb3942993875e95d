//! Time of one row: greedy and filtered sampling, log probabilities, grammars, over vocabularies of 49,152 (SmolLM2)
//! and 151,936 tokens (Qwen). Rows are of two kinds: *peaked* as of a trained model, few tokens having most of the
//! probability, and *flat* as of random weights. Each row is timed alone; least and median of them are printed.
#![allow(clippy::unwrap_used, reason = "a failed step is a failed run")]

use omni_sampler::{Choice, Format, GrammarCompiler, Parameters, Sampler, Vocabulary, Workspace};
use std::hint::black_box;
use std::time::Instant;

/// Number of timed rows.
const ROWS: usize = 301;

/// Prints the least and the median time of a step in microseconds. What `prepare` does is not timed.
fn report<T, R>(name: &str, mut prepare: impl FnMut() -> T, mut step: impl FnMut(T) -> R) {
    let time = |_| {
        let input = prepare();
        let start = Instant::now();
        black_box(step(input));
        start.elapsed().as_nanos() as f64 / 1000.0
    };
    let mut times: Vec<f64> = (0..ROWS).map(time).collect();
    times.sort_by(f64::total_cmp);
    println!("{name:44} least {:8.1} us, median {:8.1} us", times[0], times[ROWS / 2]);
}

fn row(size: usize, peaked: bool) -> Vec<f32> {
    let mut random = fastrand::Rng::with_seed(1);
    let mut normal = || (0..12).map(|_| random.f32()).sum::<f32>() - 6.0;
    let mut row: Vec<f32> = (0..size).map(|_| normal() * if peaked { 2.5 } else { 1.0 }).collect();
    if peaked {
        (0..100).for_each(|rank| row[(rank * 7919 + 13) % size] = 19.0 - 1.5 * (rank as f32 + 1.0).ln());
    }
    row
}

fn cases() -> Vec<(&'static str, Parameters)> {
    let default = Parameters { seed: Some(1), ..Parameters::default() };
    vec![
        ("greedy", Parameters { temperature: 0.0, ..default.clone() }),
        ("temperature", Parameters { temperature: 0.8, ..default.clone() }),
        ("top_k 50", Parameters { top_k: Some(50), ..default.clone() }),
        ("top_k 50, top_p 0.9", Parameters { top_k: Some(50), top_p: 0.9, ..default.clone() }),
        ("top_p 0.9", Parameters { top_p: 0.9, ..default.clone() }),
        ("min_p 0.05", Parameters { min_p: 0.05, ..default.clone() }),
        ("greedy, 5 log probabilities", Parameters { temperature: 0.0, logprobs: Some(5), ..default }),
    ]
}

/// Words of letters, as many as a vocabulary has, behind all single bytes.
fn words(size: usize) -> Vec<Vec<u8>> {
    let mut random = fastrand::Rng::with_seed(2);
    let mut word = || {
        let letters: Vec<u8> = (0..random.usize(2..9)).map(|_| random.alphanumeric() as u8).collect();
        if random.bool() { [b" ", &letters[..]].concat() } else { letters }
    };
    let bytes = (0..=255u8).map(|byte| vec![byte]);
    bytes.chain((256..size).map(|_| word())).collect()
}

fn grammars(size: usize, vocabulary: &Vocabulary) {
    let schema = r#"{"type":"object","properties":{"name":{"type":"string"},"age":{"type":"integer"},
        "tags":{"type":"array","items":{"enum":["a","b","c"]}}},
        "required":["name","age","tags"],"additionalProperties":false}"#;
    let words = words(size);
    let start = Instant::now();
    let compiler = GrammarCompiler::new(words.iter().map(|word| Some(&word[..])), &[0]).unwrap();
    println!("{:44} {:.0} ms", format!("{size}, index for grammars"), start.elapsed().as_secs_f64() * 1000.0);
    let format = Format::JsonSchema(schema);
    report(&format!("{size}, compilation of a grammar"), || (), |()| compiler.compile(format).unwrap());
    let parameters = Parameters { temperature: 0.0, ..Parameters::default() };
    let choice = Choice { grammar: Some(compiler.compile(format).unwrap()), ..Choice::default() };
    let sampler = Sampler::new(&parameters, vocabulary, choice).unwrap();
    let mut workspace = Workspace::new(vocabulary);
    for (place, text) in [("start", ""), ("text", "{\"name\":\"J"), ("number", "{\"name\":\"Jo\",\"age\":4")] {
        let mut before = sampler.clone();
        for byte in text.bytes() {
            before.accept(byte.into()).unwrap();
        }
        let prepare = || (before.clone(), vec![0.0; size]);
        let step = |(mut sampler, mut row): (Sampler, Vec<f32>)| sampler.sample(&mut row, &mut workspace).unwrap();
        report(&format!("{size}, greedy by a grammar, in its {place}"), prepare, step);
    }
}

fn main() {
    for size in [49_152, 151_936] {
        let vocabulary = Vocabulary::new(size, &[0]).unwrap();
        let mut workspace = Workspace::new(&vocabulary);
        for (shape, peaked) in [("peaked", true), ("flat", false)] {
            let mut row = row(size, peaked);
            for (name, parameters) in cases() {
                let mut sampler = Sampler::new(&parameters, &vocabulary, Choice::default()).unwrap();
                let step = |()| {
                    let sampled = sampler.sample(&mut row, &mut workspace).unwrap();
                    sampler.accept(sampled.token).unwrap();
                    sampled
                };
                report(&format!("{size}, {shape}, {name}"), || (), step);
            }
        }
        grammars(size, &vocabulary);
    }
}
