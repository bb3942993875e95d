//! Qwen 3: norms of each head's query and key.

use crate::architecture::{Architecture, Bias, Decoder, FIELDS, Fields, Fixed, Kind, Score, Windows, field};
use crate::names::{
    Form, GGUF, GGUF_FORM, GGUF_KEY_NORM, GGUF_QUERY_NORM, Names, SAFETENSORS, SAFETENSORS_FORM, SAFETENSORS_KEY_NORM,
    SAFETENSORS_QUERY_NORM,
};
use omni_kernels::model::Activation;

pub(crate) const QWEN3: Architecture = Architecture {
    name: "qwen3",
    classes: &["Qwen3ForCausalLM"],
    model_types: &["qwen3"],
    gguf: Some("qwen3"),
    section: None,
    fixed: &[(field("partial_rotary_factor", ""), Fixed::Number(1.0))],
    kind: Kind::Decoder(&DECODER),
};

/// Decoder of Qwen 3, from which that with experts differs in them only.
pub(crate) const DECODER: Decoder = Decoder {
    fields: Fields { head_width: field("head_dim", "attention.key_length").or(128.0), ..FIELDS },
    activation: Activation::Silu,
    input_bias: Bias::Field("attention_bias"),
    output_bias: Bias::Field("attention_bias"),
    feed_forward_bias: Bias::Present,
    windows: Windows::Upper,
    local_base: None,
    score: Score::HeadWidth,
    scaled_embedding: false,
    tied: false,
    experts: None,
    safetensors: Form {
        names: Names { query_norm: Some(SAFETENSORS_QUERY_NORM), key_norm: Some(SAFETENSORS_KEY_NORM), ..SAFETENSORS },
        ..SAFETENSORS_FORM
    },
    gguf: Form {
        names: Names { query_norm: Some(GGUF_QUERY_NORM), key_norm: Some(GGUF_KEY_NORM), ..GGUF },
        ..GGUF_FORM
    },
};
