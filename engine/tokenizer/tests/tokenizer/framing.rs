//! Tokens that begin and end texts.

use crate::vocabularies::{byte_level, read, sentence_pieces, word_piece};
use omni_tokenizer::{Tokenizer, TokenizerConfig};

#[test]
fn a_token_of_the_begin_is_added_by_the_file_and_not_twice() {
    let fixture = byte_level();
    let (bos, eos) = (fixture.id("<|begin|>"), fixture.id("<|end|>"));
    let ids = |tokenizer: &Tokenizer, text: &str, framed: bool| tokenizer.encode(text, framed, &[]).expect("tokens");
    let plain = fixture.tokenizer();
    assert_eq!(ids(&plain, "", true), [0_u32; 0]);
    let mut writer = fixture.gguf("gpt-2");
    let added = read(writer.bool("tokenizer.ggml.add_bos_token", true)).expect("a tokenizer");
    assert_eq!(ids(&added, "", true), [bos]);
    assert_eq!(ids(&added, "a", true)[0], bos);
    assert_ne!(ids(&added, "a", false)[0], bos);
    // A rendered template has it already, a client's own text of it stays text.
    assert_eq!(ids(&added, "<|begin|>a", true), ids(&added, "<|begin|>a", false));
    let literal = added.encode("<|begin|>a", true, &[0..9]).expect("tokens");
    assert_eq!((literal[0], literal[1] == bos), (bos, false));
    let both = read(writer.bool("tokenizer.ggml.add_eos_token", true)).expect("a tokenizer");
    assert_eq!(ids(&both, "", true), [bos, eos]);
    // Llama 3 adds it where the file does not say.
    assert_eq!(ids(&read(&fixture.gguf("llama-bpe")).expect("a tokenizer"), "", true), [bos]);
    assert_eq!(ids(&read(&sentence_pieces().cases["with_space"].gguf(true)).expect("a tokenizer"), "", true), [1]);
    assert_eq!(ids(&read(&word_piece().gguf()).expect("a tokenizer"), "", true), [2, 3]);
}

#[test]
fn further_files_decide_over_tokenizer_json() {
    let fixture = byte_level();
    let (bos, eos) = (fixture.id("<|begin|>"), fixture.id("<|end|>"));
    let ids = |tokenizer_config: &str| {
        let config = TokenizerConfig::read(Some(tokenizer_config), None, None).expect("a configuration");
        let tokenizer = Tokenizer::from_json(&fixture.json().to_string(), &config).expect("a tokenizer");
        tokenizer.encode("", true, &[]).expect("tokens")
    };
    assert_eq!(ids("{}"), [bos]);
    assert_eq!(ids(r#"{"add_bos_token": false, "bos_token": "<|begin|>"}"#), [0_u32; 0]);
    assert_eq!(ids(r#"{"add_bos_token": true, "bos_token": {"content": "<|begin|>", "lstrip": false}}"#), [bos]);
    assert_eq!(ids(r#"{"add_eos_token": true, "bos_token": null, "eos_token": "<|end|>"}"#), [bos, eos]);
}

#[test]
fn several_tokens_end_a_text() {
    let fixture = byte_level();
    let eos = fixture.id("<|end|>");
    let config = TokenizerConfig::read(
        Some(r#"{"eos_token": "<|end|>"}"#),
        Some(r#"{"eos_token_id": [3, 1, 3]}"#),
        Some(r#"{"eos_token_id": 2, "text_config": {"eos_token_id": 5}}"#),
    )
    .expect("a configuration");
    let tokenizer = Tokenizer::from_json(&fixture.json().to_string(), &config).expect("a tokenizer");
    assert_eq!(tokenizer.end_tokens(), [1, 2, 3, 5, eos]);
    assert!(tokenizer.is_end(5) && tokenizer.is_end(eos) && !tokenizer.is_end(4));
    let mut writer = fixture.gguf("gpt-2");
    writer.u32("tokenizer.ggml.eot_token_id", 7).u32("tokenizer.ggml.eom_token_id", 9);
    assert_eq!(read(&writer).expect("a tokenizer").end_tokens(), [7, 9, eos]);
    let mut named = fixture.clone();
    let begin = fixture.id("<|begin|>");
    named.tokens[begin as usize] = "<|im_end|>".to_owned();
    let mut writer = named.gguf_without_ids();
    writer.u32("tokenizer.ggml.eos_token_id", eos);
    assert_eq!(read(&writer).expect("a tokenizer").end_tokens(), [begin, eos]);
}

#[test]
fn end_tokens_that_are_no_tokens_are_refused() {
    let config = TokenizerConfig { end: vec![1 << 21], ..TokenizerConfig::default() };
    let error = Tokenizer::from_json(&byte_level().json().to_string(), &config).expect_err("a refusal");
    assert_eq!(error.to_string(), "special tokens: token id 2097152 is not in the vocabulary");
    for text in ["[]", "7", r#"{"eos_token_id": "x"}"#, r#"{"eos_token_id": -1}"#] {
        let error = TokenizerConfig::read(None, Some(text), None).expect_err("a refusal").to_string();
        assert!(error.starts_with("generation_config.json is not understood"), "{error}");
    }
}
