//! Tokens of real vocabularies beside those of the reference libraries; `fixtures/write.py` writes the cases.

use omni_checkpoint::Checkpoint;
use omni_tokenizer::{Detokenizer, Place, Special, Tokenizer, TokenizerConfig};
use serde::Deserialize;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;

#[derive(Deserialize)]
struct Case {
    text: String,
    smollm2: Vec<u32>,
    smollm2_text: String,
    minilm: Vec<u32>,
    minilm_text: String,
}

#[derive(Deserialize)]
struct GemmaCase {
    text: String,
    ids: Vec<u32>,
    decoded: String,
}

/// Folder with `smollm2.gguf`, `minilm/`, `gemma3.gguf`, `fixture.json` and `gemma3.json`.
fn folder() -> PathBuf {
    PathBuf::from(std::env::var_os("OMNI_REFERENCE_MODELS").expect("OMNI_REFERENCE_MODELS names a folder"))
}

fn cases() -> Vec<Case> {
    let text = std::fs::read_to_string(folder().join("fixture.json")).expect("a fixture");
    serde_json::from_str(&text).expect("the form of a fixture")
}

fn smollm2() -> Tokenizer {
    let checkpoint = Checkpoint::open(&folder().join("smollm2.gguf")).expect("a checkpoint");
    Tokenizer::from_gguf(checkpoint.gguf().expect("GGUF")).expect("a tokenizer")
}

fn minilm() -> Tokenizer {
    let read = |name: &str| std::fs::read_to_string(folder().join("minilm").join(Path::new(name))).expect("a file");
    let config = TokenizerConfig::read(Some(&read("tokenizer_config.json")), None, Some(&read("config.json")));
    Tokenizer::from_json(&read("tokenizer.json"), &config.expect("a configuration")).expect("a tokenizer")
}

#[test]
#[ignore = "needs files of real models"]
fn smollm2_gives_the_tokens_of_the_reference() {
    let start = Instant::now();
    let tokenizer = smollm2();
    println!("{:?} in {:?}", tokenizer, start.elapsed());
    assert_eq!((tokenizer.vocabulary(), tokenizer.bos(), tokenizer.end_tokens()), (49152, Some(1), [0, 2].as_slice()));
    for case in cases() {
        let ids = tokenizer.encode(&case.text, true, &[]).expect("tokens");
        assert_eq!(ids, case.smollm2, "{:?}", case.text);
        assert_eq!(tokenizer.decode(&ids, Special::Hidden).expect("known ids"), case.smollm2_text);
    }
}

#[test]
#[ignore = "needs files of real models"]
fn minilm_gives_the_tokens_of_the_reference() {
    let tokenizer = minilm();
    println!("{tokenizer:?}");
    for case in cases() {
        let ids = tokenizer.encode(&case.text, true, &[]).expect("tokens");
        assert_eq!(ids, case.minilm, "{:?}", case.text);
        assert_eq!(tokenizer.decode(&ids, Special::Hidden).expect("known ids"), case.minilm_text);
    }
}

#[test]
#[ignore = "needs files of real models"]
fn gemma3_gives_the_tokens_of_the_reference() {
    let checkpoint = Checkpoint::open(&folder().join("gemma3.gguf")).expect("a checkpoint");
    let start = Instant::now();
    let tokenizer = Tokenizer::from_gguf(checkpoint.gguf().expect("GGUF")).expect("a tokenizer");
    println!("{:?} in {:?}", tokenizer, start.elapsed());
    assert_eq!(
        (tokenizer.vocabulary(), tokenizer.bos(), tokenizer.end_tokens()),
        (262_144, Some(2), [1, 106].as_slice())
    );
    let cases = std::fs::read_to_string(folder().join("gemma3.json")).expect("a fixture");
    let cases: Vec<GemmaCase> = serde_json::from_str(&cases).expect("the form of a fixture");
    let mut differing = Vec::new();
    for GemmaCase { text, ids, decoded } in &cases {
        // SentencePiece finds user-defined runs of spaces where a client wrote the character that stands for one.
        if text.contains('▁') {
            continue;
        }
        let found = tokenizer.encode(text, false, &[]).expect("tokens");
        if &found != ids {
            differing.push((text, ids, found));
            continue;
        }
        assert_eq!(&tokenizer.decode(ids, Special::Shown).expect("known ids"), decoded);
        if !text.contains('<') {
            assert_eq!(&tokenizer.encode(text, false, &[0..text.len()]).expect("tokens"), ids, "{text:?}");
        }
    }
    assert!(differing.is_empty(), "{} of {}: {:?}", differing.len(), cases.len(), &differing[..differing.len().min(5)]);
}

#[test]
#[ignore = "needs files of real models"]
fn streamed_texts_joined_are_the_whole() {
    let tokenizer = Arc::new(smollm2());
    for case in cases() {
        let mut decoder = Detokenizer::new(tokenizer.clone(), Place::Start, Special::Shown);
        let mut text = String::new();
        for id in &case.smollm2 {
            decoder.push(*id, &mut text).expect("a known id");
        }
        decoder.finish(&mut text);
        assert_eq!(text, case.text);
    }
}
