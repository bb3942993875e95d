//! `[model]`, `[runtime]` and `[weights]`: the kind of the model, its runtime and its weights.
//!
//! Read by [`super::Manifest::parse`]. Invariant: an entrypoint consists of Python identifiers.

use std::fmt;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use serde::{Serialize, Serializer};
use toml::de::DeValue;

use crate::kind::{Mismatch, absolute_path, choice, optional, parsed, string, url};
use crate::python::PythonVersion;
use crate::reader::Section;
use crate::source::{Source, is_file_path};

/// Longest entrypoint, in bytes.
const ENTRYPOINT_LIMIT: usize = 200;

/// `[model]`: what the model is.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct Model {
    /// Which APIs the model answers.
    pub kind: Kind,
    /// The handler.
    pub entrypoint: Entrypoint,
}

impl Model {
    pub(super) fn read(section: &mut Section<'_>) -> Self {
        let default = Self::default();
        let kinds = Kind::ALL.map(|kind| (kind.name(), kind));
        Self {
            kind: section.get("kind", choice(&kinds), default.kind),
            entrypoint: section.get(
                "entrypoint",
                parsed("module and function such as \"model:handle_request\""),
                default.entrypoint,
            ),
        }
    }
}

/// Which APIs a model answers. All answer the run API.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Kind {
    /// Any body that its handler accepts: the run API only.
    #[default]
    Custom,
    /// Chat and completions.
    TextGeneration,
    /// Vectors for texts.
    Embeddings,
    /// Order of documents by a query.
    Rerank,
    /// Transcriptions of sound.
    SpeechToText,
    /// Sound for texts.
    TextToSpeech,
    /// Images for texts.
    TextToImage,
}

impl Kind {
    /// All kinds.
    pub const ALL: [Self; 7] = [
        Self::Custom,
        Self::TextGeneration,
        Self::Embeddings,
        Self::Rerank,
        Self::SpeechToText,
        Self::TextToSpeech,
        Self::TextToImage,
    ];

    /// Name in a manifest.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Custom => "custom",
            Self::TextGeneration => "text-generation",
            Self::Embeddings => "embeddings",
            Self::Rerank => "rerank",
            Self::SpeechToText => "speech-to-text",
            Self::TextToSpeech => "text-to-speech",
            Self::TextToImage => "text-to-image",
        }
    }
}

/// Where the handler is: `module:function`, in the file as `"model:handle_request"`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entrypoint {
    module: String,
    function: String,
}

impl Entrypoint {
    /// The module to import, with dots for packages.
    #[must_use]
    pub fn module(&self) -> &str {
        &self.module
    }

    /// The function of that module to call.
    #[must_use]
    pub fn function(&self) -> &str {
        &self.function
    }
}

impl Default for Entrypoint {
    fn default() -> Self {
        Self { module: "model".to_owned(), function: "handle_request".to_owned() }
    }
}

/// Why a text is not an entrypoint.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum EntrypointError {
    /// No colon between module and function.
    #[error("it has no colon")]
    NoColon,
    /// Longer than names are.
    #[error("it has more than {ENTRYPOINT_LIMIT} bytes")]
    TooLong,
    /// A part that Python could not import.
    #[error("`{}` is not a Python name", .0.escape_debug())]
    Identifier(String),
}

impl FromStr for Entrypoint {
    type Err = EntrypointError;

    fn from_str(text: &str) -> Result<Self, EntrypointError> {
        if text.len() > ENTRYPOINT_LIMIT {
            return Err(EntrypointError::TooLong);
        }
        let (module, function) = text.split_once(':').ok_or(EntrypointError::NoColon)?;
        match module.split('.').chain([function]).find(|part| !is_identifier(part)) {
            Some(part) => Err(EntrypointError::Identifier(part.to_owned())),
            None => Ok(Self { module: module.to_owned(), function: function.to_owned() }),
        }
    }
}

pub(super) fn is_identifier(text: &str) -> bool {
    let mut bytes = text.bytes();
    let first = bytes.next().is_some_and(|byte| byte.is_ascii_alphabetic() || byte == b'_');
    first && bytes.all(|byte| byte.is_ascii_alphanumeric() || byte == b'_')
}

impl fmt::Display for Entrypoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.module, self.function)
    }
}

impl Serialize for Entrypoint {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

/// `[runtime]`: what runs the model.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct Runtime {
    /// The program around the model's code.
    pub engine: Engine,
    /// The Python release its environment is built with.
    pub python: PythonVersion,
    /// The interpreter of an existing environment, used instead of one that is built.
    #[serde(serialize_with = "or_empty")]
    pub interpreter: Option<PathBuf>,
    /// The arguments that start an OpenAI-compatible server.
    pub command: Vec<String>,
}

impl Default for Runtime {
    fn default() -> Self {
        Self { engine: Engine::Python, python: PythonVersion::DEFAULT, interpreter: None, command: Vec::new() }
    }
}

impl Runtime {
    pub(super) fn read(section: &mut Section<'_>) -> Self {
        let default = Self::default();
        Self {
            engine: section.get("engine", choice(&Engine::ALL), default.engine),
            python: section.get("python", parsed("a Python version such as \"3.11\""), default.python),
            interpreter: section.get("interpreter", optional(absolute_path), default.interpreter),
            command: section.list("command", string),
        }
    }
}

/// The program around a model's code.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub enum Engine {
    /// The `omni` package, which calls the entrypoint.
    #[serde(rename = "python")]
    Python,
    /// A server of the author's with the OpenAI API.
    #[serde(rename = "openai")]
    OpenAi,
    /// `omni-engine`, which reads the weights itself and runs no code of the author's.
    #[serde(rename = "native")]
    Native,
}

impl Engine {
    /// All, with their names in a manifest.
    pub const ALL: [(&'static str, Self); 3] =
        [("python", Self::Python), ("openai", Self::OpenAi), ("native", Self::Native)];
}

/// `[weights]`: files that are not in the model's directory.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct Weights {
    /// Where they come from: `s3://`, `hf://`, `https://`, `http://` or `file://`.
    #[serde(serialize_with = "or_empty")]
    pub source: Option<String>,
    /// SHA-256 of the one file that the source is, 64 hexadecimal digits.
    #[serde(serialize_with = "or_empty")]
    pub sha256: Option<String>,
    /// Files to fetch; empty: all.
    pub files: Vec<WeightsFile>,
}

/// File of weights, as a line of `sha256sum`: its SHA-256, two spaces, its path below the source; or the path alone.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WeightsFile {
    /// Path below the source.
    pub path: String,
    /// SHA-256, 64 lower-case hexadecimal digits.
    pub sha256: Option<String>,
}

/// A text that is no [`WeightsFile`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("its path is below the source, without `.`, `..`, empty parts and backslashes")]
pub struct WeightsFileError;

impl FromStr for WeightsFile {
    type Err = WeightsFileError;

    fn from_str(text: &str) -> Result<Self, WeightsFileError> {
        let line = text.split_once("  ").and_then(|(sha256, path)| Some((digest(sha256)?, path)));
        let (sha256, path) = line.map_or((None, text), |(sha256, path)| (Some(sha256), path));
        if is_file_path(path) { Ok(Self { path: path.to_owned(), sha256 }) } else { Err(WeightsFileError) }
    }
}

impl fmt::Display for WeightsFile {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.sha256 {
            Some(sha256) => write!(out, "{sha256}  {}", self.path),
            None => out.write_str(&self.path),
        }
    }
}

impl Serialize for WeightsFile {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl Weights {
    pub(super) fn read(section: &mut Section<'_>) -> Self {
        Self {
            source: section.get("source", optional(source), None),
            sha256: section.get("sha256", optional(sha256), None),
            files: section.list("files", parsed("a line of `sha256sum`, or a path such as \"model.safetensors\"")),
        }
    }

    /// The source that they are fetched from; `None` where they are in a folder of the node or in the model's directory.
    #[must_use]
    pub fn fetched(&self) -> Option<Source> {
        self.source.as_deref()?.parse().ok()
    }

    /// The folder of the node that they are in; it must be granted, see [`crate::node::Weights::granted`].
    #[must_use]
    pub fn folder(&self) -> Option<&Path> {
        self.source.as_deref()?.strip_prefix("file://").map(Path::new)
    }
}

/// An address; the path of a folder is plain, without `.`, `..` and escapes.
fn source(value: &DeValue<'_>) -> Result<String, Mismatch> {
    let source = url(&["s3://", "hf://", "https://", "http://", "file:///"])(value)?;
    let plain = |path: &str| !path.contains(['%', '?', '#']) && path.split('/').all(|part| part != "." && part != "..");
    match source.strip_prefix("file://") {
        Some(path) if !plain(path) => {
            Err(Mismatch::expected("`file://` and a plain absolute path, without `..` and `%`"))
        }
        Some(_) => Ok(source),
        None => match source.parse::<Source>() {
            Ok(parsed) => Ok(parsed.to_string()),
            Err(error) => Err(Mismatch::expected("an address of weights").hint(&error)),
        },
    }
}

fn sha256(value: &DeValue<'_>) -> Result<String, Mismatch> {
    let expected = || Mismatch::expected("the 64 hexadecimal digits that `sha256sum` prints");
    value.as_str().and_then(digest).ok_or_else(expected)
}

/// Digits of a SHA-256, in lower case; `None` for another text.
fn digest(text: &str) -> Option<String> {
    let is_digest = text.len() == 64 && text.bytes().all(|byte| byte.is_ascii_hexdigit());
    is_digest.then(|| text.to_ascii_lowercase())
}

/// Unset values are written as the empty text, since TOML has no null.
fn or_empty<T: Serialize, S: Serializer>(value: &Option<T>, serializer: S) -> Result<S::Ok, S::Error> {
    match value {
        Some(value) => value.serialize(serializer),
        None => serializer.serialize_str(""),
    }
}
