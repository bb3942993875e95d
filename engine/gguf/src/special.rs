//! Special tokens as a `tokenizer_config.json` has them.

use serde_json::{Map, Value, json};

/// Tokens that a `tokenizer_config.json` names, with the key of each in a GGUF file.
pub const NAMED: [(&str, &str); 4] = [
    ("bos_token", "tokenizer.ggml.bos_token_id"),
    ("eos_token", "tokenizer.ggml.eos_token_id"),
    ("unk_token", "tokenizer.ggml.unknown_token_id"),
    ("pad_token", "tokenizer.ggml.padding_token_id"),
];

/// Special tokens of a vocabulary.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct SpecialTokens {
    /// Texts by the names of [`NAMED`].
    pub named: Vec<(&'static str, String)>,
    /// Control tokens: id and text.
    pub control: Vec<(u32, String)>,
}

impl SpecialTokens {
    /// The text of a `tokenizer_config.json` with these tokens.
    #[must_use]
    pub fn configuration(self) -> String {
        let added =
            self.control.into_iter().map(|(id, text)| (id.to_string(), json!({"content": text, "special": true})));
        let named = self.named.into_iter().map(|(name, text)| (name.to_owned(), Value::String(text)));
        let all = [("added_tokens_decoder".to_owned(), Value::Object(added.collect()))].into_iter().chain(named);
        Value::Object(Map::from_iter(all)).to_string()
    }
}
