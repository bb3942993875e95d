//! Literal ranges: added tokens in them are text.

use crate::vocabularies::byte_level;
use omni_tokenizer::{EncodeError, Special, Tokenizer, TokenizerConfig};
use proptest::prelude::*;
use std::ops::Range;
use std::sync::LazyLock;

static TOKENIZER: LazyLock<Tokenizer> = LazyLock::new(|| byte_level().tokenizer());

fn added(ids: &[u32]) -> Vec<String> {
    let fixture = byte_level();
    ids.iter()
        .map(|id| fixture.tokens[*id as usize].clone())
        .filter(|text| text.starts_with('<') && text.len() > 2)
        .collect()
}

fn encode(text: &str, literals: &[Range<usize>]) -> Vec<u32> {
    TOKENIZER.encode(text, false, literals).expect("tokens")
}

#[test]
fn control_tokens_of_clients_stay_text() {
    let text = "<|begin|>say <|end|> and <think>.<|end|>";
    let client = 9..text.len() - 7;
    assert_eq!(added(&encode(text, &[])), ["<|begin|>", "<|end|>", "<think>", "<|end|>"]);
    let ids = encode(text, &[client]);
    assert_eq!(added(&ids), ["<|begin|>", "<|end|>"]);
    assert_eq!(TOKENIZER.decode(&ids, Special::Shown).expect("known ids"), text);
    assert_eq!(added(&encode(text, &[13..20])), ["<|begin|>", "<think>", "<|end|>"]);
}

#[test]
fn a_token_over_the_border_of_a_range_is_text() {
    let text = "<|end|><|end|>";
    assert_eq!(added(&encode(text, &[3..4])), ["<|end|>"]);
    assert_eq!(added(&encode(text, &[6..8])), Vec::<String>::new());
    assert_eq!(added(&encode(text, &[0..0, 7..7, 14..14])), ["<|end|>", "<|end|>"]);
}

#[test]
fn text_without_added_tokens_is_the_same_whether_literal_or_not() {
    for text in ["Hello, world!  It's 12345.", "日本語\n\n", " "] {
        assert_eq!(encode(text, &[]), encode(text, &[0..text.len()]));
    }
}

#[test]
fn a_model_that_knows_control_tokens_gives_none() {
    let fixture = byte_level();
    let mut json = fixture.json();
    let end = fixture.id("<|end|>");
    for (text, id) in
        [("<|end|>", end), ("<|", 10_000), ("<|e", 10_001), ("nd|>", 10_002), ("|>", 10_003), ("nd", 10_004)]
    {
        json["model"]["vocab"][text] = id.into();
    }
    json["pre_tokenizer"] = serde_json::json!({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": false,
        "use_regex": false});
    json["model"]["ignore_merges"] = true.into();
    let merges = json["model"]["merges"].as_array_mut().expect("merges");
    for merge in ["< |", "<| e", "n d", "| >", "nd |>", "<|e nd|>"].iter().rev() {
        merges.insert(0, (*merge).into());
    }
    let tokenizer = Tokenizer::from_json(&json.to_string(), &TokenizerConfig::default()).expect("a tokenizer");
    assert_eq!(tokenizer.encode("<|end|>", false, &[]).expect("tokens"), [end]);
    assert_eq!(tokenizer.encode("<|end|>", false, &[0..7]).expect("tokens"), [10_001, 10_002]);
}

#[test]
fn ranges_that_are_not_of_the_text_are_refused() {
    for (text, literals) in [
        ("abc", vec![0..4]),
        ("abc", vec![2..3, 0..1]),
        ("abc", vec![0..2, 1..3]),
        ("é", vec![0..1]),
        ("é", vec![1..2]),
        ("abc", vec![Range { start: 2, end: 1 }]),
        ("abc", vec![usize::MAX..usize::MAX]),
    ] {
        let error = TOKENIZER.encode(text, false, &literals).expect_err("a refusal");
        assert!(matches!(error, EncodeError::Literal { .. }), "{text} {literals:?}: {error}");
    }
}

#[test]
fn normalised_tokens_are_text_too() {
    let mut json = byte_level().json();
    json["added_tokens"][2]["normalized"] = true.into();
    json["normalizer"] = serde_json::json!({"type": "Sequence", "normalizers": [
        {"type": "Prepend", "prepend": "x"}, {"type": "Lowercase"}]});
    json["added_tokens"][2]["content"] = "Think".into();
    let tokenizer = Tokenizer::from_json(&json.to_string(), &TokenizerConfig::default()).expect("a tokenizer");
    let think = byte_level().id("<think>");
    // The normalised text of the token has an x before it.
    let count = |text: &str, literals: &[Range<usize>]| {
        let ids = tokenizer.encode(text, false, literals).expect("tokens");
        ids.iter().filter(|id| **id == think).count()
    };
    assert_eq!(count("THINK and XThink", &[]), 2);
    assert_eq!(count("THINK and XThink", &[10..16]), 1);
    assert_eq!(count("THINK and XThink", &[0..1, 15..16]), 0);
}

proptest! {
    #[test]
    fn no_added_token_lies_in_a_literal_range(
        parts in prop::collection::vec((any::<bool>(), prop::sample::select(vec![
            "<|end|>", "<think>", "<|", "|>", "end", "text ", "é", "<|begin|>", "\n",
        ])), 0..20),
    ) {
        let mut text = String::new();
        let mut literals = Vec::new();
        let mut outside = 0;
        for (literal, part) in parts {
            if literal {
                literals.push(text.len()..text.len() + part.len());
            }
            text.push_str(part);
        }
        let mut start = 0;
        for range in literals.iter().cloned().chain([text.len()..text.len()]) {
            outside += added(&encode(&text[start..range.start], &[])).len();
            start = range.end;
        }
        let ids = encode(&text, &literals);
        prop_assert_eq!(added(&ids).len(), outside);
        prop_assert_eq!(TOKENIZER.decode(&ids, Special::Shown).expect("known ids"), text);
    }
}
