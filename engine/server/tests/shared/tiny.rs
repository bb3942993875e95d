//! A model of random weights that is small enough for a test: Llama with a vocabulary of bytes.

use omni_checkpoint::testing::{GgufType, GgufWriter};
use std::path::{Path, PathBuf};

/// Most positions.
pub(crate) const CONTEXT: usize = 512;
/// Control tokens, then the bytes.
const VOCABULARY: usize = 3 + 256;
const LAYERS: usize = 2;

/// Shape and weights of a model.
#[derive(Clone, Copy)]
pub(crate) struct Shape {
    pub(crate) hidden: usize,
    pub(crate) heads: usize,
    pub(crate) seed: u64,
}

/// Shape of a model that is small enough for a test.
pub(crate) const TINY: Shape = Shape { hidden: 32, heads: 2, seed: 7 };

/// Writes a model with a token for each byte, three control tokens, and `more` others.
pub(crate) fn bytes(path: &Path, shape: Shape, more: usize) -> PathBuf {
    let names: Vec<String> = (0..=255_u8)
        .map(|byte| format!("<0x{byte:02X}>"))
        .chain((0..more).map(|number| format!("word{number}")))
        .collect();
    let tokens: Vec<&str> = ["<unk>", "<s>", "</s>"].into_iter().chain(names.iter().map(String::as_str)).collect();
    let types: Vec<i32> = [2, 3, 3].into_iter().chain([6; 256]).chain(vec![1; more]).collect();
    let mut writer = GgufWriter::new();
    writer
        .text("tokenizer.ggml.model", "llama")
        .texts("tokenizer.ggml.tokens", &tokens)
        .f32s("tokenizer.ggml.scores", &vec![0.0; VOCABULARY + more])
        .i32s("tokenizer.ggml.token_type", &types)
        .u32("tokenizer.ggml.bos_token_id", 1)
        .u32("tokenizer.ggml.eos_token_id", 2)
        .bool("tokenizer.ggml.add_bos_token", true)
        .bool("tokenizer.ggml.add_space_prefix", false);
    llama(&mut writer, shape, VOCABULARY + more);
    writer.write(path).unwrap();
    path.to_owned()
}

/// Adds architecture and tensors of a model with so many tokens.
pub(crate) fn llama(writer: &mut GgufWriter, shape: Shape, vocabulary: usize) {
    let Shape { hidden, heads, seed } = shape;
    let key = |name: &str| format!("llama.{name}");
    writer.text("general.architecture", "llama");
    for (name, value) in [
        ("context_length", CONTEXT),
        ("embedding_length", hidden),
        ("block_count", LAYERS),
        ("feed_forward_length", 2 * hidden),
        ("attention.head_count", heads),
        ("attention.head_count_kv", heads),
        ("rope.dimension_count", hidden / heads),
        ("vocab_size", vocabulary),
    ] {
        writer.u32(&key(name), u32::try_from(value).unwrap());
    }
    writer.f32(&key("attention.layer_norm_rms_epsilon"), 1e-5);
    let mut random = fastrand::Rng::with_seed(seed);
    let mut tensor = |name: &str, shape: &[usize]| {
        let values: Vec<f32> = (0..shape.iter().product()).map(|_| random.f32() - 0.5).collect();
        writer.tensor(name, shape, GgufType::F32, &values);
    };
    tensor("token_embd.weight", &[vocabulary, hidden]);
    tensor("output.weight", &[vocabulary, hidden]);
    tensor("output_norm.weight", &[hidden]);
    for layer in 0..LAYERS {
        for (name, shape) in [
            ("attn_norm", [hidden].as_slice()),
            ("attn_q", &[hidden, hidden]),
            ("attn_k", &[hidden, hidden]),
            ("attn_v", &[hidden, hidden]),
            ("attn_output", &[hidden, hidden]),
            ("ffn_norm", &[hidden]),
            ("ffn_gate", &[2 * hidden, hidden]),
            ("ffn_up", &[2 * hidden, hidden]),
            ("ffn_down", &[hidden, 2 * hidden]),
        ] {
            tensor(&format!("blk.{layer}.{name}.weight"), shape);
        }
    }
}
