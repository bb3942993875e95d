//! Llama 2 to 3.x, and models of its shape such as SmolLM2.

use crate::architecture::{Architecture, Bias, Decoder, FIELDS, Fixed, Kind, Score, Windows, field};
use crate::names::{Form, GGUF_FORM, SAFETENSORS_FORM};
use omni_kernels::model::Activation;

pub(crate) const LLAMA: Architecture = Architecture {
    name: "llama",
    classes: &["LlamaForCausalLM"],
    model_types: &["llama"],
    gguf: Some("llama"),
    section: None,
    // GGUF files of mixtures of experts have the same name.
    fixed: &[(field("", "expert_count"), Fixed::Number(0.0)), (field("partial_rotary_factor", ""), Fixed::Number(1.0))],
    kind: Kind::Decoder(&DECODER),
};

const DECODER: Decoder = Decoder {
    fields: FIELDS,
    activation: Activation::Silu,
    input_bias: Bias::Field("attention_bias"),
    output_bias: Bias::Field("attention_bias"),
    feed_forward_bias: Bias::Field("mlp_bias"),
    windows: Windows::None,
    local_base: None,
    score: Score::HeadWidth,
    scaled_embedding: false,
    tied: false,
    experts: None,
    safetensors: SAFETENSORS_FORM,
    gguf: Form { interleaved: true, ..GGUF_FORM },
};
