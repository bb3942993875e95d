//! Changed configurations: whatever they say, a description that fits together comes out, or a sentence.

use crate::config::ALL;
use crate::sources::{Files, Keys, from_json, from_keys};
use omni_architectures::check;
use proptest::prelude::*;
use serde_json::{Value, json};

/// A value of any kind, near to sensible ones often.
fn value() -> impl Strategy<Value = Value> {
    prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        (0_u64..300).prop_map(Value::from),
        any::<u64>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        any::<f64>().prop_map(Value::from),
        (0_u32..64).prop_map(|bits| json!(1_u64 << bits)),
        prop::sample::select(vec!["silu", "gelu", "yarn", "llama3", "linear", "full_attention", ""])
            .prop_map(Value::from),
        prop::collection::vec(0_u64..50, 0..5).prop_map(Value::from),
        (any::<f64>(), 0_u64..100_000, prop::sample::select(vec!["yarn", "llama3", "linear", "dynamic", "default"]))
            .prop_map(|(factor, original, kind)| {
                json!({"rope_type": kind, "factor": factor, "low_freq_factor": 1, "high_freq_factor": factor,
                       "original_max_position_embeddings": original, "rope_theta": factor})
            }),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2000, ..ProptestConfig::default() })]

    #[test]
    fn changed_configurations_are_described_or_refused(
        model in 0..ALL.len(),
        changes in prop::collection::vec((any::<prop::sample::Index>(), value()), 1..4),
        further in prop::option::of((prop::sample::select(vec![
            "rope_scaling", "rope_parameters", "layer_types", "sliding_window", "use_sliding_window", "text_config",
            "rope_local_base_freq", "sliding_window_pattern", "final_logit_softcapping", "mlp_only_layers",
        ]), value())),
    ) {
        let mut config: Value = serde_json::from_str(ALL[model].1).expect("JSON");
        let names: Vec<String> = config.as_object().expect("an object").keys().cloned().collect();
        for (name, value) in changes {
            config[name.get(&names)] = value;
        }
        if let Some((name, value)) = further {
            config[name] = value;
        }
        if let Ok(spec) = from_json(&config.to_string(), &Files::default()) {
            prop_assert_eq!(check(&spec), Ok(()));
        }
    }

    #[test]
    fn changed_keys_are_described_or_refused(
        architecture in prop::sample::select(vec!["llama", "qwen2", "qwen3", "qwen3moe", "gemma3", "bert"]),
        changes in prop::collection::vec((any::<prop::sample::Index>(), value()), 0..4),
    ) {
        let names = [
            "block_count", "context_length", "embedding_length", "feed_forward_length", "attention.head_count",
            "attention.head_count_kv", "attention.layer_norm_rms_epsilon", "attention.layer_norm_epsilon",
            "expert_count", "expert_used_count", "expert_feed_forward_length", "vocab_size", "attention.key_length",
            "rope.freq_base", "rope.scaling.type", "rope.scaling.factor", "attention.sliding_window",
        ];
        let mut keys = json!({"general.architecture": architecture});
        for name in &names[..12] {
            keys[format!("{architecture}.{name}")] = json!(8);
        }
        keys[format!("{architecture}.expert_count")] = json!(if architecture == "llama" { 0 } else { 8 });
        for (name, value) in changes {
            keys[format!("{architecture}.{}", name.get(&names))] = value;
        }
        if let Ok(spec) = from_keys(&Keys(keys), &Files::default()) {
            prop_assert_eq!(check(&spec), Ok(()));
        }
    }

    #[test]
    fn any_text_is_refused_or_described(text in "[ -~]{0,200}") {
        let _ = from_json(&text, &Files::default());
    }
}
