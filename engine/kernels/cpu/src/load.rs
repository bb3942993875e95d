//! Weights of a model, packed from a checkpoint by its description.

use crate::attention::Heads;
use crate::cache::{LayerLayout, Layout};
use crate::elementwise::NormWeights;
use crate::level::Level;
use crate::matrix::{PackedMatrix, Packer, Weights};
use crate::threads::Threads;
use omni_checkpoint::{Checkpoint, CheckpointError};
use omni_kernels::BackendError;
use omni_kernels::model::{
    Activation, Attention, FeedForward, Gated, Layer, Linear, Mask, ModelSpec, Norm, Output, Pooling, Rope, RowOrder,
    TensorName,
};

/// Weights of a model.
#[derive(Debug)]
pub(crate) struct Model {
    pub(crate) embedding: EmbeddingWeights,
    pub(crate) layers: Vec<LayerWeights>,
    pub(crate) norm: Option<NormWeights>,
    pub(crate) output: OutputWeights,
    /// Rotations of the layers, each once.
    pub(crate) ropes: Vec<Rope>,
}

#[derive(Debug)]
pub(crate) struct EmbeddingWeights {
    pub(crate) tokens: Tokens,
    pub(crate) scale: f32,
    /// Matrix of the positions, read in the checkpoint.
    pub(crate) positions: Option<String>,
    /// Vector that is added to each token's.
    pub(crate) token_type: Option<Vec<f32>>,
    pub(crate) norm: Option<NormWeights>,
}

/// Matrix of the tokens' vectors.
#[derive(Debug)]
pub(crate) enum Tokens {
    /// Matrix of the output.
    Output,
    /// Matrix that is read in the checkpoint: only rows of the step's tokens are.
    Checkpoint(String),
}

#[derive(Debug)]
pub(crate) struct LayerWeights {
    pub(crate) attention_norm: Option<NormWeights>,
    pub(crate) attention: AttentionWeights,
    pub(crate) attention_output_norm: Option<NormWeights>,
    pub(crate) attention_sum_norm: Option<NormWeights>,
    pub(crate) feed_forward_norm: Option<NormWeights>,
    pub(crate) feed_forward: FeedForwardWeights,
    pub(crate) feed_forward_output_norm: Option<NormWeights>,
    pub(crate) feed_forward_sum_norm: Option<NormWeights>,
}

#[derive(Debug)]
pub(crate) struct AttentionWeights {
    pub(crate) heads: Heads,
    pub(crate) query: LinearWeights,
    pub(crate) key: LinearWeights,
    pub(crate) value: LinearWeights,
    pub(crate) output: LinearWeights,
    pub(crate) query_norm: Option<NormWeights>,
    pub(crate) key_norm: Option<NormWeights>,
    /// Rotation, by its number in the model.
    pub(crate) rope: Option<usize>,
    pub(crate) scale: f32,
    pub(crate) mask: Mask,
    pub(crate) cache: LayerLayout,
}

#[derive(Debug)]
pub(crate) struct LinearWeights {
    pub(crate) matrix: PackedMatrix,
    pub(crate) bias: Option<Vec<f32>>,
}

#[derive(Debug)]
pub(crate) enum FeedForwardWeights {
    Dense(DenseWeights),
    Mixture { router: LinearWeights, experts: Vec<DenseWeights>, chosen: usize, normalised: bool },
}

/// Feed-forward network with or without a gate.
#[derive(Debug)]
pub(crate) struct DenseWeights {
    pub(crate) gate: Option<LinearWeights>,
    pub(crate) up: LinearWeights,
    pub(crate) down: LinearWeights,
    pub(crate) activation: Activation,
}

#[derive(Debug)]
pub(crate) enum OutputWeights {
    Logits { weight: LinearWeights, cap: Option<f32> },
    Embedding { pooling: Pooling, normalised: bool },
}

/// Reader of a checkpoint.
pub(crate) struct Loader<'a> {
    pub(crate) checkpoint: &'a Checkpoint,
    pub(crate) layout: &'a Layout,
    pub(crate) weights: Weights,
    level: Level,
    packer: Packer<'a>,
    /// Function that is told of the weights read so far, and of all.
    pub(crate) progress: &'a mut dyn FnMut(u64, u64),
    done: u64,
    total: u64,
    bytes: u64,
}

impl<'a> Loader<'a> {
    pub(crate) fn new(
        checkpoint: &'a Checkpoint,
        layout: &'a Layout,
        (weights, level): (Weights, Level),
        threads: &'a Threads,
        progress: &'a mut dyn FnMut(u64, u64),
    ) -> Self {
        let packer = Packer::new(level, threads);
        Self { checkpoint, layout, weights, level, packer, progress, done: 0, total: 0, bytes: 0 }
    }

    /// Loads a model. Returns it with the bytes of its weights.
    pub(crate) fn load(mut self, spec: &ModelSpec) -> Result<(Model, u64), BackendError> {
        self.total = linears(spec).map(|linear| (linear.inputs * linear.outputs) as u64).sum();
        (self.progress)(0, self.total);
        let embedding = self.embedding(spec)?;
        let mut ropes: Vec<Rope> = Vec::new();
        let mut layers = Vec::with_capacity(spec.layers.len());
        for (layer, place) in spec.layers.iter().zip(&self.layout.layers) {
            layers.push(self.layer(spec, layer, *place, &mut ropes)?);
        }
        let norm = self.norm(spec.norm.as_ref(), spec.hidden)?;
        let output = match &spec.output {
            Output::Logits { weight, cap } => {
                // Errors of 4 bits in logits are errors of the answer.
                let weights = if self.weights == Weights::Int4 { Weights::Int8 } else { self.weights };
                OutputWeights::Logits { weight: self.linear(weight, weights)?, cap: *cap }
            }
            Output::Embedding { pooling, normalised } => {
                OutputWeights::Embedding { pooling: *pooling, normalised: *normalised }
            }
        };
        Ok((Model { embedding, layers, norm, output, ropes }, self.bytes))
    }

    fn embedding(&mut self, spec: &ModelSpec) -> Result<EmbeddingWeights, BackendError> {
        let embedding = &spec.embedding;
        let shares = matches!(&spec.output, Output::Logits { weight, .. }
            if weight.weight == embedding.tokens && weight.rows.is_none() && weight.order == RowOrder::Outputs);
        let tokens = self.rows(&embedding.tokens, spec.vocabulary, spec.hidden)?;
        let tokens = if shares { Tokens::Output } else { Tokens::Checkpoint(tokens) };
        let positions =
            embedding.positions.as_ref().map(|name| self.rows(name, spec.context, spec.hidden)).transpose()?;
        let mut token_type = None;
        if let Some(name) = &embedding.types {
            self.rows(name, 1, spec.hidden)?;
            let mut row = vec![0.0; spec.hidden];
            self.checkpoint.matrix(&name.0).map_err(|error| refused(&name.0, &error))?.row(0, &mut row);
            token_type = Some(row);
        }
        let norm = self.norm(embedding.norm.as_ref(), spec.hidden)?;
        Ok(EmbeddingWeights { tokens, scale: embedding.scale, positions, token_type, norm })
    }

    /// Checks a matrix of which single rows are read. Returns its name.
    fn rows(&self, name: &TensorName, rows: usize, columns: usize) -> Result<String, BackendError> {
        let matrix = self.checkpoint.matrix(&name.0).map_err(|error| refused(&name.0, &error))?;
        if matrix.rows < rows || matrix.columns != columns {
            let reason = format!("is {} x {}, and {rows} x {columns} is wanted", matrix.rows, matrix.columns);
            return Err(BackendError::Tensor { tensor: name.0.clone(), reason });
        }
        Ok(name.0.clone())
    }

    fn layer(
        &mut self,
        spec: &ModelSpec,
        layer: &Layer,
        place: LayerLayout,
        ropes: &mut Vec<Rope>,
    ) -> Result<LayerWeights, BackendError> {
        let hidden = spec.hidden;
        Ok(LayerWeights {
            attention_norm: self.norm(layer.attention_norm.as_ref(), hidden)?,
            attention: self.attention(&layer.attention, place, ropes)?,
            attention_output_norm: self.norm(layer.attention_output_norm.as_ref(), hidden)?,
            attention_sum_norm: self.norm(layer.attention_sum_norm.as_ref(), hidden)?,
            feed_forward_norm: self.norm(layer.feed_forward_norm.as_ref(), hidden)?,
            feed_forward: self.feed_forward(&layer.feed_forward)?,
            feed_forward_output_norm: self.norm(layer.feed_forward_output_norm.as_ref(), hidden)?,
            feed_forward_sum_norm: self.norm(layer.feed_forward_sum_norm.as_ref(), hidden)?,
        })
    }

    fn attention(
        &mut self,
        attention: &Attention,
        place: LayerLayout,
        ropes: &mut Vec<Rope>,
    ) -> Result<AttentionWeights, BackendError> {
        let rope = attention.rope.as_ref().map(|rope| {
            ropes.iter().position(|known| known == rope).unwrap_or_else(|| {
                ropes.push(rope.clone());
                ropes.len() - 1
            })
        });
        Ok(AttentionWeights {
            heads: Heads::of(attention),
            query: self.linear(&attention.query, self.weights)?,
            key: self.linear(&attention.key, self.weights)?,
            value: self.linear(&attention.value, self.weights)?,
            output: self.linear(&attention.output, self.weights)?,
            query_norm: self.norm(attention.query_norm.as_ref(), attention.head_width)?,
            key_norm: self.norm(attention.key_norm.as_ref(), attention.head_width)?,
            rope,
            scale: attention.scale,
            mask: attention.mask,
            cache: place,
        })
    }

    fn feed_forward(&mut self, network: &FeedForward) -> Result<FeedForwardWeights, BackendError> {
        Ok(match network {
            FeedForward::Gated(gated) => FeedForwardWeights::Dense(self.gated(gated)?),
            FeedForward::Plain { up, down, activation } => FeedForwardWeights::Dense(DenseWeights {
                gate: None,
                up: self.linear(up, self.weights)?,
                down: self.linear(down, self.weights)?,
                activation: *activation,
            }),
            FeedForward::Mixture { router, experts, chosen, normalised } => FeedForwardWeights::Mixture {
                // A rounded score may choose another expert.
                router: self.linear(router, Weights::F32)?,
                experts: experts.iter().map(|expert| self.gated(expert)).collect::<Result<_, _>>()?,
                chosen: (*chosen).min(experts.len()),
                normalised: *normalised,
            },
        })
    }

    fn gated(&mut self, gated: &Gated) -> Result<DenseWeights, BackendError> {
        Ok(DenseWeights {
            gate: Some(self.linear(&gated.gate, self.weights)?),
            up: self.linear(&gated.up, self.weights)?,
            down: self.linear(&gated.down, self.weights)?,
            activation: gated.activation,
        })
    }

    fn linear(&mut self, linear: &Linear, weights: Weights) -> Result<LinearWeights, BackendError> {
        let name = &linear.weight;
        let refuse = |reason: String| BackendError::Tensor { tensor: name.0.clone(), reason };
        let source = self.checkpoint.matrix(&name.0).map_err(|error| refused(&name.0, &error))?;
        let rows = linear.rows.clone().unwrap_or(0..source.rows);
        if rows.start > rows.end
            || rows.end > source.rows
            || rows.len() != linear.outputs
            || source.columns != linear.inputs
        {
            let wanted = format!("{} x {} of rows {rows:?}", linear.outputs, linear.inputs);
            return Err(refuse(format!("is {} x {}, and {wanted} is wanted", source.rows, source.columns)));
        }
        if let RowOrder::Interleaved { head_width } = linear.order
            && (head_width < 2 || head_width % 2 != 0 || !linear.outputs.is_multiple_of(head_width))
        {
            return Err(refuse(format!("has {} rows, which are no heads of width {head_width}", linear.outputs)));
        }
        if !self.level.is_supported() {
            return Err(refuse(format!("this processor does not have the level {}", self.level)));
        }
        let matrix = self.packer.pack(&name.0, &source, rows, linear.order, weights)?;
        let bias = linear.bias.as_ref().map(|bias| self.vector(bias, linear.outputs)).transpose()?;
        let bias = bias.map(|bias| in_order(bias, linear.order));
        self.bytes += matrix.bytes();
        self.done += (linear.inputs * linear.outputs) as u64;
        (self.progress)(self.done, self.total);
        Ok(LinearWeights { matrix, bias })
    }

    fn norm(&mut self, norm: Option<&Norm>, width: usize) -> Result<Option<NormWeights>, BackendError> {
        let Some(norm) = norm else { return Ok(None) };
        let mut weight = self.vector(&norm.weight, width)?;
        weight.iter_mut().for_each(|weight| *weight += norm.offset);
        let bias = norm.bias.as_ref().map(|bias| self.vector(bias, width)).transpose()?;
        Ok(Some(NormWeights { weight, bias, kind: norm.kind, epsilon: norm.epsilon }))
    }

    fn vector(&mut self, name: &TensorName, width: usize) -> Result<Vec<f32>, BackendError> {
        let vector = self.checkpoint.vector(&name.0).map_err(|error| refused(&name.0, &error))?;
        if vector.len() != width {
            let reason = format!("has {} numbers, and {width} are wanted", vector.len());
            return Err(BackendError::Tensor { tensor: name.0.clone(), reason });
        }
        self.bytes += (width * size_of::<f32>()) as u64;
        Ok(vector)
    }
}

/// Failure to read a tensor.
pub(crate) fn refused(name: &str, error: &CheckpointError) -> BackendError {
    BackendError::Tensor { tensor: name.to_owned(), reason: error.to_string() }
}

/// Brings a bias into the order of the outputs, as the rows of its matrix are.
fn in_order(bias: Vec<f32>, order: RowOrder) -> Vec<f32> {
    match order {
        RowOrder::Outputs => bias,
        RowOrder::Interleaved { head_width } => {
            let half = head_width / 2;
            let source = |at: usize| at / head_width * head_width + at % half * 2 + at % head_width / half;
            (0..bias.len()).map(|at| bias[source(at)]).collect()
        }
    }
}

/// All linear operations of a model.
fn linears(spec: &ModelSpec) -> impl Iterator<Item = &Linear> {
    let layers = spec.layers.iter().flat_map(|layer| {
        let attention = &layer.attention;
        let own = [&attention.query, &attention.key, &attention.value, &attention.output];
        own.into_iter().chain(network(&layer.feed_forward))
    });
    let output = match &spec.output {
        Output::Logits { weight, .. } => Some(weight),
        Output::Embedding { .. } => None,
    };
    layers.chain(output)
}

/// Linear operations of a feed-forward network.
fn network(network: &FeedForward) -> Vec<&Linear> {
    match network {
        FeedForward::Gated(gated) => vec![&gated.gate, &gated.up, &gated.down],
        FeedForward::Plain { up, down, .. } => vec![up, down],
        FeedForward::Mixture { router, experts, .. } => std::iter::once(router)
            .chain(experts.iter().flat_map(|expert| [&expert.gate, &expert.up, &expert.down]))
            .collect(),
    }
}
