//! Reading of secrets: tokens and private keys, from a file or a credential of the service manager.
//!
//! Files are read with the rights of the user that reads them again at the next reload. Invariant: no message repeats the content.

use omni_config::node::SecretFile;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

/// Bytes that are read of a file at most: its parser refuses the beginning of a longer one.
const LONGEST_FILE: u64 = 1024 * 1024;

/// Hexadecimal digits of a digest that are shown.
const SHOWN_DIGITS: usize = 8;

/// A secret that cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum SecretError {
    /// Unreadable file.
    #[error("cannot read the {what} in {}: user {user} must be able to", path.display())]
    Read {
        /// Kind of secret.
        what: &'static str,
        /// The file.
        path: PathBuf,
        /// User of this process.
        user: u32,
        /// Cause.
        source: io::Error,
    },
    /// Credential without a directory of credentials.
    #[error(
        "`{0}` is a credential, and the service has none: add LoadCredential={0}:PATH to the unit, or name an absolute path"
    )]
    NoCredentials(String),
}

/// Reads `file`, which should contain `what`: returns its path, for messages, and its content.
///
/// # Errors
/// The file cannot be read, or there are no credentials.
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

/// The beginning of a digest: enough to see that a secret has changed.
#[must_use]
pub fn short_digest(sha256: &[u8]) -> String {
    let digits: String = sha256.iter().take(SHOWN_DIGITS / 2).map(|byte| format!("{byte:02x}")).collect();
    format!("{digits}…")
}
