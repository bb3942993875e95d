//! SHA-256 as text: the name of a file in the cache, of a set of files, and of an order.

use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};
use std::fmt::{self, Display, Formatter, Write as _};

/// SHA-256 as 64 lower-case hexadecimal digits; safe as one component of a path.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Digest(String);

/// A text that is no [`Digest`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("it is not the 64 lower-case hexadecimal digits of a SHA-256")]
pub struct BadDigest;

impl Digest {
    /// Checks the form.
    ///
    /// # Errors
    /// The text has another length or another character.
    pub fn parse(text: &str) -> Result<Self, BadDigest> {
        let is_hex = |byte: u8| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte);
        if text.len() == 64 && text.bytes().all(is_hex) { Ok(Self(text.to_owned())) } else { Err(BadDigest) }
    }

    /// The digest that a hasher has computed.
    #[must_use]
    pub fn of(hasher: Sha256) -> Self {
        let mut text = String::with_capacity(64);
        for byte in hasher.finalize() {
            let _ = write!(text, "{byte:02x}"); // a String takes everything
        }
        Self(text)
    }

    /// The digest as text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl TryFrom<String> for Digest {
    type Error = BadDigest;

    fn try_from(text: String) -> Result<Self, BadDigest> {
        Self::parse(&text)
    }
}

impl From<Digest> for String {
    fn from(digest: Digest) -> Self {
        digest.0
    }
}

impl Display for Digest {
    fn fmt(&self, out: &mut Formatter<'_>) -> fmt::Result {
        out.write_str(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_exact_form_is_taken() {
        let empty = Digest::of(Sha256::new());
        assert_eq!(empty.as_str(), "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
        assert_eq!(Digest::parse(empty.as_str()), Ok(empty));
        for bad in ["", "../../etc/passwd", &"A".repeat(64), &"a".repeat(63), &"a".repeat(65)] {
            assert_eq!(Digest::parse(bad), Err(BadDigest), "{bad}");
        }
    }
}
