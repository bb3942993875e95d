//! Gemma 3, its language model: norms before and after each part, layers with a window between those without.
//!
//! Safetensors files hold the factors of norms less 1; converters to GGUF have added it.

use crate::architecture::{Architecture, Bias, Decoder, Fields, Fixed, Kind, Score, Windows, field};
use crate::names::{
    Form, GGUF, GGUF_FORM, GGUF_KEY_NORM, GGUF_QUERY_NORM, Names, SAFETENSORS, SAFETENSORS_FORM, SAFETENSORS_KEY_NORM,
    SAFETENSORS_QUERY_NORM,
};
use omni_kernels::model::Activation;

pub(crate) const GEMMA3: Architecture = Architecture {
    name: "gemma3",
    classes: &["Gemma3ForCausalLM", "Gemma3ForConditionalGeneration"],
    model_types: &["gemma3_text", "gemma3"],
    gguf: Some("gemma3"),
    section: Some("text_config"),
    fixed: &[
        (field("attn_logit_softcapping", "attn_logit_softcapping"), Fixed::Absent),
        (field("use_bidirectional_attention", ""), Fixed::Flag(false)),
    ],
    kind: Kind::Decoder(&DECODER),
};

const DECODER: Decoder = Decoder {
    fields: Fields {
        hidden: field("hidden_size", "embedding_length").or(2304.0),
        layers: field("num_hidden_layers", "block_count").or(26.0),
        heads: field("num_attention_heads", "attention.head_count").or(8.0),
        kv_heads: field("num_key_value_heads", "attention.head_count_kv").or(4.0),
        head_width: field("head_dim", "attention.key_length").or(256.0),
        intermediate: field("intermediate_size", "feed_forward_length").or(9216.0),
        vocabulary: field("vocab_size", "vocab_size"),
        context: field("max_position_embeddings", "context_length").or(131_072.0),
        epsilon: field("rms_norm_eps", "attention.layer_norm_rms_epsilon").or(1e-6),
        rope_base: field("rope_theta", "rope.freq_base").or(1e6),
    },
    activation: Activation::GeluTanh,
    input_bias: Bias::Field("attention_bias"),
    output_bias: Bias::Field("attention_bias"),
    feed_forward_bias: Bias::Present,
    windows: Windows::Pattern { window: 4096, period: 6 },
    local_base: Some(field("rope_local_base_freq", "rope.freq_base_swa").or(10_000.0)),
    score: Score::Field { field: field("query_pre_attn_scalar", "").or(256.0), layers_by_hidden: 62 },
    scaled_embedding: true,
    tied: true,
    experts: None,
    safetensors: Form {
        names: Names {
            prefixes: &["model.", "language_model.model.", "model.language_model.", ""],
            query_norm: Some(SAFETENSORS_QUERY_NORM),
            key_norm: Some(SAFETENSORS_KEY_NORM),
            attention_output_norm: Some("{model}layers.{layer}.post_attention_layernorm"),
            feed_forward_norm: "{model}layers.{layer}.pre_feedforward_layernorm",
            feed_forward_output_norm: Some("{model}layers.{layer}.post_feedforward_layernorm"),
            ..SAFETENSORS
        },
        norm_offset: 1.0,
        ..SAFETENSORS_FORM
    },
    gguf: Form {
        names: Names {
            query_norm: Some(GGUF_QUERY_NORM),
            key_norm: Some(GGUF_KEY_NORM),
            attention_output_norm: Some("blk.{layer}.post_attention_norm"),
            feed_forward_output_norm: Some("blk.{layer}.post_ffw_norm"),
            ..GGUF
        },
        ..GGUF_FORM
    },
};
