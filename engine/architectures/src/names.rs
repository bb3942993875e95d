//! Names of tensors in both kinds of file.

/// Tensors of a decoder in one kind of file.
#[derive(Debug)]
pub(crate) struct Form {
    /// Names.
    pub(crate) names: Names,
    /// Addend of the factors of RMS norms.
    pub(crate) norm_offset: f32,
    /// Rows of queries and keys are interleaved within each head.
    pub(crate) interleaved: bool,
    /// Experts of a layer are one tensor.
    pub(crate) stacked: bool,
}

/// Names of a decoder's tensors without `.weight` and `.bias`: `{model}` stands for one of the prefixes, `{layer}` and
/// `{expert}` for numbers. `None`: the architecture has no such tensor.
#[derive(Debug)]
pub(crate) struct Names {
    /// Values of `{model}`, of which the first counts under which there is an embedding.
    pub(crate) prefixes: &'static [&'static str],
    /// Vectors of the tokens.
    pub(crate) embedding: &'static str,
    /// Norm after the last layer.
    pub(crate) norm: &'static str,
    /// Matrix of the logits.
    pub(crate) output: &'static str,
    /// Norm before the attention.
    pub(crate) attention_norm: &'static str,
    /// Queries.
    pub(crate) query: &'static str,
    /// Keys.
    pub(crate) key: &'static str,
    /// Values.
    pub(crate) value: &'static str,
    /// Output of the attention.
    pub(crate) attention_output: &'static str,
    /// Norm of each head's query.
    pub(crate) query_norm: Option<&'static str>,
    /// Norm of each head's key.
    pub(crate) key_norm: Option<&'static str>,
    /// Norm of the attention's output.
    pub(crate) attention_output_norm: Option<&'static str>,
    /// Norm before the feed-forward network.
    pub(crate) feed_forward_norm: &'static str,
    /// Norm of its output.
    pub(crate) feed_forward_output_norm: Option<&'static str>,
    /// Gate.
    pub(crate) gate: &'static str,
    /// Matrix that is multiplied with the gate.
    pub(crate) up: &'static str,
    /// Matrix back to the residual stream.
    pub(crate) down: &'static str,
    /// Scores of the experts.
    pub(crate) router: &'static str,
    /// Gate of an expert.
    pub(crate) expert_gate: &'static str,
    /// Matrix of an expert that is multiplied with the gate.
    pub(crate) expert_up: &'static str,
    /// Matrix of an expert back to the residual stream.
    pub(crate) expert_down: &'static str,
}

/// Names that most decoders have in safetensors files.
pub(crate) const SAFETENSORS: Names = Names {
    prefixes: &["model.", ""],
    embedding: "{model}embed_tokens",
    norm: "{model}norm",
    output: "lm_head",
    attention_norm: "{model}layers.{layer}.input_layernorm",
    query: "{model}layers.{layer}.self_attn.q_proj",
    key: "{model}layers.{layer}.self_attn.k_proj",
    value: "{model}layers.{layer}.self_attn.v_proj",
    attention_output: "{model}layers.{layer}.self_attn.o_proj",
    query_norm: None,
    key_norm: None,
    attention_output_norm: None,
    feed_forward_norm: "{model}layers.{layer}.post_attention_layernorm",
    feed_forward_output_norm: None,
    gate: "{model}layers.{layer}.mlp.gate_proj",
    up: "{model}layers.{layer}.mlp.up_proj",
    down: "{model}layers.{layer}.mlp.down_proj",
    router: "{model}layers.{layer}.mlp.gate",
    expert_gate: "{model}layers.{layer}.mlp.experts.{expert}.gate_proj",
    expert_up: "{model}layers.{layer}.mlp.experts.{expert}.up_proj",
    expert_down: "{model}layers.{layer}.mlp.experts.{expert}.down_proj",
};

/// Norms of queries and keys in safetensors files.
pub(crate) const SAFETENSORS_QUERY_NORM: &str = "{model}layers.{layer}.self_attn.q_norm";
/// The same of keys.
pub(crate) const SAFETENSORS_KEY_NORM: &str = "{model}layers.{layer}.self_attn.k_norm";

/// Names in GGUF files.
pub(crate) const GGUF: Names = Names {
    prefixes: &[""],
    embedding: "token_embd",
    norm: "output_norm",
    output: "output",
    attention_norm: "blk.{layer}.attn_norm",
    query: "blk.{layer}.attn_q",
    key: "blk.{layer}.attn_k",
    value: "blk.{layer}.attn_v",
    attention_output: "blk.{layer}.attn_output",
    query_norm: None,
    key_norm: None,
    attention_output_norm: None,
    feed_forward_norm: "blk.{layer}.ffn_norm",
    feed_forward_output_norm: None,
    gate: "blk.{layer}.ffn_gate",
    up: "blk.{layer}.ffn_up",
    down: "blk.{layer}.ffn_down",
    router: "blk.{layer}.ffn_gate_inp",
    expert_gate: "blk.{layer}.ffn_gate_exps",
    expert_up: "blk.{layer}.ffn_up_exps",
    expert_down: "blk.{layer}.ffn_down_exps",
};

/// Norm of queries in GGUF files.
pub(crate) const GGUF_QUERY_NORM: &str = "blk.{layer}.attn_q_norm";
/// The same of keys.
pub(crate) const GGUF_KEY_NORM: &str = "blk.{layer}.attn_k_norm";

/// Form of most safetensors files.
pub(crate) const SAFETENSORS_FORM: Form =
    Form { names: SAFETENSORS, norm_offset: 0.0, interleaved: false, stacked: false };

/// Form of most GGUF files.
pub(crate) const GGUF_FORM: Form = Form { names: GGUF, norm_offset: 0.0, interleaved: false, stacked: true };

/// Names of an encoder's tensors, written as [`Names`] are.
#[derive(Debug)]
pub(crate) struct EncoderNames {
    /// Values of `{model}`.
    pub(crate) prefixes: &'static [&'static str],
    /// Vectors of the tokens.
    pub(crate) embedding: &'static str,
    /// Vectors of the positions.
    pub(crate) positions: &'static str,
    /// Vectors of the token types.
    pub(crate) types: &'static str,
    /// Norm of their sum.
    pub(crate) embedding_norm: &'static str,
    /// Queries.
    pub(crate) query: &'static str,
    /// Keys.
    pub(crate) key: &'static str,
    /// Values.
    pub(crate) value: &'static str,
    /// Output of the attention.
    pub(crate) attention_output: &'static str,
    /// Norm of the sum after the attention.
    pub(crate) attention_norm: &'static str,
    /// First matrix of the feed-forward network.
    pub(crate) up: &'static str,
    /// Second one.
    pub(crate) down: &'static str,
    /// Norm of the sum after it.
    pub(crate) feed_forward_norm: &'static str,
}
