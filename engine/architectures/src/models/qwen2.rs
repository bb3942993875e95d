//! Qwen 2 and 2.5: biases of queries, keys and values.

use crate::architecture::{Architecture, Bias, Decoder, FIELDS, Fixed, Kind, Score, Windows, field};
use crate::names::{GGUF_FORM, SAFETENSORS_FORM};
use omni_kernels::model::Activation;

pub(crate) const QWEN2: Architecture = Architecture {
    name: "qwen2",
    classes: &["Qwen2ForCausalLM"],
    model_types: &["qwen2"],
    gguf: Some("qwen2"),
    section: None,
    fixed: &[(field("partial_rotary_factor", ""), Fixed::Number(1.0))],
    kind: Kind::Decoder(&DECODER),
};

const DECODER: Decoder = Decoder {
    fields: FIELDS,
    activation: Activation::Silu,
    input_bias: Bias::Always,
    output_bias: Bias::Present,
    feed_forward_bias: Bias::Present,
    windows: Windows::Upper,
    local_base: None,
    score: Score::HeadWidth,
    scaled_embedding: false,
    tied: false,
    experts: None,
    safetensors: SAFETENSORS_FORM,
    gguf: GGUF_FORM,
};
