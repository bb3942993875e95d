//! Vocabularies that contradict themselves: a sentence comes out, or a tokenizer that works; never a panic.

use crate::vocabularies::{byte_level, read, sentence_pieces, word_piece};
use omni_checkpoint::testing::GgufWriter;
use omni_tokenizer::{Special, Tokenizer, TokenizerConfig};
use proptest::prelude::*;
use serde_json::{Value, json};

fn refusal(json: &Value) -> String {
    Tokenizer::from_json(&json.to_string(), &TokenizerConfig::default()).expect_err("a refusal").to_string()
}

#[test]
fn parts_of_tokenizer_json_that_are_not_supported_are_named() {
    for (pointer, value, words) in [
        ("/model/type", json!("Unigram"), "model Unigram is not supported; supported are: BPE, WordPiece"),
        ("/model/merges/0", json!(["zz", "yy"]), r#"merges: number 0 needs the token "zz""#),
        ("/model/merges/0", json!("xyz"), r#"merges: "xyz" is no pair"#),
        ("/model/merges/0", json!(["!", "Ġ"]), "which is missing"),
        ("/model/merges", json!(7), "tokenizer.json is not understood"),
        ("/model/vocab/!", json!(u32::MAX), "has the id 4294967295, beyond"),
        ("/model/vocab/!", json!(-1), "tokenizer.json is not understood"),
        ("/model/vocab/!", json!(4_000_000), "vocabulary: a token has the id 4000000, and there are"),
        ("/model/vocab", json!({}), "vocabulary: it is empty"),
        ("/model/unk_token", json!("nothing"), r#"unknown token: "nothing" is not in the vocabulary"#),
        ("/model/continuing_subword_prefix", json!("##"), "continuing_subword_prefix: it is not supported"),
        ("/model/dropout", json!(0.5), "dropout: it is not supported"),
        ("/added_tokens/0/id", json!(1_u64 << 31), "added_tokens: a token has the id 2147483648"),
        ("/added_tokens/0/id", json!(5), "added_tokens: token 5 is the control token \"<|begin|>\", and"),
        ("/added_tokens/0/content", json!(""), "added_tokens: the text of token"),
        ("/normalizer", json!({"type": "Precompiled", "precompiled_charsmap": ""}), "normalizer Precompiled"),
        ("/normalizer", json!({"type": "Prepend", "prepend": "x".repeat(17)}), "normalizer: a text of 17 bytes"),
        ("/normalizer", json!({"type": "Replace", "pattern": {"String": ""}, "content": "x"}), "an empty text"),
        ("/normalizer", json!({"type": "Sequence", "normalizers": vec![json!({"type": "NFC"}); 65]}), "65 components"),
        ("/normalizer", json!({"type": "Replace", "pattern": {"Regex": "("}, "content": "x"}), "not understood"),
        ("/pre_tokenizer", json!({"type": "FixedLength", "length": 0}), "pre_tokenizer FixedLength"),
        ("/pre_tokenizer", json!({}), "pre_tokenizer: it has no type"),
        ("/post_processor", json!({"type": "Other"}), "post_processor Other is not supported"),
        (
            "/post_processor/processors/1/special_tokens",
            json!({}),
            "post_processor: a token of the template has no ids",
        ),
        ("/post_processor/processors/1/single", json!([]), "the template has no place for the text"),
        ("/decoder", json!(null), "decoder null is not supported"),
        ("/decoder", json!({"type": "CTC"}), "decoder CTC is not supported"),
        (
            "/decoder",
            json!({"type": "Sequence", "decoders": [{"type": "ByteLevel"}, {"type": "ByteFallback"}]}),
            "decoder a mixture of decoders",
        ),
    ] {
        let mut json = byte_level().json();
        *json.pointer_mut(pointer).expect("a part of the fixture") = value;
        let message = refusal(&json);
        assert!(message.contains(words), "{pointer}: {message}");
    }
    let mut words = word_piece().tokenizer;
    words["model"]["max_input_chars_per_word"] = json!(1_000_000);
    assert!(refusal(&words).contains("max_input_chars_per_word: it is 1000000, above 1000"));
    for text in ["", "{}", "null", "[1]", "{\"model\": {}}", &"[".repeat(1_000_000)] {
        assert!(Tokenizer::from_json(text, &TokenizerConfig::default()).is_err());
    }
}

#[test]
fn vocabularies_of_gguf_that_are_not_supported_are_named() {
    let bytes = byte_level();
    let refusal = |writer: &GgufWriter| read(writer).expect_err("a refusal").to_string();
    let message = refusal(&bytes.gguf("tekken"));
    assert!(
        message.starts_with("tokenizer.ggml.pre tekken is not supported; supported are: default, gpt-2"),
        "{message}"
    );
    let message = refusal(GgufWriter::new().text("tokenizer.ggml.model", "t5").texts("tokenizer.ggml.tokens", &["a"]));
    assert_eq!(message, "tokenizer.ggml.model t5 is not supported; supported are: gpt2, llama, bert");
    assert!(refusal(&GgufWriter::new()).contains("tokenizer.ggml.model: it is absent"));
    let mut short = bytes.clone();
    short.types.pop();
    assert!(refusal(&short.gguf("gpt-2")).contains("tokenizer.ggml.token_type: there are"));
    let mut merges = bytes.clone();
    merges.merges.push("zzz".to_owned());
    assert!(refusal(&merges.gguf("gpt-2")).contains("\"zzz\" is no pair"));
    merges.merges.pop();
    merges.merges.push("! !!!!".to_owned());
    assert!(refusal(&merges.gguf("gpt-2")).contains("which is missing"));
    let mut ids = bytes.gguf_without_ids();
    assert!(refusal(ids.u32("tokenizer.ggml.eos_token_id", 1 << 20)).contains("special tokens: token id 1048576"));
    let mut wrong = bytes.gguf_without_ids();
    assert!(refusal(wrong.text("tokenizer.ggml.bos_token_id", "x")).contains("tokenizer.ggml.bos_token_id"));
    let pieces = sentence_pieces();
    let mut pieces = pieces.cases["with_space"].clone();
    pieces.tokens[600] = "x".repeat(1025);
    assert!(refusal(&pieces.gguf(true)).contains("has more than 1024 bytes"));
    let mut runs = pieces.clone();
    for (length, token) in (1..).zip(&mut runs.tokens[260..600]) {
        *token = "x".repeat(length);
    }
    runs.tokens[600] = "x".to_owned();
    let message = refusal(&runs.gguf(true));
    assert!(message.contains("the merges of the first") && message.contains("bytes, more than"), "{message}");
    pieces.scores.clear();
    pieces.tokens[600] = "x".to_owned();
    assert!(refusal(&pieces.gguf(true)).contains("tokenizer.ggml.scores"));
}

/// A line's end in a foreign text would end the line of a log.
#[test]
fn foreign_texts_in_messages_are_short_and_of_one_line() {
    let long = "a\n\u{1b}[2J".repeat(1000);
    for pointer in ["/model/type", "/normalizer/type", "/pre_tokenizer/type", "/post_processor/type", "/decoder/type"] {
        let mut json = byte_level().json();
        let (parent, name) = pointer.rsplit_once('/').expect("a path");
        json.pointer_mut(parent).expect("a part of the fixture")[name] = json!(long);
        let message = refusal(&json);
        assert!(message.len() < 500 && !message.contains(char::is_control), "{pointer}: {message:?}");
    }
    let config = json!({"bos_token": {"content": [long]}, "add_bos_token": long}).to_string();
    let message = TokenizerConfig::read(Some(&config), None, None).expect_err("a refusal").to_string();
    assert!(message.len() < 500 && !message.contains(char::is_control), "{message:?}");
}

/// Tokens of the begin and the end are control tokens even where their types are those of words.
#[test]
fn text_does_not_become_a_framing_token() {
    let mut pieces = sentence_pieces().cases["with_space"].clone();
    for (id, text) in [(600, "<s"), (601, "<"), (602, "s"), (603, ">")] {
        pieces.tokens[id] = text.to_owned();
        pieces.types[id] = 1;
    }
    pieces.types[1] = 1;
    let tokenizer = read(&pieces.gguf(true)).expect("a tokenizer");
    assert!(tokenizer.is_special(1));
    let ids = |literal: &[std::ops::Range<usize>]| tokenizer.encode("<s>", false, literal).expect("tokens");
    assert!(ids(&[]).contains(&1));
    assert!(!ids(&[0..3]).contains(&1), "{:?}", ids(&[0..3]));
}

/// Scores that are no numbers order merges somehow.
#[test]
fn scores_that_are_no_numbers_do_no_harm() {
    let mut pieces = sentence_pieces().cases["with_space"].clone();
    for (at, score) in pieces.scores.iter_mut().enumerate() {
        *score = [f32::NAN, f32::INFINITY, -0.0, f32::NEG_INFINITY][at % 4];
    }
    let tokenizer = read(&pieces.gguf(true)).expect("a tokenizer");
    let ids = tokenizer.encode("the quick brown fox", false, &[]).expect("tokens");
    assert_eq!(tokenizer.decode(&ids, Special::Hidden).expect("known ids"), "the quick brown fox");
}

/// Paths of all parts of a value but the many tokens and merges, of which a few stand for all.
fn pointers(value: &Value, at: &str, found: &mut Vec<String>) {
    found.push(at.to_owned());
    match value {
        Value::Object(fields) => {
            for (name, value) in fields.iter().take(12) {
                pointers(value, &format!("{at}/{}", name.replace('~', "~0").replace('/', "~1")), found);
            }
        }
        Value::Array(items) => {
            for (number, value) in items.iter().take(6).enumerate() {
                pointers(value, &format!("{at}/{number}"), found);
            }
        }
        _ => {}
    }
}

fn value() -> impl Strategy<Value = Value> {
    prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        (0_u64..1000).prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        any::<f64>().prop_map(Value::from),
        prop::sample::select(vec![
            "",
            "a",
            "ĠĠ",
            "BPE",
            "WordPiece",
            "ByteLevel",
            "Metaspace",
            "Sequence",
            "Split",
            "Replace",
            "Digits",
            "BertPreTokenizer",
            "Whitespace",
            "Punctuation",
            "Strip",
            "ByteFallback",
            "Fuse",
            "Isolated",
            "Removed",
            "MergedWithNext",
            "a*",
            "(a+)+$",
            "\\s*",
            "(?=x)",
            "^",
            "$",
            "▁",
            "##",
            "[UNK]",
            "first",
            "never",
        ])
        .prop_map(Value::from),
        Just(json!([])),
        Just(json!({})),
        Just(json!({"Regex": "a*"})),
        Just(json!({"String": " "})),
        Just(json!({"type": "Split", "pattern": {"Regex": "x*"}, "behavior": "Contiguous", "invert": true})),
        Just(json!({"type": "Metaspace", "replacement": "▁", "prepend_scheme": "first", "split": true})),
        Just(json!({"type": "Replace", "pattern": {"Regex": "\\b"}, "content": "é"})),
        Just(json!({"type": "Replace", "pattern": {"Regex": "(a|aa)+b"}, "content": ""})),
        Just(json!({"type": "Strip", "strip_left": true, "strip_right": true})),
        Just(json!({"type": "Punctuation", "behavior": "MergedWithPrevious"})),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, ..ProptestConfig::default() })]

    #[test]
    fn changed_files_are_read_or_refused(
        words in any::<bool>(),
        changes in prop::collection::vec((any::<prop::sample::Index>(), value()), 1..4),
        text in "[ -~é🙂\\n]{0,60}",
    ) {
        let mut json = if words { word_piece().tokenizer } else { byte_level().json() };
        for (at, value) in changes {
            let mut found = Vec::new();
            pointers(&json, "", &mut found);
            if let Some(part) = json.pointer_mut(&found[at.index(found.len())]) {
                *part = value;
            }
        }
        if let Ok(tokenizer) = Tokenizer::from_json(&json.to_string(), &TokenizerConfig::default())
            && let Ok(ids) = tokenizer.encode(&text, true, &[])
        {
            let _ = tokenizer.decode(&ids, Special::Shown);
        }
    }

    #[test]
    fn cut_files_are_refused(part in 0.0..1.0_f64) {
        let text = byte_level().json().to_string();
        let mut end = (text.len() as f64 * part) as usize;
        while !text.is_char_boundary(end) {
            end -= 1;
        }
        prop_assert!(Tokenizer::from_json(&text[..end], &TokenizerConfig::default()).is_err());
    }
}
