//! Description of a model for a backend: every operation of a forward pass as data.
//!
//! A description names tensors of a checkpoint and holds no weights. Invariant: widths fit together (`check` of the
//! architectures crate), so that a backend needs to compare them with the tensors' shapes only.

/// Model.
#[derive(Debug, Clone, PartialEq)]
pub struct ModelSpec {
    /// Name of the architecture, for messages.
    pub architecture: String,
    /// Number of token ids. Ids from here on are padding of the matrices and never sampled.
    pub vocabulary: usize,
    /// Width of the residual stream.
    pub hidden: usize,
    /// Most positions of a sequence.
    pub context: usize,
    /// Vectors of the tokens.
    pub embedding: Embedding,
    /// Layers, first to last.
    pub layers: Vec<Layer>,
    /// Norm after the last layer.
    pub norm: Option<Norm>,
    /// Use of the last layer's output.
    pub output: Output,
}

/// Tensor of a checkpoint, by its name in the checkpoint.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct TensorName(pub String);

/// Matrix of a linear operation, `y = W x + b`.
#[derive(Debug, Clone, PartialEq)]
pub struct Linear {
    /// Matrix, its rows the outputs. For a matrix of AWQ or GPTQ the name without `.qweight`.
    pub weight: TensorName,
    /// Part of the rows of a matrix that several operations share, `None`: all.
    pub rows: Option<std::ops::Range<usize>>,
    /// Bias.
    pub bias: Option<TensorName>,
    /// Order of the rows, and of the bias, in the file.
    pub order: RowOrder,
    /// Number of inputs.
    pub inputs: usize,
    /// Number of outputs.
    pub outputs: usize,
}

/// Order of the rows of a matrix in its file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RowOrder {
    /// Order of the outputs.
    Outputs,
    /// Rows of each head interleaved for a rotation of neighbours, as converters to GGUF write queries and keys of
    /// Llama: row `2 i + j` of a head in the file is its row `i + j head_width / 2`.
    Interleaved {
        /// Rows of a head.
        head_width: usize,
    },
}

/// Vectors of the tokens at the entrance of the first layer.
#[derive(Debug, Clone, PartialEq)]
pub struct Embedding {
    /// Matrix with a row for each token.
    pub tokens: TensorName,
    /// Factor of the rows.
    pub scale: f32,
    /// Matrix with a row for each position, added.
    pub positions: Option<TensorName>,
    /// Matrix of token types, whose row 0 is added (BERT).
    pub types: Option<TensorName>,
    /// Norm of the sum.
    pub norm: Option<Norm>,
}

/// Norm.
#[derive(Debug, Clone, PartialEq)]
pub struct Norm {
    /// Factor of each element.
    pub weight: TensorName,
    /// Addend of each element, for [`NormKind::Layer`].
    pub bias: Option<TensorName>,
    /// Formula.
    pub kind: NormKind,
    /// Addend of the variance.
    pub epsilon: f32,
    /// Addend of each factor: 1 where a checkpoint of Gemma holds `weight - 1`, else 0.
    pub offset: f32,
}

/// Formula of a norm.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NormKind {
    /// By the root of the mean square.
    Rms,
    /// By mean and variance.
    Layer,
}

/// Layer: `x += attention(x)`, then `x += feed_forward(x)`, with norms where they are set.
#[derive(Debug, Clone, PartialEq)]
pub struct Layer {
    /// Norm before the attention.
    pub attention_norm: Option<Norm>,
    /// Attention.
    pub attention: Attention,
    /// Norm of the attention's output before it is added (Gemma 3).
    pub attention_output_norm: Option<Norm>,
    /// Norm of the sum after the attention (BERT).
    pub attention_sum_norm: Option<Norm>,
    /// Norm before the feed-forward network.
    pub feed_forward_norm: Option<Norm>,
    /// Feed-forward network.
    pub feed_forward: FeedForward,
    /// Norm of its output before it is added (Gemma 3).
    pub feed_forward_output_norm: Option<Norm>,
    /// Norm of the sum after it (BERT).
    pub feed_forward_sum_norm: Option<Norm>,
}

/// Attention with grouped heads.
#[derive(Debug, Clone, PartialEq)]
pub struct Attention {
    /// Number of heads of queries.
    pub heads: usize,
    /// Number of heads of keys and values; divides `heads`.
    pub kv_heads: usize,
    /// Width of a head; even.
    pub head_width: usize,
    /// Queries.
    pub query: Linear,
    /// Keys.
    pub key: Linear,
    /// Values.
    pub value: Linear,
    /// Output.
    pub output: Linear,
    /// Norm of each head's query.
    pub query_norm: Option<Norm>,
    /// Norm of each head's key.
    pub key_norm: Option<Norm>,
    /// Rotation of queries and keys, `None` where positions are in the embedding.
    pub rope: Option<Rope>,
    /// Factor of the scores.
    pub scale: f32,
    /// Positions that a query sees.
    pub mask: Mask,
}

/// Positions that a query sees.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mask {
    /// Position of the query and all before it.
    Causal,
    /// Position of the query and the `window - 1` before it.
    Window {
        /// Number of positions, at least 1.
        window: usize,
    },
    /// All of its sequence, which is computed in one step (embeddings).
    All,
}

/// Rotary position embedding: elements `i` and `i + head_width / 2` rotate by `position * frequencies[i]`.
#[derive(Debug, Clone, PartialEq)]
pub struct Rope {
    /// Angle for each position and pair of elements, any scaling included; `head_width / 2` of them.
    pub frequencies: Vec<f32>,
    /// Factor of sine and cosine (YaRN), else 1.
    pub factor: f32,
}

/// Feed-forward network.
#[derive(Debug, Clone, PartialEq)]
pub enum FeedForward {
    /// `down(activation(gate x) * up x)`.
    Gated(Gated),
    /// `down(activation(up x))`.
    Plain {
        /// First matrix.
        up: Linear,
        /// Second matrix.
        down: Linear,
        /// Function between them.
        activation: Activation,
    },
    /// Experts, of which a router chooses some for each token.
    Mixture {
        /// Scores of the experts.
        router: Linear,
        /// Experts, all of the same widths.
        experts: Vec<Gated>,
        /// Number of experts for a token.
        chosen: usize,
        /// Probabilities of the chosen ones are divided by their sum.
        normalised: bool,
    },
}

/// Gated network.
#[derive(Debug, Clone, PartialEq)]
pub struct Gated {
    /// Matrix before the activation.
    pub gate: Linear,
    /// Matrix that is multiplied with it.
    pub up: Linear,
    /// Matrix back to the residual stream.
    pub down: Linear,
    /// Function of the gate.
    pub activation: Activation,
}

/// Function of each element.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Activation {
    /// `x / (1 + exp(-x))`.
    Silu,
    /// `0.5 x (1 + erf(x / sqrt 2))`.
    Gelu,
    /// The approximation of it by the hyperbolic tangent.
    GeluTanh,
    /// `max(x, 0)`.
    Relu,
}

/// Use of the last layer's output.
#[derive(Debug, Clone, PartialEq)]
pub enum Output {
    /// Logits of the next token.
    Logits {
        /// Matrix with a row for each token; may be that of the embedding.
        weight: Linear,
        /// Logits become `cap tanh(logit / cap)`.
        cap: Option<f32>,
    },
    /// A vector for the sequence.
    Embedding {
        /// Way from the tokens' vectors to one.
        pooling: Pooling,
        /// Division by its length.
        normalised: bool,
    },
}

/// Way from the tokens' vectors to one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Pooling {
    /// Mean.
    Mean,
    /// First token's.
    First,
    /// Last token's.
    Last,
}
