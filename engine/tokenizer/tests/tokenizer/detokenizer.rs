//! Streams of tokens.

use crate::vocabularies::{byte_level, read, sentence_pieces, word_piece};
use omni_tokenizer::{Detokenizer, Place, Special, Tokenizer, UnknownToken};
use proptest::prelude::*;
use std::sync::{Arc, LazyLock};

/// Byte-level pairs, SentencePiece with and without a first space, WordPiece.
static TOKENIZERS: LazyLock<Vec<Arc<Tokenizer>>> = LazyLock::new(|| {
    let pieces = sentence_pieces();
    vec![
        Arc::new(byte_level().tokenizer()),
        Arc::new(read(&pieces.cases["with_space"].gguf(true)).expect("a tokenizer")),
        Arc::new(read(&pieces.cases["without_space"].gguf(false)).expect("a tokenizer")),
        Arc::new(read(&word_piece().gguf()).expect("a tokenizer")),
    ]
});

/// Text of each token, and at last of what was kept back.
fn deltas(tokenizer: &Arc<Tokenizer>, ids: &[u32], place: Place, special: Special) -> Vec<String> {
    let mut decoder = Detokenizer::new(tokenizer.clone(), place, special);
    let mut deltas: Vec<String> = ids
        .iter()
        .map(|id| {
            let mut text = String::new();
            decoder.push(*id, &mut text).expect("a known id");
            text
        })
        .collect();
    let mut rest = String::new();
    decoder.finish(&mut rest);
    deltas.push(rest);
    deltas
}

fn byte(tokenizer: &Tokenizer, byte: u8) -> u32 {
    (0..tokenizer.vocabulary() as u32)
        .find(|id| tokenizer.token_bytes(*id) == Some(&[byte]))
        .expect("a token of the byte")
}

#[test]
fn only_whole_characters_come_out() {
    for tokenizer in &TOKENIZERS[..3] {
        let ids: Vec<u32> = "é🙂".bytes().map(|value| byte(tokenizer, value)).collect();
        let found = deltas(tokenizer, &ids, Place::Continuation, Special::Hidden);
        assert_eq!(found, ["", "é", "", "", "", "🙂", ""]);
    }
}

#[test]
fn bytes_that_are_no_characters_are_replaced_once_that_is_clear() {
    let tokenizer = &TOKENIZERS[0];
    let found = |bytes: &[u8]| {
        let ids: Vec<u32> = bytes.iter().map(|value| byte(tokenizer, *value)).collect();
        deltas(tokenizer, &ids, Place::Continuation, Special::Hidden)
    };
    assert_eq!(found(b"\xF0\x9F\x99"), ["", "", "", "\u{FFFD}"]);
    assert_eq!(found(b"\xF0\x9Fa"), ["", "", "\u{FFFD}a", ""]);
    assert_eq!(found(b"\xFF\x80a"), ["\u{FFFD}", "\u{FFFD}", "a", ""]);
    assert_eq!(found(b"\xE2\x82\xE2\x82\xAC"), ["", "", "\u{FFFD}", "", "€", ""].map(|text| text));
}

#[test]
fn the_first_space_is_left_out_at_the_begin_of_a_text_only() {
    let tokenizer = &TOKENIZERS[1];
    let ids = tokenizer.encode("the the", false, &[]).expect("tokens");
    let text = |place| deltas(tokenizer, &ids, place, Special::Hidden).concat();
    assert_eq!(text(Place::Start), "the the");
    assert_eq!(text(Place::Continuation), " the the");
    let framed = tokenizer.encode("the", true, &[]).expect("tokens");
    assert_eq!(tokenizer.decode(&framed, Special::Hidden).expect("known ids"), "the");
    let spaces = tokenizer.encode("  x", false, &[]).expect("tokens");
    assert_eq!(tokenizer.decode(&spaces, Special::Hidden).expect("known ids"), "  x");
}

#[test]
fn control_tokens_are_hidden_or_shown_and_added_ones_are_text() {
    let fixture = byte_level();
    let ids = [fixture.id("<|begin|>"), fixture.id("<think>"), fixture.id("<|end|>")];
    let tokenizer = &TOKENIZERS[0];
    assert_eq!(tokenizer.decode(&ids, Special::Hidden).expect("known ids"), "<think>");
    assert_eq!(tokenizer.decode(&ids, Special::Shown).expect("known ids"), "<|begin|><think><|end|>");
    assert_eq!(ids.map(|id| tokenizer.is_special(id)), [true, false, true]);
}

#[test]
fn ids_beyond_the_vocabulary_are_refused_and_change_nothing() {
    for tokenizer in &*TOKENIZERS {
        for id in [tokenizer.vocabulary() as u32, u32::MAX] {
            assert_eq!(tokenizer.token_bytes(id), None);
            assert_eq!(tokenizer.decode(&[id], Special::Shown), Err(UnknownToken(id)));
        }
    }
    let tokenizer = &TOKENIZERS[0];
    let mut decoder = Detokenizer::new(tokenizer.clone(), Place::Start, Special::Shown);
    let mut text = String::new();
    decoder.push(byte(tokenizer, 0xC3), &mut text).expect("a known id");
    assert!(decoder.is_pending());
    assert_eq!(decoder.push(u32::MAX, &mut text), Err(UnknownToken(u32::MAX)));
    decoder.push(byte(tokenizer, 0xA9), &mut text).expect("a known id");
    assert_eq!((text.as_str(), decoder.is_pending()), ("é", false));
}

proptest! {
    #[test]
    fn texts_of_a_stream_joined_are_the_whole(
        which in 0..4_usize,
        ids in prop::collection::vec(any::<prop::sample::Index>(), 0..60),
        shown in any::<bool>(),
    ) {
        let tokenizer = &TOKENIZERS[which];
        let ids: Vec<u32> = ids.iter().map(|id| id.index(tokenizer.vocabulary()) as u32).collect();
        let special = if shown { Special::Shown } else { Special::Hidden };
        let whole = tokenizer.decode(&ids, special).expect("known ids");
        prop_assert_eq!(deltas(tokenizer, &ids, Place::Start, special).concat(), &*whole);
        let visible = |id: &&u32| shown || !tokenizer.is_special(**id);
        let bytes: Vec<u8> =
            ids.iter().filter(visible).flat_map(|id| tokenizer.token_bytes(*id).expect("a known id")).copied().collect();
        let joined = String::from_utf8_lossy(&bytes).into_owned();
        let first = if which == 1 || which == 3 { joined.strip_prefix(' ').unwrap_or(&joined) } else { &joined };
        prop_assert_eq!(first, &*whole);
    }

    #[test]
    fn tokens_of_a_text_give_it_back(which in 0..3_usize, text in "\\PC{0,40}") {
        let tokenizer = &TOKENIZERS[which];
        let ids = tokenizer.encode(&text, false, &[0..text.len()]).expect("tokens");
        let back = tokenizer.decode(&ids, Special::Shown).expect("known ids");
        // SentencePiece has one character for a space and for itself.
        let expected = if which == 0 { text.clone() } else { text.replace('▁', " ") };
        prop_assert_eq!(back, expected);
    }
}
