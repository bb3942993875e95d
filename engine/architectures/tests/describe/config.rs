//! Descriptions from `config.json`.

use crate::sources::{Files, from_json, with};
use crate::summary::summary;
use omni_kernels::model::{FeedForward, Mask, ModelSpec, Output, Pooling};
use serde_json::json;

pub(crate) const SMOLLM2: &str = include_str!("../configs/smollm2-135m.json");
pub(crate) const LLAMA: &str = include_str!("../configs/llama-3.2-1b.json");
pub(crate) const MISTRAL: &str = include_str!("../configs/mistral-7b.json");
pub(crate) const QWEN2: &str = include_str!("../configs/qwen2.5-0.5b.json");
pub(crate) const QWEN3: &str = include_str!("../configs/qwen3-0.6b.json");
pub(crate) const QWEN3_MOE: &str = include_str!("../configs/qwen3-30b-a3b.json");
pub(crate) const GEMMA3: &str = include_str!("../configs/gemma-3-1b.json");
pub(crate) const MINILM: &str = include_str!("../configs/all-minilm-l6-v2.json");

/// All of them with their names.
pub(crate) const ALL: &[(&str, &str)] = &[
    ("smollm2-135m", SMOLLM2),
    ("llama-3.2-1b", LLAMA),
    ("mistral-7b", MISTRAL),
    ("qwen2.5-0.5b", QWEN2),
    ("qwen3-0.6b", QWEN3),
    ("qwen3-30b-a3b", QWEN3_MOE),
    ("gemma-3-1b", GEMMA3),
    ("all-minilm-l6-v2", MINILM),
];

fn described(text: &str) -> ModelSpec {
    from_json(text, &Files::default()).expect("a description")
}

fn refusal(text: &str, changes: &serde_json::Value) -> String {
    from_json(&with(text, changes), &Files::default()).map(drop).expect_err("a refusal").to_string()
}

#[test]
fn well_known_models_are_described() {
    for (name, text) in ALL {
        insta::assert_snapshot!(*name, summary(&described(text)));
    }
}

#[test]
fn numbers_of_parameters_are_those_published() {
    // Millions of parameters on the models' cards, embeddings included, to the last digit given there.
    for (text, published) in [
        (SMOLLM2, 134.5),
        (LLAMA, 1235.8),
        (MISTRAL, 7241.7),
        (QWEN2, 494.0),
        (QWEN3, 596.0),
        (QWEN3_MOE, 30532.1),
        (GEMMA3, 999.9),
    ] {
        let found = parameters(&described(text)) as f64 / 1e6;
        assert!((found - published).abs() <= 0.1, "{found} {published}");
    }
}

/// Number of a decoder's parameters.
fn parameters(spec: &ModelSpec) -> usize {
    let linear = |linear: &omni_kernels::model::Linear| {
        linear.inputs * linear.outputs + linear.bias.as_ref().map_or(0, |_| linear.outputs)
    };
    let gated = |gated: &omni_kernels::model::Gated| linear(&gated.gate) + linear(&gated.up) + linear(&gated.down);
    let mut sum = spec.vocabulary * spec.hidden + spec.norm.as_ref().map_or(0, |_| spec.hidden);
    for layer in &spec.layers {
        let attention = &layer.attention;
        sum +=
            [&attention.query, &attention.key, &attention.value, &attention.output].map(linear).iter().sum::<usize>();
        let norms = [
            &layer.attention_norm,
            &layer.attention_output_norm,
            &layer.feed_forward_norm,
            &layer.feed_forward_output_norm,
        ];
        sum += norms.into_iter().flatten().count() * spec.hidden;
        sum += [&attention.query_norm, &attention.key_norm].into_iter().flatten().count() * attention.head_width;
        sum += match &layer.feed_forward {
            FeedForward::Gated(network) => gated(network),
            FeedForward::Plain { up, down, .. } => linear(up) + linear(down),
            FeedForward::Mixture { router, experts, .. } => linear(router) + experts.iter().map(gated).sum::<usize>(),
        };
    }
    match &spec.output {
        Output::Logits { weight, .. } if weight.weight != spec.embedding.tokens => sum + linear(weight),
        _ => sum,
    }
}

#[test]
fn fields_that_are_not_understood_are_named() {
    for (text, changes, words) in [
        (LLAMA, json!({"rope_scaling": {"rope_type": "longrope"}}), r#"rope_scaling.rope_type is "longrope""#),
        (LLAMA, json!({"rope_scaling": {"rope_type": "llama3", "factor": 8}}), "no rope_scaling.low_freq_factor"),
        (LLAMA, json!({"rope_scaling": {"type": "linear", "factor": 0}}), "rope_scaling.factor is 0"),
        (LLAMA, json!({"rope_scaling": 3}), "rope_scaling is 3"),
        (LLAMA, json!({"hidden_act": "xielu"}), r#"hidden_act is "xielu""#),
        (LLAMA, json!({"hidden_size": 0}), "hidden_size is 0"),
        (LLAMA, json!({"hidden_size": -5}), "hidden_size is -5"),
        (LLAMA, json!({"hidden_size": "2048"}), r#"hidden_size is "2048""#),
        (LLAMA, json!({"hidden_size": 1_u64 << 40}), "hidden_size is 1099511627776, which is above"),
        (LLAMA, json!({"num_hidden_layers": 1_000_000}), "num_hidden_layers is 1000000, which is above"),
        (LLAMA, json!({"num_attention_heads": 0}), "num_attention_heads is 0"),
        (LLAMA, json!({"num_key_value_heads": 5}), "num_key_value_heads is 5, which does not divide the 32 heads"),
        (LLAMA, json!({"head_dim": 63}), "head_dim is 63, which is not an even width"),
        (LLAMA, json!({"head_dim": null, "hidden_size": 2050}), "hidden_size is 2050"),
        (LLAMA, json!({"rms_norm_eps": null}), "no rms_norm_eps"),
        (LLAMA, json!({"rope_theta": -1.0}), "rope_theta is -1"),
        (LLAMA, json!({"partial_rotary_factor": 0.5}), "partial_rotary_factor is 0.5"),
        (LLAMA, json!({"architectures": ["LlamaForSequenceClassification"]}), "LlamaForSequenceClassification"),
        (QWEN2, json!({"layer_types": ["full_attention"]}), "layer_types is"),
        (QWEN3_MOE, json!({"num_experts_per_tok": 200}), "num_experts_per_tok is 200"),
        (QWEN3_MOE, json!({"mlp_only_layers": "all"}), "mlp_only_layers is"),
        (GEMMA3, json!({"attn_logit_softcapping": 50.0}), "attn_logit_softcapping is 50"),
        (GEMMA3, json!({"query_pre_attn_scalar": 0}), "query_pre_attn_scalar is 0"),
        (GEMMA3, json!({"use_bidirectional_attention": true}), "use_bidirectional_attention is true"),
        (MINILM, json!({"position_embedding_type": "relative_key"}), "position_embedding_type is"),
        (MINILM, json!({"num_attention_heads": 7}), "hidden_size is 384"),
        (MINILM, json!({"is_decoder": true}), "is_decoder is true"),
    ] {
        let message = refusal(text, &changes);
        assert!(message.contains(words), "{changes}: {message}");
    }
    for text in ["", "[]", "{", "null", "{\"architectures\": [7]}", &"[".repeat(100_000)] {
        assert!(from_json(text, &Files::default()).is_err(), "{text}");
    }
}

#[test]
fn newer_files_with_rope_parameters_say_the_same() {
    let llama = with(
        LLAMA,
        &json!({"rope_theta": null, "rope_scaling": null, "rope_parameters": {
            "factor": 32.0, "high_freq_factor": 4.0, "low_freq_factor": 1.0,
            "original_max_position_embeddings": 8192, "rope_type": "llama3", "rope_theta": 500_000.0,
        }}),
    );
    assert_eq!(described(&llama), described(LLAMA));
    let types: Vec<_> =
        (1..=26).map(|layer| if layer % 6 == 0 { "full_attention" } else { "sliding_attention" }).collect();
    let gemma = with(
        GEMMA3,
        &json!({"rope_theta": null, "rope_local_base_freq": null, "sliding_window_pattern": null,
            "layer_types": types, "rope_parameters": {
                "full_attention": {"rope_type": "default", "rope_theta": 1_000_000.0},
                "sliding_attention": {"rope_type": "default", "rope_theta": 10_000.0},
        }}),
    );
    assert_eq!(described(&gemma), described(GEMMA3));
}

#[test]
fn a_language_model_within_a_larger_one_is_described() {
    let mut inner: serde_json::Value = serde_json::from_str(GEMMA3).expect("JSON");
    inner["architectures"] = json!(null);
    inner["rope_scaling"] = json!({"factor": 8.0, "rope_type": "linear"});
    let outer = json!({"architectures": ["Gemma3ForConditionalGeneration"], "text_config": inner}).to_string();
    let files = Files::default().tensor("language_model.model.embed_tokens.weight", &[262_208, 1152]);
    let spec = from_json(&outer, &files).expect("a description");
    assert_eq!(spec.embedding.tokens.0, "language_model.model.embed_tokens.weight");
    let ropes: Vec<f32> =
        spec.layers.iter().take(6).map(|layer| layer.attention.rope.as_ref().expect("a rope").frequencies[0]).collect();
    assert_eq!(ropes, [1.0, 1.0, 1.0, 1.0, 1.0, 0.125]);
}

#[test]
fn windows_follow_their_fields() {
    let masks = |text: &str| -> Vec<Mask> { described(text).layers.iter().map(|layer| layer.attention.mask).collect() };
    assert_eq!(masks(MISTRAL), vec![Mask::Window { window: 4096 }; 32]);
    assert_eq!(masks(&with(MISTRAL, &json!({"sliding_window": null}))), vec![Mask::Causal; 32]);
    assert_eq!(masks(QWEN2), vec![Mask::Causal; 24]);
    let upper = masks(&with(QWEN2, &json!({"use_sliding_window": true})));
    assert_eq!(upper[20..22], [Mask::Causal, Mask::Window { window: 32768 }]);
    let pattern = masks(GEMMA3);
    assert_eq!(pattern[4..7], [Mask::Window { window: 512 }, Mask::Causal, Mask::Window { window: 512 }]);
}

#[test]
fn biases_and_dense_layers_follow_their_fields() {
    let biased = described(&with(LLAMA, &json!({"attention_bias": true, "mlp_bias": true})));
    let attention = &biased.layers[3].attention;
    assert_eq!(attention.output.bias.as_ref().expect("a bias").0, "model.layers.3.self_attn.o_proj.bias");
    assert!(matches!(&biased.layers[0].feed_forward, FeedForward::Gated(network) if network.down.bias.is_some()));
    let mixed = described(&with(QWEN3_MOE, &json!({"mlp_only_layers": [3], "decoder_sparse_step": 2})));
    let dense: Vec<bool> =
        mixed.layers.iter().map(|layer| matches!(layer.feed_forward, FeedForward::Gated(_))).collect();
    assert_eq!(dense[..6], [true, false, true, true, true, false]);
}

#[test]
fn encoders_without_further_files_give_the_mean() {
    assert_eq!(described(MINILM).output, Output::Embedding { pooling: Pooling::Mean, normalised: false });
}

#[test]
fn scaled_frequencies_are_those_of_the_formulas() {
    let frequencies = |changes| {
        let spec = described(&with(LLAMA, &json!({"rope_scaling": changes, "rope_theta": 10_000.0, "head_dim": 8})));
        spec.layers[0].attention.rope.clone().expect("a rope")
    };
    assert_eq!(frequencies(json!(null)).frequencies, [1.0, 0.1, 0.01, 0.001]);
    assert_eq!(frequencies(json!({"type": "dynamic", "factor": 4.0})).frequencies, [1.0, 0.1, 0.01, 0.001]);
    assert_eq!(frequencies(json!({"type": "linear", "factor": 4.0})).frequencies, [0.25, 0.025, 0.0025, 0.00025]);
    // Rotations within 1024 positions: 163, 16.3, 1.63, 0.163; from 4 on the frequency stays, below 1 it is divided.
    let llama = json!({"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
        "original_max_position_embeddings": 1024});
    let blended = frequencies(llama).frequencies;
    assert_eq!((blended[0], blended[1], blended[3]), (1.0, 0.1, 0.000_125));
    let share = (1024.0 * 0.01 / std::f64::consts::TAU - 1.0) / 3.0;
    assert!((f64::from(blended[2]) - ((1.0 - share) * 0.01 / 8.0 + share * 0.01)).abs() < 1e-9);
    let yarn = frequencies(json!({"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768}));
    assert!((yarn.factor - (0.1 * 4.0_f32.ln() + 1.0)).abs() < 1e-6, "{}", yarn.factor);
    // Borders: 32 rotations at pair 2.21, one at 3.72, so pair 2 is high and pair 3 half way between 2 and 4.
    assert_eq!(yarn.frequencies[..3], [1.0, 0.1, 0.01]);
    assert!((yarn.frequencies[3] - 0.001 * (0.5 + 0.5 / 4.0)).abs() < 1e-9, "{:?}", yarn.frequencies);
}

/// A line's end in a foreign text would end the line of a log.
#[test]
fn foreign_texts_in_messages_are_short_and_of_one_line() {
    let long = "a\n\u{1b}[2J".repeat(1000);
    let of_another_type = json!([long]).to_string();
    for text in [
        with(LLAMA, &json!({"architectures": [long]})),
        with(LLAMA, &json!({"hidden_act": long})),
        with(LLAMA, &json!({"hidden_size": long})),
        with(LLAMA, &json!({"rope_scaling": {"type": long}})),
        json!(long).to_string(),
        of_another_type,
    ] {
        let message = from_json(&text, &Files::default()).map(drop).expect_err("a refusal").to_string();
        assert!(message.len() < 500 && !message.contains(char::is_control), "{message:?}");
    }
}

#[test]
fn experts_are_counted_over_all_layers() {
    let message = from_json(&with(QWEN3_MOE, &json!({"num_experts": 2000})), &Files::default());
    let message = message.map(drop).expect_err("a refusal").to_string();
    assert_eq!(message, "num_experts is 2000, which is above 1365");
}

#[test]
fn yarn_raises_the_context() {
    let scaling = json!({"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768});
    assert_eq!(described(&with(QWEN2, &json!({"rope_scaling": scaling}))).context, 131_072);
}
