//! Model of random weights with the vocabulary of another file.

use crate::tiny::{Shape, llama};
use omni_checkpoint::Checkpoint;
use omni_checkpoint::testing::GgufWriter;
use std::path::{Path, PathBuf};

/// Writes a model with the vocabulary of another file.
pub(crate) fn with_vocabulary_of(source: &Path, path: &Path, shape: Shape) -> PathBuf {
    let checkpoint = Checkpoint::open(source).unwrap();
    let metadata = checkpoint.gguf().unwrap();
    let mut writer = GgufWriter::new();
    let key = |name: &str| format!("tokenizer.ggml.{name}");
    for name in ["model", "pre"] {
        if let Some(text) = metadata.text(&key(name)) {
            writer.text(&key(name), text);
        }
    }
    for name in ["tokens", "merges"] {
        if let Some(texts) = metadata.texts(&key(name)) {
            writer.texts(&key(name), &texts);
        }
    }
    if let Some(types) = metadata.i32s(&key("token_type")) {
        writer.i32s(&key("token_type"), &types);
    }
    for name in ["bos_token_id", "eos_token_id", "unknown_token_id", "padding_token_id"] {
        if let Some(id) = metadata.u64(&key(name)) {
            writer.u32(&key(name), u32::try_from(id).unwrap());
        }
    }
    for name in ["add_bos_token", "add_space_prefix"] {
        if let Some(value) = metadata.bool(&key(name)) {
            writer.bool(&key(name), value);
        }
    }
    let tokens = metadata.texts(&key("tokens")).unwrap().len();
    llama(&mut writer, shape, tokens);
    writer.write(path).unwrap();
    path.to_owned()
}
