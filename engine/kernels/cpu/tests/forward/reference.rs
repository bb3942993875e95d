//! Plain computation in 64 bits: one position after the other, one sum after the other.

use super::model::{Model, Tensor};
use omni_kernels::model::{
    Activation, Attention, FeedForward, Gated, Linear, Mask, Norm, NormKind, Output, Pooling, RowOrder, TensorName,
};

type Row = Vec<f64>;

/// Logits of all tokens, or one embedding.
pub(crate) fn compute(model: &Model, tokens: &[u32]) -> Vec<Row> {
    let spec = &model.spec;
    let mut x: Vec<Row> = tokens.iter().enumerate().map(|(position, token)| embed(model, *token, position)).collect();
    for layer in &spec.layers {
        let input: Vec<Row> = x.iter().map(|x| normed(model, layer.attention_norm.as_ref(), x)).collect();
        let mixed = attend(model, &layer.attention, &input);
        for (x, mixed) in x.iter_mut().zip(mixed) {
            let output = linear(model, &layer.attention.output, &mixed);
            add(x, &normed(model, layer.attention_output_norm.as_ref(), &output));
            *x = normed(model, layer.attention_sum_norm.as_ref(), x);
            let output = network(model, &layer.feed_forward, &normed(model, layer.feed_forward_norm.as_ref(), x));
            add(x, &normed(model, layer.feed_forward_output_norm.as_ref(), &output));
            *x = normed(model, layer.feed_forward_sum_norm.as_ref(), x);
        }
    }
    let x: Vec<Row> = x.iter().map(|x| normed(model, spec.norm.as_ref(), x)).collect();
    match &spec.output {
        Output::Logits { weight, cap } => x.iter().map(|x| logits(model, weight, *cap, x)).collect(),
        Output::Embedding { pooling, normalised } => vec![pool(*pooling, *normalised, &x)],
    }
}

fn logits(model: &Model, weight: &Linear, cap: Option<f32>, x: &Row) -> Row {
    let mut logits = linear(model, weight, x);
    logits.truncate(model.spec.vocabulary);
    if let Some(cap) = cap.map(f64::from) {
        logits.iter_mut().for_each(|logit| *logit = cap * (*logit / cap).tanh());
    }
    logits
}

fn pool(pooling: Pooling, normalised: bool, x: &[Row]) -> Row {
    let mut out = match pooling {
        Pooling::First => x[0].clone(),
        Pooling::Last => x[x.len() - 1].clone(),
        Pooling::Mean => (0..x[0].len()).map(|at| x.iter().map(|x| x[at]).sum::<f64>() / x.len() as f64).collect(),
    };
    if normalised {
        let length = out.iter().map(|x| x * x).sum::<f64>().sqrt();
        out.iter_mut().for_each(|x| *x /= length);
    }
    out
}

fn tensor<'a>(model: &'a Model, name: &TensorName) -> &'a Tensor {
    &model.tensors[&name.0]
}

fn row(model: &Model, name: &TensorName, row: usize) -> Row {
    let tensor = tensor(model, name);
    tensor.values[row * tensor.columns..(row + 1) * tensor.columns].iter().map(|value| f64::from(*value)).collect()
}

fn add(x: &mut Row, y: &Row) {
    x.iter_mut().zip(y).for_each(|(x, y)| *x += y);
}

fn embed(model: &Model, token: u32, position: usize) -> Row {
    let embedding = &model.spec.embedding;
    let mut x = row(model, &embedding.tokens, token as usize);
    x.iter_mut().for_each(|x| *x *= f64::from(embedding.scale));
    if let Some(positions) = &embedding.positions {
        add(&mut x, &row(model, positions, position));
    }
    if let Some(types) = &embedding.types {
        add(&mut x, &row(model, types, 0));
    }
    normed(model, embedding.norm.as_ref(), &x)
}

fn normed(model: &Model, norm: Option<&Norm>, x: &[f64]) -> Row {
    let Some(norm) = norm else { return x.to_vec() };
    let mean = match norm.kind {
        NormKind::Rms => 0.0,
        NormKind::Layer => x.iter().sum::<f64>() / x.len() as f64,
    };
    let variance = x.iter().map(|x| (x - mean) * (x - mean)).sum::<f64>() / x.len() as f64;
    let factor = 1.0 / (variance + f64::from(norm.epsilon)).sqrt();
    let weight = row(model, &norm.weight, 0);
    let bias = norm.bias.as_ref().map(|bias| row(model, bias, 0));
    let one = |(at, x): (usize, &f64)| {
        (x - mean) * factor * (weight[at] + f64::from(norm.offset)) + bias.as_ref().map_or(0.0, |bias| bias[at])
    };
    x.iter().enumerate().map(one).collect()
}

/// Row of the file that is an output's.
fn file_row(linear: &Linear, output: usize) -> usize {
    match linear.order {
        RowOrder::Outputs => output,
        RowOrder::Interleaved { head_width } => {
            let (head, at) = (output / head_width, output % head_width);
            head * head_width + 2 * (at % (head_width / 2)) + at / (head_width / 2)
        }
    }
}

fn linear(model: &Model, linear: &Linear, x: &[f64]) -> Row {
    let first = linear.rows.as_ref().map_or(0, |rows| rows.start);
    let bias = linear.bias.as_ref().map(|bias| row(model, bias, 0));
    let output = |output: usize| {
        let at = file_row(linear, output);
        let sum: f64 = row(model, &linear.weight, first + at).iter().zip(x).map(|(weight, x)| weight * x).sum();
        sum + bias.as_ref().map_or(0.0, |bias| bias[at])
    };
    (0..linear.outputs).map(output).collect()
}

fn heads(
    model: &Model,
    attention: &Attention,
    projection: (&Linear, Option<&Norm>),
    x: &Row,
    position: usize,
) -> Vec<Row> {
    let width = attention.head_width;
    let all = linear(model, projection.0, x);
    let head = |head: &[f64]| {
        let mut head = normed(model, projection.1, head);
        for (at, frequency) in attention.rope.iter().flat_map(|rope| rope.frequencies.iter().enumerate()) {
            let (sine, cosine) = f64::from(position as f32 * frequency).sin_cos();
            let (a, b) = (head[at], head[at + width / 2]);
            head[at] = a * cosine - b * sine;
            head[at + width / 2] = b * cosine + a * sine;
        }
        head
    };
    all.chunks(width).map(head).collect()
}

fn attend(model: &Model, attention: &Attention, input: &[Row]) -> Vec<Row> {
    let group = attention.heads / attention.kv_heads;
    let all = |linear: &Linear, norm: Option<&Norm>| -> Vec<Vec<Row>> {
        input.iter().enumerate().map(|(position, x)| heads(model, attention, (linear, norm), x, position)).collect()
    };
    let queries = all(&attention.query, attention.query_norm.as_ref());
    let keys = all(&attention.key, attention.key_norm.as_ref());
    let values: Vec<Row> = input.iter().map(|x| linear(model, &attention.value, x)).collect();
    let width = attention.head_width;
    let one = |position: usize| {
        let seen = match attention.mask {
            Mask::Causal => 0..position + 1,
            Mask::Window { window } => (position + 1).saturating_sub(window)..position + 1,
            Mask::All => 0..input.len(),
        };
        let mut out = Vec::new();
        for (head, query) in queries[position].iter().enumerate() {
            let kv = head / group;
            let score = |at: usize| -> f64 {
                let dot: f64 = query.iter().zip(&keys[at][kv]).map(|(q, k)| q * k).sum();
                dot * f64::from(attention.scale)
            };
            let scores: Vec<f64> = seen.clone().map(score).collect();
            let greatest = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
            let weights: Vec<f64> = scores.iter().map(|score| (score - greatest).exp()).collect();
            let sum: f64 = weights.iter().sum();
            out.extend((0..width).map(|element| {
                let value = |at: usize| values[at][kv * width + element];
                weights.iter().zip(seen.clone()).map(|(weight, at)| weight * value(at)).sum::<f64>() / sum
            }));
        }
        out
    };
    (0..input.len()).map(one).collect()
}

fn activated(activation: Activation, x: f64) -> f64 {
    match activation {
        Activation::Silu => x / (1.0 + (-x).exp()),
        Activation::Gelu => 0.5 * x * (1.0 + erf(x / 2_f64.sqrt())),
        Activation::GeluTanh => {
            0.5 * x * (1.0 + ((2.0 / std::f64::consts::PI).sqrt() * (x + 0.044715 * x.powi(3))).tanh())
        }
        Activation::Relu => x.max(0.0),
    }
}

/// Error function by its series.
fn erf(x: f64) -> f64 {
    if x.abs() > 6.0 {
        return x.signum();
    }
    let (mut term, mut sum) = (x, x);
    for n in 1..200 {
        term *= -x * x / f64::from(n);
        sum += term / f64::from(2 * n + 1);
    }
    sum * 2.0 / std::f64::consts::PI.sqrt()
}

fn gated(model: &Model, gated: &Gated, x: &Row) -> Row {
    let mut inner = linear(model, &gated.gate, x);
    inner.iter_mut().for_each(|x| *x = activated(gated.activation, *x));
    inner.iter_mut().zip(linear(model, &gated.up, x)).for_each(|(x, up)| *x *= up);
    linear(model, &gated.down, &inner)
}

fn network(model: &Model, network: &FeedForward, x: &Row) -> Row {
    match network {
        FeedForward::Gated(one) => gated(model, one, x),
        FeedForward::Plain { up, down, activation } => {
            let inner: Row = linear(model, up, x).into_iter().map(|x| activated(*activation, x)).collect();
            linear(model, down, &inner)
        }
        FeedForward::Mixture { router, experts, chosen, normalised } => {
            let scores = linear(model, router, x);
            let mut probabilities: Vec<(usize, f64)> = scores.iter().map(|score| score.exp()).enumerate().collect();
            let mut sum: f64 = probabilities.iter().map(|expert| expert.1).sum();
            probabilities.sort_by(|a, b| b.1.total_cmp(&a.1));
            probabilities.truncate(*chosen);
            if *normalised {
                sum = probabilities.iter().map(|expert| expert.1).sum();
            }
            let mut out = vec![0.0; x.len()];
            for (expert, probability) in probabilities {
                let output = gated(model, &experts[expert], x);
                out.iter_mut().zip(output).for_each(|(out, output)| *out += probability / sum * output);
            }
            out
        }
    }
}
