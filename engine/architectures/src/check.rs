//! Widths that fit together.

use crate::error::ConfigError;
use omni_kernels::model::{Attention, FeedForward, Gated, Layer, Linear, Mask, ModelSpec, Norm, Output, RowOrder};

/// Checks the invariants of a description, on which backends rely.
///
/// # Errors
/// Two widths do not fit together, or a number is not one to compute with.
pub fn check(spec: &ModelSpec) -> Result<(), ConfigError> {
    let place = Place("model".to_owned());
    place.hold(spec.vocabulary > 0 && spec.hidden > 0 && spec.context > 0, "a size is 0")?;
    place.hold(!spec.layers.is_empty(), "there are no layers")?;
    place.hold(spec.embedding.scale.is_finite(), "the embedding's factor is not finite")?;
    for norm in spec.norm.iter().chain(&spec.embedding.norm) {
        place.norm(norm)?;
    }
    for (number, layer) in spec.layers.iter().enumerate() {
        check_layer(&Place(format!("layer {number}")), layer, spec.hidden)?;
    }
    match &spec.output {
        Output::Logits { weight, cap } => {
            place.linear("output", weight, spec.hidden, spec.vocabulary)?;
            place.hold(cap.is_none_or(|cap| cap.is_finite() && cap > 0.0), "the cap of the logits is not above 0")
        }
        Output::Embedding { .. } => Ok(()),
    }
}

struct Place(String);

impl Place {
    fn hold(&self, condition: bool, reason: &str) -> Result<(), ConfigError> {
        match condition {
            true => Ok(()),
            false => Err(ConfigError::Widths { place: self.0.clone(), reason: reason.to_owned() }),
        }
    }

    fn norm(&self, norm: &Norm) -> Result<(), ConfigError> {
        self.hold(norm.epsilon.is_finite() && norm.epsilon >= 0.0, "a norm's addend is not a number from 0 on")?;
        self.hold(norm.offset.is_finite(), "a norm's offset is not finite")
    }

    fn linear(&self, name: &str, linear: &Linear, inputs: usize, outputs: usize) -> Result<(), ConfigError> {
        if linear.inputs != inputs || linear.outputs != outputs {
            let found = format!("{} inputs and {} outputs", linear.inputs, linear.outputs);
            return self.hold(false, &format!("{name} has {found} where {inputs} and {outputs} fit"));
        }
        if linear.rows.as_ref().is_some_and(|rows| rows.end.checked_sub(rows.start) != Some(outputs)) {
            return self.hold(false, &format!("{name} has a range of rows that is not its number of outputs"));
        }
        match linear.order {
            RowOrder::Interleaved { head_width } => self.hold(
                head_width >= 2 && head_width.is_multiple_of(2) && outputs.is_multiple_of(head_width),
                &format!("{name} is interleaved by a width that does not divide its outputs"),
            ),
            RowOrder::Outputs => Ok(()),
        }
    }

    fn gated(&self, gated: &Gated, hidden: usize) -> Result<(), ConfigError> {
        let width = gated.gate.outputs;
        self.hold(width > 0, "the feed-forward network has no width")?;
        self.linear("gate", &gated.gate, hidden, width)?;
        self.linear("up", &gated.up, hidden, width)?;
        self.linear("down", &gated.down, width, hidden)
    }
}

fn check_layer(place: &Place, layer: &Layer, hidden: usize) -> Result<(), ConfigError> {
    let norms = [
        &layer.attention_norm,
        &layer.attention_output_norm,
        &layer.attention_sum_norm,
        &layer.feed_forward_norm,
        &layer.feed_forward_output_norm,
        &layer.feed_forward_sum_norm,
        &layer.attention.query_norm,
        &layer.attention.key_norm,
    ];
    for norm in norms.into_iter().flatten() {
        place.norm(norm)?;
    }
    check_attention(place, &layer.attention, hidden)?;
    match &layer.feed_forward {
        FeedForward::Gated(gated) => place.gated(gated, hidden),
        FeedForward::Plain { up, down, .. } => {
            place.hold(up.outputs > 0, "the feed-forward network has no width")?;
            place.linear("up", up, hidden, up.outputs)?;
            place.linear("down", down, up.outputs, hidden)
        }
        FeedForward::Mixture { router, experts, chosen, .. } => {
            place.linear("router", router, hidden, experts.len())?;
            place.hold((1..=experts.len()).contains(chosen), "more experts are chosen than there are, or none")?;
            let width = experts.first().map_or(0, |expert| expert.gate.outputs);
            for expert in experts {
                place.hold(expert.gate.outputs == width, "experts differ in their width")?;
                place.gated(expert, hidden)?;
            }
            Ok(())
        }
    }
}

fn check_attention(place: &Place, attention: &Attention, hidden: usize) -> Result<(), ConfigError> {
    let Attention { heads, kv_heads, head_width, .. } = *attention;
    place.hold(kv_heads > 0 && heads > 0 && heads.is_multiple_of(kv_heads), "heads of keys do not divide the heads")?;
    place.hold(head_width > 0 && head_width.is_multiple_of(2), "a head's width is not even")?;
    place.linear("query", &attention.query, hidden, heads * head_width)?;
    place.linear("key", &attention.key, hidden, kv_heads * head_width)?;
    place.linear("value", &attention.value, hidden, kv_heads * head_width)?;
    place.linear("attention's output", &attention.output, heads * head_width, hidden)?;
    place.hold(attention.scale.is_finite() && attention.scale > 0.0, "the factor of the scores is not above 0")?;
    if let Some(rope) = &attention.rope {
        place.hold(rope.frequencies.len() == head_width / 2, "frequencies are not one for each pair of elements")?;
        let finite = rope.frequencies.iter().all(|frequency| frequency.is_finite() && *frequency >= 0.0);
        place.hold(finite, "a frequency is not a number from 0 on")?;
        place.hold(rope.factor.is_finite() && rope.factor > 0.0, "the rotation's factor is not above 0")?;
    }
    place.hold(attention.mask != Mask::Window { window: 0 }, "the attention's window is 0")
}
