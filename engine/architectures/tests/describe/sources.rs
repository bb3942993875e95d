//! Sources of tests: tensors that are there by name, keys of GGUF.

use omni_architectures::{ConfigError, Configuration, Metadata, SentenceTransformer, Source, Tensors, Value, describe};
use omni_kernels::model::ModelSpec;
use std::collections::BTreeMap;

#[derive(Default)]
pub(crate) struct Files {
    shapes: BTreeMap<String, Vec<usize>>,
    vectors: BTreeMap<String, Vec<f32>>,
}

impl Files {
    pub(crate) fn tensor(mut self, name: &str, shape: &[usize]) -> Self {
        self.shapes.insert(name.to_owned(), shape.to_vec());
        self
    }

    pub(crate) fn vector(mut self, name: &str, values: Vec<f32>) -> Self {
        self.shapes.insert(name.to_owned(), vec![values.len()]);
        self.vectors.insert(name.to_owned(), values);
        self
    }
}

impl Tensors for Files {
    fn shape(&self, name: &str) -> Option<&[usize]> {
        self.shapes.get(name).map(Vec::as_slice)
    }

    fn vector(&self, name: &str) -> Result<Vec<f32>, String> {
        self.vectors.get(name).cloned().ok_or_else(|| "there is none".to_owned())
    }
}

/// Keys of GGUF, written as JSON: whole numbers, numbers, flags, texts, and anything else for another type.
pub(crate) struct Keys(pub(crate) serde_json::Value);

impl Metadata for Keys {
    fn value(&self, key: &str) -> Option<Value<'_>> {
        let value = self.0.get(key)?;
        Some(match value {
            serde_json::Value::Number(number) => match number.as_u64() {
                Some(whole) => Value::Unsigned(whole),
                None => Value::Number(number.as_f64()? as f32),
            },
            serde_json::Value::Bool(flag) => Value::Flag(*flag),
            serde_json::Value::String(text) => Value::Text(text),
            _ => Value::Other,
        })
    }
}

pub(crate) fn from_json(text: &str, files: &Files) -> Result<ModelSpec, ConfigError> {
    describe(&Source { configuration: Configuration::Json(text), tensors: files, sentence: None })
}

pub(crate) fn from_json_with(
    text: &str,
    files: &Files,
    sentence: SentenceTransformer<'_>,
) -> Result<ModelSpec, ConfigError> {
    describe(&Source { configuration: Configuration::Json(text), tensors: files, sentence: Some(sentence) })
}

pub(crate) fn from_keys(keys: &Keys, files: &Files) -> Result<ModelSpec, ConfigError> {
    describe(&Source { configuration: Configuration::Gguf(keys), tensors: files, sentence: None })
}

/// Text of a configuration with fields changed; null removes nothing, but is written.
pub(crate) fn with(text: &str, changes: &serde_json::Value) -> String {
    let mut config: serde_json::Value = serde_json::from_str(text).expect("a test's configuration is JSON");
    for (name, value) in changes.as_object().expect("changes are an object") {
        config[name] = value.clone();
    }
    config.to_string()
}
