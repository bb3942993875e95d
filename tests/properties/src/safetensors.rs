//! Files of safetensors with `config.json` and an index of shards: refused with a sentence, or a checkpoint that is
//! described and computed as far as it goes.

use crate::{checkpoint, model};
use omni_architectures::Source;
use std::sync::Arc;

/// Bytes of the lengths before the files: of `config.json`, of the index, and of the first file.
const LENGTHS: usize = 6;

/// Opens files, whose lengths and then bytes are in `data`. Without an index the first one is the only one.
///
/// # Panics
/// A tensor lies outside of its file or shares bytes, more memory is taken than the files' size allows, or something that
/// was accepted cannot be used.
pub fn holds(data: &[u8]) {
    let Some((lengths, rest)) = data.split_first_chunk::<LENGTHS>() else { return };
    let [config, index, first] = [0, 2, 4].map(|at| usize::from(u16::from_le_bytes([lengths[at], lengths[at + 1]])));
    let (config, rest) = rest.split_at(config.min(rest.len()));
    let (index, rest) = rest.split_at(index.min(rest.len()));
    let (first, second) = rest.split_at(if index.is_empty() { rest.len() } else { first.min(rest.len()) });
    let directory = tempfile::tempdir().expect("a directory");
    let write = |name: &str, bytes: &[u8]| {
        if !bytes.is_empty() {
            std::fs::write(directory.path().join(name), bytes).expect("a file");
        }
    };
    write("config.json", config);
    write("model.safetensors.index.json", index);
    write(if index.is_empty() { "model.safetensors" } else { "a" }, first);
    write("b", second);
    let Some(opened) = checkpoint::open(directory.path(), data.len()) else { return };
    assert!(opened.gguf().is_none() && opened.config().is_some() != config.is_empty());
    let opened = Arc::new(opened);
    if let Ok(source) = Source::of(&opened)
        && let Some(spec) = model::described(&source, data.len())
    {
        model::computes(&spec, &opened);
    }
}
