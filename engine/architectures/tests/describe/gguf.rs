//! Descriptions from GGUF's metadata.

use crate::config::{GEMMA3, QWEN3_MOE, SMOLLM2};
use crate::sources::{Files, Keys, from_json, from_keys};
use crate::summary::summary;
use omni_kernels::model::{FeedForward, Mask, ModelSpec, Output, Pooling, RowOrder};
use serde_json::{Value, json};

fn smollm2() -> Value {
    json!({
        "general.architecture": "llama", "llama.block_count": 30, "llama.context_length": 8192,
        "llama.embedding_length": 576, "llama.feed_forward_length": 1536, "llama.attention.head_count": 9,
        "llama.attention.head_count_kv": 3, "llama.rope.freq_base": 100_000.0, "llama.rope.dimension_count": 64,
        "llama.attention.layer_norm_rms_epsilon": 1e-5, "llama.vocab_size": 49152,
    })
}

fn gemma3() -> Value {
    json!({
        "general.architecture": "gemma3", "gemma3.block_count": 26, "gemma3.context_length": 32768,
        "gemma3.embedding_length": 1152, "gemma3.feed_forward_length": 6912, "gemma3.attention.head_count": 4,
        "gemma3.attention.head_count_kv": 1, "gemma3.attention.key_length": 256, "gemma3.attention.value_length": 256,
        "gemma3.attention.layer_norm_rms_epsilon": 1e-6, "gemma3.rope.freq_base": 1_000_000.0,
        "gemma3.attention.sliding_window": 512,
    })
}

fn qwen3_moe() -> Value {
    json!({
        "general.architecture": "qwen3moe", "qwen3moe.block_count": 48, "qwen3moe.context_length": 40960,
        "qwen3moe.embedding_length": 2048, "qwen3moe.feed_forward_length": 6144, "qwen3moe.attention.head_count": 32,
        "qwen3moe.attention.head_count_kv": 4, "qwen3moe.attention.key_length": 128,
        "qwen3moe.attention.value_length": 128, "qwen3moe.attention.layer_norm_rms_epsilon": 1e-6,
        "qwen3moe.rope.freq_base": 1_000_000.0, "qwen3moe.expert_count": 128, "qwen3moe.expert_used_count": 8,
        "qwen3moe.expert_feed_forward_length": 768,
    })
}

fn bert() -> Value {
    json!({
        "general.architecture": "bert", "bert.block_count": 6, "bert.context_length": 512, "bert.embedding_length": 384,
        "bert.feed_forward_length": 1536, "bert.attention.head_count": 12, "bert.attention.layer_norm_epsilon": 1e-12,
        "bert.attention.causal": false, "bert.pooling_type": 2,
    })
}

fn with(mut keys: Value, name: &str, value: Value) -> Keys {
    keys[name] = value;
    Keys(keys)
}

fn tokens(rows: usize, hidden: usize) -> Files {
    Files::default().tensor("token_embd.weight", &[rows, hidden])
}

fn described(keys: Value, files: &Files) -> ModelSpec {
    from_keys(&Keys(keys), files).expect("a description")
}

/// Description without what the two kinds of file have of their own: names, order of rows, offsets of norms.
fn numbers(spec: &ModelSpec) -> String {
    let keep = |word: &str| !(word.contains(".weight") || ["interleaved", "offset"].contains(&word));
    let lines = summary(spec).replace(" interleaved 64", "").replace(" offset 1\n", "\n");
    let lines = lines.lines().map(|line| {
        let line = line.split(" rows ").next().unwrap_or_default();
        line.split(' ').filter(|word| keep(word)).collect::<Vec<_>>().join(" ")
    });
    lines.collect::<Vec<_>>().join("\n")
}

#[test]
fn well_known_models_are_described() {
    insta::assert_snapshot!("gguf-smollm2-135m", summary(&described(smollm2(), &Files::default())));
    insta::assert_snapshot!("gguf-gemma-3-1b", summary(&described(gemma3(), &tokens(262_144, 1152))));
    insta::assert_snapshot!("gguf-bert", summary(&described(bert(), &tokens(30_522, 384))));
    let files = tokens(151_936, 2048).tensor("output.weight", &[151_936, 2048]);
    insta::assert_snapshot!("gguf-qwen3-30b-a3b", summary(&described(qwen3_moe(), &files)));
}

#[test]
fn both_kinds_of_file_give_the_same_numbers() {
    let files = tokens(151_936, 2048).tensor("output.weight", &[151_936, 2048]);
    for (config, keys, files) in [
        (SMOLLM2, smollm2(), Files::default()),
        (GEMMA3, gemma3(), tokens(262_144, 1152)),
        (QWEN3_MOE, qwen3_moe(), files),
    ] {
        let json = from_json(config, &Files::default()).expect("a description");
        assert_eq!(numbers(&json), numbers(&described(keys, &files)));
    }
}

#[test]
fn rows_are_interleaved_in_files_of_llama_alone() {
    let llama = described(smollm2(), &Files::default());
    let attention = &llama.layers[0].attention;
    let interleaved = RowOrder::Interleaved { head_width: 64 };
    assert_eq!(
        [attention.query.order, attention.key.order, attention.value.order],
        [interleaved, interleaved, RowOrder::Outputs]
    );
    let moe = described(qwen3_moe(), &tokens(151_936, 2048));
    assert_eq!(moe.layers[0].attention.query.order, RowOrder::Outputs);
}

#[test]
fn experts_are_ranges_of_rows() {
    let spec = described(qwen3_moe(), &tokens(151_936, 2048));
    let FeedForward::Mixture { experts, normalised, .. } = &spec.layers[7].feed_forward else { panic!("experts") };
    assert!(normalised);
    assert_eq!((experts[5].up.rows.clone(), experts[5].down.rows.clone()), (Some(3840..4608), Some(10_240..12_288)));
    assert_eq!(experts[127].gate.weight.0, "blk.7.ffn_gate_exps.weight");
}

#[test]
fn factors_of_frequencies_are_those_of_the_file() {
    let mut factors = vec![1.0; 32];
    factors[31] = 32.0;
    let plain = described(smollm2(), &Files::default());
    let scaled = described(smollm2(), &Files::default().vector("rope_freqs.weight", factors));
    let last = |spec: &ModelSpec| spec.layers[0].attention.rope.as_ref().expect("a rope").frequencies[31];
    assert_eq!(last(&scaled), last(&plain) / 32.0);
    for wrong in [vec![1.0; 31], vec![0.0; 32], vec![f32::NAN; 32]] {
        let files = Files::default().vector("rope_freqs.weight", wrong);
        let message = from_keys(&Keys(smollm2()), &files).map(drop).expect_err("a refusal").to_string();
        assert!(message.contains("rope_freqs.weight"), "{message}");
    }
}

#[test]
fn windows_and_scalings_of_gemma() {
    let keys = with(gemma3(), "gemma3.rope.scaling.type", json!("linear"));
    let keys = with(keys.0, "gemma3.rope.scaling.factor", json!(8.0));
    let spec = described(keys.0, &tokens(262_144, 1152));
    let first = |layer: usize| spec.layers[layer].attention.rope.as_ref().expect("a rope").frequencies[0];
    assert_eq!((first(0), first(5)), (1.0, 0.125));
    assert_eq!(spec.layers[0].attention.mask, Mask::Window { window: 512 });
    let large = with(with(gemma3(), "gemma3.block_count", json!(62)).0, "gemma3.embedding_length", json!(5376));
    let large = with(large.0, "gemma3.attention.head_count", json!(32));
    let spec = described(large.0, &tokens(262_144, 5376));
    assert!((spec.layers[0].attention.scale - 168.0_f32.powf(-0.5)).abs() < 1e-7);
}

#[test]
fn pooling_is_that_of_the_key() {
    let output = |keys: &Keys| from_keys(keys, &tokens(30_522, 384)).map(|spec| spec.output);
    let first = Output::Embedding { pooling: Pooling::First, normalised: true };
    assert_eq!(output(&Keys(bert())), Ok(first));
    let message = output(&with(bert(), "bert.pooling_type", json!(4))).map(drop).expect_err("a refusal").to_string();
    assert!(message.contains("bert.pooling_type is 4"), "{message}");
}

#[test]
fn keys_that_are_not_understood_are_named() {
    for (name, value, words) in [
        ("general.architecture", json!("mamba"), "architecture mamba is not supported; supported are: llama,"),
        ("general.architecture", json!(7), "no general.architecture"),
        ("llama.expert_count", json!(8), "llama.expert_count is 8"),
        ("llama.attention.head_count_kv", json!([3, 3]), "llama.attention.head_count_kv is neither"),
        ("llama.attention.head_count", json!(0), "llama.attention.head_count is 0"),
        ("llama.rope.dimension_count", json!(32), "llama.rope.dimension_count is 32"),
        ("llama.rope.scaling.type", json!("longrope"), r#"llama.rope.scaling.type is "longrope""#),
        ("llama.attention.value_length", json!(32), "llama.attention.value_length is 32"),
        ("llama.block_count", json!(1_u64 << 60), "llama.block_count is"),
        ("llama.embedding_length", json!(null), "llama.embedding_length is"),
    ] {
        let message =
            from_keys(&with(smollm2(), name, value), &Files::default()).map(drop).expect_err("a refusal").to_string();
        assert!(message.contains(words), "{message}");
    }
}
