//! Model in files: description, tokenizer, backend on the processor, and the memory that steps may take.

mod calls;
mod capacity;
mod draft;
mod files;
mod grammars;
mod shown;

pub(crate) use calls::{CallForm, Function};
pub use capacity::{CapacityError, Plan, plan};
pub use draft::{DraftError, load_draft, open_draft};
pub(crate) use files::printed_template;
pub use grammars::Grammars;
pub(crate) use shown::shown;

use omni_architectures::{ConfigError, Source, describe};
use omni_checkpoint::{Checkpoint, CheckpointError};
use omni_kernels::model::{ModelSpec, Output};
use omni_kernels::{Backend, BackendError};
use omni_kernels_cpu::{CacheFormat, CpuBackend, Level, Options, Weights};
use omni_kv_cache::{Digest, Root};
use omni_sampler::{ParameterError, Vocabulary};
use omni_tokenizer::{Tokenizer, TokenizerError};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Model whose files are open, without its weights in memory.
pub struct Model {
    /// Path that was opened.
    pub path: PathBuf,
    /// Description.
    pub spec: ModelSpec,
    /// Tokenizer.
    pub tokenizer: Arc<Tokenizer>,
    /// Token ids that can be sampled.
    pub vocabulary: Vocabulary,
    /// Chat template, where it is not in `tokenizer_config`.
    pub chat_template: Option<String>,
    /// `tokenizer_config.json`, or what a GGUF file says of it.
    pub tokenizer_config: Option<String>,
    checkpoint: Arc<Checkpoint>,
}

/// Reason why a model cannot be opened.
#[derive(Debug, thiserror::Error)]
pub enum ModelError {
    /// Tensors that cannot be read.
    #[error(transparent)]
    Checkpoint(#[from] CheckpointError),
    /// A file beside them cannot be read.
    #[error("{file} cannot be read: {reason}")]
    File {
        /// File.
        file: String,
        /// Cause.
        reason: String,
    },
    /// Architecture that is not understood.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// Tokenizer that is not understood.
    #[error(transparent)]
    Tokenizer(#[from] TokenizerError),
    /// Vocabulary that cannot be sampled from.
    #[error(transparent)]
    Vocabulary(#[from] ParameterError),
    /// Weights that cannot be loaded.
    #[error(transparent)]
    Backend(#[from] BackendError),
}

impl Model {
    /// Opens a directory with safetensors, or a GGUF file.
    ///
    /// # Errors
    /// A file cannot be read or is not understood; the message names it.
    pub fn open(path: &Path) -> Result<Self, ModelError> {
        let checkpoint = Checkpoint::open(path)?;
        let files = files::Files::read(path)?;
        let source = Source { sentence: files.sentence(), ..Source::of(&checkpoint)? };
        let spec = describe(&source)?;
        let tokenizer = files.tokenizer(&checkpoint)?;
        let width = spec.vocabulary.min(tokenizer.vocabulary());
        let ends: Vec<u32> = tokenizer.end_tokens().iter().copied().filter(|id| (*id as usize) < width).collect();
        let vocabulary = Vocabulary::new(width, &ends)?;
        Ok(Self {
            path: path.to_owned(),
            spec,
            vocabulary,
            chat_template: files.chat_template(&checkpoint),
            tokenizer_config: files.tokenizer_config(&checkpoint, &tokenizer),
            tokenizer: Arc::new(tokenizer),
            checkpoint: Arc::new(checkpoint),
        })
    }

    /// Returns true if the model makes vectors instead of text.
    #[must_use]
    pub fn embeds(&self) -> bool {
        matches!(self.spec.output, Output::Embedding { .. })
    }

    /// Text of the chat template, or of the file that holds it; `None`: there is none.
    pub(crate) fn printed_template(&self) -> Option<&str> {
        let configured = self.tokenizer_config.as_deref().filter(|config| files::has_template(config));
        self.chat_template.as_deref().or(configured)
    }

    /// Loads the weights. `progress` is told of the bytes read so far, and of all.
    ///
    /// # Errors
    /// A tensor does not fit the description, or there is no memory.
    pub fn load(&self, options: &LoadOptions, progress: &mut dyn FnMut(u64, u64)) -> Result<CpuBackend, ModelError> {
        let cache = if options.weights == Weights::F32 { CacheFormat::F32 } else { CacheFormat::Bf16 };
        let options =
            Options { weights: options.weights, level: options.level, threads: options.threads.max(1), cache };
        Ok(CpuBackend::load(&self.spec, Arc::clone(&self.checkpoint), options, progress)?)
    }

    /// Root of the prefix cache of this model in a backend.
    #[must_use]
    pub fn root(&self, backend: &impl Backend, salt: Option<&str>) -> Digest {
        let weights = self.path.to_string_lossy();
        Root { weights: &weights, adapter: None, salt, format: &backend.facts().name }.digest()
    }
}

/// Form in which weights are loaded.
#[derive(Debug, Clone, Copy)]
pub struct LoadOptions {
    /// Form of the weights in memory.
    pub weights: Weights,
    /// Instructions of the processor.
    pub level: Level,
    /// Threads.
    pub threads: usize,
}

impl Default for LoadOptions {
    /// Weights as stored, on all processors that the process may use.
    fn default() -> Self {
        let threads = crate::memory::processors();
        Self { weights: Weights::AsStored, level: Level::detect(), threads }
    }
}
