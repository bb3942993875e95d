//! `<key>.json` beside an environment: how to use it, and what it was made from. It is written last, so an environment
//! with a record is complete, and one without is removed at the next start.

use super::interpreter::Interpreter;
use omni_node_protocol::id::EnvironmentKey;
use serde::{Deserialize, Serialize};
use std::fs::{self, File};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

/// A finished environment.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Record {
    /// The interpreter to run.
    pub python: PathBuf,
    /// Directories of the host that it needs at the same paths, read-only.
    pub mounts: Vec<PathBuf>,
    /// Which Python it is.
    pub interpreter: Interpreter,
    /// The text of `requirements.txt`, when packages were installed.
    pub(super) requirements: Option<String>,
    /// The text of `overrides.txt`.
    pub(super) overrides: Option<String>,
    /// Installed packages, "cowsay==6.1".
    pub(super) packages: Vec<String>,
    /// Program that built it, "uv 0.13.8".
    pub(super) builder: Option<String>,
    /// Time at which the build finished, in seconds since the Unix epoch.
    pub(super) built_unix: u64,
}

/// Where an environment's record is.
pub(super) fn path(environments: &Path, key: &EnvironmentKey) -> PathBuf {
    environments.join(format!("{key}.json"))
}

/// Reads a record; `None` when there is none, or none that this version understands.
pub(super) fn read(environments: &Path, key: &EnvironmentKey) -> Option<Record> {
    let text = fs::read(path(environments, key)).ok()?;
    let record: Record = serde_json::from_slice(&text).ok()?;
    record.python.exists().then_some(record)
}

/// Writes a record, complete or not at all.
pub(super) fn write(environments: &Path, key: &EnvironmentKey, record: &Record) -> io::Result<()> {
    let temporary = environments.join(format!(".{key}.json"));
    let mut file = File::options().write(true).create(true).truncate(true).mode(0o600).open(&temporary)?;
    file.write_all(&serde_json::to_vec_pretty(record)?)?;
    file.sync_all()?;
    fs::rename(temporary, path(environments, key))
}
