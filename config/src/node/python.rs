//! `[python]` of the node's configuration: where packages and interpreters come from, and the limits of a build.
//!
//! Read by [`super::NodeConfig::parse`]; applied by the launcher, which builds the models' environments.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use serde::Serialize;
use toml::de::DeValue;

use crate::kind::{Mismatch, absolute_path, boolean, duration, fraction, number, size, url};
use crate::python::{PythonVersion, PythonVersionError};
use crate::reader::Section;
use crate::size::ByteSize;

/// Where package indexes and mirrors can be.
const INDEX_SCHEMES: &[&str] = &["https://", "http://", "file:///"];

/// `[python]`: how environments are built.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct Python {
    /// The `uv` program; unset: the node's own.
    pub uv: Option<PathBuf>,
    /// The package index used instead of PyPI.
    pub index_url: Option<String>,
    /// Further indexes.
    pub extra_index_url: Vec<String>,
    /// Pages or directories of packages.
    pub find_links: Vec<String>,
    /// True if every model's packages must match the hashes of its `requirements.txt`, whatever its manifest says.
    pub require_hashes: bool,
    /// Interpreters by version; a version without one is looked for on the node.
    pub interpreters: BTreeMap<PythonVersion, PathBuf>,
    /// How long a build may take.
    #[serde(serialize_with = "crate::duration::serialize")]
    pub build_timeout: Duration,
    /// Memory limit of a build.
    pub build_memory: ByteSize,
    /// Processes and threads of a build.
    pub build_pids: u32,
    /// Processors that a build may use; unset: a quarter of the machine's.
    pub build_cpus: Option<f64>,
    /// Environments that are made at a time from wheels, and as many from source.
    pub builds: u32,
}

impl Default for Python {
    fn default() -> Self {
        Self {
            uv: None,
            index_url: None,
            extra_index_url: Vec::new(),
            find_links: Vec::new(),
            require_hashes: false,
            interpreters: BTreeMap::new(),
            build_timeout: Duration::from_mins(15),
            build_memory: ByteSize::from_gib(4),
            build_pids: 512,
            build_cpus: None,
            builds: 2,
        }
    }
}

impl Python {
    pub(super) fn read(section: &mut Section<'_>) -> Self {
        let default = Self::default();
        let version = |text: &str| text.parse().map_err(|error: PythonVersionError| error.to_string());
        let memory = size(ByteSize::from_mib(64)..=ByteSize::from_gib(64 << 10));
        let cpus = fraction(0.01..=1024.0);
        let index = url(INDEX_SCHEMES);
        Self {
            uv: section.get("uv", |value| absolute_path(value).map(Some), default.uv),
            index_url: section.get("index-url", |value| index(value).map(Some), default.index_url),
            extra_index_url: section.list("extra-index-url", &index),
            find_links: section.list("find-links", links),
            require_hashes: section.get("require-hashes", boolean, default.require_hashes),
            interpreters: section.map("interpreters", version, absolute_path),
            build_timeout: section.get("build-timeout", duration, default.build_timeout),
            build_memory: section.get("build-memory", memory, default.build_memory),
            build_pids: section.get("build-pids", number(1..=32_768), default.build_pids),
            build_cpus: section.get("build-cpus", |value| cpus(value).map(Some), default.build_cpus),
            builds: section.get("builds", number(1..=16), default.builds),
        }
    }
}

/// A page or a directory with packages, as `uv --find-links` takes it.
fn links(value: &DeValue<'_>) -> Result<String, Mismatch> {
    let path = absolute_path(value).ok().and_then(|path| path.to_str().map(str::to_owned));
    path.map_or_else(|| url(INDEX_SCHEMES)(value), Ok)
        .map_err(|wrong| Mismatch { expected: format!("{} or an absolute path", wrong.expected), ..wrong })
}
