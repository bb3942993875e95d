//! Input of a description: a checkpoint's configuration, and names and shapes of its tensors.

use omni_checkpoint::{Checkpoint, gguf};

/// Checkpoint, as far as its description needs it.
#[derive(Clone, Copy)]
pub struct Source<'a> {
    /// Configuration.
    pub configuration: Configuration<'a>,
    /// Tensors.
    pub tensors: &'a dyn Tensors,
    /// Files of sentence-transformers, where they are present: the model makes embeddings.
    pub sentence: Option<SentenceTransformer<'a>>,
}

impl<'a> Source<'a> {
    /// Source of an opened checkpoint.
    ///
    /// # Errors
    /// The checkpoint has no configuration.
    pub fn of(checkpoint: &'a Checkpoint) -> Result<Self, crate::ConfigError> {
        let configuration = match (checkpoint.gguf(), checkpoint.config()) {
            (Some(metadata), _) => Configuration::Gguf(metadata),
            (None, Some(text)) => Configuration::Json(text),
            (None, None) => return Err(crate::ConfigError::Missing { field: "config.json".to_owned() }),
        };
        Ok(Self { configuration, tensors: checkpoint, sentence: None })
    }
}

/// Configuration in one of its two forms.
#[derive(Clone, Copy)]
pub enum Configuration<'a> {
    /// Text of `config.json`.
    Json(&'a str),
    /// Metadata of a GGUF file.
    Gguf(&'a dyn Metadata),
}

/// Files of sentence-transformers beside a model.
#[derive(Debug, Clone, Copy, Default)]
pub struct SentenceTransformer<'a> {
    /// Text of `modules.json`.
    pub modules: Option<&'a str>,
    /// Text of `1_Pooling/config.json`.
    pub pooling: Option<&'a str>,
}

/// Tensors of a checkpoint.
pub trait Tensors {
    /// Shape of a tensor, outermost first; `None`: there is no such tensor.
    fn shape(&self, name: &str) -> Option<&[usize]>;

    /// Values of a vector.
    ///
    /// # Errors
    /// There is no such vector.
    fn vector(&self, name: &str) -> Result<Vec<f32>, String>;
}

impl Tensors for Checkpoint {
    fn shape(&self, name: &str) -> Option<&[usize]> {
        Checkpoint::shape(self, name)
    }

    fn vector(&self, name: &str) -> Result<Vec<f32>, String> {
        Checkpoint::vector(self, name).map_err(|error| error.to_string())
    }
}

/// Value of a key of GGUF's metadata.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Value<'a> {
    /// Whole number of any width that is not negative.
    Unsigned(u64),
    /// Number.
    Number(f32),
    /// Flag.
    Flag(bool),
    /// Text.
    Text(&'a str),
    /// Array, or a negative number.
    Other,
}

/// Keys and values of a GGUF file.
pub trait Metadata {
    /// Value of a key.
    fn value(&self, key: &str) -> Option<Value<'_>>;
}

impl Metadata for gguf::Metadata {
    fn value(&self, key: &str) -> Option<Value<'_>> {
        let value = self.u64(key).map(Value::Unsigned).or_else(|| self.f32(key).map(Value::Number));
        let value = value.or_else(|| self.bool(key).map(Value::Flag)).or_else(|| self.text(key).map(Value::Text));
        value.or_else(|| self.has(key).then_some(Value::Other))
    }
}
