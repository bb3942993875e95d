//! Random models: description and checkpoint.

use omni_checkpoint::Checkpoint;
use omni_checkpoint::testing::SafetensorsWriter;
use omni_kernels::model::{
    Activation, Attention, Embedding, FeedForward, Gated, Layer, Linear, Mask, ModelSpec, Norm, NormKind, Output,
    Pooling, Rope, RowOrder, TensorName,
};
use std::collections::HashMap;
use std::sync::Arc;

/// Ids of tokens of the models.
pub(crate) const VOCABULARY: usize = 61;
/// Most positions of the models.
pub(crate) const CONTEXT: usize = 640;

/// Model with its weights, in the file and as numbers.
pub(crate) struct Model {
    pub(crate) spec: ModelSpec,
    pub(crate) checkpoint: Arc<Checkpoint>,
    pub(crate) tensors: HashMap<String, Tensor>,
    _directory: tempfile::TempDir,
}

/// Matrix or vector.
#[derive(Clone)]
pub(crate) struct Tensor {
    pub(crate) columns: usize,
    pub(crate) values: Vec<f32>,
}

/// Choices of a model.
#[derive(Clone)]
pub(crate) struct Shape {
    pub(crate) hidden: usize,
    pub(crate) heads: usize,
    pub(crate) kv_heads: usize,
    pub(crate) head_width: usize,
    pub(crate) intermediate: usize,
    pub(crate) layers: usize,
    pub(crate) norm: NormKind,
    pub(crate) norm_offset: f32,
    /// Norms before attention and network; else after their sums.
    pub(crate) norms_before: bool,
    pub(crate) output_norms: bool,
    pub(crate) head_norms: bool,
    pub(crate) bias: bool,
    /// Queries, keys and values are rows of one matrix.
    pub(crate) fused: bool,
    pub(crate) interleaved: bool,
    /// Rotated pairs of a head.
    pub(crate) rotated: usize,
    /// Window of every other layer.
    pub(crate) window: Option<usize>,
    pub(crate) all: bool,
    pub(crate) network: Network,
    pub(crate) activation: Activation,
    pub(crate) tied: bool,
    pub(crate) cap: Option<f32>,
    pub(crate) pooling: Option<Pooling>,
    pub(crate) positions: bool,
    pub(crate) scale: f32,
    /// Rows of the output beyond the vocabulary.
    pub(crate) padding: usize,
    /// Weights are stored in 16 bits.
    pub(crate) half: bool,
    /// Keys are stored in 32 bits all the same.
    pub(crate) mixed: bool,
}

/// Kind of the feed-forward network.
#[derive(Clone, Copy, PartialEq)]
pub(crate) enum Network {
    Gated,
    Plain,
    Mixture { experts: usize, chosen: usize, normalised: bool },
}

impl Default for Shape {
    fn default() -> Self {
        Self {
            hidden: 64,
            heads: 6,
            kv_heads: 2,
            head_width: 16,
            intermediate: 96,
            layers: 2,
            norm: NormKind::Rms,
            norm_offset: 0.0,
            norms_before: true,
            output_norms: false,
            head_norms: false,
            bias: false,
            fused: false,
            interleaved: false,
            rotated: 8,
            window: None,
            all: false,
            network: Network::Gated,
            activation: Activation::Silu,
            tied: false,
            cap: None,
            pooling: None,
            positions: false,
            scale: 1.0,
            padding: 0,
            half: false,
            mixed: false,
        }
    }
}

/// Models with every operation in turn.
pub(crate) fn all() -> Vec<(&'static str, Shape)> {
    let base = Shape::default;
    let mixture = |normalised| Network::Mixture { experts: 7, chosen: 3, normalised };
    vec![
        ("llama", base()),
        ("llama, tied, padded, in 16 bits", Shape { tied: true, padding: 3, half: true, ..base() }),
        ("llama of GGUF", Shape { interleaved: true, bias: true, ..base() }),
        ("one matrix for queries, keys and values", Shape { fused: true, kv_heads: 6, ..base() }),
        ("qwen 2", Shape { bias: true, kv_heads: 1, heads: 7, half: true, mixed: true, ..base() }),
        ("qwen 3", Shape { head_norms: true, head_width: 32, rotated: 16, tied: true, ..base() }),
        ("qwen 3 with experts", Shape { head_norms: true, network: mixture(true), intermediate: 32, ..base() }),
        ("experts as they are", Shape { network: mixture(false), bias: true, ..base() }),
        (
            "gemma 3",
            Shape {
                norm_offset: 1.0,
                output_norms: true,
                head_norms: true,
                head_width: 80,
                rotated: 40,
                heads: 4,
                window: Some(37),
                activation: Activation::GeluTanh,
                tied: true,
                scale: 8.0,
                cap: Some(3.0),
                layers: 3,
                ..base()
            },
        ),
        (
            "bert",
            Shape {
                norm: NormKind::Layer,
                norms_before: false,
                bias: true,
                kv_heads: 6,
                rotated: 0,
                all: true,
                network: Network::Plain,
                activation: Activation::Gelu,
                pooling: Some(Pooling::Mean),
                positions: true,
                ..base()
            },
        ),
        (
            "odd widths",
            Shape {
                hidden: 52,
                head_width: 10,
                heads: 3,
                kv_heads: 3,
                rotated: 3,
                intermediate: 45,
                window: Some(300),
                network: Network::Plain,
                activation: Activation::Relu,
                norm: NormKind::Layer,
                ..base()
            },
        ),
    ]
}

struct Builder<'a> {
    random: fastrand::Rng,
    change: &'a mut dyn FnMut(f32) -> f32,
    half: bool,
    writer: SafetensorsWriter,
    tensors: HashMap<String, Tensor>,
}

impl Builder<'_> {
    fn tensor(&mut self, name: &str, rows: Option<usize>, columns: usize, scale: f32, middle: f32) -> TensorName {
        let count = rows.unwrap_or(1) * columns;
        let mut value = || (self.change)(middle + (self.random.f32() - 0.5) * 2.0 * scale);
        let mut values: Vec<f32> = (0..count).map(|_| value()).collect();
        let shape: Vec<usize> = rows.into_iter().chain([columns]).collect();
        if self.half && rows.is_some() {
            values.iter_mut().for_each(|value| *value = f32::from_bits(value.to_bits() & 0xffff_0000));
            self.writer.bf16(name, &shape, &values);
        } else {
            self.writer.f32(name, &shape, &values);
        }
        self.tensors.insert(name.to_owned(), Tensor { columns, values });
        TensorName(name.to_owned())
    }

    fn norm(&mut self, name: &str, width: usize, shape: &Shape) -> Option<Norm> {
        let weight = self.tensor(&format!("{name}.weight"), None, width, 0.3, 1.0 - shape.norm_offset);
        let bias = (shape.norm == NormKind::Layer).then(|| self.tensor(&format!("{name}.bias"), None, width, 0.1, 0.0));
        Some(Norm { weight, bias, kind: shape.norm, epsilon: 1e-5, offset: shape.norm_offset })
    }

    fn linear(&mut self, name: &str, outputs: usize, inputs: usize, bias: bool) -> Linear {
        let scale = 1.7 / (inputs as f32).sqrt();
        let weight = self.tensor(&format!("{name}.weight"), Some(outputs), inputs, scale, 0.0);
        let bias = bias.then(|| self.tensor(&format!("{name}.bias"), None, outputs, 0.2, 0.0));
        Linear { weight, rows: None, bias, order: RowOrder::Outputs, inputs, outputs }
    }

    fn attention(&mut self, layer: usize, shape: &Shape) -> Attention {
        let width = shape.head_width;
        let (query_width, kv_width) = (shape.heads * width, shape.kv_heads * width);
        let name = |part: &str| format!("layers.{layer}.{part}");
        let (mut query, mut key, mut value);
        if shape.fused {
            let all = self.linear(&name("qkv"), query_width + 2 * kv_width, shape.hidden, false);
            let part =
                |start: usize, outputs: usize| Linear { rows: Some(start..start + outputs), outputs, ..all.clone() };
            query = part(0, query_width);
            key = part(query_width, kv_width);
            value = part(query_width + kv_width, kv_width);
        } else {
            query = self.linear(&name("query"), query_width, shape.hidden, shape.bias);
            self.half = shape.half && !shape.mixed;
            key = self.linear(&name("key"), kv_width, shape.hidden, shape.bias);
            self.half = shape.half;
            value = self.linear(&name("value"), kv_width, shape.hidden, shape.bias);
        }
        if shape.interleaved {
            query.order = RowOrder::Interleaved { head_width: width };
            key.order = query.order;
        }
        value.order = RowOrder::Outputs;
        let is_local = shape.window.is_some() && layer.is_multiple_of(2);
        let base: f32 = if is_local { 100.0 } else { 1000.0 };
        let frequencies = (0..shape.rotated).map(|at| base.powf(-(at as f32) / shape.rotated as f32)).collect();
        Attention {
            heads: shape.heads,
            kv_heads: shape.kv_heads,
            head_width: width,
            query,
            key,
            value,
            output: self.linear(&name("output"), shape.hidden, query_width, shape.bias),
            query_norm: if shape.head_norms { self.norm(&name("query_norm"), width, shape) } else { None },
            key_norm: if shape.head_norms { self.norm(&name("key_norm"), width, shape) } else { None },
            rope: (shape.rotated > 0).then_some(Rope { frequencies, factor: 1.0 }),
            scale: 1.0 / (width as f32).sqrt(),
            mask: match shape.window {
                _ if shape.all => Mask::All,
                Some(window) if is_local => Mask::Window { window },
                _ => Mask::Causal,
            },
        }
    }

    fn gated(&mut self, name: &str, shape: &Shape) -> Gated {
        Gated {
            gate: self.linear(&format!("{name}.gate"), shape.intermediate, shape.hidden, shape.bias),
            up: self.linear(&format!("{name}.up"), shape.intermediate, shape.hidden, shape.bias),
            down: self.linear(&format!("{name}.down"), shape.hidden, shape.intermediate, shape.bias),
            activation: shape.activation,
        }
    }

    fn network(&mut self, layer: usize, shape: &Shape) -> FeedForward {
        let name = format!("layers.{layer}.network");
        match shape.network {
            Network::Gated => FeedForward::Gated(self.gated(&name, shape)),
            Network::Plain => FeedForward::Plain {
                up: self.linear(&format!("{name}.up"), shape.intermediate, shape.hidden, shape.bias),
                down: self.linear(&format!("{name}.down"), shape.hidden, shape.intermediate, shape.bias),
                activation: shape.activation,
            },
            Network::Mixture { experts, chosen, normalised } => FeedForward::Mixture {
                router: self.linear(&format!("{name}.router"), experts, shape.hidden, shape.bias),
                experts: (0..experts).map(|expert| self.gated(&format!("{name}.{expert}"), shape)).collect(),
                chosen,
                normalised,
            },
        }
    }

    fn layer(&mut self, layer: usize, shape: &Shape) -> Layer {
        let hidden = shape.hidden;
        let mut norm = |part: &str, is_there: bool| {
            if is_there { self.norm(&format!("layers.{layer}.{part}"), hidden, shape) } else { None }
        };
        Layer {
            attention_norm: norm("attention_norm", shape.norms_before),
            attention_output_norm: norm("attention_output_norm", shape.output_norms),
            attention_sum_norm: norm("attention_sum_norm", !shape.norms_before),
            feed_forward_norm: norm("network_norm", shape.norms_before),
            feed_forward_output_norm: norm("network_output_norm", shape.output_norms),
            feed_forward_sum_norm: norm("network_sum_norm", !shape.norms_before),
            attention: self.attention(layer, shape),
            feed_forward: self.network(layer, shape),
        }
    }
}

impl Model {
    /// Model of a shape with random weights.
    pub(crate) fn new(name: &'static str, shape: &Shape, seed: u64) -> Self {
        Self::with(name, shape, seed, |value| value)
    }

    /// Model of a shape with random weights that `change` may replace.
    pub(crate) fn with(name: &'static str, shape: &Shape, seed: u64, mut change: impl FnMut(f32) -> f32) -> Self {
        let random = fastrand::Rng::with_seed(seed);
        let writer = SafetensorsWriter::new();
        let change = &mut change;
        let mut builder = Builder { random, change, half: shape.half, writer, tensors: HashMap::new() };
        let hidden = shape.hidden;
        let rows = VOCABULARY + if shape.tied { shape.padding } else { 0 };
        let tokens = builder.tensor("tokens.weight", Some(rows), hidden, 1.0 / shape.scale, 0.0);
        let positions = shape.positions.then(|| builder.tensor("positions.weight", Some(CONTEXT), hidden, 0.5, 0.0));
        let types = shape.positions.then(|| builder.tensor("types.weight", Some(2), hidden, 0.5, 0.0));
        let norm = if shape.positions { builder.norm("embedding_norm", hidden, shape) } else { None };
        let layers = (0..shape.layers).map(|layer| builder.layer(layer, shape)).collect();
        let outputs = VOCABULARY + shape.padding;
        let mut weight = Linear {
            weight: tokens.clone(),
            rows: None,
            bias: None,
            order: RowOrder::Outputs,
            inputs: hidden,
            outputs,
        };
        if !shape.tied {
            weight = builder.linear("logits", outputs, hidden, shape.bias);
        }
        let spec = ModelSpec {
            architecture: name.to_owned(),
            vocabulary: VOCABULARY,
            hidden,
            context: CONTEXT,
            embedding: Embedding { tokens, scale: shape.scale, positions, types, norm },
            layers,
            norm: if shape.norms_before { builder.norm("norm", hidden, shape) } else { None },
            output: match shape.pooling {
                Some(pooling) => Output::Embedding { pooling, normalised: pooling != Pooling::Last },
                None => Output::Logits { weight, cap: shape.cap },
            },
        };
        Self::write(spec, builder)
    }

    fn write(spec: ModelSpec, builder: Builder<'_>) -> Self {
        let directory = tempfile::tempdir().unwrap();
        builder.writer.write(&directory.path().join("model.safetensors")).unwrap();
        std::fs::write(directory.path().join("config.json"), "{}").unwrap();
        let checkpoint = Arc::new(Checkpoint::open(directory.path()).unwrap());
        Self { spec, checkpoint, tensors: builder.tensors, _directory: directory }
    }
}
