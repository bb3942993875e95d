//! Reading what only the node should read: a file, or a credential of its service.
//!
//! Called by [`crate::tokens`] and [`crate::tls`], with the rights of the user who reads it again at the next reload. What
//! always holds: what is in such a file is in no message.

use omni_config::node::SecretFile;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

/// The longest file, in bytes; of longer ones this is the beginning, which their parsers refuse.
const LONGEST_FILE: u64 = 1024 * 1024;

/// Digits of a digest that are told when it changes.
const TOLD: usize = 8;

/// A secret cannot be had.
#[derive(Debug, thiserror::Error)]
pub enum SecretError {
    /// The file cannot be read.
    #[error("cannot read the {what} in {}: user {user} must be able to", path.display())]
    Read {
        /// What should be there.
        what: &'static str,
        /// Where.
        path: PathBuf,
        /// Who tried.
        user: u32,
        /// Why.
        source: io::Error,
    },
    /// The service manager gave no credentials.
    #[error(
        "`{0}` is a credential, and the service has none: add LoadCredential={0}:PATH to the unit, or name an absolute path"
    )]
    NoCredentials(String),
}

/// The bytes of `file`, in which there should be `what`, and its path for messages about them.
///
/// # Errors
/// [`SecretError`]
pub fn read(what: &'static str, file: &SecretFile) -> Result<(PathBuf, Vec<u8>), SecretError> {
    let folder = std::env::var_os("CREDENTIALS_DIRECTORY");
    let path = match (file.path(folder.as_deref().map(Path::new)), file) {
        (Some(path), _) => path,
        (None, SecretFile::Credential(name)) => return Err(SecretError::NoCredentials(name.clone())),
        (None, SecretFile::Path(path)) => path.clone(),
    };
    let mut bytes = Vec::new();
    let read = std::fs::File::open(&path).and_then(|file| file.take(LONGEST_FILE).read_to_end(&mut bytes));
    let user = nix::unistd::geteuid().as_raw();
    match read {
        Ok(_) => Ok((path, bytes)),
        Err(source) => Err(SecretError::Read { what, path, user, source }),
    }
}

/// How the beginning of a digest is told, to who compares two.
#[must_use]
pub fn told(sha256: &[u8]) -> String {
    let digits: String = sha256.iter().take(TOLD / 2).map(|byte| format!("{byte:02x}")).collect();
    format!("{digits}…")
}
