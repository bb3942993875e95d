//! Time of long texts without a place to cut them.

use crate::vocabularies::{byte_level, read, sentence_pieces, word_piece};
use omni_tokenizer::Tokenizer;
use std::time::{Duration, Instant};

const TEXTS: &[(&str, &str)] = &[
    ("letters", "a"),
    ("digits", "7"),
    ("spaces", " "),
    ("lines", "\n"),
    ("signs", "<|"),
    ("control tokens", "<|end|>"),
    ("emoji", "🙂"),
    ("accents", "e\u{301}"),
    ("marks", "\u{301}"),
    ("words", "The quick brown fox. "),
];

fn tokenizers() -> Vec<(String, Tokenizer)> {
    let bytes = byte_level();
    let names = bytes.cases.keys();
    let mut all: Vec<(String, Tokenizer)> =
        names.map(|pre| (pre.clone(), read(&bytes.gguf(pre)).expect("a tokenizer"))).collect();
    let pieces = sentence_pieces().cases["with_space"].clone();
    all.push(("SentencePiece".to_owned(), read(&pieces.gguf(true)).expect("a tokenizer")));
    all.push(("WordPiece".to_owned(), read(&word_piece().gguf()).expect("a tokenizer")));
    all
}

fn time(tokenizer: &Tokenizer, text: &str, bytes: usize) -> (Duration, usize) {
    let text = text.repeat(bytes / text.len());
    let start = Instant::now();
    let tokens = tokenizer.encode(&text, false, &[]).expect("tokens").len();
    (start.elapsed(), tokens)
}

/// Quadratic time would be 256 times as long for a text 16 times as long.
#[test]
#[ignore = "takes a minute"]
fn time_grows_with_the_length_of_a_text_alone() {
    for (name, tokenizer) in &tokenizers() {
        for (kind, text) in TEXTS {
            let (short, _) = time(tokenizer, text, 1 << 16);
            let (long, tokens) = time(tokenizer, text, 1 << 20);
            println!("{name}, {kind}: 64 KiB {short:?}, 1 MiB {long:?}, {tokens} tokens");
            assert!(long < short * 64 + Duration::from_millis(500), "{name}, {kind}: {short:?} {long:?}");
        }
    }
}
