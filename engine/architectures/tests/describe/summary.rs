//! Short form of a description for snapshots: a line for each operation, layers that differ in their number alone once.

use omni_kernels::model::{
    Embedding, FeedForward, Gated, Layer, Linear, Mask, ModelSpec, Norm, NormKind, Output, Rope, RowOrder, TensorName,
};
use std::fmt::Write;

/// Whole description.
pub(crate) fn summary(spec: &ModelSpec) -> String {
    let mut out = String::new();
    let _ = writeln!(
        out,
        "{}: vocabulary {}, hidden {}, context {}",
        spec.architecture, spec.vocabulary, spec.hidden, spec.context
    );
    embedding(&mut out, &spec.embedding);
    let mut kinds: Vec<(String, Vec<usize>)> = Vec::new();
    for (number, layer) in spec.layers.iter().enumerate() {
        let text = ["layers", "layer", "blk"]
            .iter()
            .fold(layer_text(layer), |text, part| text.replace(&format!("{part}.{number}."), &format!("{part}.N.")));
        match kinds.iter_mut().find(|(kind, _)| *kind == text) {
            Some((_, numbers)) => numbers.push(number),
            None => kinds.push((text, vec![number])),
        }
    }
    for (text, numbers) in kinds {
        let _ = write!(out, "layers {numbers:?}\n{text}");
    }
    if let Some(found) = &spec.norm {
        let _ = writeln!(out, "norm {}", norm(found));
    }
    match &spec.output {
        Output::Logits { weight, cap } => {
            let _ = writeln!(out, "logits {} cap {cap:?}", linear(weight));
        }
        Output::Embedding { pooling, normalised } => {
            let _ = writeln!(out, "embedding {pooling:?} normalised {normalised}");
        }
    }
    out
}

fn embedding(out: &mut String, embedding: &Embedding) {
    let name = |name: &Option<TensorName>| name.as_ref().map_or(String::new(), |name| format!(" + {}", name.0));
    let _ = write!(out, "embedding {} x {}", embedding.tokens.0, embedding.scale);
    let _ = write!(out, "{}{}", name(&embedding.positions), name(&embedding.types));
    let _ = writeln!(out, "{}", embedding.norm.as_ref().map_or(String::new(), |found| format!(", {}", norm(found))));
}

fn layer_text(layer: &Layer) -> String {
    let mut out = String::new();
    let mut norms = |name: &str, found: &Option<Norm>| {
        if let Some(found) = found {
            let _ = writeln!(out, "  {name} {}", norm(found));
        }
    };
    norms("attention_norm", &layer.attention_norm);
    norms("attention_output_norm", &layer.attention_output_norm);
    norms("attention_sum_norm", &layer.attention_sum_norm);
    norms("feed_forward_norm", &layer.feed_forward_norm);
    norms("feed_forward_output_norm", &layer.feed_forward_output_norm);
    norms("feed_forward_sum_norm", &layer.feed_forward_sum_norm);
    norms("query_norm", &layer.attention.query_norm);
    norms("key_norm", &layer.attention.key_norm);
    let attention = &layer.attention;
    let _ = writeln!(
        out,
        "  heads {}/{} of {}, scale {}, {}, rope {}",
        attention.heads,
        attention.kv_heads,
        attention.head_width,
        attention.scale,
        match attention.mask {
            Mask::Causal => "causal".to_owned(),
            Mask::Window { window } => format!("window {window}"),
            Mask::All => "all".to_owned(),
        },
        attention.rope.as_ref().map_or("none".to_owned(), rope),
    );
    for (name, matrix) in [
        ("query", &attention.query),
        ("key", &attention.key),
        ("value", &attention.value),
        ("output", &attention.output),
    ] {
        let _ = writeln!(out, "  {name} {}", linear(matrix));
    }
    feed_forward(&mut out, &layer.feed_forward);
    out
}

fn feed_forward(out: &mut String, network: &FeedForward) {
    match network {
        FeedForward::Gated(network) => gated(out, "", network),
        FeedForward::Plain { up, down, activation } => {
            let _ = writeln!(out, "  up {}\n  down {}\n  {activation:?}", linear(up), linear(down));
        }
        FeedForward::Mixture { router, experts, chosen, normalised } => {
            let _ =
                writeln!(out, "  router {}, {chosen} of {}, normalised {normalised}", linear(router), experts.len());
            for number in [0, experts.len() - 1] {
                gated(out, &format!("expert {number} "), &experts[number]);
            }
        }
    }
}

fn gated(out: &mut String, name: &str, network: &Gated) {
    for (part, matrix) in [("gate", &network.gate), ("up", &network.up), ("down", &network.down)] {
        let _ = writeln!(out, "  {name}{part} {}", linear(matrix));
    }
    let _ = writeln!(out, "  {name}{:?}", network.activation);
}

fn linear(linear: &Linear) -> String {
    let mut text = format!("{} {}->{}", linear.weight.0, linear.inputs, linear.outputs);
    if let Some(rows) = &linear.rows {
        let _ = write!(text, " rows {rows:?}");
    }
    if let Some(bias) = &linear.bias {
        let _ = write!(text, " + {}", bias.0);
    }
    if let RowOrder::Interleaved { head_width } = linear.order {
        let _ = write!(text, " interleaved {head_width}");
    }
    text
}

fn norm(norm: &Norm) -> String {
    let mut text = match norm.kind {
        NormKind::Rms => format!("rms {} e{:e}", norm.weight.0, norm.epsilon),
        NormKind::Layer => format!("layer {} e{:e}", norm.weight.0, norm.epsilon),
    };
    if let Some(bias) = &norm.bias {
        let _ = write!(text, " + {}", bias.0);
    }
    if norm.offset != 0.0 {
        let _ = write!(text, " offset {}", norm.offset);
    }
    text
}

fn rope(rope: &Rope) -> String {
    let count = rope.frequencies.len();
    let shown: Vec<String> =
        [0, 1, count / 2, count - 1].iter().map(|pair| format!("{:.6e}", rope.frequencies[*pair])).collect();
    format!("{count}: {} x {}", shown.join(" "), rope.factor)
}
