//! Where a secret of the node is: a file, or a credential of its service.

use std::path::{Path, PathBuf};

use serde::Serialize;
use toml::de::DeValue;

use crate::kind::{Mismatch, absolute_path};

/// A file that only the node should read.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(untagged)]
pub enum SecretFile {
    /// A file, which the scheduler's user can read.
    Path(PathBuf),
    /// A credential that the service manager has put into `$CREDENTIALS_DIRECTORY`.
    Credential(String),
}

impl SecretFile {
    /// The file's path; `None` for a credential on a node without credentials.
    #[must_use]
    pub fn path(&self, credentials: Option<&Path>) -> Option<PathBuf> {
        match self {
            Self::Path(path) => Some(path.clone()),
            Self::Credential(name) => credentials.map(|folder| folder.join(name)),
        }
    }
}

pub(super) fn secret(value: &DeValue<'_>) -> Result<SecretFile, Mismatch> {
    let wrong = || Mismatch::expected("an absolute path, or the name of a credential (LoadCredential= of the service)");
    if let Ok(path) = absolute_path(value) {
        return Ok(SecretFile::Path(path));
    }
    let allowed = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'-' | b'.');
    let is_name = |text: &&str| (1..=255).contains(&text.len()) && !text.starts_with('.') && text.bytes().all(allowed);
    value.as_str().filter(is_name).map(|name| SecretFile::Credential(name.to_owned())).ok_or_else(wrong)
}
