//! Logits against fixtures by MLX, which `fixtures/make.py` makes.
#![allow(clippy::unwrap_used, reason = "helpers of tests fail by panics")]

use omni_architectures::{Source, describe};
use omni_checkpoint::Checkpoint;
use omni_checkpoint::testing::SafetensorsWriter;
use omni_kernels::{BLOCK, Backend, BlockId, Capacity, Segment, StepPlan};
use omni_kernels_cpu::{CacheFormat, CpuBackend, Level, Options, Weights};
use serde_json::Value;
use std::path::Path;
use std::sync::Arc;

/// Models of random weights.
const RANDOM: [&str; 6] = ["llama", "llama3", "qwen2", "qwen3", "qwen3_moe", "gemma3"];

fn fixture(name: &str) -> Value {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures").join(format!("{name}.json"));
    serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap()
}

fn numbers(value: &Value) -> Vec<f64> {
    value.as_array().unwrap().iter().map(|value| value.as_f64().unwrap()).collect()
}

fn tokens(fixture: &Value) -> Vec<u32> {
    fixture["tokens"].as_array().unwrap().iter().map(|token| token.as_u64().unwrap() as u32).collect()
}

/// The same numbers as `weight` of `make.py`.
fn weights(seed: usize, count: usize, scale: f32, middle: f32) -> Vec<f32> {
    let one = |index: usize| {
        let mixed = ((index + seed * 1_000_003) as u32).wrapping_mul(2_654_435_761);
        let mixed = (mixed ^ (mixed >> 15)).wrapping_mul(2_246_822_519);
        let unit = (mixed >> 8) as f32 / (1 << 24) as f32;
        middle + (unit - 0.5) * (2.0 * scale)
    };
    (0..count).map(one).collect()
}

/// Writes the checkpoint of a fixture.
fn write(fixture: &Value, directory: &Path) {
    let mut writer = SafetensorsWriter::new();
    for (seed, tensor) in fixture["tensors"].as_array().unwrap().iter().enumerate() {
        let shape: Vec<usize> = numbers(&tensor["shape"]).into_iter().map(|size| size as usize).collect();
        let (scale, middle) = (tensor["scale"].as_f64().unwrap() as f32, tensor["middle"].as_f64().unwrap() as f32);
        let values = weights(seed, shape.iter().product(), scale, middle);
        writer.f32(tensor["name"].as_str().unwrap(), &shape, &values);
    }
    writer.write(&directory.join("model.safetensors")).unwrap();
    std::fs::write(directory.join("config.json"), fixture["config"].to_string()).unwrap();
}

fn backend(path: &Path, options: Options) -> CpuBackend {
    let checkpoint = Arc::new(Checkpoint::open(path).unwrap());
    let spec = describe(&Source::of(&checkpoint).unwrap()).unwrap();
    let mut backend = CpuBackend::load(&spec, checkpoint, options, &mut |_, _| ()).unwrap();
    backend.reserve(Capacity { blocks: 16, tokens: 128, segments: 1, logits: 1 }).unwrap();
    backend
}

/// Last logits of a sequence, whose positions from `start` on are computed.
fn logits(backend: &mut CpuBackend, tokens: &[u32], start: usize) -> Vec<f32> {
    let blocks: Vec<BlockId> = (0..tokens.len().div_ceil(BLOCK) as u32).map(BlockId).collect();
    let segment = Segment { tokens: 0..tokens.len() - start, start, blocks: 0..blocks.len(), logits: 1 };
    let plan =
        StepPlan { copies: vec![], tokens: tokens[start..].to_vec(), blocks, segments: vec![segment], part: None };
    backend.step(&plan).unwrap();
    backend.row(0).to_vec()
}

/// Greatest difference, relative to the greatest magnitude.
fn error(found: &[f32], expected: &[f64]) -> f64 {
    assert_eq!(found.len(), expected.len());
    let greatest = expected.iter().fold(0.0, |greatest: f64, value| greatest.max(value.abs()));
    let differences = found.iter().zip(expected).map(|(found, expected)| (f64::from(*found) - expected).abs());
    differences.fold(0.0, f64::max) / greatest
}

fn greatest(logits: &[f32]) -> usize {
    (0..logits.len()).fold(0, |best, at| if logits[at] > logits[best] { at } else { best })
}

#[test]
fn random_models_have_the_logits_of_mlx() {
    for name in RANDOM {
        let fixture = fixture(name);
        let directory = tempfile::tempdir().unwrap();
        write(&fixture, directory.path());
        let expected = numbers(&fixture["logits"]);
        for level in Level::all_supported() {
            let options = Options { weights: Weights::F32, level, threads: 2, cache: CacheFormat::F32 };
            let found = logits(&mut backend(directory.path(), options), &tokens(&fixture), 0);
            let error = error(&found, &expected);
            assert!(error < 1e-5, "{name}, {level}: {error:e}");
        }
        // 8 bits and keys and values in 16 bits move logits by some percent of their range.
        let options = Options { weights: Weights::Int8, level: Level::detect(), threads: 2, cache: CacheFormat::Bf16 };
        let found = logits(&mut backend(directory.path(), options), &tokens(&fixture), 0);
        let error = error(&found, &expected);
        assert!(error < 5e-2, "{name}: {error:e}");
    }
}

#[test]
#[ignore = "reads SmolLM2-135M-Instruct in GGUF from the path in OMNI_SMOLLM2"]
fn smollm2_has_the_logits_of_mlx_and_names_the_capital() {
    let path = std::env::var("OMNI_SMOLLM2").unwrap();
    let fixture = fixture("smollm2");
    let every = fixture["every"].as_u64().unwrap() as usize;
    let best = fixture["best"][0][0].as_u64().unwrap() as usize;
    let combinations = [
        (Weights::F32, CacheFormat::F32, 1e-4),
        (Weights::AsStored, CacheFormat::Bf16, 5e-2),
        (Weights::Int8, CacheFormat::Bf16, 5e-2),
    ];
    for (weights, cache, bound) in combinations {
        let options = Options { weights, level: Level::detect(), threads: 2, cache };
        let mut backend = backend(path.as_ref(), options);
        let mut tokens = tokens(&fixture);
        let prompt = tokens.len();
        let first = logits(&mut backend, &tokens, 0);
        assert_eq!(first.len(), 49_152);
        let sampled: Vec<f32> = first.iter().copied().step_by(every).collect();
        let error = error(&sampled, &numbers(&fixture["logits"]));
        println!("{weights:?}, {cache:?}: error {error:e}");
        assert!(error < bound, "{weights:?}: {error:e}");
        assert_eq!(greatest(&first), best, "{weights:?}");
        tokens.push(best as u32);
        for _ in 0..8 {
            let start = tokens.len() - 1;
            let next = greatest(&logits(&mut backend, &tokens, start));
            tokens.push(next as u32);
        }
        println!("{:?}", &tokens[prompt..]);
    }
}
