//! BERT and embedding models of its shape.

use crate::architecture::{Architecture, Encoder, Fixed, Kind, field};
use crate::names::EncoderNames;
use omni_kernels::model::Activation;

pub(crate) const BERT: Architecture = Architecture {
    name: "bert",
    classes: &["BertModel", "BertForMaskedLM"],
    model_types: &["bert"],
    gguf: Some("bert"),
    section: None,
    fixed: &[
        (field("position_embedding_type", ""), Fixed::Text("absolute")),
        (field("is_decoder", "attention.causal"), Fixed::Flag(false)),
        (field("add_cross_attention", ""), Fixed::Flag(false)),
    ],
    kind: Kind::Encoder(&ENCODER),
};

const ENCODER: Encoder = Encoder {
    hidden: field("hidden_size", "embedding_length"),
    layers: field("num_hidden_layers", "block_count"),
    heads: field("num_attention_heads", "attention.head_count"),
    intermediate: field("intermediate_size", "feed_forward_length"),
    vocabulary: field("vocab_size", "vocab_size"),
    context: field("max_position_embeddings", "context_length"),
    epsilon: field("layer_norm_eps", "attention.layer_norm_epsilon").or(1e-12),
    activation: Activation::Gelu,
    safetensors: EncoderNames {
        prefixes: &["", "bert."],
        embedding: "{model}embeddings.word_embeddings",
        positions: "{model}embeddings.position_embeddings",
        types: "{model}embeddings.token_type_embeddings",
        embedding_norm: "{model}embeddings.LayerNorm",
        query: "{model}encoder.layer.{layer}.attention.self.query",
        key: "{model}encoder.layer.{layer}.attention.self.key",
        value: "{model}encoder.layer.{layer}.attention.self.value",
        attention_output: "{model}encoder.layer.{layer}.attention.output.dense",
        attention_norm: "{model}encoder.layer.{layer}.attention.output.LayerNorm",
        up: "{model}encoder.layer.{layer}.intermediate.dense",
        down: "{model}encoder.layer.{layer}.output.dense",
        feed_forward_norm: "{model}encoder.layer.{layer}.output.LayerNorm",
    },
    gguf: EncoderNames {
        prefixes: &[""],
        embedding: "token_embd",
        positions: "position_embd",
        types: "token_types",
        embedding_norm: "token_embd_norm",
        query: "blk.{layer}.attn_q",
        key: "blk.{layer}.attn_k",
        value: "blk.{layer}.attn_v",
        attention_output: "blk.{layer}.attn_output",
        attention_norm: "blk.{layer}.attn_output_norm",
        up: "blk.{layer}.ffn_up",
        down: "blk.{layer}.ffn_down",
        feed_forward_norm: "blk.{layer}.layer_output_norm",
    },
};
