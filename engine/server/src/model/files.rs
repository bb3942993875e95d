//! Files beside a checkpoint's tensors: tokenizer, chat template, pooling.

use super::ModelError;
use omni_architectures::SentenceTransformer;
use omni_checkpoint::Checkpoint;
use omni_gguf::{CHAT_TEMPLATE, NAMED, SpecialTokens};
use omni_tokenizer::{Tokenizer, TokenizerConfig, TokenizerError};
use serde_json::Value;
use std::fs::{self, File};
use std::io::{ErrorKind, Read};
use std::path::Path;

/// Largest of these files, in bytes: vocabularies of a quarter of a million tokens have some 35 MB.
const MOST: u64 = 256 << 20;

/// Texts of the files that are there. A GGUF file has all of this in itself.
#[derive(Default)]
pub(super) struct Files {
    tokenizer: Option<String>,
    tokenizer_config: Option<String>,
    generation_config: Option<String>,
    chat_template: Option<String>,
    modules: Option<String>,
    pooling: Option<String>,
}

impl Files {
    /// Reads the files of a directory.
    pub(super) fn read(path: &Path) -> Result<Self, ModelError> {
        if !path.is_dir() {
            return Ok(Self::default());
        }
        let read = |name: &str| text(&path.join(name));
        Ok(Self {
            tokenizer: read("tokenizer.json")?,
            tokenizer_config: read("tokenizer_config.json")?,
            generation_config: read("generation_config.json")?,
            chat_template: read("chat_template.jinja")?,
            modules: read("modules.json")?,
            pooling: read("1_Pooling/config.json")?,
        })
    }

    pub(super) fn sentence(&self) -> Option<SentenceTransformer<'_>> {
        let (modules, pooling) = (self.modules.as_deref(), self.pooling.as_deref());
        (modules.is_some() || pooling.is_some()).then_some(SentenceTransformer { modules, pooling })
    }

    pub(super) fn tokenizer(&self, checkpoint: &Checkpoint) -> Result<Tokenizer, ModelError> {
        if let Some(metadata) = checkpoint.gguf() {
            return Ok(Tokenizer::from_gguf(metadata)?);
        }
        let Some(text) = &self.tokenizer else {
            let reason = "it is missing: a model needs it beside its safetensors".to_owned();
            return Err(ModelError::File { file: "tokenizer.json".to_owned(), reason });
        };
        let (tokenizer, generation) = (self.tokenizer_config.as_deref(), self.generation_config.as_deref());
        let config = TokenizerConfig::read(tokenizer, generation, checkpoint.config())?;
        Ok(Tokenizer::from_json(text, &config).map_err(|error: TokenizerError| error)?)
    }

    /// Template of a file of its own, or else that inside of a GGUF file. A `tokenizer_config.json` with a template comes
    /// before the latter.
    pub(super) fn chat_template(&self, checkpoint: &Checkpoint) -> Option<String> {
        let inside = || checkpoint.gguf()?.text(CHAT_TEMPLATE).map(str::to_owned);
        let is_configured = || self.tokenizer_config.as_deref().is_some_and(has_template);
        self.chat_template.clone().or_else(|| inside().filter(|_| !is_configured()))
    }

    /// `tokenizer_config.json`: the template's special tokens. Of a GGUF file without one the same, from its vocabulary.
    pub(super) fn tokenizer_config(&self, checkpoint: &Checkpoint, tokenizer: &Tokenizer) -> Option<String> {
        let Some(metadata) = checkpoint.gguf().filter(|_| self.tokenizer_config.is_none()) else {
            return self.tokenizer_config.clone();
        };
        let text = |id: u32| {
            let text = std::str::from_utf8(tokenizer.token_bytes(id)?).ok()?;
            Some(text.to_owned())
        };
        let all = 0..u32::try_from(tokenizer.vocabulary()).unwrap_or(u32::MAX);
        let control = all.filter(|id| tokenizer.is_special(*id)).filter_map(|id| Some((id, text(id)?))).collect();
        let named = NAMED.into_iter().filter_map(|(name, key)| {
            let id = metadata.u64(key).and_then(|id| u32::try_from(id).ok());
            Some((name, id.and_then(text)?))
        });
        Some(SpecialTokens { named: named.collect(), control }.configuration())
    }
}

/// Text of the chat template of a folder, or of the file that holds it; `None`: there is none.
pub(crate) fn printed_template(folder: &Path) -> Result<Option<String>, ModelError> {
    let template = text(&folder.join("chat_template.jinja"))?;
    let config = if template.is_none() { text(&folder.join("tokenizer_config.json"))? } else { None };
    Ok(template.or(config.filter(|config| has_template(config))))
}

/// Returns true if a `tokenizer_config.json` has a chat template.
pub(super) fn has_template(config: &str) -> bool {
    let config = serde_json::from_str::<Value>(config);
    config.is_ok_and(|config| config.get("chat_template").is_some_and(|template| !template.is_null()))
}

/// Text of a file, `None` if there is none.
fn text(path: &Path) -> Result<Option<String>, ModelError> {
    let failed = |reason: String| ModelError::File { file: path.display().to_string(), reason };
    // To open a pipe waits for one who writes to it.
    if fs::metadata(path).is_ok_and(|metadata| !metadata.is_file()) {
        return Err(failed("it is no regular file".to_owned()));
    }
    let file = match File::open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(failed(error.to_string())),
    };
    let mut text = String::new();
    file.take(MOST + 1).read_to_string(&mut text).map_err(|error| failed(error.to_string()))?;
    if text.len() as u64 > MOST {
        return Err(failed(format!("it is larger than {} MiB", MOST >> 20)));
    }
    Ok(Some(text))
}

#[cfg(test)]
mod tests {
    use super::*;
    use omni_checkpoint::testing::{GgufType, GgufWriter};

    #[test]
    fn what_is_no_file_is_not_opened() {
        let folder = tempfile::tempdir().unwrap();
        let pipe = folder.path().join("chat_template.jinja");
        nix::unistd::mkfifo(&pipe, nix::sys::stat::Mode::S_IRUSR).unwrap();
        let error = text(&pipe).unwrap_err().to_string();
        assert!(error.contains("chat_template.jinja") && error.contains("no regular file"), "{error}");
        assert!(text(folder.path()).is_err(), "a folder");
    }

    #[test]
    fn a_template_of_a_file_comes_before_that_inside_of_gguf() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("model.gguf");
        let mut writer = GgufWriter::new();
        writer.text("general.architecture", "llama").text("tokenizer.chat_template", "inside");
        writer.tensor("w", &[32], GgufType::F32, &[0.0; 32]).write(&file).unwrap();
        let checkpoint = Checkpoint::open(folder.path()).unwrap();
        let template = |jinja: Option<&str>, config: Option<&str>| {
            let (chat_template, tokenizer_config) = (jinja.map(str::to_owned), config.map(str::to_owned));
            Files { chat_template, tokenizer_config, ..Files::default() }.chat_template(&checkpoint)
        };
        let configured = Some(r#"{"chat_template": "configured"}"#);
        assert_eq!(template(None, None).as_deref(), Some("inside"));
        assert_eq!(template(None, Some("{}")).as_deref(), Some("inside"));
        assert_eq!(template(None, configured), None);
        assert_eq!(template(Some("file"), configured).as_deref(), Some("file"));
    }
}
