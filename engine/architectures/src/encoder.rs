//! Layers of an encoder from its table and a configuration.

use crate::architecture::{Architecture, Encoder, field};
use crate::decoder::activation;
use crate::error::ConfigError;
use crate::limits;
use crate::names::EncoderNames;
use crate::pooling;
use crate::reader::Reader;
use crate::source::{SentenceTransformer, Source};
use crate::tensors::{Namer, widths};
use omni_kernels::model::{Activation, Attention, Embedding, FeedForward, Layer, Mask, ModelSpec};

struct Builder<'a> {
    names: &'static EncoderNames,
    namer: Namer<'a>,
    hidden: usize,
    heads: usize,
    intermediate: usize,
    epsilon: f32,
    activation: Activation,
}

pub(crate) fn describe(
    architecture: &Architecture,
    encoder: &'static Encoder,
    reader: &Reader<'_>,
    source: &Source<'_>,
) -> Result<ModelSpec, ConfigError> {
    let names = if reader.is_gguf() { &encoder.gguf } else { &encoder.safetensors };
    let hidden = reader.required(&encoder.hidden, limits::HIDDEN)?;
    let heads = reader.required(&encoder.heads, limits::HEADS)?;
    if !hidden.is_multiple_of(2 * heads) {
        let reason = format!("which does not give each of {heads} heads an even width");
        return Err(ConfigError::field(reader.name(&encoder.hidden), hidden, reason));
    }
    let builder = Builder {
        names,
        namer: Namer::new(source.tensors, names.prefixes, names.embedding),
        hidden,
        heads,
        intermediate: reader.required(&encoder.intermediate, limits::INTERMEDIATE)?,
        epsilon: reader.positive(&encoder.epsilon)? as f32,
        activation: activation(reader, encoder.activation)?,
    };
    let tokens = builder.namer.weight(names.embedding, 0, 0);
    let layers = reader.required(&encoder.layers, limits::LAYERS)?;
    let typed = reader.whole(&field("type_vocab_size", "token_type_count").or(2.0), limits::VOCABULARY)? != Some(0);
    Ok(ModelSpec {
        architecture: architecture.name.to_owned(),
        vocabulary: builder.namer.vocabulary(&tokens, reader.size(&encoder.vocabulary, limits::VOCABULARY)?)?,
        hidden,
        context: reader.required(&encoder.context, limits::CONTEXT)?,
        embedding: Embedding {
            tokens,
            scale: 1.0,
            positions: Some(builder.namer.weight(names.positions, 0, 0)),
            types: typed.then(|| builder.namer.weight(names.types, 0, 0)),
            norm: Some(builder.namer.layer_norm(names.embedding_norm, 0, builder.epsilon)),
        },
        layers: (0..layers).map(|layer| builder.layer(layer)).collect(),
        norm: None,
        output: match source.sentence {
            None if reader.is_gguf() => pooling::gguf(reader)?,
            files => pooling::output(&files.unwrap_or(SentenceTransformer::default()))?,
        },
    })
}

impl Builder<'_> {
    fn layer(&self, layer: usize) -> Layer {
        let Self { names, namer, hidden, intermediate, .. } = *self;
        let square = |pattern| namer.linear(pattern, layer, widths(hidden, hidden), true);
        let head_width = hidden / self.heads;
        Layer {
            attention_norm: None,
            attention: Attention {
                heads: self.heads,
                kv_heads: self.heads,
                head_width,
                query: square(names.query),
                key: square(names.key),
                value: square(names.value),
                output: square(names.attention_output),
                query_norm: None,
                key_norm: None,
                rope: None,
                scale: (head_width as f32).sqrt().recip(),
                mask: Mask::All,
            },
            attention_output_norm: None,
            attention_sum_norm: Some(namer.layer_norm(names.attention_norm, layer, self.epsilon)),
            feed_forward_norm: None,
            feed_forward: FeedForward::Plain {
                up: namer.linear(names.up, layer, widths(hidden, intermediate), true),
                down: namer.linear(names.down, layer, widths(intermediate, hidden), true),
                activation: self.activation,
            },
            feed_forward_output_norm: None,
            feed_forward_sum_norm: Some(namer.layer_norm(names.feed_forward_norm, layer, self.epsilon)),
        }
    }
}
