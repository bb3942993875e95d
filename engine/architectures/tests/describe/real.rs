//! Descriptions of real files: every tensor is there with its widths, and none is left over.

use crate::summary::summary;
use omni_architectures::{SentenceTransformer, Source, describe};
use omni_checkpoint::Checkpoint;
use omni_kernels::model::{FeedForward, Gated, Linear, ModelSpec, Norm, Output};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// Folder with `smollm2.gguf`, `gemma3.gguf` and `minilm/`.
fn folder() -> PathBuf {
    PathBuf::from(std::env::var_os("OMNI_REFERENCE_MODELS").expect("OMNI_REFERENCE_MODELS names a folder"))
}

fn open(name: &str) -> Checkpoint {
    Checkpoint::open(&folder().join(Path::new(name))).expect("a checkpoint")
}

/// Shapes of the tensors that a description names.
fn shapes(spec: &ModelSpec) -> BTreeMap<String, Vec<usize>> {
    let mut shapes = BTreeMap::new();
    let mut linear = |linear: &Linear| {
        shapes.insert(linear.weight.0.clone(), vec![linear.outputs, linear.inputs]);
        if let Some(bias) = &linear.bias {
            shapes.insert(bias.0.clone(), vec![linear.outputs]);
        }
    };
    for layer in &spec.layers {
        let attention = &layer.attention;
        let mut matrices = vec![&attention.query, &attention.key, &attention.value, &attention.output];
        match &layer.feed_forward {
            FeedForward::Gated(Gated { gate, up, down, .. }) => matrices.extend([gate, up, down]),
            FeedForward::Plain { up, down, .. } => matrices.extend([up, down]),
            FeedForward::Mixture { .. } => {}
        }
        matrices.into_iter().for_each(&mut linear);
    }
    if let Output::Logits { weight, .. } = &spec.output {
        linear(weight);
    }
    let norms = spec.layers.iter().flat_map(|layer| {
        [
            &layer.attention_norm,
            &layer.attention_output_norm,
            &layer.attention_sum_norm,
            &layer.feed_forward_norm,
            &layer.feed_forward_output_norm,
            &layer.feed_forward_sum_norm,
        ]
    });
    for attention in spec.layers.iter().map(|layer| &layer.attention) {
        for norm in [&attention.query_norm, &attention.key_norm].into_iter().flatten() {
            shapes.insert(norm.weight.0.clone(), vec![attention.head_width]);
        }
    }
    for norm in norms.chain([&spec.norm, &spec.embedding.norm]).flatten() {
        let Norm { weight, bias, .. } = norm;
        for name in std::iter::once(weight).chain(bias) {
            shapes.insert(name.0.clone(), vec![spec.hidden]);
        }
    }
    shapes.insert(spec.embedding.tokens.0.clone(), vec![spec.vocabulary, spec.hidden]);
    if let Some(positions) = &spec.embedding.positions {
        shapes.insert(positions.0.clone(), vec![spec.context, spec.hidden]);
    }
    if let Some(types) = &spec.embedding.types {
        shapes.insert(types.0.clone(), vec![2, spec.hidden]);
    }
    shapes
}

fn found(checkpoint: &Checkpoint) -> BTreeMap<String, Vec<usize>> {
    checkpoint.names().map(|name| (name.to_owned(), checkpoint.shape(name).expect("a shape").to_vec())).collect()
}

#[test]
#[ignore = "needs files of real models"]
fn smollm2() {
    let checkpoint = open("smollm2.gguf");
    let spec = describe(&Source::of(&checkpoint).expect("a source")).expect("a description");
    insta::assert_snapshot!("gguf-smollm2-135m-file", summary(&spec));
    assert_eq!(shapes(&spec), found(&checkpoint));
}

#[test]
#[ignore = "needs files of real models"]
fn gemma3() {
    let checkpoint = open("gemma3.gguf");
    let spec = describe(&Source::of(&checkpoint).expect("a source")).expect("a description");
    insta::assert_snapshot!("gguf-gemma-3-270m-file", summary(&spec));
    assert_eq!(shapes(&spec), found(&checkpoint));
}

#[test]
#[ignore = "needs files of real models"]
fn minilm() {
    let checkpoint = open("minilm");
    let read = |name: &str| std::fs::read_to_string(folder().join("minilm").join(name)).expect("a file");
    let (modules, pooling) = (read("modules.json"), read("1_Pooling/config.json"));
    let mut source = Source::of(&checkpoint).expect("a source");
    source.sentence = Some(SentenceTransformer { modules: Some(&modules), pooling: Some(&pooling) });
    let spec = describe(&source).expect("a description");
    insta::assert_snapshot!("all-minilm-l6-v2-file", summary(&spec));
    let mut found = found(&checkpoint);
    // Parts of the file that an embedding does not need.
    found.retain(|name, _| !name.starts_with("pooler.") && !name.ends_with("position_ids"));
    assert_eq!(shapes(&spec), found);
}
