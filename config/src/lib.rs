//! Configuration that people write, as checked values: model manifests (`omni.toml`), the node's configuration, model
//! names; and the escaping of foreign text for display ([`Foreign`]).
//!
//! Called by the scheduler (manifests, which the launcher sends it as text), by the launcher (the node's configuration)
//! and by `omnictl` (`check`, `show --effective`). Text in, values out: nothing here opens a file, asks for the time or
//! looks at the machine.
//!
//! Invariants: a parsed value is within its bounds, and its users need not check again; unknown keys are errors; an
//! error names the key, its line, and what to write instead.

mod error;
mod foreign;
mod kind;
mod python;
mod reader;

pub mod duration;
pub mod host;
pub mod manifest;
pub mod models;
pub mod name;
pub mod node;
mod not_a_model;
pub mod requirements;
pub mod size;
pub mod source;
pub mod tokens;
pub mod url_path;

pub use error::{Problem, Problems};
pub use foreign::Foreign;
pub use manifest::{Manifest, ManifestError};
pub use models::{Models, NoSingleModel, SingleModel};
pub use name::{ModelName, NameError};
pub use node::{GpuUuid, NodeConfig, NodeConfigError};
pub use not_a_model::{MODEL_FILES, NotAModel};
pub use python::PythonVersion;
pub use size::ByteSize;
pub use source::Source;
