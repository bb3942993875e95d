//! Mistral. Its GGUF files call themselves `llama`.

use crate::architecture::{Architecture, Bias, Decoder, FIELDS, Fixed, Kind, Score, Windows, field};
use crate::names::{GGUF_FORM, SAFETENSORS_FORM};
use omni_kernels::model::Activation;

pub(crate) const MISTRAL: Architecture = Architecture {
    name: "mistral",
    classes: &["MistralForCausalLM"],
    model_types: &["mistral"],
    gguf: None,
    section: None,
    fixed: &[(field("partial_rotary_factor", ""), Fixed::Number(1.0))],
    kind: Kind::Decoder(&DECODER),
};

const DECODER: Decoder = Decoder {
    fields: FIELDS,
    activation: Activation::Silu,
    input_bias: Bias::Present,
    output_bias: Bias::Present,
    feed_forward_bias: Bias::Present,
    windows: Windows::All,
    local_base: None,
    score: Score::HeadWidth,
    scaled_embedding: false,
    tied: false,
    experts: None,
    safetensors: SAFETENSORS_FORM,
    gguf: GGUF_FORM,
};
