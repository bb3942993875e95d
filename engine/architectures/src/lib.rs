//! Architectures of models as data: configuration in, description of the layers with the names of their tensors out.
//!
//! ```text
//!  config.json ─┐
//!               ├─▶ Reader ──▶ registry ──▶ Architecture (a table) ──▶ decoder or encoder ──▶ check ──▶ ModelSpec
//!  GGUF's keys ─┘
//! ```
//!
//! | module | contents |
//! | --- | --- |
//! | `models` | one file for each architecture: names of its fields and tensors, and what it does otherwise than others |
//! | `architecture` | form of such a table |
//! | `names` | names of tensors that most architectures share |
//! | `reader` | typed fields of both kinds of configuration, with their bounds |
//! | `decoder`, `encoder` | layers from a table and a configuration |
//! | `rope` | frequencies of rotary position embeddings, with their scalings |
//! | `pooling` | embeddings by the files of sentence-transformers |
//! | `check` | widths that fit together |
//! | `limits` | largest supported sizes |
//! | `source` | configuration and tensors of a checkpoint |
//!
//! A new architecture is one file in `models` and its line in the list there.
#![forbid(unsafe_code)]

mod architecture;
mod check;
mod decoder;
mod encoder;
mod error;
mod limits;
mod models;
mod names;
mod pooling;
mod reader;
mod rope;
mod source;
mod tensors;

pub use check::check;
pub use error::ConfigError;
pub use source::{Configuration, Metadata, SentenceTransformer, Source, Tensors, Value};

use architecture::{Architecture, Kind};
use error::shorten;
use omni_kernels::model::ModelSpec;
use reader::Reader;

/// Describes the model of a checkpoint.
///
/// # Errors
/// The architecture or a field of the configuration is not understood; the message names it.
pub fn describe(source: &Source<'_>) -> Result<ModelSpec, ConfigError> {
    let parsed = reader::parse(&source.configuration)?;
    let root = Reader::new(&parsed);
    let architecture = architecture(&root)?;
    let reader = root.enter(architecture);
    reader.refuse_unsupported(architecture)?;
    let spec = match &architecture.kind {
        Kind::Decoder(decoder) => decoder::describe(architecture, decoder, &reader, source)?,
        Kind::Encoder(encoder) => encoder::describe(architecture, encoder, &reader, source)?,
    };
    check(&spec)?;
    Ok(spec)
}

/// Names of the supported architectures, as messages and documents list them.
pub fn supported() -> impl Iterator<Item = &'static str> {
    models::ALL.iter().map(|architecture| architecture.name)
}

fn architecture(root: &Reader<'_>) -> Result<&'static Architecture, ConfigError> {
    let name = root.architecture()?;
    models::ALL.iter().copied().find(|architecture| architecture.is_called(&name)).ok_or_else(|| {
        ConfigError::Architecture { name: shorten(&name), supported: supported().collect::<Vec<_>>().join(", ") }
    })
}
