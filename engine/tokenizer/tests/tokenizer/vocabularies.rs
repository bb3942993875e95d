//! Small vocabularies of the fixtures, as GGUF files and as `tokenizer.json`.

use omni_checkpoint::Checkpoint;
use omni_checkpoint::testing::{GgufType, GgufWriter};
use omni_tokenizer::{Tokenizer, TokenizerError};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use std::collections::BTreeMap;

#[derive(Deserialize, Clone)]
pub(crate) struct ByteLevel {
    pub(crate) tokens: Vec<String>,
    pub(crate) types: Vec<i32>,
    pub(crate) merges: Vec<String>,
    pub(crate) texts: Vec<String>,
    pub(crate) cases: BTreeMap<String, Vec<Vec<u32>>>,
}

#[derive(Deserialize)]
pub(crate) struct SentencePieces {
    pub(crate) texts: Vec<String>,
    pub(crate) cases: BTreeMap<String, SentencePiece>,
}

#[derive(Deserialize, Clone)]
pub(crate) struct SentencePiece {
    pub(crate) tokens: Vec<String>,
    pub(crate) scores: Vec<f32>,
    pub(crate) types: Vec<i32>,
    pub(crate) ids: Vec<Vec<u32>>,
    pub(crate) decoded: Vec<String>,
}

#[derive(Deserialize)]
pub(crate) struct WordPiece {
    pub(crate) tokenizer: serde_json::Value,
    pub(crate) texts: Vec<String>,
    pub(crate) ids: Vec<Vec<u32>>,
    pub(crate) decoded: Vec<String>,
}

fn fixture<T: DeserializeOwned>(text: &str) -> T {
    serde_json::from_str(text).expect("the form of a fixture")
}

pub(crate) fn byte_level() -> ByteLevel {
    fixture(include_str!("../fixtures/byte_level.json"))
}

pub(crate) fn sentence_pieces() -> SentencePieces {
    fixture(include_str!("../fixtures/sentencepiece.json"))
}

pub(crate) fn word_piece() -> WordPiece {
    fixture(include_str!("../fixtures/wordpiece.json"))
}

/// Reads the vocabulary of a GGUF file with these values.
pub(crate) fn read(writer: &GgufWriter) -> Result<Tokenizer, TokenizerError> {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("model.gguf");
    let mut writer = writer.clone();
    writer.tensor("token_embd.weight", &[1, 32], GgufType::F32, &[0.0; 32]).write(&path).expect("a file");
    let checkpoint = Checkpoint::open(&path).expect("a checkpoint");
    Tokenizer::from_gguf(checkpoint.gguf().expect("GGUF"))
}

fn texts(texts: &[String]) -> Vec<&str> {
    texts.iter().map(String::as_str).collect()
}

impl ByteLevel {
    /// Values of a GGUF file with this pre-tokeniser.
    pub(crate) fn gguf(&self, pre: &str) -> GgufWriter {
        let mut writer = self.gguf_without_ids();
        writer
            .text("tokenizer.ggml.pre", pre)
            .u32("tokenizer.ggml.bos_token_id", self.id("<|begin|>"))
            .u32("tokenizer.ggml.eos_token_id", self.id("<|end|>"));
        writer
    }

    /// Values of a GGUF file that names neither a pre-tokeniser nor ids.
    pub(crate) fn gguf_without_ids(&self) -> GgufWriter {
        let mut writer = GgufWriter::new();
        writer
            .text("tokenizer.ggml.model", "gpt2")
            .texts("tokenizer.ggml.tokens", &texts(&self.tokens))
            .i32s("tokenizer.ggml.token_type", &self.types)
            .texts("tokenizer.ggml.merges", &texts(&self.merges));
        writer
    }

    pub(crate) fn id(&self, text: &str) -> u32 {
        self.tokens.iter().position(|token| token == text).expect("a token of the fixture") as u32
    }

    pub(crate) fn tokenizer(&self) -> Tokenizer {
        read(&self.gguf("gpt-2")).expect("a tokenizer")
    }

    /// The same vocabulary as `tokenizer.json`, with the pattern of Llama 3.
    pub(crate) fn json(&self) -> serde_json::Value {
        const PATTERN: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
        let added = |text: &str, special: bool| {
            serde_json::json!({"id": self.id(text), "content": text, "special": special, "normalized": false,
                "single_word": false, "lstrip": false, "rstrip": false})
        };
        let vocabulary: BTreeMap<&str, usize> = self
            .tokens
            .iter()
            .enumerate()
            .filter(|(id, _)| self.types[*id] == 1)
            .map(|(id, text)| (text.as_str(), id))
            .collect();
        serde_json::json!({
            "version": "1.0",
            "added_tokens": [added("<|begin|>", true), added("<|end|>", true), added("<think>", false)],
            "normalizer": null,
            "pre_tokenizer": {"type": "Sequence", "pretokenizers": [
                {"type": "Split", "pattern": {"Regex": PATTERN}, "behavior": "Isolated", "invert": false},
                {"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": false},
            ]},
            "post_processor": {"type": "Sequence", "processors": [
                {"type": "ByteLevel", "add_prefix_space": true, "trim_offsets": false, "use_regex": true},
                {"type": "TemplateProcessing",
                    "single": [{"SpecialToken": {"id": "<|begin|>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
                    "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 0}}],
                    "special_tokens": {"<|begin|>": {"id": "<|begin|>", "ids": [self.id("<|begin|>")], "tokens": ["<|begin|>"]}}},
            ]},
            "decoder": {"type": "ByteLevel", "add_prefix_space": true, "trim_offsets": true, "use_regex": true},
            "model": {"type": "BPE", "dropout": null, "unk_token": null, "continuing_subword_prefix": null,
                "end_of_word_suffix": null, "fuse_unk": false, "byte_fallback": false, "ignore_merges": true,
                "vocab": vocabulary, "merges": self.merges},
        })
    }
}

impl SentencePiece {
    /// Values of a GGUF file.
    pub(crate) fn gguf(&self, add_space_prefix: bool) -> GgufWriter {
        let mut writer = GgufWriter::new();
        writer
            .text("tokenizer.ggml.model", "llama")
            .texts("tokenizer.ggml.tokens", &texts(&self.tokens))
            .f32s("tokenizer.ggml.scores", &self.scores)
            .i32s("tokenizer.ggml.token_type", &self.types)
            .u32("tokenizer.ggml.bos_token_id", 1)
            .u32("tokenizer.ggml.eos_token_id", 2)
            .u32("tokenizer.ggml.unknown_token_id", 0)
            .bool("tokenizer.ggml.add_space_prefix", add_space_prefix);
        writer
    }
}

impl WordPiece {
    /// Values of a GGUF file, its tokens as converters write them.
    pub(crate) fn gguf(&self) -> GgufWriter {
        let vocabulary = self.tokenizer["model"]["vocab"].as_object().expect("a vocabulary");
        let mut tokens: Vec<(&str, u64)> =
            vocabulary.iter().map(|(text, id)| (text.as_str(), id.as_u64().expect("an id"))).collect();
        tokens.sort_by_key(|(_, id)| *id);
        let written = |(text, _): &(&str, u64)| match text.strip_prefix("##") {
            Some(rest) => rest.to_owned(),
            None if text.starts_with('[') && text.len() > 1 => (*text).to_owned(),
            None => format!("▁{text}"),
        };
        let types: Vec<i32> =
            tokens.iter().map(|(text, _)| if text.starts_with('[') && text.len() > 1 { 3 } else { 1 }).collect();
        let mut writer = GgufWriter::new();
        writer
            .text("tokenizer.ggml.model", "bert")
            .texts("tokenizer.ggml.tokens", &texts(&tokens.iter().map(written).collect::<Vec<_>>()))
            .i32s("tokenizer.ggml.token_type", &types)
            .u32("tokenizer.ggml.bos_token_id", 2)
            .u32("tokenizer.ggml.seperator_token_id", 3)
            .u32("tokenizer.ggml.unknown_token_id", 1);
        writer
    }
}
