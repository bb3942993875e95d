//! Layers of a decoder from its table and a configuration.

use crate::architecture::{Architecture, Bias, Decoder, Experts, Field, Score, Windows, field};
use crate::error::ConfigError;
use crate::limits;
use crate::names::Form;
use crate::pooling;
use crate::reader::Reader;
use crate::rope::{self, Ropes};
use crate::source::Source;
use crate::tensors::{Namer, widths};
use omni_kernels::model::{
    Activation, Attention, Embedding, FeedForward, Gated, Layer, Linear, Mask, ModelSpec, Norm, Output, RowOrder,
};
use serde_json::Value as Json;

const ACTIVATION: Field = field("hidden_act", "");
/// Name of the same field in configurations of Gemma.
const GEMMA_ACTIVATION: Field = field("hidden_activation", "");
const TIED: Field = field("tie_word_embeddings", "");
const CAP: Field = field("final_logit_softcapping", "final_logit_softcapping");
const WINDOW: Field = field("sliding_window", "attention.sliding_window");
const PERIOD: Field = field("sliding_window_pattern", "attention.sliding_window_pattern");
const USE_WINDOW: Field = field("use_sliding_window", "");
const WINDOW_FROM: Field = field("max_window_layers", "");
const VALUE_WIDTH: Field = field("", "attention.value_length");

struct Builder<'a> {
    decoder: &'static Decoder,
    form: &'static Form,
    reader: &'a Reader<'a>,
    namer: Namer<'a>,
    sizes: Sizes,
    epsilon: f32,
    score: f32,
    activation: Activation,
    ropes: Ropes,
    windows: Vec<Option<usize>>,
}

#[derive(Clone, Copy)]
struct Sizes {
    hidden: usize,
    layers: usize,
    heads: usize,
    kv_heads: usize,
    head_width: usize,
    context: usize,
}

pub(crate) fn describe(
    architecture: &Architecture,
    decoder: &'static Decoder,
    reader: &Reader<'_>,
    source: &Source<'_>,
) -> Result<ModelSpec, ConfigError> {
    let form = if reader.is_gguf() { &decoder.gguf } else { &decoder.safetensors };
    let sizes = sizes(decoder, reader)?;
    let ropes = rope::ropes(decoder, reader, source.tensors, sizes.head_width, sizes.context)?;
    let builder = Builder {
        decoder,
        form,
        reader,
        namer: Namer::new(source.tensors, form.names.prefixes, form.names.embedding),
        sizes: Sizes { context: ropes.context, ..sizes },
        epsilon: reader.positive(&decoder.fields.epsilon)? as f32,
        score: score(decoder.score, reader, sizes)?,
        activation: activation(reader, decoder.activation)?,
        ropes,
        windows: windows(decoder.windows, reader, sizes.layers)?,
    };
    let embedding = builder.namer.weight(form.names.embedding, 0, 0);
    let vocabulary =
        builder.namer.vocabulary(&embedding, reader.size(&decoder.fields.vocabulary, limits::VOCABULARY)?)?;
    Ok(ModelSpec {
        architecture: architecture.name.to_owned(),
        vocabulary,
        hidden: sizes.hidden,
        context: builder.sizes.context,
        layers: builder.layers()?,
        norm: Some(builder.norm(form.names.norm, 0)),
        output: match source.sentence {
            Some(files) => pooling::output(&files)?,
            None => builder.logits(vocabulary)?,
        },
        embedding: Embedding {
            tokens: embedding,
            scale: if decoder.scaled_embedding { (sizes.hidden as f32).sqrt() } else { 1.0 },
            positions: None,
            types: None,
            norm: None,
        },
    })
}

fn sizes(decoder: &Decoder, reader: &Reader<'_>) -> Result<Sizes, ConfigError> {
    let fields = &decoder.fields;
    let hidden = reader.required(&fields.hidden, limits::HIDDEN)?;
    let heads = reader.required(&fields.heads, limits::HEADS)?;
    let kv_heads = reader.size(&fields.kv_heads, limits::HEADS)?.unwrap_or(heads);
    if !heads.is_multiple_of(kv_heads) {
        let reason = format!("which does not divide the {heads} heads of queries");
        return Err(ConfigError::field(reader.name(&fields.kv_heads), kv_heads, reason));
    }
    let head_width = match reader.size(&fields.head_width, limits::HEAD_WIDTH)? {
        Some(width) => width,
        None if hidden.is_multiple_of(heads) => hidden / heads,
        None => {
            let reason = format!("which is not a multiple of the {heads} heads");
            return Err(ConfigError::field(reader.name(&fields.hidden), hidden, reason));
        }
    };
    if !head_width.is_multiple_of(2) || head_width > limits::HEAD_WIDTH {
        let reason = format!("which is not an even width of at most {}", limits::HEAD_WIDTH);
        return Err(ConfigError::field(reader.name(&fields.head_width), head_width, reason));
    }
    if let Some(width) = reader.size(&VALUE_WIDTH, limits::HEAD_WIDTH)?
        && width != head_width
    {
        let reason = format!("which is not supported: keys have {head_width}");
        return Err(ConfigError::field(reader.name(&VALUE_WIDTH), width, reason));
    }
    Ok(Sizes {
        hidden,
        layers: reader.required(&fields.layers, limits::LAYERS)?,
        heads,
        kv_heads,
        head_width,
        context: reader.required(&fields.context, limits::CONTEXT)?,
    })
}

fn score(score: Score, reader: &Reader<'_>, sizes: Sizes) -> Result<f32, ConfigError> {
    let width = match score {
        Score::HeadWidth => sizes.head_width as f64,
        Score::Field { field, .. } if !reader.is_gguf() => reader.positive(&field)?,
        Score::Field { layers_by_hidden, .. } if sizes.layers == layers_by_hidden => {
            sizes.hidden as f64 / sizes.heads as f64
        }
        Score::Field { .. } => sizes.head_width as f64,
    };
    Ok(width.powf(-0.5) as f32)
}

/// Function that a configuration names.
pub(crate) fn activation(reader: &Reader<'_>, default: Activation) -> Result<Activation, ConfigError> {
    let field = if reader.json(GEMMA_ACTIVATION.json).is_some() { GEMMA_ACTIVATION } else { ACTIVATION };
    match reader.text(&field)? {
        None => Ok(default),
        Some("silu" | "swish") => Ok(Activation::Silu),
        Some("gelu") => Ok(Activation::Gelu),
        Some("gelu_pytorch_tanh" | "gelu_new") => Ok(Activation::GeluTanh),
        Some("relu") => Ok(Activation::Relu),
        Some(other) => Err(ConfigError::field(reader.name(&field), format!("{other:?}"), "which is not supported")),
    }
}

/// Window of each layer, `None`: it sees all positions before its own.
fn windows(rule: Windows, reader: &Reader<'_>, layers: usize) -> Result<Vec<Option<usize>>, ConfigError> {
    // A GGUF file tells of a window only where the model uses it.
    let rule = if reader.is_gguf() && !matches!(rule, Windows::Pattern { .. }) { Windows::All } else { rule };
    let stated = reader.whole(&WINDOW, limits::CONTEXT)?.filter(|window| *window > 0);
    let used = reader.flag(&USE_WINDOW)?.unwrap_or(false);
    let window = match rule {
        Windows::None => None,
        Windows::All => stated,
        Windows::AllIfUsed | Windows::Upper => stated.filter(|_| used),
        Windows::Pattern { window, .. } => Some(stated.unwrap_or(window)),
    };
    let first = match rule {
        Windows::Upper => reader.whole(&WINDOW_FROM, usize::MAX >> 1)?.unwrap_or(28),
        _ => 0,
    };
    let period = match rule {
        Windows::Pattern { period, .. } => Some(reader.size(&PERIOD, limits::LAYERS)?.unwrap_or(period)),
        _ => None,
    };
    let is_local = |layer: usize| layer >= first && period.is_none_or(|period| !(layer + 1).is_multiple_of(period));
    let types = reader.json("layer_types").filter(|_| !matches!(rule, Windows::None));
    let Some(types) = types else {
        return Ok((0..layers).map(|layer| window.filter(|_| is_local(layer))).collect());
    };
    let types = types.as_array().filter(|types| types.len() >= layers).ok_or_else(|| {
        ConfigError::field("layer_types", types, format!("which is not a list of the kinds of {layers} layers"))
    })?;
    let kind = |kind: &Json| match kind.as_str() {
        Some("full_attention") => Ok(None),
        Some("sliding_attention") => Ok(window),
        _ => Err(ConfigError::field("layer_types", kind, "which is not supported")),
    };
    types.iter().take(layers).map(kind).collect()
}

impl Builder<'_> {
    fn norm(&self, pattern: &str, layer: usize) -> Norm {
        self.namer.rms_norm(pattern, layer, self.epsilon, self.form.norm_offset)
    }

    fn bias(&self, bias: Bias) -> Result<bool, ConfigError> {
        Ok(match bias {
            _ if self.reader.is_gguf() => false,
            Bias::Present => false,
            Bias::Always => true,
            Bias::Field(name) => self.reader.flag(&field(name, ""))?.unwrap_or(false),
        })
    }

    fn layers(&self) -> Result<Vec<Layer>, ConfigError> {
        let mixture = match &self.decoder.experts {
            Some(experts) => Some(Mixture::new(experts, self.reader, self.sizes.layers)?),
            None => None,
        };
        let names = &self.form.names;
        (0..self.sizes.layers)
            .map(|layer| {
                Ok(Layer {
                    attention_norm: Some(self.norm(names.attention_norm, layer)),
                    attention: self.attention(layer)?,
                    attention_output_norm: names.attention_output_norm.map(|name| self.norm(name, layer)),
                    attention_sum_norm: None,
                    feed_forward_norm: Some(self.norm(names.feed_forward_norm, layer)),
                    feed_forward: match &mixture {
                        Some(mixture) if mixture.is_in(layer) => self.mixture(layer, mixture),
                        _ => self.gated(layer)?,
                    },
                    feed_forward_output_norm: names.feed_forward_output_norm.map(|name| self.norm(name, layer)),
                    feed_forward_sum_norm: None,
                })
            })
            .collect()
    }

    fn attention(&self, layer: usize) -> Result<Attention, ConfigError> {
        let Sizes { hidden, heads, kv_heads, head_width, .. } = self.sizes;
        let names = &self.form.names;
        let input_bias = self.bias(self.decoder.input_bias)?;
        let rotated = |pattern, outputs| Linear {
            order: match self.form.interleaved {
                true => RowOrder::Interleaved { head_width },
                false => RowOrder::Outputs,
            },
            ..self.namer.linear(pattern, layer, widths(hidden, outputs), input_bias)
        };
        let (rope, mask) = match self.windows.get(layer).copied().flatten() {
            Some(window) => (self.ropes.local.as_ref().unwrap_or(&self.ropes.global), Mask::Window { window }),
            None => (&self.ropes.global, Mask::Causal),
        };
        let output_bias = self.bias(self.decoder.output_bias)?;
        Ok(Attention {
            heads,
            kv_heads,
            head_width,
            query: rotated(names.query, heads * head_width),
            key: rotated(names.key, kv_heads * head_width),
            value: self.namer.linear(names.value, layer, widths(hidden, kv_heads * head_width), input_bias),
            output: self.namer.linear(names.attention_output, layer, widths(heads * head_width, hidden), output_bias),
            query_norm: names.query_norm.map(|name| self.norm(name, layer)),
            key_norm: names.key_norm.map(|name| self.norm(name, layer)),
            rope: Some(rope.clone()),
            scale: self.score,
            mask,
        })
    }

    fn gated(&self, layer: usize) -> Result<FeedForward, ConfigError> {
        let hidden = self.sizes.hidden;
        let width = self.reader.required(&self.decoder.fields.intermediate, limits::INTERMEDIATE)?;
        let bias = self.bias(self.decoder.feed_forward_bias)?;
        let names = &self.form.names;
        Ok(FeedForward::Gated(Gated {
            gate: self.namer.linear(names.gate, layer, widths(hidden, width), bias),
            up: self.namer.linear(names.up, layer, widths(hidden, width), bias),
            down: self.namer.linear(names.down, layer, widths(width, hidden), bias),
            activation: self.activation,
        }))
    }

    fn mixture(&self, layer: usize, mixture: &Mixture) -> FeedForward {
        let hidden = self.sizes.hidden;
        let names = &self.form.names;
        let part = |pattern, expert, inputs, outputs| {
            self.namer.expert(pattern, layer, expert, widths(inputs, outputs), self.form.stacked)
        };
        let expert = |expert| Gated {
            gate: part(names.expert_gate, expert, hidden, mixture.width),
            up: part(names.expert_up, expert, hidden, mixture.width),
            down: part(names.expert_down, expert, mixture.width, hidden),
            activation: self.activation,
        };
        FeedForward::Mixture {
            router: self.namer.linear(names.router, layer, widths(hidden, mixture.count), false),
            experts: (0..mixture.count).map(expert).collect(),
            chosen: mixture.chosen,
            normalised: mixture.normalised,
        }
    }

    fn logits(&self, vocabulary: usize) -> Result<Output, ConfigError> {
        let names = &self.form.names;
        let own = self.namer.weight(names.output, 0, 0);
        let tied = match self.reader.is_gguf() {
            true => self.namer.shape(&own).is_none(),
            false => self.reader.flag(&TIED)?.unwrap_or(self.decoder.tied),
        };
        let pattern = if tied { names.embedding } else { names.output };
        let mut weight = self.namer.linear(pattern, 0, widths(self.sizes.hidden, vocabulary), false);
        if self.namer.shape(&weight.weight).is_some_and(|shape| shape.first().is_some_and(|rows| *rows > vocabulary)) {
            weight.rows = Some(0..vocabulary);
        }
        let cap = self.reader.number(&CAP)?.filter(|cap| *cap != 0.0);
        if let Some(cap) = cap.filter(|cap| *cap < 0.0) {
            return Err(ConfigError::field(self.reader.name(&CAP), cap, "which is below 0"));
        }
        Ok(Output::Logits { weight, cap: cap.map(|cap| cap as f32) })
    }
}

/// Sizes of the experts.
struct Mixture {
    count: usize,
    chosen: usize,
    width: usize,
    normalised: bool,
    step: usize,
    dense: Vec<usize>,
}

impl Mixture {
    fn new(experts: &Experts, reader: &Reader<'_>, layers: usize) -> Result<Self, ConfigError> {
        let count = reader.required(&experts.count, limits::EXPERTS.min(limits::ALL_EXPERTS / layers))?;
        let chosen = reader.required(&experts.chosen, limits::EXPERTS)?;
        if chosen > count {
            let reason = format!("which is above the number of experts, {count}");
            return Err(ConfigError::field(reader.name(&experts.chosen), chosen, reason));
        }
        let (field, default) = &experts.normalised;
        let list = match reader.json(experts.dense_layers) {
            None => Vec::new(),
            Some(list) => list
                .as_array()
                .and_then(|list| list.iter().map(|layer| layer.as_u64().map(|layer| layer as usize)).collect())
                .ok_or_else(|| ConfigError::field(experts.dense_layers, list, "which is not a list of layers"))?,
        };
        Ok(Self {
            count,
            chosen,
            width: reader.required(&experts.intermediate, limits::INTERMEDIATE)?,
            normalised: reader.is_gguf() || reader.flag(field)?.unwrap_or(*default),
            step: reader.size(&experts.step, limits::LAYERS)?.unwrap_or(1),
            dense: list,
        })
    }

    fn is_in(&self, layer: usize) -> bool {
        (layer + 1).is_multiple_of(self.step) && !self.dense.contains(&layer)
    }
}
