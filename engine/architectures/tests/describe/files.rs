//! Decisions by names of tensors and by files beside the model.

use crate::config::{LLAMA, MINILM, QWEN2, QWEN3};
use crate::sources::{Files, from_json, from_json_with, with};
use omni_architectures::SentenceTransformer;
use omni_kernels::model::{Output, Pooling};
use serde_json::json;

const MODULES: &str = r#"[
  {"idx": 0, "name": "0", "path": "", "type": "sentence_transformers.models.Transformer"},
  {"idx": 1, "name": "1", "path": "1_Pooling", "type": "sentence_transformers.models.Pooling"},
  {"idx": 2, "name": "2", "path": "2_Normalize", "type": "sentence_transformers.models.Normalize"}
]"#;

const POOLING: &str = r#"{"word_embedding_dimension": 384, "pooling_mode_cls_token": false,
  "pooling_mode_mean_tokens": true, "pooling_mode_max_tokens": false, "pooling_mode_mean_sqrt_len_tokens": false}"#;

#[test]
fn sentence_transformers_files_say_how_tokens_become_one_vector() {
    let output = |text: &str, modules: Option<&str>, pooling: Option<&str>| {
        from_json_with(text, &Files::default(), SentenceTransformer { modules, pooling })
            .map(|spec| spec.output)
            .map_err(|error| error.to_string())
    };
    let embedding = |pooling, normalised| Ok(Output::Embedding { pooling, normalised });
    assert_eq!(output(MINILM, Some(MODULES), Some(POOLING)), embedding(Pooling::Mean, true));
    assert_eq!(output(MINILM, None, Some(r#"{"pooling_mode": "cls"}"#)), embedding(Pooling::First, false));
    let last = r#"{"pooling_mode_lasttoken": true}"#;
    assert_eq!(output(QWEN3, Some(MODULES), Some(last)), embedding(Pooling::Last, true));
    for (modules, pooling, words) in [
        (Some(MODULES), Some(r#"{"pooling_mode_max_tokens": true}"#), "pooling_mode_max_tokens"),
        (
            None,
            Some(r#"{"pooling_mode_mean_tokens": true, "pooling_mode_lasttoken": true}"#),
            "pooling_mode_lasttoken is true, beside another mode",
        ),
        (None, Some("{}"), "pooling_mode_mean_tokens"),
        (Some(r#"[{"type": "sentence_transformers.models.Dense"}]"#), None, "modules.json[0].type"),
        (Some("{}"), None, "modules.json is not understood"),
        (None, Some("7"), "1_Pooling/config.json is not understood"),
    ] {
        let message = output(MINILM, modules, pooling).map(drop).expect_err("a refusal");
        assert!(message.contains(words), "{message}");
    }
}

#[test]
fn prefixes_follow_the_tensors() {
    let files = Files::default().tensor("bert.embeddings.word_embeddings.weight", &[30_522, 384]);
    let spec = from_json(MINILM, &files).expect("a description");
    let name = &spec.layers[5].attention.query.weight.0;
    assert_eq!(name, "bert.encoder.layer.5.attention.self.query.weight");
}

#[test]
fn quantised_matrices_go_by_the_name_of_their_operation() {
    let files = Files::default().tensor("model.layers.2.self_attn.q_proj", &[2048, 2048]);
    let spec = from_json(LLAMA, &files).expect("a description");
    assert_eq!(spec.layers[2].attention.query.weight.0, "model.layers.2.self_attn.q_proj");
    assert_eq!(spec.layers[2].attention.key.weight.0, "model.layers.2.self_attn.k_proj.weight");
}

#[test]
fn rows_beyond_the_vocabulary_are_left_out() {
    let files = Files::default().tensor("model.embed_tokens.weight", &[152_064, 896]);
    let spec = from_json(QWEN2, &files).expect("a description");
    let Output::Logits { weight, .. } = spec.output else { panic!("logits are the output") };
    assert_eq!((weight.rows, weight.outputs, spec.vocabulary), (Some(0..151_936), 151_936, 151_936));
    let small = Files::default().tensor("model.embed_tokens.weight", &[1000, 896]);
    let message = from_json(QWEN2, &small).map(drop).expect_err("a refusal").to_string();
    assert!(message.contains("model.embed_tokens.weight: it has 1000 rows"), "{message}");
}

#[test]
fn outputs_are_tied_or_not() {
    let name = |text: &str| match from_json(text, &Files::default()).expect("a description").output {
        Output::Logits { weight, .. } => weight.weight.0,
        Output::Embedding { .. } => panic!("logits are the output"),
    };
    assert_eq!(name(QWEN2), "model.embed_tokens.weight");
    assert_eq!(name(&with(QWEN2, &json!({"tie_word_embeddings": false}))), "lm_head.weight");
    assert_eq!(name(&with(QWEN2, &json!({"tie_word_embeddings": null}))), "lm_head.weight");
}

#[test]
fn a_bias_in_the_file_is_used_even_if_no_field_tells_of_it() {
    let files = Files::default().tensor("model.layers.1.self_attn.o_proj.bias", &[896]);
    let spec = from_json(QWEN2, &files).expect("a description");
    assert!(spec.layers[0].attention.output.bias.is_none());
    assert!(spec.layers[1].attention.output.bias.is_some());
}
