//! The manifest of a model, `omni.toml`: all keys, their defaults, and what this version does not support yet.
//!
//! Called by the scheduler for every snapshot of a model's directory, and by `omnictl check` and `show --effective`. A
//! directory without the file has [`Manifest::default`].
//!
//! Invariants: a parsed manifest is within all bounds and asks for nothing that this version lacks; written out with
//! all defaults it reads as the same manifest.
//!
//! Described for authors in `docs/manifest.md`, for editors in `config/schema/omni.schema.json`; tests keep the three
//! in step.

mod batching;
mod env;
mod generation;
mod logs;
mod program;
mod resources;
mod scaling;
mod support;
mod zygote;

use std::collections::BTreeMap;

use serde::Serialize;
use toml::de::DeValue;

pub use batching::{Batching, Cost};
pub use env::{EnvName, EnvNameError};
pub use generation::{AUTO, Capability, Chat, Generation, Render};
pub use logs::{LogLevel, Logs};
pub use program::{Engine, Entrypoint, EntrypointError, Kind, Model, Runtime, Weights, WeightsFile};
pub(crate) use resources::DEFAULT_PIDS;
pub use resources::{Access, GpuMode, Limits, Network, Resources};
pub use scaling::{Scaling, Timeouts};
pub use zygote::{Python, ZygoteUse};

use crate::error::Problems;
use crate::kind::{Mismatch, integer, string};
use crate::reader::Document;
use crate::size::ByteSize;

/// Memory of a zygote that imports none of the author's modules (a fifth of it was measured, environment hooks not
/// counted), and per fork its page tables and everything else the kernel charges to the forking process.
const ENGINE: u64 = 64 << 20;
const FORK: u64 = 512 << 10;

/// Most bytes that a manifest and the values it sets take in the messages of a start: seven eighths of a message. The
/// rest is for the node's own fields.
pub const MOST_SAID: usize = 112 << 10;

/// The version of the manifest's format that this crate reads.
pub const SCHEMA: u32 = 1;

/// Everything a model's author can configure about running the model.
///
/// Serialized, it is the effective manifest: every key with its value in force, sizes and durations as they are written
/// in the file.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Manifest {
    /// Version of the format: [`SCHEMA`].
    pub schema: u32,
    /// `[model]`: what the model is.
    pub model: Model,
    /// `[runtime]`: what runs it.
    pub runtime: Runtime,
    /// `[python]`: how instances begin, and from what.
    pub python: Python,
    /// `[generation]`: what a model that generates text can do.
    pub generation: Generation,
    /// `[chat]`: how conversations become prompts.
    pub chat: Chat,
    /// `[batching]`: requests that are served together.
    pub batching: Batching,
    /// `[weights]`: files that are not in the directory.
    pub weights: Weights,
    /// `[resources]`: what an instance may use.
    pub resources: Resources,
    /// `[scaling]`: how many instances, how busy, how long.
    pub scaling: Scaling,
    /// `[timeouts]`: how long anything may take.
    pub timeouts: Timeouts,
    /// `[limits]`: bodies and disk.
    pub limits: Limits,
    /// `[logs]`: what is in the model's log.
    pub logs: Logs,
    /// `[network]`: what an instance can reach.
    pub network: Network,
    /// `[env]`: variables set for the model.
    pub env: BTreeMap<EnvName, String>,
}

impl Default for Manifest {
    fn default() -> Self {
        Self {
            schema: SCHEMA,
            model: Model::default(),
            runtime: Runtime::default(),
            python: Python::default(),
            generation: Generation::default(),
            chat: Chat::default(),
            batching: Batching::default(),
            weights: Weights::default(),
            resources: Resources::default(),
            scaling: Scaling::default(),
            timeouts: Timeouts::default(),
            limits: Limits::default(),
            logs: Logs::default(),
            network: Network::default(),
            env: BTreeMap::new(),
        }
    }
}

/// An invalid manifest, with all its problems.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct ManifestError(pub Problems);

/// A manifest too large to start an instance with.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "omni.toml and its [env] are too large for an instance to be started with: {said} bytes as the node sends them, at most {MOST_SAID}"
)]
pub struct TooLarge {
    said: usize,
}

impl TooLarge {
    /// Advice for the author.
    pub const HINT: &str = "put long values into files of the model's directory";
}

impl Manifest {
    /// Reads the text of an `omni.toml`.
    ///
    /// # Errors
    ///
    /// The text is not TOML; a key is unknown, of the wrong type or beyond its bounds; keys contradict each other; or
    /// the manifest asks for something that this version cannot do. All problems are reported, each with its line.
    pub fn parse(text: &str) -> Result<Self, ManifestError> {
        let mut document = Document::parse(text).map_err(ManifestError)?;
        let manifest = document.read(|root| Self {
            schema: root.get("schema", schema, SCHEMA),
            model: root.section("model", Model::read),
            runtime: root.section("runtime", Runtime::read),
            python: root.section("python", Python::read),
            generation: root.section("generation", Generation::read),
            chat: root.section("chat", Chat::read),
            batching: root.section("batching", Batching::read),
            weights: root.section("weights", Weights::read),
            resources: root.section("resources", Resources::read),
            scaling: root.section("scaling", Scaling::read),
            timeouts: root.section("timeouts", Timeouts::read),
            limits: root.section("limits", Limits::read),
            logs: root.section("logs", Logs::read),
            network: root.section("network", Network::read),
            env: root.map("env", |name| name.parse().map_err(|error: EnvNameError| error.to_string()), string),
        });
        let contradictions = if document.is_clean() { support::contradictions(&manifest) } else { Vec::new() };
        for refusal in support::lacking(&manifest).into_iter().chain(contradictions) {
            document.refuse(refusal.section, refusal.key, refusal.reason);
        }
        document.finish(manifest).map_err(ManifestError)
    }

    /// Checks that the manifest fits into the messages of a start: the longest message has the file's text and, once
    /// more, the values the text sets, and JSON escapes both.
    ///
    /// # Errors
    ///
    /// The manifest takes more than [`MOST_SAID`].
    pub fn check_sendable(&self, text: &str) -> Result<(), TooLarge> {
        let said = serde_json::to_vec(&(text, self)).map_or(usize::MAX, |said| said.len());
        if said > MOST_SAID { Err(TooLarge { said }) } else { Ok(()) }
    }

    /// Memory limit of the zygote that instances are forked from; `None` without a zygote. A zygote that imports the
    /// author's modules is as large as an instance; any other runs our code alone, but is charged the kernel's part of
    /// its forks. GPU models have no zygote: it would share driver state that no fork survives.
    #[must_use]
    pub fn zygote_memory(&self) -> Option<ByteSize> {
        let imports = !self.python.preload.is_empty();
        let has_one = match self.python.zygote {
            ZygoteUse::On => true,
            ZygoteUse::Off => false,
            ZygoteUse::Auto => {
                let gains = imports || self.scaling.max_instances > 1;
                gains && self.resources.gpu_memory.bytes() == 0 && self.runtime.engine == Engine::Python
            }
        };
        let instance = self.resources.memory.bytes();
        let small = ENGINE + u64::from(self.scaling.max_instances) * FORK;
        has_one.then_some(ByteSize::from_bytes(if imports { instance } else { instance.min(small) }))
    }

    /// Parameters and inputs that the model honours beyond those that every model does.
    #[must_use]
    pub fn honours(&self) -> &[Capability] {
        match self.runtime.engine {
            Engine::Native => &Capability::NATIVE,
            Engine::Python | Engine::OpenAi => &self.generation.honours,
        }
    }

    /// Requests that an instance has at once, at most.
    #[must_use]
    pub fn requests_at_once(&self) -> u32 {
        self.batching.bounds().map_or(self.scaling.concurrency, |(requests, _)| requests)
    }

    /// Requests for which an instance is enough: more call for a further one.
    #[must_use]
    pub fn requests_per_instance(&self) -> u32 {
        match self.batching.cost {
            Cost::Requests => self.requests_at_once(),
            Cost::Inputs | Cost::Tokens => self.scaling.concurrency,
        }
    }

    /// The effective manifest as TOML: every key with its value in force.
    ///
    /// # Errors
    ///
    /// A value put in by hand, not by [`Manifest::parse`], cannot be written in TOML, such as a path that is not UTF-8.
    pub fn to_toml(&self) -> Result<String, toml::ser::Error> {
        toml::to_string(self)
    }
}

fn schema(value: &DeValue<'_>) -> Result<u32, Mismatch> {
    if integer(value) == Some(SCHEMA.into()) {
        return Ok(SCHEMA);
    }
    Err(Mismatch::expected(format!("{SCHEMA}, the only version of the manifest's format that is known here")))
}
