//! Names of environment variables that a model may set.
//!
//! Read by [`super::Manifest::parse`]; set by the worker.
//!
//! Invariants: a shell could use the name, and it configures neither the node's interface to the model, nor its
//! interpreter, nor the dynamic linker.

use std::fmt;
use std::str::FromStr;

use serde::Serialize;

/// Names that the node sets itself: a model finds its home, its files, its environment's packages and its GPU by them.
const OWNED: [&str; 14] = [
    "CUDA_CACHE_PATH",
    "CUDA_DEVICE_ORDER",
    "CUDA_VISIBLE_DEVICES",
    "GLIBC_TUNABLES",
    "HOME",
    "LOGNAME",
    "PATH",
    "PWD",
    "PYTHONHOME",
    "PYTHONPATH",
    "SHELL",
    "TMPDIR",
    "USER",
    "VIRTUAL_ENV",
];

/// Prefixes of names that the node owns: its own, and the dynamic linker's.
const OWNED_PREFIXES: [&str; 2] = ["LD_", "OMNI_"];

/// Longest name, in bytes.
const NAME_LIMIT: usize = 128;

/// The checked name of an environment variable.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
pub struct EnvName(String);

impl EnvName {
    /// The name as text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl AsRef<str> for EnvName {
    fn as_ref(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for EnvName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Reasons why a model cannot set a variable of this name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum EnvNameError {
    /// Not a valid name.
    #[error("a variable's name has at most {NAME_LIMIT} letters, digits and `_`, and no digit first")]
    Form,
    /// A name the node sets itself.
    #[error("the node sets this variable itself: choose another name")]
    Owned,
}

impl FromStr for EnvName {
    type Err = EnvNameError;

    fn from_str(text: &str) -> Result<Self, EnvNameError> {
        let name = text.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_')
            && !text.starts_with(|first: char| first.is_ascii_digit());
        if !name || text.is_empty() || text.len() > NAME_LIMIT {
            return Err(EnvNameError::Form);
        }
        if OWNED.contains(&text) || OWNED_PREFIXES.iter().any(|prefix| text.starts_with(prefix)) {
            return Err(EnvNameError::Owned);
        }
        Ok(Self(text.to_owned()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn models_set_their_own_variables_and_not_the_nodes() {
        for text in ["HF_HUB_OFFLINE", "_x", "a1", "PATHS", "OMP_NUM_THREADS", "PYTHONUNBUFFERED", "TZ"] {
            assert_eq!(text.parse::<EnvName>().unwrap().as_str(), text);
        }
        for text in ["", "1A", "A-B", "A=B", "A B", "Ä", "A\0", &"A".repeat(NAME_LIMIT + 1)] {
            assert_eq!(text.parse::<EnvName>(), Err(EnvNameError::Form), "{text}");
        }
        for text in [
            "PATH",
            "HOME",
            "PYTHONPATH",
            "LD_PRELOAD",
            "LD_LIBRARY_PATH",
            "OMNI_GPU_LIMIT_BYTES",
            "OMNI_",
            "CUDA_VISIBLE_DEVICES",
        ] {
            assert_eq!(text.parse::<EnvName>(), Err(EnvNameError::Owned), "{text}");
        }
    }
}
