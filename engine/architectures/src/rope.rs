//! Frequencies of rotary position embeddings, with their scalings.

use crate::architecture::{Decoder, Field, field};
use crate::error::ConfigError;
use crate::limits;
use crate::reader::{Reader, Scalar};
use crate::source::Tensors;
use omni_kernels::model::Rope;
use serde_json::{Map, Value as Json};
use std::f64::consts::TAU;

/// Factors of the frequencies in GGUF files of Llama 3.
const FACTORS: &str = "rope_freqs.weight";

/// Rotations of a model.
pub(crate) struct Ropes {
    /// Rotation of layers without a window, and of those with one where `local` is `None`.
    pub(crate) global: Rope,
    /// Rotation of layers with a window.
    pub(crate) local: Option<Rope>,
    /// Most positions, which a scaling may raise.
    pub(crate) context: usize,
}

/// Scaling of frequencies for contexts longer than those of the training.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Scaling {
    /// None.
    None,
    /// All are divided by a factor.
    Linear { factor: f64 },
    /// Low ones are divided by a factor, high ones stay, those between are blended.
    Llama3 { factor: f64, low: f64, high: f64, original: f64 },
    /// The same with borders by the number of rotations, and a factor of the result.
    Yarn { factor: f64, fast: f64, slow: f64, original: f64, attention: Option<f64> },
}

pub(crate) fn ropes(
    decoder: &Decoder,
    reader: &Reader<'_>,
    tensors: &dyn Tensors,
    head_width: usize,
    context: usize,
) -> Result<Ropes, ConfigError> {
    let base = &decoder.fields.rope_base;
    let (global, local) = match reader.is_gguf() {
        true => {
            refuse_partial(reader, head_width)?;
            (Parameters { base: reader.positive(base)?, scaling: gguf_scaling(reader, context)? }, None)
        }
        false => {
            let local =
                decoder.local_base.as_ref().map(|field| parameters(reader, "sliding_attention", field, context));
            (parameters(reader, "full_attention", base, context)?, local.transpose()?)
        }
    };
    let local = match &decoder.local_base {
        Some(field) if reader.is_gguf() => Some(Parameters { base: reader.positive(field)?, scaling: Scaling::None }),
        _ => local,
    };
    let context = match global.scaling {
        Scaling::Yarn { factor, original, .. } => context.max(((original * factor) as usize).min(limits::CONTEXT)),
        _ => context,
    };
    let mut rope = global.rope(head_width);
    if reader.is_gguf() && tensors.shape(FACTORS).is_some() {
        divide(&mut rope.frequencies, tensors)?;
    }
    Ok(Ropes { global: rope, local: local.map(|local| local.rope(head_width)), context })
}

/// Base and scaling of a rotation.
struct Parameters {
    base: f64,
    scaling: Scaling,
}

impl Parameters {
    fn rope(&self, head_width: usize) -> Rope {
        let width = head_width as f64;
        let frequencies = (0..head_width / 2).map(|pair| self.base.powf(-2.0 * pair as f64 / width));
        let scaled = |(pair, frequency): (usize, f64)| self.scaling.apply(frequency, pair as f64, width, self.base);
        Rope {
            frequencies: frequencies.enumerate().map(|pair| scaled(pair) as f32).collect(),
            factor: match self.scaling {
                Scaling::Yarn { factor, attention, .. } => {
                    attention.unwrap_or(if factor > 1.0 { 0.1 * factor.ln() + 1.0 } else { 1.0 }) as f32
                }
                _ => 1.0,
            },
        }
    }
}

impl Scaling {
    fn apply(self, frequency: f64, pair: f64, width: f64, base: f64) -> f64 {
        match self {
            Self::None => frequency,
            Self::Linear { factor } => frequency / factor,
            Self::Llama3 { factor, low, high, original } => {
                let rotations = original * frequency / TAU;
                let share = ((rotations - low) / (high - low)).clamp(0.0, 1.0);
                (1.0 - share) * frequency / factor + share * frequency
            }
            Self::Yarn { factor, fast, slow, original, .. } => {
                let border = |rotations: f64| width * (original / (rotations * TAU)).ln() / (2.0 * base.ln());
                let from = border(fast).floor().max(0.0);
                let to = border(slow).ceil().min(width - 1.0);
                let length = if to > from { to - from } else { 0.001 };
                let share = ((pair - from) / length).clamp(0.0, 1.0);
                share * frequency / factor + (1.0 - share) * frequency
            }
        }
    }
}

/// Parameters in `config.json`: in `rope_parameters`, for each kind of layer or for all, or beside `rope_scaling`.
fn parameters(reader: &Reader<'_>, kind: &str, base: &Field, context: usize) -> Result<Parameters, ConfigError> {
    let object = |name: &'static str| match reader.json(name) {
        None => Ok(None),
        Some(Json::Object(fields)) => Ok(Some(fields)),
        Some(other) => Err(ConfigError::field(name, other, "which is not an object")),
    };
    let Some(all) = object("rope_parameters")? else {
        let local = kind == "sliding_attention";
        let scaling = if local { None } else { object("rope_scaling")? };
        let scaling = scaling.map_or(Ok(Scaling::None), |fields| scaling_of(fields, "rope_scaling", context))?;
        return Ok(Parameters { base: reader.positive(base)?, scaling });
    };
    let nested = all.values().any(Json::is_object);
    let fields = match all.get(kind) {
        Some(Json::Object(fields)) => fields,
        _ if nested => return Err(ConfigError::Missing { field: format!("rope_parameters.{kind}") }),
        _ => all,
    };
    let inner = Reader::Json { fields };
    let base = match inner.value(&field("rope_theta", "")) {
        Some(_) => inner.positive(&field("rope_theta", ""))?,
        None => reader.positive(base)?,
    };
    Ok(Parameters { base, scaling: scaling_of(fields, "rope_parameters", context)? })
}

fn scaling_of(fields: &Map<String, Json>, place: &str, context: usize) -> Result<Scaling, ConfigError> {
    let reader = Reader::Json { fields };
    let named = |error: ConfigError| error.within(place);
    let number = |name: &'static str| reader.positive(&field(name, "")).map_err(named);
    let or = |name: &'static str, default: f64| reader.positive(&field(name, "").or(default)).map_err(named);
    let original = || or("original_max_position_embeddings", context as f64);
    let kind = match reader.text(&field("rope_type", "")).map_err(named)? {
        Some(kind) => Some(kind),
        None => reader.text(&field("type", "")).map_err(named)?,
    };
    if let Some(value) = reader.value(&field("partial_rotary_factor", "")).filter(|value| !is_one(*value)) {
        return Err(ConfigError::field(format!("{place}.partial_rotary_factor"), value, "which is not supported"));
    }
    let scaling = match kind {
        // Dynamic scaling changes nothing up to the context of the training, which is the most that is served.
        None | Some("default" | "dynamic") => Scaling::None,
        Some("linear") => Scaling::Linear { factor: number("factor")? },
        Some("llama3") => Scaling::Llama3 {
            factor: number("factor")?,
            low: number("low_freq_factor")?,
            high: number("high_freq_factor")?,
            original: number("original_max_position_embeddings")?,
        },
        Some("yarn") => {
            if let Some(value) = reader.value(&field("mscale", "")).or(reader.value(&field("mscale_all_dim", ""))) {
                return Err(ConfigError::field(format!("{place}.mscale"), value, "which is not supported"));
            }
            Scaling::Yarn {
                factor: number("factor")?,
                fast: or("beta_fast", 32.0)?,
                slow: or("beta_slow", 1.0)?,
                original: original()?,
                attention: reader
                    .value(&field("attention_factor", ""))
                    .map(|_| number("attention_factor"))
                    .transpose()?,
            }
        }
        Some(other) => {
            return Err(ConfigError::field(
                format!("{place}.rope_type"),
                format!("{other:?}"),
                "which is not supported",
            ));
        }
    };
    if let Scaling::Llama3 { low, high, .. } = scaling
        && high <= low
    {
        return Err(ConfigError::field(
            format!("{place}.high_freq_factor"),
            high,
            "which is not above low_freq_factor",
        ));
    }
    Ok(scaling)
}

fn is_one(value: Scalar<'_>) -> bool {
    value == Scalar::Whole(1) || value == Scalar::Number(1.0)
}

fn gguf_scaling(reader: &Reader<'_>, context: usize) -> Result<Scaling, ConfigError> {
    let kind = field("", "rope.scaling.type");
    let factor = field("", "rope.scaling.factor").or(1.0);
    match reader.text(&kind)? {
        None => match reader.positive(&field("", "rope.scale_linear").or(1.0))? {
            1.0 => Ok(Scaling::None),
            factor => Ok(Scaling::Linear { factor }),
        },
        Some("none") => Ok(Scaling::None),
        Some("linear") => Ok(Scaling::Linear { factor: reader.positive(&factor)? }),
        Some("yarn") => {
            let factor = reader.positive(&factor)?;
            let scale = reader.positive(&field("", "rope.scaling.attn_factor").or(1.0))?;
            Ok(Scaling::Yarn {
                factor,
                fast: reader.positive(&field("", "rope.scaling.yarn_beta_fast").or(32.0))?,
                slow: reader.positive(&field("", "rope.scaling.yarn_beta_slow").or(1.0))?,
                original: reader.positive(&field("", "rope.scaling.original_context_length").or(context as f64))?,
                attention: Some(scale * (1.0 + 0.1 * factor.max(1.0).ln())),
            })
        }
        Some(other) => Err(ConfigError::field(reader.name(&kind), format!("{other:?}"), "which is not supported")),
    }
}

fn refuse_partial(reader: &Reader<'_>, head_width: usize) -> Result<(), ConfigError> {
    let rotated = field("", "rope.dimension_count");
    match reader.size(&rotated, limits::HEAD_WIDTH)? {
        Some(width) if width != head_width => Err(ConfigError::field(
            reader.name(&rotated),
            width,
            format!("which is not supported: a head has {head_width} elements and all of them rotate"),
        )),
        _ => Ok(()),
    }
}

/// Divides the frequencies by the factors of the file.
fn divide(frequencies: &mut [f32], tensors: &dyn Tensors) -> Result<(), ConfigError> {
    let failure = |reason: String| ConfigError::Tensor { tensor: FACTORS.to_owned(), reason };
    let factors = tensors.vector(FACTORS).map_err(failure)?;
    if factors.len() != frequencies.len() {
        return Err(failure(format!("it has {} factors for {} frequencies", factors.len(), frequencies.len())));
    }
    for (frequency, factor) in frequencies.iter_mut().zip(factors) {
        if !(factor.is_finite() && factor > 0.0) {
            return Err(failure(format!("a factor is {factor}")));
        }
        *frequency /= factor;
    }
    Ok(())
}
