//! GGUF files: refused with a sentence, or a checkpoint that is described, tokenised and computed as far as it goes.

use crate::{checkpoint, model, tokenizer};
use omni_architectures::Source;
use omni_checkpoint::gguf::Metadata;
use omni_gguf::{CHAT_TEMPLATE, Conversation};
use omni_tokenizer::Tokenizer;
use std::fs::File;
use std::sync::Arc;

/// Text for a file's tokenizer.
const TEXT: &str = "<s>The cost is 1,024 €.\n\n  ▁No é🙂</s>";

/// Opens a file, and reads its chat template as the node does: the same one, by reads of bounded pieces.
///
/// # Panics
/// A tensor lies outside of the file or shares bytes, more memory is taken than the file's size allows, a value has
/// several types, the two readers find different templates, or something that was accepted cannot be used.
pub fn holds(data: &[u8]) {
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("model.gguf");
    std::fs::write(&path, data).expect("a file");
    let conversation = Conversation::read(&File::open(&path).expect("a file"));
    let Some(opened) = checkpoint::open(&path, data.len()) else { return };
    let metadata = opened.gguf().expect("metadata of a GGUF file");
    if let Ok(conversation) = conversation {
        assert_eq!(conversation.template.as_deref(), metadata.text(CHAT_TEMPLATE));
    }
    for key in metadata.keys() {
        one_type(metadata, key);
    }
    if let Some(tokenizer) = tokenizer::built(data.len(), || Tokenizer::from_gguf(metadata)) {
        tokenizer::works(tokenizer, TEXT);
    }
    let opened = Arc::new(opened);
    let source = Source::of(&opened).expect("a GGUF file is its own configuration");
    if let Some(spec) = model::described(&source, data.len()) {
        model::computes(&spec, &opened);
    }
}

/// A value is found by look-ups of one type alone; numbers by those of whole ones or those of others.
fn one_type(metadata: &Metadata, key: &str) {
    assert!(metadata.has(key));
    let single = [
        metadata.text(key).is_some(),
        metadata.u64(key).is_some(),
        metadata.f32(key).is_some(),
        metadata.bool(key).is_some(),
    ];
    // Arrays without elements are arrays of any number.
    let arrays = [metadata.texts(key).is_some(), metadata.f32s(key).is_some(), metadata.i32s(key).is_some()];
    let found = single.iter().filter(|found| **found).count() + arrays.iter().filter(|found| **found).count();
    let empty = metadata.f32s(key).is_some_and(|numbers| numbers.is_empty());
    assert!(found <= 1 || empty, "{key:?}: {single:?} {arrays:?}");
}
