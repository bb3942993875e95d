//! Form of an architecture's table.

use crate::names::{EncoderNames, Form};
use omni_kernels::model::Activation;

/// Architecture: names of its fields and tensors, and what it does otherwise than others.
#[derive(Debug)]
pub(crate) struct Architecture {
    /// Name for messages.
    pub(crate) name: &'static str,
    /// Values of `architectures[0]` in `config.json`.
    pub(crate) classes: &'static [&'static str],
    /// Values of `model_type` in `config.json`, which counts where there is no class.
    pub(crate) model_types: &'static [&'static str],
    /// Value of `general.architecture` in GGUF.
    pub(crate) gguf: Option<&'static str>,
    /// Object of `config.json` that holds the fields, where it is present.
    pub(crate) section: Option<&'static str>,
    /// Fields that must have one value, since others are not supported.
    pub(crate) fixed: &'static [(Field, Fixed)],
    /// Shape of the layers.
    pub(crate) kind: Kind,
}

/// Shape of the layers.
#[derive(Debug)]
pub(crate) enum Kind {
    /// Decoder with norms before its parts, rotary positions and grouped heads.
    Decoder(&'static Decoder),
    /// Encoder with norms after its parts and positions in the embedding.
    Encoder(&'static Encoder),
}

/// Field of a configuration.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Field {
    /// Name in `config.json`; empty: it has no such field.
    pub(crate) json: &'static str,
    /// Key in GGUF after the architecture's name; empty: it has no such key.
    pub(crate) gguf: &'static str,
    /// Value where the field is absent.
    pub(crate) default: Option<f64>,
}

pub(crate) const fn field(json: &'static str, gguf: &'static str) -> Field {
    Field { json, gguf, default: None }
}

impl Field {
    /// The same field with a default.
    pub(crate) const fn or(self, default: f64) -> Self {
        Self { default: Some(default), ..self }
    }
}

/// The only supported value of a field; absence is always supported.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Fixed {
    /// Number.
    Number(f64),
    /// Flag.
    Flag(bool),
    /// Text.
    Text(&'static str),
    /// None: any value but null is refused.
    Absent,
}

/// Decoder.
#[derive(Debug)]
pub(crate) struct Decoder {
    /// Fields.
    pub(crate) fields: Fields,
    /// Function of the feed-forward network where the configuration does not name it.
    pub(crate) activation: Activation,
    /// Biases of queries, keys and values.
    pub(crate) input_bias: Bias,
    /// Bias of the attention's output.
    pub(crate) output_bias: Bias,
    /// Biases of the feed-forward network.
    pub(crate) feed_forward_bias: Bias,
    /// Windows of the attention.
    pub(crate) windows: Windows,
    /// Rotation of layers with a window, where it is another than that of the others.
    pub(crate) local_base: Option<Field>,
    /// Factor of the scores.
    pub(crate) score: Score,
    /// Factor of the embedding's rows: root of the width (true) or 1.
    pub(crate) scaled_embedding: bool,
    /// Embedding that is the output's matrix too, where the configuration does not say.
    pub(crate) tied: bool,
    /// Experts in the feed-forward network.
    pub(crate) experts: Option<Experts>,
    /// Tensors of safetensors files.
    pub(crate) safetensors: Form,
    /// Tensors of GGUF files.
    pub(crate) gguf: Form,
}

/// Fields of a decoder.
#[derive(Debug)]
pub(crate) struct Fields {
    /// Width of the residual stream.
    pub(crate) hidden: Field,
    /// Number of layers.
    pub(crate) layers: Field,
    /// Number of heads of queries.
    pub(crate) heads: Field,
    /// Number of heads of keys and values; absent: as many as of queries.
    pub(crate) kv_heads: Field,
    /// Width of a head; absent: `hidden / heads`.
    pub(crate) head_width: Field,
    /// Width of the feed-forward network.
    pub(crate) intermediate: Field,
    /// Number of token ids; absent: rows of the embedding.
    pub(crate) vocabulary: Field,
    /// Most positions.
    pub(crate) context: Field,
    /// Addend of the variance in norms.
    pub(crate) epsilon: Field,
    /// Base of the rotation's frequencies.
    pub(crate) rope_base: Field,
}

/// Fields under the names that most decoders have.
pub(crate) const FIELDS: Fields = Fields {
    hidden: field("hidden_size", "embedding_length"),
    layers: field("num_hidden_layers", "block_count"),
    heads: field("num_attention_heads", "attention.head_count"),
    kv_heads: field("num_key_value_heads", "attention.head_count_kv"),
    head_width: field("head_dim", "attention.key_length"),
    intermediate: field("intermediate_size", "feed_forward_length"),
    vocabulary: field("vocab_size", "vocab_size"),
    context: field("max_position_embeddings", "context_length"),
    epsilon: field("rms_norm_eps", "attention.layer_norm_rms_epsilon"),
    rope_base: field("rope_theta", "rope.freq_base").or(10_000.0),
};

/// Presence of a bias. A bias that is in the file is always used; a GGUF file alone says which there are.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Bias {
    /// Where it is in the file.
    Present,
    /// Always.
    Always,
    /// Where this field of `config.json` is true.
    Field(&'static str),
}

/// Layers whose attention has a window.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Windows {
    /// None.
    None,
    /// All, where `sliding_window` is set.
    All,
    /// The same, where `use_sliding_window` is set too.
    AllIfUsed,
    /// From `max_window_layers` on, where `use_sliding_window` is set.
    Upper,
    /// All but every n-th one.
    Pattern {
        /// `sliding_window` where the configuration does not say.
        window: usize,
        /// n where the configuration does not say.
        period: usize,
    },
}

/// Factor of the scores.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Score {
    /// `1 / sqrt(head_width)`.
    HeadWidth,
    /// `1 / sqrt(field)`, and the width of a head where GGUF has no such field, but for one size of a model.
    Field {
        /// Field.
        field: Field,
        /// Number of layers of the size whose field is `hidden / heads`.
        layers_by_hidden: usize,
    },
}

/// Experts.
#[derive(Debug)]
pub(crate) struct Experts {
    /// Number of experts.
    pub(crate) count: Field,
    /// Number of experts for a token.
    pub(crate) chosen: Field,
    /// Width of an expert.
    pub(crate) intermediate: Field,
    /// Division of the probabilities by their sum, and the value where `config.json` does not say; always so in GGUF.
    pub(crate) normalised: (Field, bool),
    /// Distance of the layers with experts, default 1.
    pub(crate) step: Field,
    /// List of layers without experts.
    pub(crate) dense_layers: &'static str,
}

/// Encoder.
#[derive(Debug)]
pub(crate) struct Encoder {
    /// Width of the residual stream.
    pub(crate) hidden: Field,
    /// Number of layers.
    pub(crate) layers: Field,
    /// Number of heads.
    pub(crate) heads: Field,
    /// Width of the feed-forward network.
    pub(crate) intermediate: Field,
    /// Number of token ids; absent: rows of the embedding.
    pub(crate) vocabulary: Field,
    /// Most positions.
    pub(crate) context: Field,
    /// Addend of the variance in norms.
    pub(crate) epsilon: Field,
    /// Function of the feed-forward network where the configuration does not name it.
    pub(crate) activation: Activation,
    /// Tensors of safetensors files.
    pub(crate) safetensors: EncoderNames,
    /// Tensors of GGUF files.
    pub(crate) gguf: EncoderNames,
}

impl Architecture {
    /// Returns true for a name of this architecture in either form of configuration.
    pub(crate) fn is_called(&self, name: &str) -> bool {
        self.classes.contains(&name) || self.model_types.contains(&name) || self.gguf == Some(name)
    }
}
