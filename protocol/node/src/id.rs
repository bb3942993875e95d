//! Identifiers that cross privilege boundaries and become file names: parsed strictly, never repaired.

use serde::{Deserialize, Serialize};
use std::fmt;

/// An identifier was not of its form.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{text}` is not {expected}")]
pub struct BadId {
    text: String,
    expected: &'static str,
}

macro_rules! hex_id {
    ($(#[$doc:meta])* $name:ident, $len:expr, $expected:literal) => {
        $(#[$doc])*
        #[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
        #[serde(try_from = "String", into = "String")]
        pub struct $name(String);

        impl $name {
            /// Checks the form: lower-case hexadecimal digits of the fixed length.
            ///
            /// # Errors
            /// [`BadId`] when the text has another length or another character.
            pub fn parse(text: &str) -> Result<Self, BadId> {
                let hex = |b: u8| b.is_ascii_digit() || (b'a'..=b'f').contains(&b);
                if text.len() == $len && text.bytes().all(hex) {
                    Ok(Self(text.to_owned()))
                } else {
                    let shown = text.chars().take(80).collect();
                    Err(BadId { text: shown, expected: $expected })
                }
            }

            /// The identifier as text; safe as one component of a path.
            #[must_use]
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl TryFrom<String> for $name {
            type Error = BadId;
            fn try_from(text: String) -> Result<Self, BadId> {
                Self::parse(&text)
            }
        }

        impl From<$name> for String {
            fn from(id: $name) -> String {
                id.0
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }
    };
}

hex_id!(
    /// Id of an instance: twelve hexadecimal digits, made by the scheduler, unique on the node.
    InstanceId,
    12,
    "an instance id (12 hexadecimal digits)"
);
hex_id!(
    /// SHA-256 over the content of a model directory: the name of its snapshot and its version.
    SnapshotDigest,
    64,
    "a snapshot digest (64 hexadecimal digits)"
);
hex_id!(
    /// SHA-256 over an environment's inputs: interpreter, requirements, overrides, index.
    EnvironmentKey,
    64,
    "an environment key (64 hexadecimal digits)"
);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_exact_form_is_taken() {
        assert!(InstanceId::parse("0123456789ab").is_ok());
        for bad in ["", "0123456789a", "0123456789abc", "0123456789AB", "../../etc/pw", "0123456789a/", "0123456789a\0"]
        {
            assert!(InstanceId::parse(bad).is_err(), "{bad:?}");
        }
        assert!(serde_json::from_str::<InstanceId>("\"../../etc/pw\"").is_err());
    }
}
