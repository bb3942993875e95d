//! Chat templates and special tokens of files that are whole, broken, or lie about themselves.

use crate::{Conversation, LONGEST_TEMPLATE, MOST_READ, SpecialTokens};
use std::fs::File;
use std::io::Write;
use std::os::unix::fs::FileExt;

const TEMPLATE: &str = "tokenizer.chat_template";
const TOKENS: &str = "tokenizer.ggml.tokens";
const TYPES: &str = "tokenizer.ggml.token_type";

fn string(text: &[u8]) -> Vec<u8> {
    [&(text.len() as u64).to_le_bytes(), text].concat()
}

fn value(key: &str, kind: u32, bytes: &[u8]) -> Vec<u8> {
    [string(key.as_bytes()), kind.to_le_bytes().to_vec(), bytes.to_vec()].concat()
}

fn text(key: &str, text: &str) -> Vec<u8> {
    value(key, 8, &string(text.as_bytes()))
}

fn array(key: &str, kind: u32, count: u64, elements: &[u8]) -> Vec<u8> {
    value(key, 9, &[&kind.to_le_bytes()[..], &count.to_le_bytes(), elements].concat())
}

fn texts(key: &str, texts: &[&str]) -> Vec<u8> {
    array(key, 8, texts.len() as u64, &texts.iter().flat_map(|text| string(text.as_bytes())).collect::<Vec<_>>())
}

fn numbers(key: &str, numbers: &[i32]) -> Vec<u8> {
    array(key, 5, numbers.len() as u64, &numbers.iter().flat_map(|number| number.to_le_bytes()).collect::<Vec<_>>())
}

fn bytes(values: &[Vec<u8>]) -> Vec<u8> {
    let mut file = b"GGUF".to_vec();
    file.extend(3_u32.to_le_bytes());
    file.extend(0_u64.to_le_bytes());
    file.extend((values.len() as u64).to_le_bytes());
    file.extend(values.concat());
    file
}

fn file(bytes: &[u8]) -> File {
    let mut file = tempfile::tempfile().unwrap();
    file.write_all(bytes).unwrap();
    file
}

fn read(values: &[Vec<u8>]) -> Result<Conversation, String> {
    Conversation::read(&file(&bytes(values))).map_err(|defect| defect.to_string())
}

fn check_refused(values: &[Vec<u8>], reason: &str) {
    let found = read(values).unwrap_err();
    assert!(found.contains(reason), "{found} is not: {reason}");
    assert!(found.len() < 500, "{} bytes", found.len());
}

#[test]
fn a_template_is_found_behind_a_large_vocabulary() {
    let words: Vec<String> = (0..200_000).map(|number| format!("word-{number}")).collect();
    let mut words: Vec<&str> = words.iter().map(String::as_str).collect();
    (words[7], words[199_999], words[5]) = ("<s>", "</s>", "<pad>");
    let mut types = vec![1; words.len()];
    types[199_999] = 3;
    let values = [
        text("general.architecture", "llama"),
        texts(TOKENS, &words),
        array("tokenizer.ggml.scores", 6, words.len() as u64, &vec![0; 4 * words.len()]),
        numbers(TYPES, &types),
        texts("tokenizer.ggml.merges", &words),
        value("tokenizer.ggml.bos_token_id", 4, &7_u32.to_le_bytes()),
        value("tokenizer.ggml.eos_token_id", 10, &199_999_u64.to_le_bytes()),
        value("tokenizer.ggml.padding_token_id", 4, &5_u32.to_le_bytes()),
        value("tokenizer.ggml.unknown_token_id", 5, &(-1_i32).to_le_bytes()),
        text(TEMPLATE, "{{ bos_token }}"),
    ];
    let Conversation { template, tokens } = read(&values).unwrap();
    assert_eq!(template.as_deref(), Some("{{ bos_token }}"));
    assert_eq!(
        tokens.named,
        [("pad_token", "<pad>".to_owned()), ("bos_token", "<s>".to_owned()), ("eos_token", "</s>".to_owned())]
    );
    assert_eq!(tokens.control, [(7, "<s>".to_owned()), (199_999, "</s>".to_owned())]);
}

#[test]
fn a_file_may_have_no_template_and_no_vocabulary() {
    let expected = |template: Option<&str>| Conversation {
        template: template.map(str::to_owned),
        tokens: SpecialTokens::default(),
    };
    assert_eq!(read(&[]), Ok(expected(None)));
    assert_eq!(read(&[text("general.name", "x"), text(TEMPLATE, "t")]), Ok(expected(Some("t"))));
    let tokens = read(&[texts(TOKENS, &["<s>"]), numbers(TYPES, &[3])]).unwrap();
    assert_eq!((tokens.template, tokens.tokens.control), (None, vec![(0, "<s>".to_owned())]));
}

#[test]
fn special_tokens_are_those_of_a_tokenizer_configuration() {
    let named = vec![("bos_token", "<s>".to_owned())];
    let tokens = SpecialTokens { named, control: vec![(7, "<|\"|>".to_owned())] };
    let expected = r#"{"added_tokens_decoder":{"7":{"content":"<|\"|>","special":true}},"bos_token":"<s>"}"#;
    assert_eq!(tokens.configuration(), expected);
}

#[test]
fn a_file_that_is_cut_anywhere_is_refused() {
    let values = [
        texts(TOKENS, &["<s>", "a"]),
        numbers(TYPES, &[3, 1]),
        value("tokenizer.ggml.bos_token_id", 4, &0_u32.to_le_bytes()),
        text(TEMPLATE, "template"),
    ];
    let whole = bytes(&values);
    assert!(Conversation::read(&file(&whole)).unwrap().template.is_some());
    for length in 0..whole.len() {
        let reason = Conversation::read(&file(&whole[..length])).unwrap_err().to_string();
        let expected = if length < 4 { "is not a GGUF file" } else { "is cut short: " };
        assert!(reason.starts_with(expected), "{length}: {reason}");
    }
}

#[test]
fn lengths_and_counts_beyond_the_file_take_no_memory() {
    let huge = u64::MAX.to_le_bytes();
    let of_key = |key: &[u8]| [&(u64::MAX >> 1).to_le_bytes()[..], key].concat();
    check_refused(
        &[of_key(b"key")],
        "is cut short: the key of value 0 of the metadata should have 9223372036854775807",
    );
    check_refused(&[value("a", 8, &huge)], "is cut short: the value of key \"a\"");
    check_refused(&[value(TEMPLATE, 8, &huge)], "is cut short: the value of key \"tokenizer.chat_template\"");
    for kind in [0, 6, 8, 10] {
        check_refused(&[array("a", kind, u64::MAX, b"few")], "is cut short: the value of key \"a\"");
    }
    let mut many = bytes(&[]);
    many[16..24].copy_from_slice(&huge);
    let reason = Conversation::read(&file(&many)).unwrap_err().to_string();
    assert!(reason.contains("says that it has 18446744073709551615 values of metadata, more than 65536"), "{reason}");
    let key = "k".repeat(1 << 16);
    check_refused(&[text(&key, "")], "has 65536 bytes in the key of value 0 of the metadata, more than 65535");
    let template = "t".repeat(usize::try_from(LONGEST_TEMPLATE).unwrap() + 1);
    check_refused(&[text(TEMPLATE, &template)], "has a value of \"tokenizer.chat_template\" that has 1048577 bytes");
    assert!(read(&[text(TEMPLATE, &template[1..])]).unwrap().template.is_some());
}

#[test]
fn values_of_wrong_types_are_refused_by_their_keys() {
    let template = text(TEMPLATE, "t");
    let with = |value: Vec<u8>| [template.clone(), texts(TOKENS, &["a"]), value];
    check_refused(&[value(TEMPLATE, 4, &[0; 4])], "has a value of \"tokenizer.chat_template\" that is not a text");
    check_refused(&[texts(TEMPLATE, &["t"])], "has a value of \"tokenizer.chat_template\" that is not a text");
    check_refused(&[value(TEMPLATE, 8, &string(b"\xff"))], "holds bytes that are not UTF-8 in the value of key");
    check_refused(&[template.clone(), text(TOKENS, "a")], "\"tokenizer.ggml.tokens\" that is not an array of texts");
    check_refused(
        &[template.clone(), numbers(TOKENS, &[1])],
        "\"tokenizer.ggml.tokens\" that is not an array of texts",
    );
    check_refused(&with(texts(TYPES, &["a"])), "\"tokenizer.ggml.token_type\" that is not an array of whole numbers");
    check_refused(
        &with(value(TYPES, 4, &[0; 4])),
        "\"tokenizer.ggml.token_type\" that is not an array of whole numbers",
    );
    let id = "tokenizer.ggml.bos_token_id";
    check_refused(&with(text(id, "a")), "\"tokenizer.ggml.bos_token_id\" that is not a whole number");
    check_refused(&with(numbers(id, &[1])), "\"tokenizer.ggml.bos_token_id\" that is not a whole number");
    check_refused(&[template.clone(), template.clone()], "has the key \"tokenizer.chat_template\" twice");
    check_refused(&[array("nested", 9, 1, &[0; 64])], "has arrays of arrays in the value of key \"nested\"");
    check_refused(&[value("odd", 99, &[0; 8])], "has the unknown type 99 in the value of key \"odd\"");
    let id = read(&with(value(id, 10, &u64::MAX.to_le_bytes()))).unwrap();
    assert_eq!(id.tokens, SpecialTokens::default(), "an id beyond the vocabulary is that of no token");
}

#[test]
fn other_formats_and_versions_are_refused() {
    for (version, reason) in
        [(1_u32, "is a GGUF file of version 1"), (3_u32.swap_bytes(), "of a big-endian machine"), (4, "of version 4")]
    {
        let mut bytes = bytes(&[]);
        bytes[4..8].copy_from_slice(&version.to_le_bytes());
        let found = Conversation::read(&file(&bytes)).unwrap_err().to_string();
        assert!(found.contains(reason), "{found}");
    }
    let found = Conversation::read(&file(b"PK\x03\x04")).unwrap_err().to_string();
    assert_eq!(found, "is not a GGUF file: it does not begin with \"GGUF\"");
}

#[test]
fn control_tokens_are_bounded() {
    let all = vec!["<x>"; 40_000];
    let values = [text(TEMPLATE, "t"), texts(TOKENS, &all), numbers(TYPES, &vec![3; all.len()])];
    check_refused(&values, "has more than 32768 control tokens");
    let long = "x".repeat(5000);
    let values = [text(TEMPLATE, "t"), texts(TOKENS, &[&long]), numbers(TYPES, &[3])];
    check_refused(&values, "has 5000 bytes in token 0 of key \"tokenizer.ggml.tokens\", more than 4096");
}

/// A sparse file of sixteen GiB: what is passed over is not read, and the pieces between are bounded.
#[test]
fn the_bytes_that_are_read_are_bounded() {
    let (length, count) = (1_u64 << 24, 1_u64 << 10);
    let sparse = tempfile::tempfile().unwrap();
    let head = bytes(&[array("texts", 8, count + 1, b"")]);
    sparse.write_all_at(&head, 0).unwrap();
    let mut at = head.len() as u64;
    for _ in 0..count {
        sparse.write_all_at(&length.to_le_bytes(), at).unwrap();
        at += 8 + length;
    }
    sparse.set_len(at + 8 + length).unwrap();
    let found = Conversation::read(&sparse).unwrap_err().to_string();
    assert!(found.contains(&format!("more than {MOST_READ} bytes up to the value of key \"texts\"")), "{found}");

    // Numbers are passed over at once.
    let sparse = tempfile::tempfile().unwrap();
    let head = bytes(&[array("numbers", 10, 1 << 30, b""), Vec::new()]);
    sparse.write_all_at(&head, 0).unwrap();
    let at = head.len() as u64 + (8 << 30);
    sparse.write_all_at(&text(TEMPLATE, "t"), at).unwrap();
    assert_eq!(Conversation::read(&sparse).unwrap().template.as_deref(), Some("t"));
}
