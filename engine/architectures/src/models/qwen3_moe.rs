//! Qwen 3 with experts.

use super::qwen3;
use crate::architecture::{Architecture, Decoder, Experts, Fixed, Kind, Windows, field};

pub(crate) const QWEN3_MOE: Architecture = Architecture {
    name: "qwen3-moe",
    classes: &["Qwen3MoeForCausalLM"],
    model_types: &["qwen3_moe"],
    gguf: Some("qwen3moe"),
    section: None,
    fixed: &[(field("partial_rotary_factor", ""), Fixed::Number(1.0))],
    kind: Kind::Decoder(&DECODER),
};

const DECODER: Decoder = Decoder {
    windows: Windows::AllIfUsed,
    experts: Some(Experts {
        count: field("num_experts", "expert_count"),
        chosen: field("num_experts_per_tok", "expert_used_count"),
        intermediate: field("moe_intermediate_size", "expert_feed_forward_length"),
        normalised: (field("norm_topk_prob", ""), false),
        step: field("decoder_sparse_step", "").or(1.0),
        dense_layers: "mlp_only_layers",
    }),
    ..qwen3::DECODER
};
